"""Reductions by groups of threads, always in the same pairs."""

from __future__ import annotations

import math

from magmadnn.compiler.kernels.columns import DEVIATIONS
from magmadnn.compiler.kernels.rows import Reduction

from .formulas import TYPES, Lines, is_float, literal

COMBINED = {"add": "plus", "multiply": "times", "maximum": "largest", "minimum": "smallest"}
_WARP = 32
_INTEGER_BITS = {"uint8": 8, "int32": 32, "int64": 64}


def neutral(reduction: Reduction) -> str:
    """What changes no result: 0, 1, an infinity or the end of the integers' range."""
    if reduction.kind in ("add", "multiply", DEVIATIONS):
        return literal(int(reduction.kind == "multiply"), reduction.dtype).text
    if is_float(reduction.dtype):
        infinity = -math.inf if reduction.kind == "maximum" else math.inf
        return literal(infinity, reduction.dtype).text
    end = 1 << (_INTEGER_BITS[reduction.dtype] - 1)
    return literal(-end if reduction.kind == "maximum" else end - 1, reduction.dtype).text


def group_reduction(lines: Lines, reduction: Reduction, total: str, group: int) -> None:
    """Combine `total` of the threads of each group, which all get the result.

    Within a warp in pairs whose lanes differ in one bit, so that all lanes compute the same; the warps'
    results then in the same way, from shared memory.
    """
    combine, kind = COMBINED[reduction.kind], TYPES[reduction.dtype]
    _shuffled(lines, combine, total, min(group, _WARP))
    if group <= _WARP:
        return
    warps = group // _WARP
    lines.add("{")
    lines.add(f"__shared__ {kind} shared_{reduction.name}[{warps}];")
    lines.add(
        f"if (threadIdx.x % {_WARP} == 0) shared_{reduction.name}[threadIdx.x / {_WARP}] = {total};"
    )
    lines.add("__syncthreads();")
    lines.add(f"{total} = shared_{reduction.name}[threadIdx.x % {warps}];")
    _shuffled(lines, combine, total, warps)
    lines.add("}")


def _shuffled(lines: Lines, combine: str, total: str, lanes: int) -> None:
    if lanes > 1:
        lines.add("#pragma unroll")
        lines.add(f"for (int apart = {lanes // 2}; apart > 0; apart /= 2)")
        lines.add(f"  {total} = {combine}({total}, __shfl_xor_sync(0xffffffffu, {total}, apart));")
