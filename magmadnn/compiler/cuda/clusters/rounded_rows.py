"""A copy of a data set's features that products of tiles can read: rounded where they cut digits off."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

from .prelude import CLUSTERS

_THREADS = 256
_AT_ONCE = 4  # loads of a thread that wait together
_MOST_BLOCKS = 1024
_QUAD = 4  # numbers that are copied together


@dataclass(frozen=True)
class RoundedRows:
    """Copy numbers, with half of the last digit of TF32 added.

    Slots: `from`, `to`; `quads`, how many groups of four numbers there are.
    """

    slots = ("from", "to", "quads")
    libraries = (CLUSTERS,)

    def text(self, name: str) -> str:
        """The function."""
        return f"""extern "C" __global__ void {name}(const float4 *from, float4 *to, i64 quads) {{
{BEGIN}  using clusters::cut_soon;
  const i64 all = (i64)gridDim.x * {_THREADS};
#pragma unroll {_AT_ONCE}
  for (i64 i = (i64)blockIdx.x * {_THREADS} + threadIdx.x; i < quads; i += all) {{
    const float4 v = from[i];
    to[i] = make_float4(__uint_as_float(cut_soon(v.x)), __uint_as_float(cut_soon(v.y)),
      __uint_as_float(cut_soon(v.z)), __uint_as_float(cut_soon(v.w)));
  }}
}}
"""


def rounded_rows(here: int, there: int, count: int) -> Launch:
    """The launch for so many numbers, a multiple of four.

    Args:
        here: their address.
        there: that of the copy.
        count: how many.
    """
    quads = count // _QUAD
    blocks = min(max(-(-quads // (_THREADS * _AT_ONCE)), 1), _MOST_BLOCKS)
    return Launch(RoundedRows(), (blocks, 1, 1), (_THREADS, 1, 1), (here, there, quads))
