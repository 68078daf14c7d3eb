"""Numbers times a factor, behind a transform."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

from .surroundings import launch_of

_PIECE = 16  # bytes that a thread reads at once
_PIECES = 4  # of a thread, all read before the first is written


@dataclass(frozen=True)
class Scaled:
    """result = factor * result. Slots: `count`; `factor`, the bits of a double; `result`.

    Attributes:
        dtype: of the numbers, of which complex ones are two.
    """

    dtype: str
    slots = ("count", "factor", "result")

    @property
    def of_piece(self) -> int:
        """Numbers of a piece."""
        return _PIECE // np.dtype(self.dtype).itemsize

    def text(self, name: str) -> str:
        """The function."""
        item, some = MEMORY[self.dtype], self.of_piece
        return f"""extern "C" __global__ void {name}(i64 count, i64 factor, {item} *result) {{
{BEGIN}  const {item} by = ({item})make_f64((u64)factor);
  const i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if ((u64)result % {_PIECE}) {{
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = thread; at < count; at += step) result[at] *= by;
    return;
  }}
  struct alignas({_PIECE}) Piece {{
    {item} number[{some}];
  }} piece[{_PIECES}];
  Piece *const pieces = (Piece *)result;
  const i64 begin = (i64)blockIdx.x * blockDim.x * {_PIECES} + threadIdx.x, whole = count / {some};
#pragma unroll
  for (int k = 0; k < {_PIECES}; ++k)
    if (begin + k * blockDim.x < whole) piece[k] = pieces[begin + k * blockDim.x];
#pragma unroll
  for (int k = 0; k < {_PIECES}; ++k)
    if (begin + k * blockDim.x < whole) {{
#pragma unroll
      for (int i = 0; i < {some}; ++i) piece[k].number[i] *= by;
      pieces[begin + k * blockDim.x] = piece[k];
    }}
  if (thread < count - whole * {some}) result[whole * {some} + thread] *= by;
}}
"""


def scaled(dtype: str, count: int, factor: float, result: int) -> Launch:
    """A launch that does that to so many numbers."""
    (bits,) = struct.unpack("<q", struct.pack("<d", factor))
    values = {"count": count, "factor": bits, "result": result}
    variant = Scaled(dtype)
    return launch_of(variant, -(-count // (_PIECES * variant.of_piece)), values)
