"""The end of a tile of a matrix product: the epilogue, and what is stored.

It follows the last products of each tile at once, while the sums are in the first-level cache. What it reads
and writes besides was announced to the caches before the tile's products began.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import FULL
from magmadnn.compiler.llvm.ir.builder import FLOATS, Array, Code, Value, item_bytes
from magmadnn.compiler.llvm.ir.frame import Slots

from .cache_hints import LINE_BYTES
from .epilogue import Place, TileFinisher, finisher
from .register_tile import Tile, Totals

_LIGHT = 8  # operations on each element that are done in registers beside a tile's sums
_SIMPLE = frozenset(
    (
        "add", "subtract", "multiply", "negative", "minimum", "maximum", "where",
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Ending:
    """What a panel has to know for the end of its tiles.

    Attributes:
        sums: of the panel's rows, side by side.
        block: the kernel's argument block.
        row: the panel's first row of C,
        column: and its first column.
        columns: how many columns of C there are in it.
        far: whether C is too large to lie in the first-level cache.
    """

    sums: Array
    block: Array
    row: Value
    column: Value
    columns: Value
    far: Value


class Finishing:
    """Writes the end of tiles for one kernel.

    Args:
        gemm: the kernel.

    Attributes:
        name: of all that the end depends on; kernels of a module with the same share what is written here.
    """

    def __init__(self, gemm: Gemm) -> None:
        self.gemm = gemm
        what = repr((gemm.dtype, gemm.epilogue, gemm.unread, gemm.slots))
        self.name = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()

    @property
    def is_plain(self) -> bool:
        """Whether sums are stored as they are."""
        return self.gemm.epilogue is None

    def write(self, code: Code, tile: Tile, rows: Value, ending: Ending, i: Value) -> None:
        """The end of `rows` rows of tiles from row `i` of a panel on, all of whose columns exist."""
        name = f"finish_{self.name}_{tile.width}x{tile.lanes}"  # one for tiles of all heights
        body = functools.partial(self._write, tile)
        code.subroutine(name, body, ending, i, rows)

    def write_edge(self, code: Code, lanes: int, rows: Value, ending: Ending, wide: Value) -> None:
        """The end of all rows of a panel with sums `wide` vectors across, not all of which exist in C."""
        body = functools.partial(self._write_edge, lanes)
        code.subroutine(f"finish_{self.name}_edge_{lanes}", body, ending, wide, rows)

    def _write(self, tile: Tile, code: Code, ending: Ending, i: Value, rows: Value) -> None:
        end = _RowEnds(self.gemm, code, ending)
        end.begin(ending.row + i)
        with code.loop(0, rows) as r:
            for x in range(tile.width):
                at = (i + r) * tile.columns + x * tile.lanes
                column = ending.column + x * tile.lanes
                end.store(at, Place(ending.row + i + r, column, tile.lanes, None))
            end.next_row()

    def _write_edge(self, lanes: int, code: Code, ending: Ending, wide: Value, rows: Value) -> None:
        end = _RowEnds(self.gemm, code, ending)
        with code.loop(0, wide) as x:
            mask = code.first(ending.columns - x * lanes, lanes)
            column = ending.column + x * lanes
            end.begin(ending.row)
            with code.loop(0, rows) as r:
                end.store((r * wide + x) * lanes, Place(ending.row + r, column, lanes, mask))
                end.next_row()

    def ready(self, code: Code, ending: Ending) -> ReadyFinish:
        """The same where addresses are read once for many tiles."""
        return ReadyFinish(code, self, ending)

    def streams(self, slots: Slots) -> Iterator[tuple[Array, Value, bool]]:
        """Start, stride and use of the matrices as large as C; what is updated in place is read first."""
        gemm = self.gemm
        item = FLOATS[gemm.dtype]
        if not gemm.unread:
            yield slots.array("c", item), slots.integer("ldc"), True
        if isinstance(gemm.epilogue, Finish):
            for part in gemm.epilogue.operands:
                if part.spread == FULL and part.dtype == gemm.dtype:
                    yield slots.array(part.name, item), slots.integer(f"{part.name}_row"), False


class _RowEnds:
    """Finishes vectors of sums in scratch memory, each of which belongs to a place of C, row after row."""

    def __init__(self, gemm: Gemm, code: Code, ending: Ending) -> None:
        slots = Slots(code, ending.block, gemm.slots)
        self._gemm, self._sums = gemm, ending.sums
        self._finish = finisher(gemm.epilogue, code, slots)
        self._c, self._ldc = slots.array("c", FLOATS[gemm.dtype]), slots.integer("ldc")

    def begin(self, row: Value) -> None:
        """The first row."""
        if self._finish is not None:
            self._finish.begin(row)

    def next_row(self) -> None:
        """A row is done."""
        if self._finish is not None:
            self._finish.next_row()

    def store(self, at: Value, place: Place) -> None:
        """The vector `at` of the sums."""
        value = self._sums.vector(at, place.lanes)
        if self._finish is not None:
            value = self._finish.write(value, place)
        if not self._gemm.unread:
            self._c.put(place.row * self._ldc + place.column, value, place.mask)


class ReadyFinish:
    """Writes the ends of tiles into the function that has them, addresses read beforehand.

    Attributes:
        finishing: what is done.
        is_light: whether so little is done that it is done to sums in registers.
    """

    def __init__(self, code: Code, finishing: Finishing, ending: Ending) -> None:
        gemm = self._gemm = finishing.gemm
        slots, self.finishing = Slots(code, ending.block, gemm.slots), finishing
        self._streams = list(finishing.streams(slots))
        item = FLOATS[gemm.dtype]
        self._c, self._ldc = slots.array("c", item), slots.integer("ldc")
        self._finish = None
        if isinstance(gemm.epilogue, Finish) and _is_light(gemm.epilogue, gemm):
            self._finish = TileFinisher(gemm.epilogue, code, slots)
        self.is_light = self._finish is not None

    def write(self, code: Code, tile: Tile, ending: Ending, i: Value, totals: Totals) -> None:
        """The end of the tile at row `i`, whose columns all exist, on its sums in registers."""
        finish = self._finish
        assert finish is not None
        finish.begin(ending.row + i)
        columns = [ending.column + x * tile.lanes for x in range(tile.width)]
        for r, across in enumerate(totals):
            row = ending.row + i + r
            for column, total in zip(columns, across, strict=True):
                value = finish.write(total.value, Place(row, column, tile.lanes, None))
                if not self._gemm.unread:
                    self._c.put(row * self._ldc + column, value)
            finish.next_row()

    def announce(self, code: Code, tile: Tile, ending: Ending, i: Value) -> None:
        """Hints about the memory that the end of the whole tile at row `i` will touch."""
        for number, stream in enumerate(self._streams):
            if number == 0:
                _hints(code, tile, ending, i, *stream)
                continue
            apart = code.number_of(stream[0]).differs(code.number_of(self._streams[0][0]))
            with code.when(apart):  # what is updated in place was announced already
                _hints(code, tile, ending, i, *stream)


def _hints(
    code: Code, tile: Tile, ending: Ending, i: Value, start: Array, row: Value, use: bool
) -> None:
    """Hints about the lines of a matrix where a tile lies."""
    item = item_bytes(start.item)
    here = start.at((ending.row + i) * row + ending.column)
    for r in range(tile.rows):
        for x in range(0, tile.columns, LINE_BYTES // item):
            code.prefetch(here, row * r + x, use)
    across = (code.number_of(here) | row * item) & (LINE_BYTES - 1)
    with code.when(across.differs(0)):  # the tile's last columns lie in one line more
        for r in range(tile.rows):
            code.prefetch(here, row * r + (tile.columns - 1), use)


def _is_light(finish: Finish, gemm: Gemm) -> bool:
    """Whether an epilogue is a few instructions, on numbers of the product's dtype."""
    dtypes = {x.dtype for x in finish.operands} | {y.dtype for y in finish.results}
    formulas = [finish.formula, *(result.formula for result in finish.results)]
    weights = [_weight(formula) for formula in formulas]
    return dtypes <= {gemm.dtype} and sum(weights) <= _LIGHT


def _weight(formula: Formula) -> int:
    """How many operations a formula has; beyond `_LIGHT` where one of them takes many instructions."""
    if formula[0] in ("product", "argument", "constant"):
        return 0
    own = 1 if formula[0] in _SIMPLE else _LIGHT + 1
    return own + sum(_weight(part) for part in formula[1:])
