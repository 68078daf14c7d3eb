"""What memory bounds: softmax, LayerNorm, Adam and cross entropy on 4096 x 1024, BatchNorm over pixels.

Compared with a copy of as many bytes as must be read and written at the least. Buffers take turns over
four times the last-level cache, so that everything comes from memory.
"""

from __future__ import annotations

from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.machine import last_cache_bytes
from benchmarks.harness.training_cases import EAGER, either, with_single

COPY, COLUMNS = "copy of the same bytes", 1024
# Matrices that must be read and written at the least; cross entropy's gradient is p - t, of full size.
WORK = {
    "softmax": 2,
    "layer_norm": 2,
    "adam": 7,
    "cross_entropy": 1,
    "cross_entropy_gradient": 2,
}
# BatchNorm in training, forward and backward: x twice and y; x and the gradient twice, and that of x.
BATCH_NORM, PIXELS, FEATURES = 8, 128 * 32 * 32, 64
TOLERANCE = 64 * 1.2e-7  # some functions of 2 ulp and a sum of 1024 numbers


def case(
    name: str, matrices: int, rows: int, total: int, settings: Settings, columns: int = COLUMNS
) -> Case:
    arguments = {"work": name, "rows": rows, "columns": columns, "total_bytes": total}
    copied = {"nbytes": matrices * rows * columns * 4, "total_bytes": total}
    computing = [
        Entry(OURS, "benchmarks.contenders.rows:Native", arguments),
        Entry(EAGER, "benchmarks.contenders.torch_rows:Rows", arguments),
    ]
    entries = [*computing, Entry(COPY, "benchmarks.contenders.copies:Copy", copied)]
    return Case(
        f"{name.replace('_', ' ')}, {rows} x {columns}",
        with_single(entries, settings),
        (Goal("ratio", 1.3 if name == "batch_norm" else 1.2, either(settings, COPY)),),
        checks=(Check(TOLERANCE, names=(OURS, EAGER)),),
    )


def claim(settings: Settings) -> Claim:
    rows = 512 if settings.quick else 4096
    few = 8 if settings.quick else 1
    total = 4 * last_cache_bytes() // few
    return Claim(
        "bounded by memory",
        [
            *(case(n, k, rows, total, settings) for n, k in WORK.items()),
            case("batch_norm", BATCH_NORM, PIXELS // few, total, settings, FEATURES),
        ],
        shared=True,
    )


if __name__ == "__main__":
    main({"memory_bound": claim})
