"""A panel of a matrix product: all rows of a block of C, as wide as one tile."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from magmadnn.compiler.llvm.ir.builder import Code, Value

from .cache_hints import Ahead
from .finish import Finishing
from .joined_axes import JoinedRows
from .register_tile import Side, Tile, write_tile
from .strip import Panel, Strip

_TAIL_ROWS = (4, 2, 1)  # heights of the tiles for rows that do not fill the largest one


def write_panel(
    code: Code,
    tile: Tile,
    unroll: int,
    finishing: Finishing | None,
    whole: bool,
    rows: Value,
    panel: Panel,
    ahead: Ahead | None = None,
    turned: bool = False,
    below: bool = False,
) -> None:
    """Cover `rows` rows with tiles, the highest first: a subroutine.

    Args:
        code: where to write.
        tile: the largest tile.
        unroll: steps of k written out in it.
        finishing: what is done to tiles after the last block of k; kernels with the same share this.
        whole: whether all columns of a tile exist in C; tiles of full height are a strip then.
        rows: how many rows.
        panel: what is multiplied, and what becomes of sums.
        ahead: what of B is announced to the caches meanwhile.
        turned: whether B is stored transposed.
        below: whether tiles that are no strip announce the rows of A below them.
    """
    key = _key(tile, panel.a, panel.b, unroll) + (f"_{finishing.name}" if finishing else "")
    key += ("_strip" + "_turned" * turned) if whole else "_below" * below
    key += "" if ahead is None else f"_{ahead.start.item}"

    def write(code: Code, rows: Value, ahead: Ahead | None, panel: Panel) -> None:
        done, finished = code.variable(code.integer(0)), code.integer(0)
        if whole:
            strip = Strip(tile, unroll, finishing, turned)
            finished = strip.write(code, rows, ahead, panel)
            done.value = rows // tile.rows * tile.rows
        rest = _Rest(tile, finishing, whole, below)
        with code.repeat() as leave:
            leave.when(done.value >= rows)
            done.value = rest.write(code, done.value, rows - done.value, panel)
        rest.finish(code, finished, rows, panel)

    code.subroutine(f"panel_{key}", write, rows, ahead, panel)


@dataclass(frozen=True)
class _Rest:
    """Writes tiles of any height: the highest one that fits, by calls."""

    tile: Tile  # the largest
    finishing: Finishing | None
    whole: bool
    below: bool  # whether the rows of A below a tile are announced

    def write(self, code: Code, i: Value, left: Value, panel: Panel) -> Value:
        """The tile at row `i`, of which and below which `left` are left; gives the row behind it."""
        here, goal = panel.waiting(i), panel.goal
        to = here
        if panel.ending is None:
            there = goal.start.at(i * goal.row)
            to = Side(
                code.select_array(panel.last, there, here.start),
                code.select(panel.last, goal.row, here.row),
                here.step,
            )
        a = panel.a.tile(i, self.tile.rows)
        return i + self._one(code, left, panel.depth, a, panel.b, here, to, panel.resume)

    def finish(self, code: Code, first: Value, rows: Value, panel: Panel) -> None:
        """The end of the rows from `first` on, whose sums wait."""
        if self.finishing is None or panel.ending is None:
            return
        with code.when(panel.last & (first < rows)):
            self.finishing.write(code, self.tile, rows - first, panel.ending, first)

    def _one(
        self, code: Code, left: Value, depth: Value, a: Side | JoinedRows, b: Side, *others: Any
    ) -> Value:
        """One tile; gives its height."""
        heights = (self.tile.rows, *(r for r in _TAIL_ROWS if r < self.tile.rows))
        height = code.integer(heights[-1])
        for rows in reversed(heights[:-1]):
            height = code.select(left >= rows, rows, height)
        for rows in heights:
            if self.whole and rows == self.tile.rows:
                continue  # its strip has done them
            tile = Tile(rows, self.tile.width, self.tile.lanes)
            body = functools.partial(write_tile, tile, 1, self.below)
            name = f"tile_{_key(tile, a, b, 1)}{'_below' * self.below}"
            with code.when(height.equals(rows)):
                code.subroutine(name, body, depth, a, b, *others)
        return height


def _key(tile: Tile, a: object, b: Side, unroll: int) -> str:
    """What the code of a tile depends on, as a part of a name."""
    way = "_joined" * isinstance(a, JoinedRows)
    return f"{tile.rows}x{tile.width}x{tile.lanes}_{b.start.item}_{unroll}{way}"
