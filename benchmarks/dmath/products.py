"""Square products with the columns of dMath's Table V: seconds, speed-up and efficiency by number of workers.

    python -m benchmarks.dmath.products [--sizes 1024 2048 4096] [--workers 1 2 4] [--dtype float32]

The paper's rows go to 65536 on 32 GPUs; what is not asked for or does not fit is named, not filled in.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

import magmadnn as md
from benchmarks.harness.timing import best

PAPER = (4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    print(f"{arguments.dtype}, {os.cpu_count()} cores; speed-up over NumPy in one process")
    alone = {}
    for n in arguments.sizes:
        x = np.random.default_rng(0).random((n, n)).astype(arguments.dtype)
        alone[n] = best(lambda x=x: x @ x)
        print(f"{n:6d}  NumPy      {alone[n]:8.4f} s")
    for count in arguments.workers:
        with md.workers(count) as w:
            for n in arguments.sizes:
                for name, layout in (("auto", "auto"), ("rows", md.dmath.Rows())):
                    A = w.random((n, n), seed=1, dtype=arguments.dtype, layout=layout)
                    B = w.random((n, n), seed=2, dtype=arguments.dtype, layout=layout)
                    target = "auto" if name == "auto" else layout

                    def product(
                        A: md.dmath.Matrix = A, B: md.dmath.Matrix = B, target: object = target
                    ) -> None:
                        md.dmath.matmul(A, B, layout=target).wait()

                    seconds = best(product)
                    faster = alone[n] / seconds
                    way = w.explain(lambda A=A, B=B: A @ B).splitlines()[2].split("  ")[-1]
                    row = f"{n:6d}  {count} {name:5s}  {seconds:8.4f} s  {faster:5.2f}x"
                    print(f"{row}  {faster / count:4.0%}  {way}")
    missing = [n for n in PAPER if n not in arguments.sizes]
    print("rows of the paper's table that were not run:", *missing, "and 8 and 32 GPUs")


if __name__ == "__main__":
    main()
