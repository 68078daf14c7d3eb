"""Calls on single small matrices and short transforms beside NumPy's and SciPy's, and what is above the goal.

`OPENBLAS_NUM_THREADS=1 taskset -c 0 python benchmarks/linalg/short_calls.py [SIZE ...]`: least microseconds
of 60 blocks of 2 ms each, on arrays and on Tensors. The goal is 1.05 times the better library and 20 us.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft as sf
import scipy.linalg as sl

import magmadnn as md

BLOCKS, SECONDS = 60, 2e-3
Call = Callable[[], object]
L, F = md.linalg, md.fft


def least(call: Call | None) -> float:
    """Microseconds of the quickest block."""
    if call is None:
        return float("nan")
    timer = timeit.Timer(call)
    count = max(1, int(SECONDS / max(min(timer.repeat(3, 1)), 1e-7)))
    return 1e6 * min(timer.repeat(BLOCKS, count)) / count


def of_matrices(n: int, dtype: str) -> dict[str, tuple[Call | None, ...]]:
    """For each name a call on arrays, one on Tensors, NumPy's and SciPy's."""
    rng = np.random.default_rng(0)
    a = (rng.normal(size=(n, n)) + n**0.5 * np.eye(n)).astype(dtype)
    b, s = rng.normal(size=(n, 4)).astype(dtype), (a @ a.T + np.eye(n)).astype(dtype)
    factor, lu = np.linalg.cholesky(s), sl.lu_factor(a)
    N = np.linalg

    def one(ours: Any, numpy: Any, scipy: Any, *operands: Any) -> tuple[Call | None, ...]:
        tensors = [md.asarray(x) for x in operands]
        return (
            lambda: ours(*operands),
            lambda: ours(*tensors),
            numpy and (lambda: numpy(*operands)),
            scipy and (lambda: scipy(*operands)),
        )

    return {
        "solve": one(L.solve, N.solve, sl.solve, a, b),
        "cholesky": one(L.cholesky, N.cholesky, lambda a: sl.cholesky(a, lower=True), s),
        "qr": one(L.qr, N.qr, lambda a: sl.qr(a, mode="economic"), a),
        "svd": one(L.svd, N.svd, sl.svd, a),
        "eigh": one(L.eigh, N.eigh, sl.eigh, s),
        "inv": one(L.inv, N.inv, sl.inv, a),
        "det": one(L.det, N.det, sl.det, a),
        "slogdet": one(L.slogdet, N.slogdet, None, a),
        "svdvals": one(L.svdvals, N.svdvals, sl.svdvals, a),
        "eigvalsh": one(L.eigvalsh, N.eigvalsh, sl.eigvalsh, s),
        "pinv": one(L.pinv, N.pinv, sl.pinv, a),
        "lstsq": one(L.lstsq, N.lstsq, sl.lstsq, a, b),
        "matrix_rank": one(L.matrix_rank, N.matrix_rank, None, a),
        "cond": one(L.cond, N.cond, None, a),
        "norm": one(L.norm, N.norm, sl.norm, a),
        "expm": one(L.expm, None, sl.expm, a / n),
        "lu_factor": one(L.lu_factor, None, sl.lu_factor, a),
        "lu_solve": one(lambda b: L.lu_solve(lu, b), None, lambda b: sl.lu_solve(lu, b), b),
        "cho_solve": one(
            lambda c, b: L.cho_solve((c, True), b),
            None,
            lambda c, b: sl.cho_solve((c, True), b),
            factor,
            b,
        ),
        "solve_triangular": one(
            lambda c, b: L.solve_triangular(c, b, lower=True),
            None,
            lambda c, b: sl.solve_triangular(c, b, lower=True),
            factor,
            b,
        ),
    }


def of_transforms(n: int) -> dict[str, tuple[Call | None, ...]]:
    """The same of transforms of n numbers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    operands = {"fft": x + 1j * rng.normal(size=n), "rfft": x, "irfft": np.fft.rfft(x)}

    def one(name: str, given: Any) -> tuple[Call, ...]:
        ours, tensor = getattr(F, name), md.asarray(given)
        numpy, scipy = getattr(np.fft, name), getattr(sf, name)
        return (
            lambda: ours(given),
            lambda: ours(tensor),
            lambda: numpy(given),
            lambda: scipy(given),
        )

    return {name: one(name, given) for name, given in operands.items()}


def main() -> None:
    """Print a row for each call."""
    md.set_threads(1)
    sizes = [int(size) for size in sys.argv[1:]] or [8, 64, 128]
    rows = [
        (f"{name} {n} {dtype}", calls)
        for n in sizes
        for dtype in ("float64", "float32")
        for name, calls in of_matrices(n, dtype).items()
    ]
    rows += [
        (f"{name} {n}", calls)
        for n in (16, 256, 1024, 4096)
        for name, calls in of_transforms(n).items()
    ]
    print(f"{'':28} {'arrays':>9} {'Tensors':>9} {'NumPy':>9} {'SciPy':>9} {'above the goal':>15}")
    for title, calls in rows:
        found = [least(call) for call in calls]
        goal = 1.05 * np.nanmin(found[2:]) + 20
        cells = " ".join(f"{x:9.1f}" for x in found)
        print(f"{title:28} {cells} {max(found[0] - goal, 0):15.1f}", flush=True)


if __name__ == "__main__":
    main()
