"""What follows a convolution, where the library has no call that does it too."""

from __future__ import annotations

import math
from dataclasses import dataclass

from magmadnn.backends.cuda.engine import ConvolutionNode
from magmadnn.compiler.cuda.text.formulas import MEMORY, register_dtype
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.formula import HALVES

from .surroundings import launch_of


@dataclass(frozen=True)
class Ends:
    """result = result + added + bias, of which what is negative may become 0; sums of halves are float32's.

    Slots: `count`, elements in all; `columns`, elements of the bias; `bias`; `added` where something is;
    `result`.

    Attributes:
        dtype: of the elements.
        adds: whether there is something added.
        positive: whether what is negative becomes 0; NaN stays.
    """

    dtype: str
    adds: bool
    positive: bool

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return ("count", "columns", "bias", *(["added"] if self.adds else []), "result")

    def text(self, name: str) -> str:
        """The function."""
        item, wide = MEMORY[self.dtype], MEMORY[register_dtype(self.dtype)]
        kinds = dict.fromkeys(("bias", "added"), f"const {item} *") | {"result": f"{item} *"}
        parameters = ", ".join(f"{kinds.get(slot, 'i64 ')}{slot}" for slot in self.slots)
        is_half = self.dtype in HALVES
        element = "as_float({}[{}])" if is_half else "{}[{}]"
        total = [
            element.format(*pair)
            for pair in (("result", "at"), ("added", "at"), ("bias", "at % columns"))
        ]
        kept = total if self.adds else [total[0], total[2]]
        cut = "  if (total < 0) total = 0;\n" if self.positive else ""
        stored = f"as_{item}(total)" if is_half else "total"
        return f"""extern "C" __global__ void {name}({parameters}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  {wide} total = {" + ".join(kept)};
{cut}  result[at] = {stored};
}}
"""


def ends(call: ConvolutionNode) -> Launch:
    """A launch that does to what a call made, [n, *windows, o], what the call does not."""
    shape = call.shapes[call.result]
    count = math.prod(shape)
    values = {"count": count, "columns": shape[-1], "result": call.y}
    values |= {"bias": call.bias, "added": call.added}
    return launch_of(Ends(call.stored, bool(call.added), call.positive), count, values)
