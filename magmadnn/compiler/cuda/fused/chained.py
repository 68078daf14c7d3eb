"""A narrow product, what is done to its rows, and a product with the result, as one kernel.

The last layer of a classifier has a few columns: its product, softmax and loss with their gradient, and the
gradient of the layer below are three short kernels, each of which needs whole rows of the one before. Here
a block does all three for some rows: what it makes on the way lies in its shared memory. Where the last
product is wider than a block, several blocks share the rows and each makes the narrow ones for itself; the
first of them keeps them. Texts are those of the kernels alone, and so are the bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from magmadnn.compiler.cuda.gemm.gemm import GemmVariant
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.variant import Chip, Launch, Variant
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.operands import COLUMN, FULL, Operand, row_constant

from .merged import inlined
from .rows import RowsVariant

_TILE = 16  # rows
_WIDE = (1, 4)  # tile of a warp, in units of 16 rows and 8 columns
_NARROW = 16  # columns of the first product: one step of k for the last one
_ALIGNED = 16  # bytes


@dataclass(frozen=True)
class Near:
    """A value that a block keeps in shared memory, and copies out at the end.

    Attributes:
        dtype: of its elements.
        columns: elements of a row.
        stride: from row to row.
        slots: of the parts that make or read it: (number of the part, name); the maker first.
    """

    dtype: str
    columns: int
    stride: int
    slots: tuple[tuple[int, str], ...]

    def nbytes(self, rows: int) -> int:
        """From the first element of so many rows to behind the last, where they lie in memory."""
        return ((rows - 1) * self.stride + self.columns) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Chained:
    """How three kernels are one.

    Slots: the parts' own, each with the number of its part.

    Attributes:
        first: the narrow product.
        rows: what is done to its rows.
        last: the product with the result.
        near: what stays in the block.
    """

    first: GemmVariant
    rows: RowsVariant
    last: GemmVariant
    near: tuple[Near, ...]

    @property
    def parts(self) -> tuple[Variant, ...]:
        """The three."""
        return (self.first, self.rows, self.last)

    @property
    def products(self) -> tuple[GemmVariant, ...]:
        """Those of the parts that are products."""
        return tuple(part for part in self.parts if isinstance(part, GemmVariant))

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(f"{s}_{k}" for k, part in enumerate(self.parts) for s in part.slots)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What the parts need beside their texts."""
        return self.first.libraries

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.first.cut.threads

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        return max(part.registers for part in self.products)

    @property
    def across(self) -> int:
        """Blocks that share the same rows."""
        return _across(self.last)

    @property
    def _height(self) -> int:
        """Rows of a block."""
        return self.first.cut.most_rows

    @property
    def _offsets(self) -> list[int]:
        """Where values begin in shared memory, and where the last one ends: sums come then."""
        found = [0]
        for value in self.near:
            nbytes = self._height * value.stride * ITEM_BYTES[value.dtype]
            found.append(found[-1] + -(-nbytes // _ALIGNED) * _ALIGNED)
        return found

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self._offsets[-1] + max(part.shared_bytes for part in self.products)

    def text(self, name: str) -> str:
        """The function."""
        rows, across = self.first.sizes[0], self.across
        types = "".join(part.types(f"{name}_{k}") for k, part in self._numbered())
        slots = "\n".join(self._slots(name, k, part) for k, part in self._numbered())
        arguments = ", ".join(
            "Given{row1}" if slot == "row1" else f"Given{{{self._given(1, slot)}}}"
            for slot in self.rows.slots
        )
        copies = "\n".join(self._copied(k, value) for k, value in enumerate(self.near))
        return f"""{types}{inlined(self.rows, f"{name}_1")}
extern "C" __global__ void __launch_bounds__({self.threads}, 1) {name}({self._parameters()}) {{
  SHARED_MEMORY({self.shared_bytes})
  char *const sums = memory + {self._offsets[-1]};
  const int height = {self._height}, block = blockIdx.x, group = block / {across}, row0 = group * height;
  const int row1 = row0 + height < {rows} ? row0 + height : {rows};
{self._places()}
{slots}
  Part0::State one;
  Part2::State two;
  Part0::begin(slots0, group, one);
  Part2::begin(slots2, block, two);
  wait_for_earlier_kernels();
{self._touched()}
  Part0::fetch(slots0, one, true);
  Part2::fetch(slots2, two, false);
  if (Part0::EAGER) let_later_kernels_start();
  Part0::sum(one);
  if (!Part0::EAGER) let_later_kernels_start();
  Part0::end(slots0, one, sums);
  __syncthreads();
  {name}_1 rows;
  rows.blockIdx = {{0, 0, 0}};
  rows.threadIdx = {{(u32)(threadIdx.x + row0 * {self.rows.group}), 0, 0}};
  rows.run({arguments});
  __syncthreads();
  Part2::fetch_a(two);
  Part2::sum(two);
  Part2::end(slots2, two, sums);
  if (block % {across} != 0) return;
{copies}
}}
"""

    def _numbered(self) -> Iterator[tuple[int, GemmVariant]]:
        """Products with the numbers of their parts."""
        return ((k, part) for k, part in enumerate(self.parts) if isinstance(part, GemmVariant))

    def _parameters(self) -> str:
        return ", ".join(f"i64 {slot}" for slot in self.slots)

    def _slots(self, name: str, number: int, part: GemmVariant) -> str:
        given = ", ".join(f"({part.kinds[s]} *){self._given(number, s)}" for s in part.slots)
        return f"""  const {name}_{number}_slots slots{number} = {{{given}}};
  typedef {name}_{number}_type Part{number};"""

    def _touched(self) -> str:
        """Bring what is read from memory later near, while the first product is computed."""
        near = {pair for value in self.near for pair in value.slots}
        lines = []
        for operand in self.rows.kernel.operands:
            if operand.spread == COLUMN and (1, operand.name) not in near:
                at = f"(const {MEMORY[operand.dtype]} *){operand.name}_1 + row0"
                lines.append(f"  if (threadIdx.x < row1 - row0) touch({at} + threadIdx.x);")
        return "\n".join(lines)

    def _places(self) -> str:
        """Addresses of near values, such that rows count from the first of all."""
        return "\n".join(
            f"  {MEMORY[v.dtype]} *const near{k} = ({MEMORY[v.dtype]} *)(memory + {at}) - "
            f"(i64)row0 * {v.stride};"
            for k, (v, at) in enumerate(zip(self.near, self._offsets, strict=False))
        )

    def _given(self, part: int, slot: str) -> str:
        """What a part gets for a slot."""
        for k, value in enumerate(self.near):
            if (part, slot) in value.slots:
                return f"(i64)near{k}"
        return f"{slot}_{part}"

    def _copied(self, number: int, value: Near) -> str:
        """Copy a near value's rows to its memory."""
        part, slot = value.slots[0]
        kind = MEMORY[value.dtype]
        return f"""  for (int i = threadIdx.x; i < (row1 - row0) * {value.columns}; i += {self.threads}) {{
    const i64 at = (i64)(row0 + i / {value.columns}) * {value.stride} + i % {value.columns};
    (({kind} *){slot}_{part})[at] = near{number}[at];
  }}"""


def _across(product: GemmVariant) -> int:
    """Blocks beside each other."""
    return -(-product.sizes[1] // product.cut.block[1])


def chain(launches: Sequence[Launch], chip: Chip) -> Launch | None:
    """One launch in place of three; None where they do not fit together.

    The first makes what the second reads row by row, and the second makes the left operand of the last.
    """
    first, middle, last = (one.variant for one in launches)
    assert isinstance(first, GemmVariant) and isinstance(middle, RowsVariant)
    assert isinstance(last, GemmVariant)
    if not _fits(first, middle, last):
        return None
    values = [dict(zip(one.variant.slots, one.arguments, strict=True)) for one in launches]
    near = _near(first, middle, last, values)
    if near is None:
        return None
    threads = first.cut.threads
    cut = replace(last.cut, tile=_WIDE, warps=(1, threads // 32, 1))
    across = -(-last.sizes[1] // cut.block[1])
    wanted = -(-first.sizes[0] * across * 2 // chip.processors)  # others have room beside
    down = -(-first.sizes[0] // max(min(wanted, _TILE, threads // middle.group), 1))
    height = -(-first.sizes[0] // down)
    narrow = replace(first.cut, tile=(1, -(-first.sizes[1] // 8)), most_rows=height)
    variant = Chained(
        replace(first, cut=narrow),
        middle,
        replace(last, cut=replace(cut, most_rows=height), near=True),
        near,
    )
    if variant.shared_bytes > chip.shared_bytes:
        return None
    arguments = tuple(argument for one in launches for argument in one.arguments)
    return Launch(variant, (down * across, 1, 1), (threads, 1, 1), arguments, variant.shared_bytes)


def _fits(one: GemmVariant, middle: RowsVariant, two: GemmVariant) -> bool:
    """Whether kernels are of the kinds and sizes that a block can do one after the other."""
    return (
        not any(v.cut.whole_k or v.kernel.transpose_a for v in (one, two))
        and 0 < middle.group <= 32
        and middle.groups > 1
        and one.sizes[1] <= _NARROW
        and two.sizes[2] <= _NARROW
        and one.sizes[0] == two.sizes[0]
        and one.kernel.dtype == two.kernel.dtype
    )


def _near(
    first: GemmVariant,
    middle: RowsVariant,
    last: GemmVariant,
    values: Sequence[Mapping[str, int]],
) -> tuple[Near, ...] | None:
    """What parts make that others read, with all who do; None where it is read in another way."""
    made = {**_of_product(0, first, values[0]), **_of_rows(middle, values[1])}
    rows, found = first.sizes[0], []
    readers = _readers(middle, last, values, rows)
    others = _read_early(last, values[2], rows)
    for address, near in made.items():
        end = address + near.nbytes(rows)
        if any(one.address < end and address < one.address + one.nbytes for one in others):
            return None  # the block would read it before it is made
        whole = (address, near.columns, near.stride)
        own = [one for one in readers if one.address < end and address < one.address + one.nbytes]
        if any((one.address, one.columns, one.stride) != whole for one in own):
            return None  # a part of it, or more
        slots = dict.fromkeys((*near.slots, *((one.part, one.slot) for one in own)))
        found.append(replace(near, slots=tuple(slots)))
    return tuple(found)


class _Reader(NamedTuple):
    """What a part reads: columns of each row, elements from row to row, and the bytes of all rows."""

    part: int
    slot: str
    address: int
    columns: int
    stride: int
    nbytes: int


def _readers(
    middle: RowsVariant, last: GemmVariant, values: Sequence[Mapping[str, int]], rows: int
) -> list[_Reader]:
    """All operands of the rows, and the left one of the last product."""
    columns = values[1]["column1"]
    found = [_reader(1, one, values[1], (rows, columns)) for one in middle.kernel.operands]
    k, stride = last.sizes[2], dict(last.strides)["a"]
    nbytes = ((rows - 1) * stride + k) * ITEM_BYTES[last.kernel.halves or last.kernel.dtype]
    return [*found, _Reader(2, "a", values[2]["a"], k, stride, nbytes)]


def _read_early(last: GemmVariant, values: Mapping[str, int], rows: int) -> list[_Reader]:
    """What the last product reads before the rows are done: its right operand, and what formulas read."""
    steps = {f"{name}_row": step for name, step in last.strides}
    numbers = {**values, **steps, **dict(last.axes)}
    _, n, k = last.sizes
    lines, columns = (n, k) if last.kernel.transpose_b else (k, n)
    elements = (lines - 1) * steps["b_row"] + columns
    nbytes = elements * ITEM_BYTES[last.kernel.halves or last.kernel.dtype]
    right = _Reader(2, "b", values["b"], columns, steps["b_row"], nbytes)
    return [right, *(_reader(2, one, numbers, (rows, n)) for one in last.operands)]


def _reader(
    part: int, operand: Operand, values: Mapping[str, int], sizes: tuple[int, int]
) -> _Reader:
    """An operand of a part that walks over so many rows and columns; 0 from row to row where strided."""
    rows, columns = sizes
    if row_constant(operand):
        columns = 1
    stride, item = values.get(f"{operand.name}_row", 1), ITEM_BYTES[operand.dtype]
    address = values[operand.name]
    if operand.axes:
        ways = _ways(operand, values, rows)
        stride, steps = 0, sum(map(abs, ways))
        address += item * sum(way for way in ways if way < 0)
    else:
        steps = {FULL: stride, COLUMN: 1}.get(operand.spread, 0) * (rows - 1)
    return _Reader(part, operand.name, address, columns, stride, (steps + columns) * item)


def _ways(operand: Operand, values: Mapping[str, int], rows: int) -> list[int]:
    """Elements from the beginning of each axis of a strided operand's rows to its end."""
    numbers = [values[slot] for slot in operand.slots[1:]]
    sizes = numbers[: operand.axes - 1]
    steps = numbers[operand.axes - 1 : 2 * operand.axes - 1]
    sizes = [-(-rows // max(math.prod(sizes), 1)), *sizes]
    return [(size - 1) * step for size, step in zip(sizes, steps, strict=True)]


def _of_product(number: int, part: GemmVariant, values: Mapping[str, int]) -> dict[int, Near]:
    strides = dict(part.strides)
    return {
        values[r.name]: Near(r.dtype, part.sizes[1], strides[r.name], ((number, r.name),))
        for r in part.results
    }


def _of_rows(part: RowsVariant, values: Mapping[str, int]) -> dict[int, Near]:
    found = {}
    for stage in part.kernel.stages:
        for result in (*stage.store, *stage.store_row):
            full = result.spread == FULL
            columns = values["column1"] if full else 1
            stride = values[f"{result.name}_row"] if full else 1
            maker = ((1, result.name),)
            found[values[result.name]] = Near(result.dtype, columns, stride, maker)
    return found
