"""GEMM kernels on one core against the measured FMA peak and OpenBLAS.

    taskset -c 1 python -m benchmarks.cpu.gemm [--dtype float64] [--seconds 1.0]

Every shape is measured in alternation with the peak and with OpenBLAS (the wheel `scipy-openblas64`, one
thread, core type chosen by the library), best of many; matrices lie in large pages where the system has
them. One line per shape: GFLOP/s and share of the peak, ours and OpenBLAS's.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.driver.peak import Peak
from magmadnn.compiler.llvm.gemm.gemm import gemm_scratch_bytes
from magmadnn.compiler.llvm.ir.target import host

HUGE_PAGE = 2 << 20


@dataclass(frozen=True)
class Shape:
    """C[m, n] = op(A) op(B) over k; an `update` is W -= 0.01 op(A) op(B) in place, without C."""

    m: int
    k: int
    n: int
    transpose_a: bool = False
    transpose_b: bool = False
    update: bool = False

    def __str__(self) -> str:
        marks = "A' " * self.transpose_a + "B' " * self.transpose_b + "update" * self.update
        return f"{self.m} x {self.k} x {self.n} {marks}".strip()


SHAPES = [
    Shape(100, 784, 528),
    Shape(100, 528, 528),
    Shape(784, 100, 528, transpose_a=True, update=True),
    Shape(528, 100, 528, transpose_a=True, update=True),
    Shape(100, 528, 528, transpose_b=True),
    Shape(512, 2048, 2048),
    Shape(2048, 512, 2048, transpose_a=True, update=True),
    Shape(512, 2048, 2048, transpose_b=True),
    *(Shape(size, size, size) for size in (64, 256, 1024)),
    *(Shape(m, 528, 528) for m in (1, 10)),
    *(Shape(100, 528, n) for n in (1, 10)),
    Shape(100, 10, 528, transpose_b=True),
    Shape(528, 100, 10, transpose_a=True, update=True),
    Shape(10, 528, 528, transpose_b=True),
    Shape(1, 528, 528, transpose_b=True),
]


class Arena:
    """Memory in large pages, handed out in pieces that start at different places of a page."""

    def __init__(self, size: int) -> None:
        raw = mmap.mmap(-1, size + HUGE_PAGE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            raw.madvise(mmap.MADV_HUGEPAGE)
        everything = np.frombuffer(raw, np.uint8)
        self._memory = everything[-everything.ctypes.data % HUGE_PAGE :][:size]
        self._used = 0

    def filled(self, values: np.ndarray) -> np.ndarray:
        """A copy of `values`."""
        made = self._memory[self._used :][: values.nbytes].view(values.dtype).reshape(values.shape)
        self._used += -(-values.nbytes // 4096) * 4096 + 4096 + 320
        made[...] = values
        return made


def openblas() -> ctypes.CDLL:
    """The library, on one thread."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.pop("OPENBLAS_CORETYPE", None)
    import scipy_openblas64

    path = next(Path(scipy_openblas64.get_lib_dir()).glob("libscipy_openblas64_.*"))
    library = ctypes.CDLL(str(path))
    library.scipy_openblas_set_num_threads64_(1)
    return library


def _step(dtype: str) -> Finish:
    """w - 0.01 product, written over w."""
    new = ("subtract", ("argument", 0), ("multiply", ("product",), ("constant", 0.01)))
    return Finish((Operand("w", dtype),), (Result("w", dtype, new),), ("product",))


def runs(
    shape: Shape, dtype: str, library: ctypes.CDLL
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The product by our kernel and by OpenBLAS, on matrices of their own; both checked."""
    rng = np.random.default_rng(1)
    m, k, n = shape.m, shape.k, shape.n
    arena = Arena(8 * 2 * (m * k + k * n + 3 * m * n) + (64 << 20))
    a = arena.filled(rng.standard_normal((k, m) if shape.transpose_a else (m, k)).astype(dtype))
    b = arena.filled(rng.standard_normal((n, k) if shape.transpose_b else (k, n)).astype(dtype))
    c, c_blas, room = (arena.filled(np.ones((m, n), dtype)) for _ in range(3))
    made = Gemm(dtype, shape.transpose_a, shape.transpose_b)
    more = {}
    if shape.update:  # as the weight gradient of a step of gradient descent
        made = replace(made, epilogue=_step(dtype), unread=True)
        more = {"w": c, "w_row": n}
    block = kernel.block(
        made, row0=0, row1=m, column0=0, column1=n, k=k, a=a, lda=a.shape[1], b=b, ldb=b.shape[1],
        c=room if shape.update else c, ldc=n, **more,
    )  # fmt: skip
    loaded, scratch = kernel.load([made])[0], kernel.scratch(gemm_scratch_bytes(made, host()))
    real = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
    routine = getattr(library, f"scipy_cblas_{'s' if dtype == 'float32' else 'd'}gemm64_")
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    routine.restype = None
    routine.argtypes = [ctypes.c_int] * 3 + [size] * 3
    routine.argtypes += [real, pointer, size, pointer, size, real, pointer, size]
    transposes = [112 if x else 111 for x in (shape.transpose_a, shape.transpose_b)]
    numbers = (-0.01, 1.0) if shape.update else (1.0, 0.0)

    kept = (a, b, c, room)  # the block holds their addresses only

    def ours() -> None:
        assert kept
        loaded(block, scratch)

    def theirs() -> None:
        routine(
            101, *transposes, m, n, k, numbers[0], a.ctypes.data, a.shape[1], b.ctypes.data,
            b.shape[1], numbers[1], c_blas.ctypes.data, n,
        )  # fmt: skip

    ours()
    theirs()
    bound = np.finfo(dtype).eps * k * (abs(a.T if shape.transpose_a else a)).max() * abs(b).max()
    assert abs(c - c_blas).max() <= bound * 4
    return ours, theirs


def measured(shape: Shape, dtype: str, library: ctypes.CDLL, seconds: float) -> str:
    """One line of the table."""
    peak, both = Peak(dtype), runs(shape, dtype, library)
    flops = 2.0 * shape.m * shape.n * shape.k
    repeats = max(1, int(2e6 / flops))
    best = [float("inf")] * 2
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        peak.sample()
        for i, run in enumerate(both):
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            best[i] = min(best[i], (time.perf_counter() - start) / repeats)
    speeds = [flops / t for t in best]
    shares = [100 * speed / peak.flops_per_second for speed in speeds]
    return (
        f"| {shape} | {speeds[0] * 1e-9:.1f} | {shares[0]:.0f} % | {speeds[1] * 1e-9:.1f} | "
        f"{shares[1]:.0f} % | {speeds[0] / speeds[1]:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each shape")
    options = parser.parse_args()
    library = openblas()
    print(f"{host().cpu}, {options.dtype}, one core\n")
    print(
        "| m x k x n | GFLOP/s | of peak | OpenBLAS | of peak | ratio |\n|---|---|---|---|---|---|"
    )
    for shape in SHAPES:
        print(measured(shape, options.dtype, library, options.seconds), flush=True)


if __name__ == "__main__":
    main()
