"""What memory bounds, on a GPU: softmax, LayerNorm, Adam's update and cross entropy on 8192 x 4096.

Compared with a copy on the device of as many bytes as must be read and written at the least. Buffers take
turns over several times the second-level cache.
"""

from __future__ import annotations

from benchmarks.cpu.memory_bound import COPY, TOLERANCE, WORK
from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import EAGER

COLUMNS = 4096
TOTAL = (
    8 << 30
)  # bytes of all buffers of a contender; a run works on all, so that its call weighs little


def case(name: str, matrices: int, rows: int) -> Case:
    arguments = {"work": name, "rows": rows, "columns": COLUMNS, "total_bytes": TOTAL}
    copied = {"nbytes": matrices * rows * COLUMNS * 4, "total_bytes": TOTAL}
    on_gpu = {**arguments, "device": "cuda"}
    return Case(
        f"{name.replace('_', ' ')}, {rows} x {COLUMNS}",
        (
            Entry(OURS, "benchmarks.contenders.rows:OnGpu", arguments),
            Entry(EAGER, "benchmarks.contenders.torch_rows:Rows", on_gpu),
            Entry(COPY, "benchmarks.contenders.torch_cuda:Copy", copied),
        ),
        (Goal("ratio", 1.15, (COPY,)),),
        checks=(Check(4 * TOLERANCE, names=(OURS, EAGER)),),
    )


def claim(settings: Settings) -> Claim:
    rows = 512 if settings.quick else 8192
    return Claim("bounded by memory", [case(n, k, rows) for n, k in WORK.items()], shared=True)


if __name__ == "__main__":
    main({"memory_bound": claim}, device="cuda")
