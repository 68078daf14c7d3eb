"""Matrix products of many shapes in all transposes, against OpenBLAS and NumPy.

`gemm.py` looks closer at single kernels on one core, in alternation within one process; this compares what a
program gets. On one core "magmadnn" is the kernel, on several the tasks of a program on the driver's threads,
as a step runs them: calls without Python, like those of the others. An `Executable`, whose share of Python
counts beside little work, is a row of its own.
"""

from __future__ import annotations

import itertools

from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import either, with_single

BLAS, NUMPY, EXECUTABLE = "OpenBLAS", "NumPy", "magmadnn Executable"
SQUARES = (64, 128, 256, 512, 1024, 2048, 4096)
SKINNY = (1, 10, 100)
LONG = 1024
TOLERANCE = 2e-5  # of the largest element; 4096 products in float32, in another order


def shapes(quick: bool) -> list[tuple[int, int, int]]:
    """(m, k, n)."""
    squares = SQUARES[:3] if quick else SQUARES
    skinny = SKINNY[:2] if quick else SKINNY
    return [
        *((s, s, s) for s in squares),
        *((s, LONG, LONG) for s in skinny),
        *((LONG, LONG, s) for s in skinny),
    ]


def case(m: int, k: int, n: int, ta: bool, tb: bool, dtype: str, settings: Settings) -> Case:
    arguments = {"m": m, "k": k, "n": n, "ta": ta, "tb": tb, "dtype": dtype}
    alone = "BareKernel" if settings.threads == 1 else "OnThreads"
    ours, *peers = with_single(
        [
            Entry(OURS, f"benchmarks.contenders.products:{alone}", arguments),
            Entry(BLAS, "benchmarks.contenders.blas:Gemm", arguments),
            Entry(NUMPY, "benchmarks.contenders.products:InNumPy", arguments),
        ],
        settings,
    )
    executable = Entry(EXECUTABLE, "benchmarks.contenders.products:InExecutable", arguments)
    limit = 1.0 if min(m, n) in SKINNY else 1 / 0.95
    return Case(
        f"{m} x {k} x {n} {'T' if ta else 'N'}{'T' if tb else 'N'} {dtype}",
        (ours, executable, *peers),
        (Goal("ratio", limit, either(settings, BLAS, NUMPY)),),
        checks=(Check(TOLERANCE),),
        flops=2.0 * m * k * n,
        dtype=dtype,
    )


def claim(settings: Settings) -> Claim:
    both = [False, True]
    dtypes = ["float32"] if settings.quick else ["float32", "float64"]
    cases = [
        case(*shape, ta, tb, dtype, settings)
        for dtype, shape, ta, tb in itertools.product(dtypes, shapes(settings.quick), both, both)
    ]
    return Claim("matrix products m x k x n", cases, shared=True)


if __name__ == "__main__":
    main({"products": claim})
