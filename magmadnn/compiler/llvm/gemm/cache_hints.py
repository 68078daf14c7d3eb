"""Hints about the next panel of B, given beside the tiles of the panel before.

Weights come from memory in each step, or from a cache that others use too. What a tile reads or a copy needs
was asked for a panel earlier, so that arithmetic does not wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import Array, Code, Value, item_bytes

LINE_BYTES = 64
_LEAST_LINES = 16  # that are asked for at a time


@dataclass(frozen=True)
class Ahead:
    """A part of B that will be read: `rows` rows of `length` elements, `row` elements apart."""

    start: Array
    row: Value
    rows: Value
    length: Value


class Announcing:
    """Writes the hints about a part of B, some before each of so many tiles."""

    def __init__(self, code: Code, ahead: Ahead, tiles: Value) -> None:
        self._code, self._ahead = code, ahead
        self._done = code.variable(code.integer(0))
        per_line = LINE_BYTES // item_bytes(ahead.start.item)
        lines = code.larger((ahead.length + (per_line - 1)) // per_line, 1)
        tiles, least = code.larger(tiles, 1), (lines + (_LEAST_LINES - 1)) // lines
        self._each = code.larger((ahead.rows + tiles - 1) // tiles, least)

    def write(self) -> None:
        """Those before one tile."""
        first = self._done.value
        end = self._code.smaller(first + self._each, self._ahead.rows)
        with self._code.when(first < end):
            name = f"announce_{self._ahead.start.item}"
            self._code.subroutine(name, _announce, self._ahead, first, end)
            self._done.value = end


def _announce(code: Code, ahead: Ahead, first: Value, end: Value) -> None:
    """Hints about the lines of rows `first` to `end`."""
    per_line = LINE_BYTES // item_bytes(ahead.start.item)
    with code.loop(first, end) as r:
        row = ahead.start.at(r * ahead.row)
        with code.loop(0, ahead.length, per_line) as x:
            code.prefetch(row, x, written=False)
