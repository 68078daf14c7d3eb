"""Whether the planner, fitted on one and two H200s, predicts products on four within 15 %.

    python -m benchmarks.dmath.predicted

Nothing is measured here: times are those of `benchmarks/results`, and no GPU is needed. For each precision
and size the speed of products is that of one GPU, the link's that between two, and what the planner is off
by on two GPUs, in the same layout, is taken to be the same on four.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magmadnn.dmath import Blocks, Rates, Rows, cyclic
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products.choosing import ranked

GOAL = 0.15
LINK = 341e9  # bytes a second between two of four H200s while both send
ROWS, BLOCKS = "rows", "2 x 2 blocks"
# Milliseconds of one run (2026-11-28-nvidia-h200-four-gpus-graphs.md, the fifth): on one GPU, on two by rows
# and by blocks, on four by rows and by blocks; the ways that the planner takes.
MEASURED = {
    ("float32", 8192): (21.616, 11.283, 11.188, 5.702, 5.705),
    ("float32", 16384): (164.372, 85.176, 86.727, 43.602, 43.163),
    ("TF32", 8192): (3.019, 1.610, 1.668, 1.019, 0.915),
    ("TF32", 16384): (23.754, 12.299, 12.152, 6.512, 6.540),
    ("bfloat16", 8192): (1.586, 0.849, 0.893, 0.555, 0.479),
    ("bfloat16", 16384): (12.532, 7.000, 6.893, 3.517, 3.556),
    ("float64", 8192): (19.529, 10.321, 10.181, 5.372, 5.265),
}
BYTES = {"float64": 8, "float32": 4, "TF32": 4}  # of an element on its way; else 2


def layout(name: str, n: int, gpus: int) -> Any:
    grid = (2, gpus // 2) if gpus > 2 else (1, 2)
    recipe = Rows() if name == ROWS else Blocks((n // 2, n // 2), owners=cyclic(*grid))
    return resolve(recipe, (n, n), gpus)


def planned(kind: str, n: int, name: str, gpus: int, alone: float) -> float:
    """Milliseconds that the planner predicts, where a product takes `alone` on one GPU."""
    flops = 2e3 * n**3 / alone
    rates = Rates(flops, flops, LINK, 0.0, overlapped=True)
    lies = layout(name, n, gpus)
    return ranked(lies, lies, lies, BYTES.get(kind, 2), rates)[0].seconds * 1e3


def compared() -> Iterator[tuple[str, int, str, float, float, float]]:
    """Precision, size, layout, and milliseconds on four GPUs: of the planner, fitted, and measured."""
    for (kind, n), (one, *two, rows, blocks) in MEASURED.items():
        for name, on_two, measured in ((ROWS, two[0], rows), (BLOCKS, two[1], blocks)):
            plain = planned(kind, n, name, 4, one)
            yield kind, n, name, plain, plain * on_two / planned(kind, n, name, 2, one), measured


def main() -> None:
    print(f"{'':22} {'n':>6}  {'layout':12} {'planner':>8} {'fitted':>8} {'measured':>8}  error")
    errors = []
    for kind, n, name, plain, fitted, measured in compared():
        errors.append(fitted / measured - 1)
        mark = "" if abs(errors[-1]) <= GOAL else "  missed"
        times = f"{plain:8.2f} {fitted:8.2f} {measured:8.2f}"
        print(f"{kind:22} {n:6d}  {name:12} {times} {errors[-1]:+6.0%}{mark}")
    print(f"{sum(abs(e) <= GOAL for e in errors)} of {len(errors)} within {GOAL:.0%}")


if __name__ == "__main__":
    main()
