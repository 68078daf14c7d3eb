"""What memory bounds, on a GPU: softmax, LayerNorm, Adam, cross entropy, and BatchNorm over pixels.

Compared with a copy on the device of as many bytes as must be read and written at the least. Buffers take
turns over many times the second-level cache. Each work is timed twice: many of them in one call, so that
kernels are what counts, and one in each call that is waited for.
"""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.memory_bound import BATCH_NORM, COPY, FEATURES, PIXELS, TOLERANCE, WORK
from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import EAGER

COLUMNS, CHECKED_ROWS = 4096, 512
TOTAL = 4 << 30  # bytes of all buffers of a contender, where one call works on all of them
FEW = 1 << 30  # where each call works on the next: still many times the cache
COMPILED, JAX = "torch.compile", "JAX jit"
_ROWS = "benchmarks.contenders.rows"
_TORCH, _JAX = "benchmarks.contenders.torch_rows", "benchmarks.contenders.jax_rows"


def case(
    name: str, matrices: int, rows: int, single: bool, columns: int = COLUMNS, jax: bool = True
) -> Case:
    total = FEW if single else TOTAL
    work = {"work": name, "rows": rows, "columns": columns, "total_bytes": total}
    copied = {"nbytes": matrices * rows * columns * 4, "total_bytes": total, "single": single}
    peer: dict[str, Any] = {**work, "single": single}
    by_torch = {**peer, "device": "cuda"}
    return Case(
        f"{name.replace('_', ' ')}, {rows} x {columns}, {'a call each' if single else 'many in a call'}",
        (
            Entry(OURS, f"{_ROWS}:{'CallsOnGpu' if single else 'OnGpu'}", work),
            Entry(EAGER, f"{_TORCH}:Rows", by_torch),
            Entry(COMPILED, f"{_TORCH}:CompiledRows", by_torch),
            *([Entry(JAX, f"{_JAX}:Rows", peer)] if jax else []),
            Entry(COPY, "benchmarks.contenders.torch_cuda:Copy", copied),
        ),
        (Goal("ratio", 1.3 if name == "batch_norm" else 1.15, (COPY,)),),
        checks=()
        if single
        else (
            Check(
                4 * TOLERANCE,
                {"rows": CHECKED_ROWS, "total_bytes": 0},
                (OURS, EAGER, COMPILED, *([JAX] if jax else [])),
            ),
        ),
    )


def claim(settings: Settings) -> Claim:
    rows = 512 if settings.quick else 8192
    cases = [case(n, k, rows, single) for single in (False, True) for n, k in WORK.items()]
    cases += [case("batch_norm", BATCH_NORM, PIXELS, s, FEATURES, jax=False) for s in (False, True)]
    return Claim("bounded by memory", cases, shared=True)


if __name__ == "__main__":
    main({"memory_bound": claim}, device="cuda")
