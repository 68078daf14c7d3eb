"""Running sums as CUDA C++; `kernels/accumulate.py` says what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.accumulate import Accumulate

_THREADS = 128
_AHEAD = 8  # elements that are read before the first of them is added


@dataclass(frozen=True)
class AccumulateVariant:
    """A thread for each line along the axis: sums have the order, and the bits, of the processor's."""

    kernel: Accumulate

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    def text(self, name: str) -> str:
        """The function."""
        item, number = MEMORY[self.kernel.dtype], TYPES[self.kernel.dtype]
        kinds = {"source": f"const {item} *", "result": f"{item} *"}
        parameters = ", ".join(f"{kinds.get(slot, 'i64 ')}{slot}" for slot in self.slots)
        first = "(length - 1) * columns" if self.kernel.reverse else "0"
        step = "-columns" if self.kernel.reverse else "columns"
        return f"""extern "C" __global__ void {name}({parameters}) {{
{BEGIN}  const i64 across = column1 - column0;
  const i64 line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (line >= (row1 - row0) * across || length == 0) return;
  const i64 begin = (row0 + line / across) * length * columns + column0 + line % across;
  const {item} *from = source + begin + {first};
  {item} *to = result + begin + {first};
  const i64 step = {step};
  {number} total = from[0];
  to[0] = total;
  i64 i = 1;
  for (; i + {_AHEAD} <= length; i += {_AHEAD}) {{
    {number} next[{_AHEAD}];
#pragma unroll
    for (int k = 0; k < {_AHEAD}; ++k) next[k] = from[(i + k) * step];
#pragma unroll
    for (int k = 0; k < {_AHEAD}; ++k) {{
      total = total + next[k];
      to[(i + k) * step] = total;
    }}
  }}
  for (; i < length; ++i) {{
    total = total + from[i * step];
    to[i * step] = total;
  }}
}}
"""


def choose_accumulate(kernel: Accumulate, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The launch for given sizes; None where nothing is to be done."""
    lines = (values["row1"] - values["row0"]) * (values["column1"] - values["column0"])
    if lines <= 0 or values["length"] == 0:
        return None
    variant = AccumulateVariant(kernel)
    return Launch(
        variant, (-(-lines // _THREADS), 1, 1), (_THREADS, 1, 1), arguments_of(variant, values)
    )
