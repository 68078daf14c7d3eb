"""Copies of runs, rows by number and their transpose as CUDA C++; `kernels/moves.py` says what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.moves import MOVE_WORDS, AddPicked, Move, Pick

_THREADS = 128
_ITEMS = {1: "u8", 2: "unsigned short", 4: "u32", 8: "u64"}


def _parameters(slots: tuple[str, ...], item: str, index: str) -> str:
    kinds = {
        "index": f"const {index} *", "source": f"const {item} *", "result": f"{item} *",
        "faults": "i64 *",
    }  # fmt: skip
    return ", ".join(f"{kinds.get(slot, 'i64 ')}{slot}" for slot in slots)


@dataclass(frozen=True)
class MoveVariant:
    """Threads take elements of a run in turn; runs are shared out among rows of blocks."""

    kernel: Move

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    def text(self, name: str) -> str:
        """The function."""
        item, count = _ITEMS[self.kernel.item_bytes], self.kernel.sources
        kinds = ["i64 row0", "i64 row1", "const i64 *table", f"{item} *result"]
        kinds += [f"const {item} *x{k}" for k in range(count)]
        chosen = f"x{count - 1}"
        for k in reversed(range(count - 1)):
            chosen = f"run[1] == {k} ? x{k} : {chosen}"
        return f"""extern "C" __global__ void {name}({", ".join(kinds)}) {{
{BEGIN}  for (i64 row = row0 + blockIdx.y; row < row1; row += gridDim.y) {{
    const i64 *run = table + row * {MOVE_WORDS};
    const {item} *from = ({chosen}) + run[2];
    {item} *to = result + run[0];
    const i64 step = run[3], length = run[4];
    for (i64 i = (i64)blockIdx.x * {_THREADS} + threadIdx.x; i < length; i += (i64)gridDim.x * {_THREADS})
      to[i] = from[i * step];
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

    `column1` are the elements of a run, on average.
    """
    rows, columns = values["row1"] - values["row0"], values["column1"]
    if rows <= 0:
        return None
    variant = MoveVariant(kernel)
    grid = (min(max(-(-columns // _THREADS), 1), 1024), min(rows, 65535), 1)
    return Launch(variant, grid, (_THREADS, 1, 1), arguments_of(variant, values))


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
