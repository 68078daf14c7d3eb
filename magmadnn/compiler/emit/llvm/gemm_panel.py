"""A panel of a matrix product: all rows of a block of C, as wide as one tile."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from .builder import Array, Code, Value
from .gemm_ahead import Ahead, Announcing
from .gemm_finish import Ending, Finishing
from .gemm_tile import Side, Tile, write_tile

_TAIL_ROWS = (4, 2, 1)  # heights of the tiles for rows that do not fill the largest one


@dataclass(frozen=True)
class PanelOfA:
    """A, or a copy of a block of it, from the block's first row and k on.

    Row i starts at `start[i // rows * panel + i % rows * row]`, where `rows` are those of the largest
    tile, and its elements lie `step` apart: `panel = rows * row` for A itself.
    """

    start: Array
    panel: Value
    row: Value
    step: Value

    def tile(self, i: Value, rows: int) -> Side:
        """The tile that starts at row `i`."""
        at = i // rows * self.panel + i % rows * self.row
        return Side(self.start.at(at), self.row, self.step)


def write_panel(
    code: Code,
    tile: Tile,
    unroll: int,
    finishing: Finishing | None,
    whole: bool,
    rows: Value,
    depth: Value,
    a: PanelOfA,
    b: Side,
    sums: Side,
    goal: Side,
    resume: Value,
    last: Value,
    ending: Ending | None,
    ahead: Ahead | None = None,
) -> None:
    """Cover `rows` rows with tiles, the highest first: a subroutine.

    Args:
        code: where to write.
        tile: the largest tile.
        unroll: steps of k written out in it.
        finishing: what is done to tiles after the last block of k; kernels without share the subroutine.
        whole: whether all columns of a tile exist in C.
        rows: how many rows.
        depth: steps of k.
        a: the block of A.
        b: the panel of B.
        sums: where sums wait for the next block of k.
        goal: the panel of C, for sums that are stored as they are.
        resume: whether there are sums.
        last: whether this is the last block of k.
        ending: for `finishing`.
        ahead: what of B is announced to the caches meanwhile.
    """
    key = _key(tile, b, unroll) + (f"_{finishing.name}_{whole}" if finishing else "")

    key += "" if ahead is None else f"_{ahead.start.item}"

    def write(code: Code, rows: Value, ahead: Ahead | None, *others: Any) -> None:
        done = code.variable(code.integer(0))
        hints = Announcing(code, ahead, rows // tile.rows) if ahead else None
        for height in (tile.rows, *(r for r in _TAIL_ROWS if r < tile.rows)):
            shape = Tile(height, tile.width, tile.lanes)
            row = _Row(tile, shape, unroll, finishing, whole)
            with code.loop(done.value, rows - (height - 1), height) as i:
                if hints is not None and height == tile.rows:
                    hints.write()
                row.write(code, i, *others)
                done.value = i + height

    operands = (rows, ahead, depth, a, b, sums, goal, resume, last, ending)
    code.subroutine(f"panel_{key}", write, *operands)


@dataclass(frozen=True)
class _Row:
    """Writes one tile of a panel."""

    largest: Tile
    tile: Tile
    unroll: int
    finishing: Finishing | None
    whole: bool

    def write(
        self,
        code: Code,
        i: Value,
        depth: Value,
        a: PanelOfA,
        b: Side,
        sums: Side,
        goal: Side,
        resume: Value,
        last: Value,
        ending: Ending | None,
    ) -> None:
        """The tile at row `i`, after hints about what will be written."""
        tile = self.tile
        here = Side(sums.start.at(i * sums.row), sums.row, sums.step)
        there = Side(goal.start.at(i * goal.row), goal.row, goal.step)
        if ending is not None:
            there = Side(ending.tile, code.integer(tile.columns), goal.step)
        to = Side(
            code.select_array(last, there.start, here.start),
            code.select(last, there.row, here.row),
            here.step,
        )
        self._announce(code, i, there, last, ending)
        steps = self.unroll if tile == self.largest else 1
        body = functools.partial(write_tile, tile, steps)
        left = a.tile(i, self.largest.rows)
        name = f"tile_{_key(tile, b, steps)}"
        code.subroutine(name, body, depth, left, b, here, to, resume)
        if self.finishing is not None and ending is not None:
            with code.when(last):
                self.finishing.write(code, tile, ending, i, self.whole)

    def _announce(
        self, code: Code, i: Value, goal: Side, last: Value, ending: Ending | None
    ) -> None:
        """Hints that parts of C and of the epilogue's matrices will be needed."""
        tile = self.tile
        if tile != self.largest or not self.whole:
            return
        if self.finishing is not None and ending is not None:
            with code.when(last & ending.far):
                self.finishing.announce(code, tile, ending, i)
            return
        with code.when(last):
            for x in range(tile.rows):
                code.prefetch(goal.start, goal.row * x)
                code.prefetch(goal.start, goal.row * x + (tile.columns - 1))


def _key(tile: Tile, b: Side, unroll: int) -> str:
    """What the code of a tile depends on, as a part of a name."""
    return f"{tile.rows}x{tile.width}x{tile.lanes}_{b.start.item}_{unroll}"
