"""Square products on one GPU and on two, against CuPy and PyTorch: correct first, then seconds.

    python -m benchmarks.dmath.gpu_products [--sizes 4096 8192]

CUPY_TF32=1 in the environment lets products round operands to TF32.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.harness.timing import best


def finished(x: Any) -> None:
    """Wait for the device: one element of the product comes to the client."""
    float(x[0, 0])


def main() -> None:
    import cupy

    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192])
    arguments = parser.parse_args()
    devices = cupy.cuda.runtime.getDeviceCount()
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{devices} x {name}, CuPy {cupy.__version__}")
    small = np.random.default_rng(0).integers(-4, 5, (513, 257)).astype(np.float32)
    one = md.dmath.cuda.array(small)
    assert (np.asarray(one @ one.T) == small @ small.T).all()
    single = {}
    for n in arguments.sizes:
        x = cupy.random.random((n, n), dtype=cupy.float32)
        plain = best(lambda x=x: float((x @ x)[0, 0]))
        del x
        A = md.dmath.cuda.random((n, n), seed=1, dtype="float32")
        single[n] = best(lambda A=A: finished(A @ A))
        print(
            f"{n:6d}  CuPy {plain:8.5f} s   md.dmath.cuda {single[n]:8.5f} s  ({plain / single[n]:.0%})"
        )
        del A
    if devices < 2:
        print("one GPU: the rows of two GPUs were not run")
        return
    with md.workers(2) as workers:
        w = md.dmath.distributed(workers, device="cuda")
        A = w.array(small, layout=md.dmath.Blocks((100, 100)))
        assert (np.asarray(A @ A.T) == small @ small.T).all()
        for n in arguments.sizes:
            for layout in (md.dmath.Rows(), md.dmath.Blocks((n // 2, n))):
                A = w.random((n, n), seed=1, dtype="float32", layout=layout)
                two = best(
                    lambda A=A, layout=layout: finished(md.dmath.matmul(A, A, layout=layout))
                )
                print(f"{n:6d}  two GPUs {layout}: {two:8.5f} s, {single[n] / two / 2:.0%} of two")


if __name__ == "__main__":
    main()
