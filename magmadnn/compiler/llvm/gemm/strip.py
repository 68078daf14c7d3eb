"""The tiles of full height in a panel of a matrix product, one below the other, in one function.

What is between two tiles costs as much as many of their steps: calls, addresses, sums that go through memory.
So here the loop over tiles holds everything: hints about the next panel of B between steps of k and, where
little is done to elements last, the end of a tile on its sums in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import I32, Array, Code, Value, Variable, item_bytes

from .cache_hints import LINE_BYTES, Ahead, Announcing
from .finish import Ending, Finishing, ReadyFinish
from .joined_axes import JoinedRows
from .register_tile import (
    Hints,
    Side,
    Tile,
    Totals,
    load_totals,
    store_totals,
    write_products,
    zeros,
)

_TOGETHER = 4  # tiles whose ends, if they take long, follow each other: so those of rows overlap


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
        return self.at(i // rows * self.panel + i % rows * self.row)

    def at(self, element: Value) -> Side:
        """The rows from where `element` of the copy lies."""
        return Side(self.start.at(element), self.row, self.step)


@dataclass(frozen=True)
class Panel:
    """What the tiles of a panel have in common: what is multiplied, and what becomes of sums.

    Attributes:
        depth: steps of k.
        a: the block of A.
        b: the panel of B.
        sums: where sums wait for the next block of k.
        goal: the panel of C, for sums that are stored as they are.
        resume: whether there are sums.
        last: whether this is the last block of k.
        ending: for what is done to sums last.
    """

    depth: Value
    a: PanelOfA | JoinedRows
    b: Side
    sums: Side
    goal: Side
    resume: Value
    last: Value
    ending: Ending | None

    def waiting(self, i: Value) -> Side:
        """Where the sums of row `i` wait, and those below."""
        return Side(self.sums.start.at(i * self.sums.row), self.sums.row, self.sums.step)


@dataclass(frozen=True)
class Strip:
    """Writes the tiles of full height of a panel whose columns all exist.

    Attributes:
        tile: their shape.
        unroll: steps of k written out.
        finishing: what is done to sums last.
        turned: whether B is stored transposed.
    """

    tile: Tile
    unroll: int
    finishing: Finishing | None
    turned: bool

    def write(self, code: Code, rows: Value, ahead: Ahead | None, panel: Panel) -> Value:
        """All of them; gives how many rows are finished."""
        tile, a = self.tile, panel.a
        finished = code.variable(code.integer(0))
        at = code.variable(code.integer(0))
        hints = None
        if ahead is not None:
            per_step = 2 if panel.b.start.item == I32 else 1
            turned = self.unroll * per_step if self.turned else 0
            hints = Beside(code, ahead, tile, turned, rows // tile.rows, panel.depth // self.unroll)
        ready = None
        if self.finishing is not None and panel.ending is not None:
            ready = self.finishing.ready(code, panel.ending)
        with code.loop(0, rows - (tile.rows - 1), tile.rows) as i:
            here, goal = panel.waiting(i), panel.goal
            there = Side(goal.start.at(i * goal.row), goal.row, goal.step)
            now = hints.of_tile() if hints else None
            self.announce_sums(code, i, panel)
            self._announce(code, i, there, panel, ready)
            totals = zeros(code, tile, panel.sums.start.item)
            with code.when(panel.resume):
                load_totals(tile, here, totals)
            left = a.at(at.value)
            write_products(code, tile, self.unroll, panel.depth, left, panel.b, totals, now)
            self._end(code, i, totals, here, there, panel, ready, finished)
            at.value = at.value + a.panel
        return finished.value

    def announce_sums(self, code: Code, i: Value, panel: Panel) -> None:
        """Hints that the sums of the next tile will be taken up again."""
        tile, item = self.tile, item_bytes(panel.sums.start.item)
        with code.when(panel.resume):
            following = panel.waiting(i + tile.rows).start
            for x in range(0, tile.rows * tile.columns, LINE_BYTES // item):
                code.prefetch(following, x)

    def _announce(
        self, code: Code, i: Value, goal: Side, panel: Panel, ready: ReadyFinish | None
    ) -> None:
        """Hints that parts of C and of the epilogue's matrices will be needed."""
        tile = self.tile
        if ready is not None and panel.ending is not None:
            with code.when(panel.last & panel.ending.far):
                ready.announce(code, tile, panel.ending, i)
            return
        with code.when(panel.last):
            for x in range(tile.rows):
                code.prefetch(goal.start, goal.row * x)
                code.prefetch(goal.start, goal.row * x + (tile.columns - 1))

    def _end(
        self,
        code: Code,
        i: Value,
        totals: Totals,
        here: Side,
        there: Side,
        panel: Panel,
        ready: ReadyFinish | None,
        finished: Variable,
    ) -> None:
        """Store sums for the next block of k, or finish them; what takes long, for some tiles at a time."""
        tile, ending, behind = self.tile, panel.ending, i + self.tile.rows
        with code.choose(panel.last) as (yes, no):
            with no:
                store_totals(tile, totals, here)
            with yes:
                if ready is None or ending is None:
                    store_totals(tile, totals, there)
                elif ready.is_light:
                    ready.write(code, tile, ending, i, totals)
                    finished.value = behind
                else:
                    store_totals(tile, totals, here)
                    first, many = finished.value, code.integer(_TOGETHER * tile.rows)
                    with code.when(behind - first >= many):
                        ready.finishing.write(code, tile, many, ending, first)
                        finished.value = behind


class Beside:
    """Hints about a part of B that go beside the steps of the tiles of another.

    Where B is stored transposed, each tile announces one of the part's rows as fast as it walks along k
    itself, `turned` elements a time; otherwise (0) one row of a panel's width goes beside so many steps as
    are written out, `times` in a tile. If that is not all of the part, hints go before the tiles.
    """

    def __init__(
        self, code: Code, ahead: Ahead, tile: Tile, turned: int, tiles: Value, times: Value
    ) -> None:
        self._code, self._ahead, self._turned = code, ahead, turned
        self._few = (tiles if turned else tiles * times) < ahead.rows
        self._before = Announcing(code, ahead, tiles)
        self._done = code.variable(code.integer(0))
        item = item_bytes(ahead.start.item)
        per_line = LINE_BYTES // item
        across = (*range(0, tile.columns, per_line), tile.columns - 1)
        self._offsets = (0,) if turned else across
        self._each = code.integer(1) if turned else times

    def of_tile(self) -> Hints:
        """Those beside the next tile."""
        code, ahead = self._code, self._ahead
        first = self._done.value
        with code.when(self._few):
            self._before.write()
        active = (first < ahead.rows) & ~self._few
        start = ahead.start.at(first * ahead.row)
        apart = code.integer(self._turned) if self._turned else ahead.row
        self._done.value = code.smaller(first + self._each, ahead.rows)
        return Hints(start, code.select(active, apart, 0), self._offsets)
