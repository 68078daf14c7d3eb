"""Whether the planner, fitted on one and two H200s, predicts products on four within 15 %.

    python -m benchmarks.dmath.predicted

Nothing is measured here: times are those of `benchmarks/results`, and no GPU is needed. For each precision
and size the speed of products is that of one GPU, the link's that of a change of layout on two, and what the
planner is off by on two GPUs, in the same layout, is taken to be the same on four. Pages are of different
machines of the kind and of commits two days apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magmadnn.dmath import Blocks, Rates, Rows, cyclic
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products.choosing import ranked

GOAL = 0.15
LINK = 362e9  # bytes a second, rows to columns on two GPUs (2026-11-26-nvidia-h200.md)
ROWS, BLOCKS = "rows", "2 x 2 blocks"
# Milliseconds: on one GPU, on two by rows and by blocks (2026-11-26-nvidia-h200.md); on one of four, on four
# by rows and by blocks (2026-11-28-nvidia-h200-four-gpus.md).
MEASURED = {
    ("float32", 8192): (21.524, 10.986, 11.245, 21.50, 5.63, 5.87),
    ("float32", 16384): (162.993, 86.573, 86.891, 163.6, 44.4, 45.2),
    ("TF32", 8192): (2.866, 1.870, 2.063, 2.94, 1.02, 1.17),
    ("TF32", 16384): (24.035, 13.369, 12.852, 24.7, 7.91, 7.41),
    ("bfloat16", 8192): (1.410, 0.883, 1.687, 1.42, 0.92, 0.76),
    ("bfloat16", 16384): (12.264, 6.297, 7.043, 12.4, 3.53, 3.93),
    ("float32 in bfloat16", 16384): (18.432, 7.878, 7.928, 18.6, 6.36, 4.35),
    ("float16", 8192): (1.500, 0.908, 1.137, 1.48, 0.94, 0.81),
    ("float16", 16384): (12.815, 6.592, 7.586, 12.9, 3.67, 4.05),
    ("float64", 8192): (17.190, 9.000, 9.275, 17.3, 4.64, 5.25),
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
    for (kind, n), (one, *two, alone, rows, blocks) in MEASURED.items():
        for name, on_two, measured in ((ROWS, two[0], rows), (BLOCKS, two[1], blocks)):
            plain = planned(kind, n, name, 4, alone)
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
