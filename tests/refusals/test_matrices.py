"""Matrices that a function of md.linalg, md.fft or md.analytics cannot take.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends import cuda
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DeviceError,
    DTypeError,
    NumericError,
    OutOfMemoryError,
    ShapeError,
)
from tests.refusals.cases import PythonCase, check_in_python

la = md.linalg
I3, ONES = np.eye(3), np.ones((3, 3))
INDEFINITE = np.array([[1.0, 2, 0], [2, 1, 0], [0, 0, 1]])
NAN, INF = I3.copy(), I3.copy()
NAN[0, 1], INF[1, 0] = np.nan, np.inf
SINGULAR = "singular: pivot 2 of 3 is 0; md.linalg.lstsq or pinv take such matrices"
MINOR = (
    "is not positive definite: its leading minor of order 2 of 3 is not positive; add a small number to the "
    "diagonal, or look whether it is a covariance"
)
SQUARE = "a must be square, got shape (3, 4); md.linalg.svd, qr, lstsq and pinv take other matrices"

PYTHON: dict[str, PythonCase] = {
    "square: solve": (
        lambda p: la.solve(np.ones((3, 4)), np.ones(3)),
        ShapeError,
        (
            "solve: axis n is 3 in a but 4 in a; make them equal: ... n n, ... n k -> ... n k, a (3, 4), "
            "b (3, 1)"
        ),
    ),
    "square: inv": (lambda p: la.inv(np.ones((3, 4))), ShapeError, f"inv: {SQUARE}"),
    "square: eig": (lambda p: la.eig(np.ones((3, 4))), ShapeError, f"eig: {SQUARE}"),
    "square: eigh": (
        lambda p: la.eigh(np.ones((3, 4))),
        ShapeError,
        f"eigh: {SQUARE}",
    ),
    "singular: a matrix": (
        lambda p: la.solve(ONES, np.ones(3)),
        NumericError,
        f"solve: a is {SINGULAR}",
    ),
    "singular: one of a stack": (
        lambda p: la.inv(np.stack([I3, ONES])),
        NumericError,
        f"inv: a[1] is {SINGULAR}",
    ),
    "singular: factors": (
        lambda p: la.lu_solve(la.lu_factor(ONES), np.ones(3)),
        NumericError,
        f"lu_solve: a is {SINGULAR}",
    ),
    "definite: cholesky": (
        lambda p: la.cholesky(INDEFINITE),
        NumericError,
        f"cholesky: a {MINOR}",
    ),
    "definite: b of eigh": (
        lambda p: la.eigh(I3, b=INDEFINITE),
        NumericError,
        f"eigh: b {MINOR}",
    ),
    "dominant: jacobi": (
        lambda p: la.solve(ONES, np.ones(3), method="jacobi"),
        NumericError,
        (
            "jacobi: row 0 of a has 1 on its diagonal and 2 beside it, which must be less: use "
            "md.linalg.solve, or gmres"
        ),
    ),
    "finite: nan": (
        lambda p: la.svd(NAN),
        NumericError,
        "svd: a holds nan at [0, 1]; give finite numbers",
    ),
    "finite: inf": (
        lambda p: la.eigh(INF),
        NumericError,
        "eigh: a holds inf at [1, 0]; give finite numbers",
    ),
    "finite: right side": (
        lambda p: la.solve(I3, np.array([1, np.nan, 2])),
        NumericError,
        "solve: b holds nan at [1, 0]; give finite numbers",
    ),
    "finite: rows of PCA": (
        lambda p: md.analytics.PCA(2).fit(NAN),
        DataError,
        "PCA: X holds nan in row 0, column 1; fill or drop such rows",
    ),
    "shape: equations": (
        lambda p: la.solve(I3, np.ones(4)),
        ShapeError,
        (
            "solve: axis n is 3 in a but 4 in b; make them equal: ... n n, ... n k -> ... n k, a (3, 3), "
            "b (4, 1)"
        ),
    ),
    "shape: least squares": (
        lambda p: la.lstsq(I3, np.ones((4, 2))),
        ShapeError,
        (
            "lstsq: axis m is 3 in a but 4 in b; make them equal: ... m n, ... m k -> ... n k, a (3, 3), "
            "b (4, 2)"
        ),
    ),
    "shape: no matrix": (
        lambda p: la.inv(np.ones(3)),
        ShapeError,
        "inv: a has 1 axis, shape (3,), expected 2 or more: a matrix, or a stack of them",
    ),
    "real: refine": (
        lambda p: la.solve(I3 + 1j * I3, np.ones(3), method="refine"),
        DTypeError,
        'solve: method="refine" takes real numbers, got complex128 and float64; leave it out',
    ),
    "real: jacobi": (
        lambda p: la.solve(4 * I3 + 1j * I3, np.ones(3), method="jacobi"),
        DTypeError,
        "jacobi: takes real numbers; use md.linalg.solve or gmres for complex ones",
    ),
    "real: PCA": (
        lambda p: md.analytics.PCA(2).fit(ONES * 1j),
        DTypeError,
        "PCA: X is complex128, expected real numbers",
    ),
    "real: rfft": (
        lambda p: md.fft.rfft(np.ones(3) * 1j),
        ArgumentError,
        "rfft: x must be real, got complex128; take its real part, or use fft",
    ),
    "components: PCA": (
        lambda p: md.analytics.PCA(5).fit(ONES),
        ArgumentError,
        "PCA: n_components must be an integer from 1 to 3, got 5",
    ),
    "components: preparation": (
        lambda p: md.data.Preparation.fit(ONES * np.arange(3)[:, None], np.arange(3) % 2, pca=4),
        DataError,
        (
            "pca: 4 components of 3 inputs and 3 training rows, of which there are at most 2: ask for fewer"
        ),
    ),
    "memory: too little": (
        lambda p: la.out_of_core.lu_factor(np.eye(300), memory_limit=1000, device="cpu"),
        OutOfMemoryError,
        (
            "lu_factor: 1000 bytes on the processor are too little for strips of a matrix of 300 rows in "
            "float64: at least 14400 are needed"
        ),
    ),
    "device: none": (
        lambda p: la.out_of_core.lu_factor(I3, device="cuda"),
        DeviceError,
        '~device "cuda": .*; use device="cpu"',
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    if name.startswith("device") and cuda.available()[0]:
        pytest.skip("there is a GPU")
    check_in_python(place, PYTHON[name])


def test_integers_are_promoted_as_numpy_does() -> None:
    a = np.array([[2, 0], [0, 4]])
    for name in ("inv", "cholesky", "det", "pinv"):
        assert getattr(la, name)(a).dtype == getattr(np.linalg, name)(a).dtype == np.float64
