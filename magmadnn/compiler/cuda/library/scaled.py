"""Numbers times a factor, behind a transform."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

from .surroundings import launch_of


@dataclass(frozen=True)
class Scaled:
    """result = factor * result. Slots: `count`; `factor`, the bits of a double; `result`.

    Attributes:
        dtype: of the numbers, of which complex ones are two.
    """

    dtype: str
    slots = ("count", "factor", "result")

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        return f"""extern "C" __global__ void {name}(i64 count, i64 factor, {item} *result) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) result[at] *= ({item})make_f64((u64)factor);
}}
"""


def scaled(dtype: str, count: int, factor: float, result: int) -> Launch:
    """A launch that does that to so many numbers."""
    (bits,) = struct.unpack("<q", struct.pack("<d", factor))
    values = {"count": count, "factor": bits, "result": result}
    return launch_of(Scaled(dtype), count, values)
