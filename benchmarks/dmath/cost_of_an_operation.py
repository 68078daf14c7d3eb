"""Microseconds that an operation costs the client while 1,000 are in flight, and until the workers have
done them.

python benchmarks/dmath/cost_of_an_operation.py [workers]
"""

from __future__ import annotations

import sys
import time

import magmadnn as md


def main() -> None:
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    start = time.perf_counter()
    with md.workers(workers) as w:
        x = w.zeros(16)
        w.wait()
        print(f"{workers} workers, started in {time.perf_counter() - start:.2f} s")
        for _ in range(3):
            start = time.perf_counter()
            for _ in range(1000):
                x = x + 1
            posted = time.perf_counter() - start
            w.wait()
            done = time.perf_counter() - start
            print(f"{posted * 1e3:8.1f} us posted, {done * 1e3:8.1f} us done, for each of 1,000")
        assert float(x[0]) == 3000


if __name__ == "__main__":
    main()
