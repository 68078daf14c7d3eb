"""Running sums as CUDA C++; `kernels/accumulate.py` says what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES, is_float
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import WARP, Chip, Launch, arguments_of
from magmadnn.compiler.kernels.accumulate import Accumulate

_THREADS = 128
_AHEAD = 8  # elements that are read before the first of them is added
_MOST_PARTS = 32  # of WARP elements each, that a warp scans at a time


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


@dataclass(frozen=True)
class WarpScanVariant:
    """A warp for each line of neighbouring elements; the order of sums depends on the length alone.

    Parts of 32 elements, one in each lane, are scanned in five steps of shuffles, independently of each
    other; the sum of all earlier parts is then added to each. A chain of additions is 5 + length / 32
    long, not length.

    Attributes:
        parts: how many parts are in registers at a time.
    """

    kernel: Accumulate
    parts: int

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    def text(self, name: str) -> str:
        """The function."""
        item, number = MEMORY[self.kernel.dtype], TYPES[self.kernel.dtype]
        kinds = {"source": f"const {item} *", "result": f"{item} *"}
        parameters = ", ".join(f"{kinds.get(slot, 'i64 ')}{slot}" for slot in self.slots)
        place = "length - 1 - i" if self.kernel.reverse else "i"
        nothing = "-0.0" if is_float(self.kernel.dtype) else "0"  # 0.0 + -0.0 would be 0.0
        return f"""extern "C" __global__ void {name}({parameters}) {{
{BEGIN}  const u32 lane = threadIdx.x % {WARP};
  const i64 line = row0 + (i64)blockIdx.x * {_THREADS // WARP} + threadIdx.x / {WARP};
  if (line >= row1) return;
  const {item} *from = source + line * length;
  {item} *to = result + line * length;
  {number} before = ({number}){nothing};
  for (i64 first = lane; first - lane < length; first += {self.parts * WARP}) {{
    {number} part[{self.parts}];
#pragma unroll
    for (int k = 0; k < {self.parts}; ++k) {{
      const i64 i = first + k * {WARP};
      part[k] = i < length ? from[{place}] : ({number}){nothing};
    }}
#pragma unroll
    for (u32 apart = 1; apart < {WARP}; apart *= 2) {{
#pragma unroll
      for (int k = 0; k < {self.parts}; ++k) {{
        const {number} other = __shfl_up_sync(0xffffffffu, part[k], apart);
        part[k] = lane >= apart ? other + part[k] : part[k];
      }}
    }}
#pragma unroll
    for (int k = 0; k < {self.parts}; ++k) {{
      const {number} whole = __shfl_sync(0xffffffffu, part[k], {WARP - 1});
      part[k] = before + part[k];
      before = before + whole;
    }}
#pragma unroll
    for (int k = 0; k < {self.parts}; ++k) {{
      const i64 i = first + k * {WARP};
      if (i < length) to[{place}] = part[k];
    }}
  }}
}}
"""


def choose_accumulate(kernel: Accumulate, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The launch for given sizes; None where nothing is to be done."""
    lines = (values["row1"] - values["row0"]) * (values["column1"] - values["column0"])
    length = values["length"]
    if lines <= 0 or length == 0:
        return None
    if values["columns"] == 1 and length >= WARP:
        parts = min(_MOST_PARTS, -(-length // (4 * WARP)) * 4)
        scan = WarpScanVariant(kernel, parts)
        blocks = -(-lines * WARP // _THREADS)
        return Launch(scan, (blocks, 1, 1), (_THREADS, 1, 1), arguments_of(scan, values))
    variant = AccumulateVariant(kernel)
    return Launch(
        variant, (-(-lines // _THREADS), 1, 1), (_THREADS, 1, 1), arguments_of(variant, values)
    )
