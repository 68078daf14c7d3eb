"""What memory bounds: softmax, LayerNorm, Adam's update and cross entropy on 4096 x 1024.

Compared with a copy of as many bytes as must be read and written at the least. Buffers take turns over
four times the last-level cache, so that everything comes from memory.
"""

from __future__ import annotations

from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.machine import last_cache_bytes

COPY, FORMULA = "copy of the same bytes", "NumPy in float64"
# Matrices that must be read and written at the least; cross entropy's gradient is p - t, of full size.
WORK = {
    "softmax": 2,
    "layer_norm": 2,
    "adam": 7,
    "cross_entropy": 1,
    "cross_entropy_gradient": 2,
}
TOLERANCE = 64 * 1.2e-7  # some functions of 2 ulp and a sum of 1024 numbers


def case(name: str, matrices: int, rows: int, columns: int, total: int) -> Case:
    arguments = {"work": name, "rows": rows, "columns": columns, "total_bytes": total}
    nbytes = matrices * rows * columns * 4
    return Case(
        f"{name.replace('_', ' ')}, {rows} x {columns}",
        (
            Entry(OURS, "benchmarks.contenders.rows:Native", arguments),
            Entry("PyTorch eager", "benchmarks.contenders.torch_rows:Rows", arguments),
            Entry(
                COPY, "benchmarks.contenders.copies:Copy", {"nbytes": nbytes, "total_bytes": total}
            ),
        ),
        (Goal("ratio", 1.2, (COPY,)),),
        checks=(Check(TOLERANCE, names=(OURS, "PyTorch eager")),),
    )


def claim(settings: Settings) -> Claim:
    rows = 512 if settings.quick else 4096
    total = 4 * last_cache_bytes() // (8 if settings.quick else 1)
    return Claim(
        "bounded by memory", [case(n, k, rows, 1024, total) for n, k in WORK.items()], shared=True
    )


if __name__ == "__main__":
    main({"memory_bound": claim})
