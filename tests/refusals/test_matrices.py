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
    CallError,
    DataError,
    DeviceError,
    DTypeError,
    NumericError,
    OutOfMemoryError,
    ShapeError,
    UnknownArgumentError,
)
from tests.refusals.cases import PythonCase, check_in_python

la = md.linalg
I3, ONES = np.eye(3), np.ones((3, 3))
INDEFINITE = np.array([[1.0, 2, 0], [2, 1, 0], [0, 0, 1]])
NAN, INF = I3.copy(), I3.copy()
NAN[0, 1], INF[1, 0] = np.nan, np.inf
ROWS, CLASSES = np.random.default_rng(7).normal(size=(8, 2)), np.arange(8) % 2
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
    "finite: to be factorised": (
        lambda p: la.cholesky(np.array([[2, 9], [1, np.nan]])),
        NumericError,
        "cholesky: a holds nan at [1, 1]; give finite numbers",
    ),
    "finite: triangle": (
        lambda p: la.solve_triangular(
            np.array([[np.inf, 5], [0, 1]]), np.ones((2, 1)), lower=False
        ),
        NumericError,
        "solve_triangular: a holds inf at [0, 0]; give finite numbers",
    ),
    "finite: right side of a triangle": (
        lambda p: la.solve_triangular(I3, np.array([[1], [np.nan], [2]]), lower=True),
        NumericError,
        "solve_triangular: b holds nan at [1, 0]; give finite numbers",
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
    "square: eigvalsh": (lambda p: la.eigvalsh(np.ones((3, 4))), ShapeError, f"eigvalsh: {SQUARE}"),
    "square: a of generalised eigh": (
        lambda p: la.eigh(np.ones((3, 4)), b=I3),
        ShapeError,
        f"eigh: {SQUARE}",
    ),
    "square: power": (
        lambda p: la.matrix_power(np.ones((3, 4)), 3),
        ShapeError,
        f"matrix_power: {SQUARE}",
    ),
    "square: a subset": (
        lambda p: la.eigh(np.ones((3, 4)), subset_by_index=(0, 1)),
        ShapeError,
        f"eigh: {SQUARE}",
    ),
    "square: factors": (
        lambda p: la.lu_solve((np.ones((3, 4)), np.arange(3)), np.ones(3)),
        ShapeError,
        f"lu_solve: lu{SQUARE.removeprefix('a')}",
    ),
    "singular: a power": (
        lambda p: la.matrix_power(ONES, -2),
        NumericError,
        f"matrix_power: a is {SINGULAR}",
    ),
    "singular: cond": (lambda p: la.cond(ONES, 1), NumericError, f"cond: a is {SINGULAR}"),
    "finite: cond": (
        lambda p: la.cond(NAN),
        NumericError,
        "cond: x holds nan at [0, 1]; give finite numbers",
    ),
    "finite: rank": (
        lambda p: la.matrix_rank(np.stack([I3, INF])),
        NumericError,
        "matrix_rank: a[1] holds inf at [1, 0]; give finite numbers",
    ),
    "finite: svdvals": (
        lambda p: la.svdvals(NAN),
        NumericError,
        "svdvals: a holds nan at [0, 1]; give finite numbers",
    ),
    "finite: eigvalsh": (
        lambda p: la.eigvalsh(INF),
        NumericError,
        "eigvalsh: a holds inf at [1, 0]; give finite numbers",
    ),
    "finite: norm": (
        lambda p: la.norm(NAN, "nuc"),
        NumericError,
        "norm: x holds nan at [0, 1]; give finite numbers",
    ),
    "finite: a of generalised eigh": (
        lambda p: la.eigh(INF, b=I3),
        NumericError,
        "eigh: a holds inf at [1, 0]; give finite numbers",
    ),
    "finite: b of eigh": (
        lambda p: la.eigh(I3, b=NAN.T),
        NumericError,
        "eigh: b holds nan at [1, 0]; give finite numbers",
    ),
    "finite: Cholesky factor": (
        lambda p: la.cho_solve((NAN.T, True), np.ones(3)),
        NumericError,
        "cho_solve: c holds nan at [1, 0]; give finite numbers",
    ),
    "finite: right side of a factor": (
        lambda p: la.cho_solve((I3, True), np.array([1, 2, np.inf])),
        NumericError,
        "cho_solve: b holds inf at [2, 0]; give finite numbers",
    ),
    "finite: LU factors": (
        lambda p: la.lu_solve((NAN, np.arange(3)), np.ones(3)),
        NumericError,
        "lu_solve: lu holds nan at [0, 1]; give finite numbers",
    ),
    "finite: cg": (
        lambda p: la.cg(NAN, np.ones(3)),
        NumericError,
        "cg: a holds nan at [0, 1]; give finite numbers",
    ),
    "finite: vector of gmres": (
        lambda p: la.gmres(I3, np.array([1, np.nan, 2])),
        NumericError,
        "gmres: b holds nan at [1]; give finite numbers",
    ),
    "finite: what overflows in jacobi": (
        lambda p: la.jacobi(1e-310 * (I3 + 0.1), np.ones(3)),
        NumericError,
        r"~jacobi: after 10000 steps max \|A x - b\| is (inf|nan), and 1e-10 is wanted: .*",
    ),
    "shape: two matrices of eigh": (
        lambda p: la.eigh(I3, b=np.eye(2)),
        ShapeError,
        "eigh: a and b must have equal sizes, got shapes (3, 3) and (2, 2)",
    ),
    "shape: right side of factors": (
        lambda p: la.lu_solve(la.lu_factor(I3), np.ones(4)),
        ShapeError,
        "lu_solve: b must have 3 rows, as the factors, got shape (4,)",
    ),
    "shape: right side of a Cholesky factor": (
        lambda p: la.cho_solve((I3, True), np.ones((4, 1))),
        ShapeError,
        "cho_solve: b must have 3 rows, as c, got shape (4, 1)",
    ),
    "shape: exchanges": (
        lambda p: la.lu_solve((I3, np.arange(2)), np.ones(3)),
        ShapeError,
        "lu_solve: piv must be integers (3,), got int64 (2,)",
    ),
    "argument: exchanges of rows that are not there": (
        lambda p: la.lu_solve((I3, np.array([1, 2, 3])), np.ones(3)),
        ArgumentError,
        "lu_solve: piv must hold rows from 0 to 2, got 1 to 3; they are counted from 0, as by lu_factor",
    ),
    "argument: which triangle": (
        lambda p: la.cho_solve((I3, "U"), np.ones(3)),
        ArgumentError,
        "cho_solve: the second of the pair must be True or False, got 'U'",
    ),
    "argument: axes of a norm": (
        lambda p: la.norm(np.ones((2, 3, 3)), 2),
        ArgumentError,
        "norm: x has 3 axes; of vectors give one as axis, of matrices a pair, got (0, 1, 2)",
    ),
    "argument: axis of a norm": (
        lambda p: la.norm(I3, axis=5),
        ArgumentError,
        "norm: x has 2 axes, and axis is 5",
    ),
    "argument: one axis twice": (
        lambda p: la.norm(I3, axis=(0, -2)),
        ArgumentError,
        "norm: axis names one axis twice: (0, -2)",
    ),
    "empty: cond": (
        lambda p: la.cond(np.ones((0, 0))),
        ShapeError,
        "cond: x of shape (0, 0) holds empty matrices; they have none",
    ),
    "empty: norm": (
        lambda p: la.norm(np.ones((0, 3)), -2),
        ShapeError,
        "norm: x of shape (0, 3) has no elements for ord=-2",
    ),
    "numbers: None": (lambda p: la.det(None), DTypeError, "det: a must be numbers: got NoneType"),
    "numbers: text": (
        lambda p: la.solve(I3, np.array(["a"] * 3)),
        DTypeError,
        "~solve: b must be numbers: dtype 'str32' is not known: known are .*",
    ),
    "numbers: ragged": (
        lambda p: la.svd([[1, 2], [3]]),
        ShapeError,
        "svd: rows of a differ in length",
    ),
    "numbers: out of core": (
        lambda p: la.out_of_core.solve(I3, np.array(["a"] * 3), device="cpu"),
        DTypeError,
        "~.*: b must be numbers: dtype 'str32' is not known: known are .*",
    ),
    "call: a name": (
        lambda p: la.solve(I3, np.ones(3), asume_a="pos"),
        UnknownArgumentError,
        "~solve: argument 'asume_a' is not known: did you mean 'assume_a'. known are a, assume_a, b, .*",
    ),
    "call: a right side is missing": (
        lambda p: la.lstsq(I3),
        CallError,
        "lstsq: argument 'b' is missing: lstsq(a, b, rcond=None)",
    ),
    "fft: a name": (
        lambda p: md.fft.fft(I3, axes=(0,)),
        UnknownArgumentError,
        "~fft: argument 'axes' is not known: .*axis.*",
    ),
    "fft: how many": (
        lambda p: md.fft.irfft(I3, n=2.5),
        ArgumentError,
        "irfft: a size along an axis must be an integer, got 2.5",
    ),
    "fft: sizes": (
        lambda p: md.fft.fft2(I3, s=3),
        ArgumentError,
        "fft2: s must be a tuple or None, got 3",
    ),
    "fft: one of the sizes": (
        lambda p: md.fft.rfft2(I3, s=(None, 3)),
        ArgumentError,
        "rfft2: a size along an axis must be an integer, got None",
    ),
    "fft: axes": (
        lambda p: md.fft.fftn(I3, axes=0),
        ArgumentError,
        "fftn: axes must be a tuple or None, got 0",
    ),
    "fft: nothing": (
        lambda p: md.fft.irfft(np.ones((3, 0))),
        ShapeError,
        "irfft: axis -1 has 0 numbers; a transform needs 1 or more",
    ),
    "fft: distance": (
        lambda p: md.fft.fftfreq(4, np.nan),
        ArgumentError,
        "fftfreq: d must be a finite number other than 0, got nan",
    ),
    "fft: axis of a shift": (
        lambda p: md.fft.fftshift(I3, axes=1.5),
        ShapeError,
        "fftshift: there is no axis 1.5: x has 2 axes",
    ),
    "fft: no numbers": (
        lambda p: md.fft.fft(None),
        DTypeError,
        "fft: a must be numbers: got NoneType",
    ),
    "convolve: axis": (
        lambda p: md.fft.convolve(I3, np.ones(3), axis=-2),
        ShapeError,
        "convolve: there is no axis -2: v has 1 axis",
    ),
    "convolve: nothing": (
        lambda p: md.fft.convolve(np.ones(3), np.ones(0)),
        ShapeError,
        "convolve: axis -1 of v has 0 numbers; give 1 or more",
    ),
    "analytics: ragged": (
        lambda p: md.analytics.PCA(1).fit([[1, 2], [3]]),
        ShapeError,
        "PCA: rows of X differ in length",
    ),
    "analytics: squares that overflow": (
        lambda p: md.analytics.StandardScaler().fit([[1.0, 2e200], [3.0, 4.0]]),
        DataError,
        "StandardScaler: X holds 2e+200 in row 0, column 1; its square overflows: scale such columns",
    ),
    "analytics: nan in what is predicted": (
        lambda p: (
            md.analytics.LinearDiscriminantAnalysis().fit(ROWS, CLASSES).predict([[0.0, np.nan]])
        ),
        DataError,
        "LinearDiscriminantAnalysis: X holds nan in row 0, column 1; fill or drop such rows",
    ),
    "analytics: nan in TruncatedSVD": (
        lambda p: md.analytics.TruncatedSVD(1).fit(NAN),
        DataError,
        "TruncatedSVD: X holds nan in row 0, column 1; fill or drop such rows",
    ),
    "analytics: classes that are nan": (
        lambda p: md.analytics.LinearDiscriminantAnalysis().fit(ROWS, CLASSES + np.nan),
        DataError,
        "LinearDiscriminantAnalysis: y holds NaN or infinity, which are no classes; drop such rows",
    ),
    "analytics: constant columns": (
        lambda p: md.analytics.LinearDiscriminantAnalysis().fit(ROWS * 0, CLASSES),
        DataError,
        "~LinearDiscriminantAnalysis: no column differs within a class, .*; give other columns",
    ),
    "analytics: complex targets": (
        lambda p: md.analytics.Ridge().fit(ROWS, CLASSES * 1j),
        DTypeError,
        "Ridge: y is complex128, expected real numbers",
    ),
    "analytics: text": (
        lambda p: md.analytics.LinearRegression().fit(ROWS, ["a"] * 8),
        DTypeError,
        "LinearRegression: y is str32, expected real numbers",
    ),
    "analytics: a name": (
        lambda p: md.analytics.PCA(components=2),
        UnknownArgumentError,
        "~PCA: argument 'components' is not known: did you mean 'n_components'.*",
    ),
    "analytics: no targets": (
        lambda p: md.analytics.Ridge().fit(ROWS),
        CallError,
        "fit: argument 'y' is missing: fit(X, y)",
    ),
    "analytics: a truth value": (
        lambda p: md.analytics.PCA(2, whiten="no"),
        ArgumentError,
        "PCA: whiten must be True or False, got 'no'",
    ),
    "analytics: a seed": (
        lambda p: md.analytics.KMeans(2, random_state=-1),
        ArgumentError,
        "KMeans: random_state must be an integer of at least 0, got -1",
    ),
    "analytics: a tolerance": (
        lambda p: md.analytics.KMeans(2, tol=np.nan),
        ArgumentError,
        "KMeans: tol must be a number of at least 0, got nan",
    ),
    "analytics: iterations": (
        lambda p: md.analytics.randomized_svd(ROWS, 1, n_iter=2.5),
        ArgumentError,
        "randomized_svd: n_iter must be an integer of at least 0, got 2.5",
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


def test_the_condition_of_a_singular_matrix_is_infinite() -> None:
    matrices = np.stack([I3, ONES - ONES, np.diag([1.0, 2, 4])])
    np.testing.assert_array_equal(la.cond(matrices), [1, np.inf, 4])
    np.testing.assert_array_equal(la.cond(matrices, -2), [1, np.inf, 0.25])
    np.testing.assert_array_equal(la.cond(matrices), np.linalg.cond(matrices))


def test_half_precision_is_computed_in_float32() -> None:
    a = (I3 + np.diag([0.5, 0.25], 1)).astype(np.float16)
    wide, exact = la.eigvals(a), np.linalg.eigvals(a.astype(np.float32))
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, exact)
    some = la.eigh(a + a.T, subset_by_index=(1, 2))
    assert some.eigenvalues.dtype == some.eigenvectors.dtype == np.float16
    q, r, _ = la.qr(a, pivoting=True)
    assert q.dtype == r.dtype == np.float16


def test_equations_without_rows_have_solutions_without_numbers() -> None:
    for method in ("lu", "refine"):
        assert la.solve(np.ones((0, 0)), np.ones(0), method=method).shape == (0,)
    assert la.gmres(np.ones((0, 0)), np.ones(0)).x.shape == (0,)


def test_numbers_of_float32_beyond_its_squares_are_added_up_in_float64() -> None:
    rows = np.random.default_rng(3).normal(size=(40, 2)).astype(np.float32)
    small, large = (md.analytics.PCA(2).fit(rows * scale) for scale in (1, np.float32(2.0**80)))
    assert large._moments is not None  # the sums of blocks
    np.testing.assert_allclose(
        large.explained_variance_ratio_, small.explained_variance_ratio_, rtol=1e-5
    )
