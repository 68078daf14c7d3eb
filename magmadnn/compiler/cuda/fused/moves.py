"""Copies of boxes, rows by number and their transpose as CUDA C++; `kernels/moves.py` says what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.moves import (
    AXES,
    BOX_WORDS,
    FIRST_ROW,
    OUTER_AXES,
    PLACE,
    SOURCE,
    TO,
    AddPicked,
    Move,
    Pick,
)

_THREADS = 128
_ITEMS = {1: "u8", 2: "unsigned short", 4: "u32", 8: "u64", 16: "Vec<u64, 2>"}


def _parameters(slots: tuple[str, ...], item: str, index: str) -> str:
    kinds = {
        "index": f"const {index} *", "source": f"const {item} *", "result": f"{item} *",
        "faults": "i64 *",
    }  # fmt: skip
    return ", ".join(f"{kinds.get(slot, 'i64 ')}{slot}" for slot in slots)


@dataclass(frozen=True)
class MoveVariant:
    """A row of threads for a row of a box; threads of a row take its elements in turn."""

    kernel: Move

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    def text(self, name: str) -> str:
        """The function."""
        item, count = _ITEMS[self.kernel.item_bytes], self.kernel.sources
        kinds = ["i64 row0", "i64 row1", "i64 boxes", "const i64 *table", f"{item} *result"]
        kinds += [f"const {item} *x{k}" for k in range(count)]
        chosen = f"x{count - 1}"
        for k in reversed(range(count - 1)):
            chosen = f"box[{SOURCE}] == {k} ? x{k} : {chosen}"
        return f"""extern "C" __global__ void {name}({", ".join(kinds)}) {{
{BEGIN}  const i64 first = row0 + (i64)blockIdx.y * blockDim.y + threadIdx.y;
  for (i64 row = first; row < row1; row += (i64)gridDim.y * blockDim.y) {{
    i64 low = 0, high = boxes;
    while (high - low > 1) {{
      const i64 middle = (low + high) / 2;
      if (table[middle * {BOX_WORDS} + {FIRST_ROW}] <= row) low = middle;
      else high = middle;
    }}
    const i64 *box = table + low * {BOX_WORDS};
    i64 rest = row - box[{FIRST_ROW}], to = box[{TO}], place = box[{PLACE}];
    for (int axis = {OUTER_AXES - 1}; axis >= 0 && rest; --axis) {{
      const i64 *outer = box + {AXES} + 3 * axis, length = outer[0];
      const i64 next = ((rest | length) >> 32) == 0 ? (i64)((u32)rest / (u32)length) : rest / length;
      const i64 index = rest - next * length;
      rest = next;
      to += index * outer[1];
      place += index * outer[2];
    }}
    const i64 *inner = box + {AXES + 3 * OUTER_AXES}, length = inner[0], to_step = inner[1], step = inner[2];
    const {item} *from = ({chosen}) + place;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < length; i += (i64)gridDim.x * blockDim.x)
      result[to + i * to_step] = from[i * step];
  }}
}}
"""


@dataclass(frozen=True)
class PickVariant:
    """A thread for each element of the result."""

    kernel: Pick

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    def text(self, name: str) -> str:
        """The function."""
        item, index = _ITEMS[self.kernel.item_bytes], MEMORY[self.kernel.index_dtype]
        head = f'extern "C" __global__ void {name}({_parameters(self.slots, item, index)})'
        return f"""{head} {{
{BEGIN}  const i64 across = column1 - column0, count_all = (row1 - row0) * across;
  const i64 element = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= count_all) return;
  const i64 row = row0 + element / across, column = column0 + element % across;
  const i64 outer = row / picks, number = (i64)index[row % picks];
  if (number < 0 || number >= count) {{
    faults[0] = 1;
    return;
  }}
  result[row * columns + column] = source[(outer * count + number) * columns + column];
}}
"""


@dataclass(frozen=True)
class AddPickedVariant:
    """A thread for each element of the result, which looks at all picks in their order."""

    kernel: AddPicked

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    def text(self, name: str) -> str:
        """The function."""
        item, index = MEMORY[self.kernel.dtype], MEMORY[self.kernel.index_dtype]
        head = f'extern "C" __global__ void {name}({_parameters(self.slots, item, index)})'
        return f"""{head} {{
{BEGIN}  const i64 across = column1 - column0, each = count * across;
  const i64 element = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= (row1 - row0) * each) return;
  const i64 outer = row0 + element / each, own = element % each / across;
  const i64 column = column0 + element % across;
  {TYPES[self.kernel.dtype]} total = 0;
  for (i64 pick = 0; pick < picks; ++pick) {{
    const i64 number = (i64)index[pick];
    if (number == own) total = total + source[(outer * picks + pick) * columns + column];
    if (own == 0 && (number < 0 || number >= count)) faults[0] = 1;
  }}
  result[(outer * count + own) * columns + column] = total;
}}
"""


def choose_move(kernel: Move, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The launch for given sizes; None where nothing is to be done.

    `column1` are the elements of a row, on average.
    """
    rows, columns = values["row1"] - values["row0"], values["column1"]
    if rows <= 0:
        return None
    variant = MoveVariant(kernel)
    across = min(1 << max(columns - 1, 0).bit_length(), _THREADS)
    down = _THREADS // across
    grid = (min(max(-(-columns // across), 1), 1024), min(-(-rows // down), 65535), 1)
    return Launch(variant, grid, (across, down, 1), arguments_of(variant, values))


def choose_pick(kernel: Pick, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The launch for given sizes; None where nothing is to be done."""
    rows = values["row1"] - values["row0"]
    return _launch(PickVariant(kernel), values, rows * (values["column1"] - values["column0"]))


def choose_add_picked(kernel: AddPicked, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The launch for given sizes; None where nothing is to be done."""
    rows = values["row1"] - values["row0"]
    count = rows * values["count"] * (values["column1"] - values["column0"])
    return _launch(AddPickedVariant(kernel), values, count)


def _launch(
    variant: PickVariant | AddPickedVariant, values: Mapping[str, int], threads: int
) -> Launch | None:
    if threads <= 0:
        return None
    grid = (-(-threads // _THREADS), 1, 1)
    return Launch(variant, grid, (_THREADS, 1, 1), arguments_of(variant, values))
