"""Factors of matrices larger than the memory that is given, on one GPU, beside factors on the device.

    python -m benchmarks.gpu.out_of_core [--rows 40960] [--share 3]

First all functions are checked at small sizes with little memory. Then Cholesky and LU of `--rows` rows in
float64 with a `--share`-th of the matrix's bytes, from pinned memory of the host and back; beside it cuSOLVER
with the whole matrix on the device, without the way there and back.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import cupy
import numpy as np
from cupyx.scipy.linalg import lu_factor as device_lu

import magmadnn as md

ooc = md.linalg.out_of_core
_TIMES = 3


def _seconds(function: Callable[[], object]) -> float:
    function()
    found = []
    for _ in range(_TIMES):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        function()
        cupy.cuda.Device().synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def check() -> None:
    """Residuals in units of n eps, with memory for a few strips."""
    rng = np.random.default_rng(3)
    for dtype in ("float32", "float64", "complex64", "complex128"):
        for n, limit in ((700, 1 << 21), (1531, 1 << 23), (1531, None)):
            a = rng.standard_normal((n, n)).astype(dtype)
            if np.dtype(dtype).kind == "c":
                a += (1j * rng.standard_normal((n, n))).astype(dtype)
            spd = (a @ a.conj().T + n * np.eye(n)).astype(dtype)
            b = rng.standard_normal((n, 5)).astype(dtype)
            unit = n * np.finfo(dtype).eps
            factor = ooc.cho_factor(spd, memory_limit=limit)
            lower = np.tril(factor.c)
            found = [np.abs(lower @ lower.conj().T - spd).max() / np.abs(spd).max() / unit]
            x = ooc.cho_solve(factor, b, memory_limit=limit)
            found.append(np.abs(spd @ x - b).max() / np.abs(spd).max() / np.abs(x).max() / unit)
            factors = ooc.lu_factor(a, memory_limit=limit)
            for trans, matrix in enumerate((a, a.T, a.conj().T)):
                x = ooc.lu_solve(factors, b, trans, memory_limit=limit)
                found.append(np.abs(matrix @ x - b).max() / np.abs(x).max() / n / unit)
            print(f"check {dtype:<10} {n:5} {limit} residuals {np.round(found, 3)}")
            assert max(found) < 30, "a residual is too large"


def _filled(rows: int, diagonal: float) -> np.ndarray:
    """A symmetric matrix in pinned memory, of numbers that a GPU makes; definite for a large diagonal."""
    a = ooc.pinned_empty((rows, rows))
    step = 4096
    for first in range(0, rows, step):
        part = cupy.random.default_rng(first).standard_normal((min(step, rows - first), rows))
        part[:, first : first + step] += diagonal * cupy.eye(len(part), min(step, rows - first))
        a[first : first + step] = part.get()
        del part
    cupy.get_default_memory_pool().free_all_blocks()
    return a


def race(rows: int, share: int) -> None:
    """Both factors, with part of the memory and with all of it."""
    limit = rows * rows * 8 // share
    out = ooc.pinned_empty((rows, rows))
    for name, work, diagonal in (
        ("Cholesky", rows**3 / 3, 4.0 * rows),
        ("LU", rows**3 * 2 / 3, 0.0),
    ):
        a = _filled(rows, diagonal)
        if name == "Cholesky":
            ours = _seconds(lambda a=a: ooc.cho_factor(a, memory_limit=limit, out=out))
        else:
            ours = _seconds(lambda a=a: ooc.lu_factor(a, memory_limit=limit, out=out))
        peak = cupy.get_default_memory_pool().total_bytes()
        cupy.get_default_memory_pool().free_all_blocks()
        there = cupy.asarray(a)
        work_array = cupy.empty_like(there)

        def in_core(
            there: cupy.ndarray = there, into: cupy.ndarray = work_array, name: str = name
        ) -> None:
            into[...] = there
            if name == "Cholesky":
                _device_cholesky(into)
            else:
                device_lu(into.T, overwrite_a=True, check_finite=False)

        copying = _seconds(lambda there=there, into=work_array: into.__setitem__(..., there))
        whole = _seconds(in_core) - copying
        print(
            f"{name:<9} {rows} rows, {limit / 1e9:.1f} GB of {rows * rows * 8 / 1e9:.1f}, "
            f"peak {peak / 1e9:.1f}: {ours:.3f} s, {work / ours / 1e12:.1f} TFLOP/s; all on the "
            f"device {whole:.3f} s, {work / whole / 1e12:.1f}; share {whole / ours:.2f}",
            flush=True,
        )
        del there, work_array, a
        cupy.get_default_memory_pool().free_all_blocks()


def _device_cholesky(a: cupy.ndarray) -> None:
    solver, handle = cupy.cuda.cusolver, cupy.cuda.device.get_cusolver_handle()
    n, found = len(a), cupy.zeros(1, "int32")
    words = solver.dpotrf_bufferSize(handle, 1, n, a.data.ptr, n)
    room = cupy.empty(words)
    solver.dpotrf(handle, 1, n, a.data.ptr, n, room.data.ptr, words, found.data.ptr)
    assert not int(found[0]), "the matrix is not positive definite"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40960)
    parser.add_argument("--share", type=int, default=3)
    given = parser.parse_args()
    check()
    race(given.rows, given.share)


if __name__ == "__main__":
    main()
