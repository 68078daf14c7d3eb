"""Launches that copy elements from one place on the device to another."""

from __future__ import annotations

from magmadnn.compiler.cuda.module import choose
from magmadnn.compiler.cuda.text.variant import Chip, Launch
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Rows, pointwise

from .launch import Item

_WORDS = ("int64", "int32", "uint8")  # in which bits are copied as they are


def copying(dtype: str) -> Rows:
    """The kernel that copies elements."""
    return pointwise((Operand("x", dtype),), Result("y", dtype, ("argument", 0)))


def copies(dtype: str, count: int, source: int, to: int, chip: Chip) -> list[Item]:
    """The launch that copies elements of a dtype, if there are any."""
    nbytes = count * ITEM_BYTES[dtype]
    values = {"row0": 0, "row1": 1, "column0": 0, "column1": count, "x_row": 0, "y_row": 0}
    launch = choose(copying(dtype), values | {"x": source, "y": to}, chip)
    if launch is None:
        return []
    return [Item(launch, ((source, source + nbytes),), ((to, to + nbytes),))]


def copied_rows(
    dtype: str, rows: int, columns: int, source: tuple[int, int], to: tuple[int, int], chip: Chip
) -> Launch | None:
    """The kernel that copies rows which lie apart; None where there are no elements.

    Args:
        dtype: of the elements.
        rows: how many,
        columns: and how many elements each has.
        source: the first element's address, and elements from one row to the next;
        to: the same of where they go.
        chip: what emitters know of the device.
    """
    values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns}
    values |= {"x": source[0], "x_row": source[1], "y": to[0], "y_row": to[1]}
    return choose(copying(dtype), values, chip)


def copied_bytes(nbytes: int, source: int, to: int, chip: Chip) -> list[Item]:
    """The same for bytes of whatever dtype, in the largest words that both places and the length allow."""
    word = next(w for w in _WORDS if all(x % ITEM_BYTES[w] == 0 for x in (nbytes, source, to)))
    return copies(word, nbytes // ITEM_BYTES[word], source, to, chip)
