"""Operands and results of fused kernels: parameters, addresses, loads and stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from magmadnn.compiler.kernels.formula import HALVES, ITEM_BYTES
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    PADDED,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
    Operand,
    PaddedOperand,
    Result,
    row_constant,
)

from .formulas import MEMORY, Cell, converted, literal, register_dtype

Part = Operand | Result

STREAMS = (FULL, STRIDED, PADDED)  # operands with an element for each of the matrix
BY_INDEX = (STRIDED, STRIDED_COLUMN, PADDED)  # whose rows lie where an index says
_WIDEST_LOAD = 16  # bytes


def parameters(slots: Sequence[str], parts: Iterable[Part], pointers: Mapping[str, str]) -> str:
    """The parameter list of a kernel.

    Args:
        slots: names of the parameters.
        parts: operands and results, whose own slots are pointers to their elements.
        pointers: types of further slots that are addresses.
    """
    return ", ".join(typed(slots, parts, pointers))


def typed(
    slots: Sequence[str], parts: Iterable[Part], pointers: Mapping[str, str], prefix: str = ""
) -> list[str]:
    """Each of the parameters with its type, and a prefix to its name."""
    kinds = {part.name: f"{MEMORY[part.dtype]} *" for part in parts} | dict(pointers)
    return [f"{kinds.get(slot, 'i64 ')}{prefix}{slot}" for slot in slots]


def place(part: Part, row: str, column: str) -> str:
    """The address of an element, from which the next elements of the row follow."""
    if part.spread == SCALAR:
        return part.name
    if part.spread == COLUMN:
        return f"{part.name} + {row}"
    if isinstance(part, Operand) and part.spread in (STRIDED, STRIDED_COLUMN):
        begin = f"{part.name} + {row_begin(part.slots[1:], part.axes, row)}"
        return begin if part.spread == STRIDED_COLUMN else f"{begin} + {column}"
    start = f"{part.name} + {row} * {part.name}_row" if part.spread == FULL else part.name
    return f"{start} + {column}"


def row_begin(slots: Sequence[str], axes: int, row: str) -> str:
    """Where a row of a strided operand begins."""
    if axes == 1:
        return f"{row} * {slots[0]}"
    parts = slots[: axes - 1], slots[axes - 1 :]
    sizes, steps = (f"PerAxis<{len(part)}>{{{{{', '.join(part)}}}}}" for part in parts)
    return f"strided_row<{axes}>({row}, {sizes}, {steps})"


def padded_place(operand: PaddedOperand, row: str = "row") -> str:
    """The `PaddedRow` of a row of a padded operand."""
    name, count = operand.name, range(operand.axes)
    numbers = ["1", *(f"{name}_size{k}" for k in count[1:])]
    given = [numbers, *([f"{name}_{what}{k}" for k in count] for what in ("step", "first", "end"))]
    axes = ", ".join(f"PerAxis<{len(count)}>{{{{{', '.join(part)}}}}}" for part in given)
    return f"padded_row<{len(count)}>({row}, {name}_origin, {axes})"


def padded_fill(operand: PaddedOperand) -> str:
    """The constant around a padded operand, as memory has it."""
    fill = literal(operand.fill[1], register_dtype(operand.dtype))
    return f"({MEMORY[operand.dtype]}){kept(fill, operand.dtype)}"


def vector(operand: Operand, row: str, column: str, width: int) -> str:
    """Elements of a row of an operand, from a column on.

    Of a padded one these, or the constant; no width is such that it is both.
    """
    if not isinstance(operand, PaddedOperand):
        return f"load<{width}>((const {MEMORY[operand.dtype]} *)({place(operand, row, column)}))"
    name, inside = operand.name, "true"
    if operand.has_edges:
        inside = f"{column} >= {name}_left && {column} < {name}_right"
    source, found = f"(const {MEMORY[operand.dtype]} *){name}", padded_place(operand, row)
    return f"load_padded<{width}>({source}, {found}, {column}, {inside}, {padded_fill(operand)})"


def seen(text: str, dtype: str) -> Cell:
    """An element as formulas see it: bytes of truth become truth values, halves float32."""
    if dtype in HALVES:
        return Cell(f"as_float({text})", "float32")
    return Cell(f"({text} != 0)", dtype) if dtype == "bool" else Cell(text, dtype)


def kept(cell: Cell, dtype: str) -> str:
    """A value as memory keeps it."""
    if dtype in HALVES:
        return f"as_{dtype}({converted(cell, 'float32')})"
    text = converted(cell, dtype)
    return f"(u8){text}" if dtype == "bool" else text


def vector_type(dtype: str, width: int) -> str:
    """The type of elements that are loaded together."""
    return f"Vec<{MEMORY[dtype]}, {width}>"


def width_for(parts: Iterable[Part], values: Mapping[str, int], columns: int) -> int:
    """How many elements of a row a thread takes at a time: 16 bytes of the widest where all lies so.

    What is the same in every row comes from the caches, and does not count.
    """
    streams = [p for p in parts if not row_constant(p)]
    long = [p for p in streams if p.spread in STREAMS] or streams
    widest = max((ITEM_BYTES[p.dtype] for p in long), default=_WIDEST_LOAD)
    width = max(_WIDEST_LOAD // widest, 1)
    while width > 1 and not all(_fits(p, values, columns, width) for p in streams):
        width //= 2
    return width


def _fits(part: Part, values: Mapping[str, int], columns: int, width: int) -> bool:
    nbytes = min(width * ITEM_BYTES[part.dtype], _WIDEST_LOAD)
    counts = ("_size", "_first", "_end")  # of rows
    steps = [values[slot] for slot in part.slots[1:] if not any(one in slot for one in counts)]
    fits = all(step % width == 0 for step in steps)
    return fits and columns % width == 0 and values[part.name] % nbytes == 0
