"""Sums of rows and columns of a float32 matrix in rows: the fixed order and the fastest one, in turns.

python -m benchmarks.dmath.row_sums [--workers 4] [--rounds 9]

`v = sum of x over an axis + v` by `md.dmath.add_row_col_sum`; v spread as "auto" says, or on all workers.
Figures: `benchmarks/results/2026-11-28-dmath-sums.md`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import magmadnn as md

SHAPES = ((256, 512), (4096, 2048), (1024, 16384), (16384, 1024))
REPEATED = 8  # operations of a measurement, handed over together


def measured(w: Any, x: Any, v: Any, axis: int, deterministic: bool) -> tuple[float, int, int]:
    """Seconds of one operation, and the bytes and messages of all workers."""
    before = w.counters()
    start = time.perf_counter()
    for _ in range(REPEATED):
        md.dmath.add_row_col_sum(v, x, axis=axis, deterministic=deterministic)
    w.wait()
    seconds = (time.perf_counter() - start) / REPEATED
    after = w.counters()
    sent, messages = (after[name] - before[name] for name in ("sent_bytes", "messages"))
    return seconds, sent // REPEATED, messages // REPEATED


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print("| x | axis | v | fixed ms | fast ms | fixed / fast | KB sent | messages |")
    print("|---|---|---|---|---|---|---|---|")
    with md.workers(arguments.workers) as w:
        for shape in SHAPES:
            x = w.random(shape, seed=1, dtype="float32", layout=md.dmath.Rows())
            for axis in (0, 1):
                for name, layout in (("auto", "auto"), ("copies", md.dmath.Replicated())):
                    v = w.zeros(shape[1 - axis], dtype="float32", layout=layout)
                    times: dict[bool, list[tuple[float, int, int]]] = {True: [], False: []}
                    for _ in range(arguments.rounds):
                        for how, found in times.items():
                            found.append(measured(w, x, v, axis, how))
                    fixed, fast = min(times[True]), min(times[False])
                    print(
                        f"| {shape[0]} x {shape[1]} | {axis} | {name} | {1e3 * fixed[0]:.2f} | "
                        f"{1e3 * fast[0]:.2f} | {fixed[0] / fast[0]:.2f} | {fixed[1] / 1e3:.0f}, "
                        f"{fast[1] / 1e3:.0f} | {fixed[2]}, {fast[2]} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
