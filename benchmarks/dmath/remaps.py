"""Rows to columns with a cast to half precision: seconds, and the rate of the bytes that had to be sent.

python benchmarks/dmath/remaps.py [--megabytes 256] [--workers 2]
"""

from __future__ import annotations

import argparse
import time

import magmadnn as md


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    n = int((arguments.megabytes * 1e6 / 4) ** 0.5)
    with md.workers(arguments.workers) as w:
        x = w.random((n, n), seed=1, dtype="float32", layout=md.dmath.Rows())
        link = w.rates().bytes_per_second
        for dtype in ("float32", "float16"):
            x.to(md.dmath.Columns(), dtype).wait()
            before = w.counters()["sent_bytes"]
            start = time.perf_counter()
            x.to(md.dmath.Columns(), dtype).wait()
            seconds = time.perf_counter() - start
            sent = w.counters()["sent_bytes"] - before
            rate = sent / arguments.workers / seconds
            row = f"{n} x {n} to {dtype}: {seconds:.3f} s, {sent / 1e6:.1f} MB sent"
            print(f"{row}, {rate / link:.0%} of the link")


if __name__ == "__main__":
    main()
