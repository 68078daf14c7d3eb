"""Boxes of a movement in wider items: neighbours that stay neighbours are copied together, up to 16 bytes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.kernels.moves import AXES, OUTER_AXES, PLACE, SOURCE, TO
from magmadnn.graph.op import Array

_WIDEST = 16  # bytes of a load or a store

Table = NDArray[np.int64]


def alignment_of(addresses: Iterable[int]) -> int:
    """The largest power of two, up to 16, that divides all addresses."""
    every = _WIDEST
    for address in addresses:
        every |= address
    return every & -every


def widened(
    table: Table, constants: Array, sources: int, alignment: int
) -> tuple[Table, Array, int]:
    """A table in items of several elements, its constants, and how many elements an item has.

    Args:
        table: int64 [boxes, words] of `kernels/moves.py`, in elements.
        constants: the values that boxes read whose source is number `sources`.
        sources: how many other sources there are.
        alignment: bytes that divide the addresses of the result and of these.
    """
    constant = table[:, SOURCE] == sources
    count = min(_WIDEST, alignment) // constants.itemsize
    while count > 1 and not _fits(table, constant, count):
        count //= 2
    if count <= 1 or not len(table):
        return table, constants, 1
    new = table.copy()
    new[:, TO] //= count
    new[~constant, PLACE] //= count  # a constant is repeated: its number stays
    axes = new[:, AXES:].reshape(len(new), OUTER_AXES + 1, 3)
    axes[:, -1, 0] //= count
    axes[:, :-1, 1:] //= count
    new[:, AXES:] = axes.reshape(len(new), 3 * (OUTER_AXES + 1))
    return new, np.repeat(constants, count), count


def _fits(table: Table, constant: NDArray[np.bool_], count: int) -> bool:
    """Whether all boxes are rows of neighbours, `count` of which begin wherever an item may."""
    axes = table[:, AXES:].reshape(len(table), OUTER_AXES + 1, 3)
    row, outer = axes[:, -1], axes[:, :-1]
    steps = np.where(outer[:, :, :1] > 1, outer[:, :, 1:], 0)
    constants = row[constant, 2].any() or steps[constant, :, 1].any()
    return bool(
        not constants
        and np.all(row[:, 0] % count == 0)
        and np.all(row[:, 1] == 1)
        and np.all(row[~constant, 2] == 1)
        and np.all(table[:, TO] % count == 0)
        and np.all(table[~constant, PLACE] % count == 0)
        and np.all(steps % count == 0)
    )
