"""The loops of a matrix product around its panels; `gemm.py` says their order and their meaning."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import I64, Array, Code, Value, item_bytes
from magmadnn.compiler.llvm.ir.frame import Frame

from .blocking import Blocking
from .cache_hints import LINE_BYTES, Ahead, Announcing
from .finish import Ending, Finishing
from .joined_axes import JoinedAxes, JoinedRows
from .packing.pack import (
    convert_a_rows,
    pack_a_columns,
    pack_a_rows,
    pack_b_columns,
    pack_b_edge,
    pack_b_joined,
    pack_b_joined_edge,
    pack_b_rows,
)
from .packing.read import Reader
from .packing.shared import panel_elements
from .panel import write_panel
from .register_tile import Side, Tile
from .strip import Panel, PanelOfA

_WIDTHS = (1, 2, 4)  # vectors across, of the tiles for the last panel
_PAGE_BYTES = 4096
_SETS_BYTES = 4096  # rows that lie so far apart share one set of a first-level cache
_NEAR_ELEMENTS = 6144  # of C: most of a first-level cache
_NEAR_BYTES = 64 << 10  # of A: a copy of so few elements has to serve twice as many columns
_FAR_BYTES = 256 << 10  # of B: half of a second-level cache
_CROWDED_SHARE = 4  # of a block's rows where A, uncopied, lies so: parts of a cache stay empty
_CROWDED_WAYS = 4  # of its eight ways or more: what a panel may fill, with C and A beside it


@dataclass(frozen=True)
class _Block:
    """The part in work: `rows` from i0 on and columns j0 to j1 of C, `depth` steps of k from p0 on.

    After it come `following` steps of k, in the next block. B is `far` if it is too large for nearby caches,
    its rows may be `crowded` in them, and it is `copied` where that pays (if it is not stored transposed).
    Copies of B are `kept` for further rows, and there if the rows are not the `first` ones.
    """

    i0: Value
    rows: Value
    j0: Value
    j1: Value
    p0: Value
    depth: Value
    following: Value
    far: Value
    resume: Value
    last: Value
    kept: Value
    first: Value
    crowded: Value
    copied: Value


def _even_part(code: Code, total: Value, parts: Value) -> Value:
    """`total` divided into `parts` parts (at least one), rounded up, and at least 1."""
    parts = code.larger(parts, 1)
    return code.larger((total + parts - 1) // parts, 1)


def _whole(part: Value, unit: int) -> Value:
    """`part` rounded up to a multiple of `unit`."""
    return (part + unit - 1) // unit * unit


class Nest:
    """Writes the loops of one kernel."""

    def __init__(
        self,
        code: Code,
        frame: Frame,
        tile: Tile,
        blocking: Blocking,
        scratch: Mapping[str, Array],
        transposes: tuple[bool, bool],
        readers: tuple[Reader, Reader],
        shared: str,
        joined: str,
        finishing: Finishing,
    ) -> None:
        self.code, self.frame, self.finishing, self.shared = code, frame, finishing, shared
        self.tile, self.blocking, self.scratch = tile, blocking, scratch
        self.transpose_a, self.transpose_b = transposes
        self.reader_a, self.reader_b = readers
        self.a = frame.array("a", self.reader_a.item)
        self.b = frame.array("b", self.reader_b.item)
        self.c = frame.array("c", scratch["panel"].item)
        self.copy_of_a = scratch["block"].viewed(self.reader_a.copied)
        self.copy_of_b = scratch["panel"].viewed(self.reader_b.copied)
        self.lda, self.ldb, self.ldc = (frame.integer(x) for x in ("lda", "ldb", "ldc"))
        item = item_bytes(self.c.item)
        self.joined = JoinedAxes(code, frame, item, "a") if "a" in joined else None
        self.joined_b = JoinedAxes(code, frame, item, "b") if "b" in joined else None
        self.always_copies_b = self.reader_b.loading is not None or self.joined_b is not None
        self.copies_of_b = scratch["kept"].viewed(self.reader_b.copied)
        self.room = code.integer(blocking.kept_bytes // item_bytes(self.reader_b.copied))
        self.every_a, self.every_b = self._every(self.lda), self._every(self.ldb)
        self.one = code.integer(1)

    def write(self) -> None:
        """Write everything."""
        code = self.code
        row0, row1, column0, column1, k = (
            self.frame.integer(x) for x in ("row0", "row1", "column0", "column1", "k")
        )
        rows, columns, steps = self._block_sizes(row1 - row0, column1 - column0, k)
        self.steps, self.wide = steps, columns
        reach = self.ldb if self.shared == "b" else k * self.ldb
        far = reach * item_bytes(self.reader_b.item) > _FAR_BYTES
        kept = (rows < row1 - row0) & (k * columns <= self.room)
        with code.loop(column0, column1, columns) as j0, code.loop(row0, row1, rows) as i0:
            count, j1 = code.smaller(row1 - i0, rows), code.smaller(j0 + columns, column1)
            with code.loop(0, code.larger(k, 1), steps) as p0:  # k = 0 runs once, and stores
                depth, last = code.smaller(k - p0, steps), p0 + steps >= k
                following = code.larger(code.smaller(k - p0 - steps, steps), 0)
                crowded = self._collide(self.every_b, depth)
                block = _Block(
                    i0, count, j0, j1, p0, depth, following, far, p0 > 0, last, kept, i0 <= row0,
                    crowded, self._copies_b(count, crowded, kept),
                )  # fmt: skip
                self._block(block)

    def _block_sizes(self, rows: Value, columns: Value, k: Value) -> tuple[Value, Value, Value]:
        """Rows, columns and steps of k in a block: even parts near the blocking's sizes.

        Sums that wait for a further block of k need scratch memory, so then the columns are cut too.
        """
        code, high = self.code, self.tile.rows
        aim = self.blocking.depth
        steps = _even_part(code, k, (k + aim // 2) // aim)
        if self.reader_a.pairs:
            steps = (steps + 1) // 2 * 2  # a block ends where a pair does
        most = self._most_rows(columns, steps)
        part = _even_part(code, rows, (rows + most - 1) // most)
        waiting = code.select(rows > most, self._most_columns(k), self.blocking.columns)
        most = code.select(k > steps, waiting, code.larger(columns, 1))
        wide = _even_part(code, columns, (columns + most - 1) // most)
        return _whole(part, high), _whole(wide, self.tile.columns), steps

    def _most_columns(self, k: Value) -> Value:
        """Columns in a block whose rows are cut: so few that copies of B, if that pays, serve all rows."""
        code, cut, wide = self.code, self.blocking, self.tile.columns
        fit = self.room // code.larger(k, 1) // wide * wide
        fewer = (fit >= min(cut.pack_a_rows, cut.columns)) & (fit < cut.columns)
        return code.select(fewer, fit, cut.columns)

    def _most_rows(self, columns: Value, steps: Value) -> Value:
        """Rows in a block at most: fewer where they stay where they lie and crowd caches."""
        cut, most = self.blocking, self.code.integer(self.blocking.rows)
        if (
            self.transpose_a
            or self.joined
            or self.shared == "a"
            or self.reader_a.loading is not None
        ):
            return most
        fewer = max(cut.rows // _CROWDED_SHARE, min(cut.rows, cut.pack_b_rows))
        crowded = self._collide(self.every_a, steps) & ~self._copies_a(columns, most, steps)
        return self.code.select(crowded, fewer, most)

    def _block(self, block: _Block) -> None:
        """One block of k for one block of C."""
        code, wide = self.code, self.tile.columns
        a = self._panels_of_a(block)
        whole = block.j1 - (block.j1 - block.j0) % wide
        group = self._group(block) * wide
        with code.when(block.far & (block.p0 < 1)):
            Announcing(code, self._ahead(block, block.j0, whole), self.one).write()
        with code.loop(block.j0, whole, group) as first:
            end = code.smaller(first + group, whole)
            panels = self._panels_of_b(block, first, end)
            with code.loop(first, end, wide) as j:
                self._whole_panel(block, a, panels(j), j, self._ahead(block, j + group, whole))
        with code.when(whole < block.j1):
            self._edge_panel(block, a, whole)

    # ------------------------------------------------------------------ operands

    def _panels_of_a(self, block: _Block) -> PanelOfA | JoinedRows:
        """The block's rows of A, copied where that pays, or where they are converted."""
        code, rows = self.code, self.tile.rows
        if self.joined:
            places, behind = (self.scratch[name].viewed(I64) for name in ("rows", "columns"))
            joined = JoinedRows(places, behind, code.integer(rows))
            self.joined.rows(block.i0, block.rows, joined.rows)
            self.joined.columns(block.p0, block.depth, joined.columns)
            return joined
        if self.shared == "a":
            size = panel_elements("a", self.tile, block.depth)
            start = self.a.at(block.p0 // self.steps * self.lda + block.i0 // rows * size)
            return PanelOfA(start, size, self.one, code.integer(rows))
        row, step = (self.one, self.lda) if self.transpose_a else (self.lda, self.one)
        source, count = self.a.at(block.i0 * row + block.p0 * step), block.rows
        if self.reader_a.loading is not None and not self.transpose_a:
            return self._converted_rows(source, block.depth, count)
        stride = self.reader_a.steps(block.depth) * rows + self.tile.lanes
        copied = PanelOfA(self.copy_of_a, stride, self.one, code.integer(rows))
        if self.reader_a.loading is not None:
            self._copy_a(source, block.depth, stride, count)
            return copied
        pays = self._copies_a(block.j1 - block.j0, count, block.depth)
        with code.when(pays):
            self._copy_a(source, block.depth, stride, count)
        return PanelOfA(
            code.select_array(pays, copied.start, source),
            code.select(pays, copied.panel, row * rows),
            code.select(pays, copied.row, row),
            code.select(pays, copied.step, step),
        )

    def _copies_a(self, wide: Value, rows: Value, depth: Value) -> Value:
        """Whether a block of A, as it lies in memory, is copied for `wide` columns."""
        code, cut = self.code, self.blocking
        collide = self._collide(self.every_a, depth)
        if not self.transpose_a:
            many = code.select(collide, cut.pack_a_rows // 2, cut.pack_a_rows)
            return wide >= many
        least = cut.pack_a_columns
        crowded = min(2 * least, cut.crowded_panels * self.tile.columns + 1)
        near = rows * depth * item_bytes(self.c.item) <= _NEAR_BYTES
        afar = code.select(collide, crowded, least)
        return wide >= code.select(near, 2 * least, afar)

    def _copy_a(self, source: Array, depth: Value, stride: Value, count: Value) -> None:
        """Copy a block of A, panel by panel."""
        rows, copy = self.tile.rows, self.copy_of_a
        if self.transpose_a:
            pack = self._pack(pack_a_columns, self.reader_a, rows, self.tile.lanes)
        else:
            pack = self._pack(pack_a_rows, None, rows, self.tile.lanes)
        pack(source, self.lda, depth, copy, stride, count)

    def _converted_rows(self, source: Array, depth: Value, count: Value) -> PanelOfA:
        """Rows of A, converted."""
        lanes = self.tile.lanes
        stride = (self.reader_a.steps(depth) + lanes - 1) // lanes * lanes + lanes
        convert = self._pack(convert_a_rows, self.reader_a, lanes)
        convert(source, self.lda, depth, self.copy_of_a, stride, count)
        return PanelOfA(self.copy_of_a, stride * self.tile.rows, stride, self.one)

    def _panels_of_b(self, block: _Block, first: Value, end: Value) -> Callable[[Value], Side]:
        """The panels of B in columns `first` to `end`, copied where that pays, or where it is converted."""
        code, tile = self.code, self.tile
        copied_row, steps = code.integer(tile.columns), self.reader_b.steps(block.depth)
        if self.shared == "b":
            return lambda j: Side(self._shared_b(block.p0, block.depth, j), copied_row, self.one)
        copy = code.select_array(block.kept, self._kept(block, block.p0, first), self.copy_of_b)
        fresh = ~block.kept | block.first
        if self.joined_b:
            with code.when(fresh):
                places = self._places_of_b(self.joined_b, block, first, end - first)
                pack = self._pack(pack_b_joined, None, tile.width, tile.lanes)
                pack(*places, block.depth, copy, (end - first) // tile.columns)
            return lambda j: Side(copy.at((j - first) * steps), copied_row, self.one)
        if self.transpose_b:
            source = self.b.at(first * self.ldb + block.p0)
            pack = self._pack(pack_b_columns, self.reader_b, tile.lanes)
            with code.when(fresh):
                pack(source, self.ldb, block.depth, copy, copied_row, copied_row)
            return lambda j: Side(copy, copied_row, self.one)
        source, panels = self.b.at(block.p0 * self.ldb), (end - first) // tile.columns
        pack = self._pack(pack_b_rows, self.reader_b, tile.width, tile.lanes)
        if self.reader_b.loading is not None:
            with code.when(fresh):
                pack(source.at(first), self.ldb, block.depth, copy, panels)
            return lambda j: Side(copy.at((j - first) * steps), copied_row, self.one)
        with code.when(block.copied & fresh):
            pack(source.at(first), self.ldb, block.depth, copy, panels)
        row = code.select(block.copied, copied_row, self.ldb)
        return lambda j: Side(
            code.select_array(block.copied, copy.at((j - first) * steps), source.at(j)),
            row,
            self.one,
        )

    def _places_of_b(
        self, joined: JoinedAxes, block: _Block, j: Value, count: Value
    ) -> tuple[Array, Array]:
        """Addresses of the block's rows of B, and bytes from there to `count` columns from `j` on."""
        names = ("rows of b", "columns of b")
        rows, columns = (self.scratch[name].viewed(I64) for name in names)
        joined.rows(block.p0, block.depth, rows)
        joined.columns(j, count, columns)
        return rows, columns

    def _shared_b(self, p: Value, depth: Value, j: Value) -> Array:
        """The panel of B in column `j`, `depth` steps from step `p` on, in a copy for all parts of C."""
        size = panel_elements("b", self.tile, depth)
        return self.b.at(p // self.steps * self.ldb + j // self.tile.columns * size)

    def _kept(self, block: _Block, p: Value, j: Value) -> Array:
        """Where the copy of the panel of B in column `j`, from step `p` on, is kept."""
        return self.copies_of_b.at(p * self.wide + (j - block.j0) * block.depth)

    def _group(self, block: _Block) -> Value:
        """How many panels of B are copied, or announced, at a time."""
        if self.transpose_b or self.shared == "b":
            return self.one
        apart = self.ldb * item_bytes(self.reader_b.item)
        group = self.code.select(apart < _PAGE_BYTES, self.blocking.group, self.blocking.far_group)
        return group if self.always_copies_b else self.code.select(block.copied, group, 1)

    def _ahead(self, block: _Block, j: Value, whole: Value) -> Ahead:
        """The panel of B in column `j`; beyond the last one the first ones of the next block of k."""
        code, wide = self.code, self.code.integer(self.tile.columns)
        inside = j < whole
        j = code.select(inside, j, j - whole + block.j0)
        p = code.select(inside, block.p0, block.p0 + block.depth)
        depth = code.select(block.far, code.select(inside, block.depth, block.following), 0)
        if self.joined_b:  # whose rows are many short ones
            return Ahead(self.copy_of_b, wide, code.integer(0), wide)
        if self.shared == "b":
            return Ahead(self._shared_b(p, depth, j), wide, depth, wide)
        at = j * self.ldb + p if self.transpose_b else p * self.ldb + j
        start, row, crowded = self.b.at(at), self.ldb, block.crowded
        if self.reader_b.loading is None:
            there = self._are_kept(block) & ~block.first
            start = code.select_array(there, self._kept(block, p, j), start)
            row = code.select(there, depth if self.transpose_b else wide, row)
            crowded = crowded & ~there
        if self.transpose_b:
            return Ahead(start, row, code.select(depth > 0, wide, 0), depth)
        lost = crowded & (
            block.rows < self.blocking.crowded_hint_rows
        )  # by caches, or not worth it
        return Ahead(start, row, code.select(lost, 0, depth), wide)

    def _are_kept(self, block: _Block) -> Value:
        """Whether there are copies of B for all blocks of rows."""
        always = self.transpose_b or self.always_copies_b
        return block.kept if always else block.kept & block.copied

    def _copies_b(self, rows: Value, crowded: Value, kept: Value) -> Value:
        """Whether panels of B, not stored transposed, are copied for so many rows of C."""
        cut = self.blocking
        least = self.code.select(crowded, cut.pack_b_colliding_rows, cut.pack_b_rows)
        return kept | (rows >= least)

    def _every(self, apart: Value) -> Value:
        """Every so many bytes of the first-level cache's sets lies one of rows `apart` elements apart."""
        stride = apart * item_bytes(self.c.item)  # but for converted ones, where it hardly matters
        return self.code.smaller(stride & -stride, _SETS_BYTES)  # its largest power of two

    def _collide(self, every: Value, rows: Value) -> Value:
        """Whether so many rows crowd sets of the first-level cache."""
        return (every > LINE_BYTES) & (rows * every > _CROWDED_WAYS * _SETS_BYTES)

    def _edge_side_b(self, block: _Block, j: Value, panel_row: Value) -> Side:
        """The last panel of B, always copied: tiles read whole vectors."""
        if self.shared == "b":
            columns = self.code.integer(self.tile.columns)
            return Side(self._shared_b(block.p0, block.depth, j), columns, self.one)
        panel, columns = self.copy_of_b, block.j1 - j
        if self.joined_b:
            places = self._places_of_b(self.joined_b, block, j, columns)
            pack = self._pack(pack_b_joined_edge, None, self.tile.lanes)
            pack(*places, block.depth, panel, panel_row, columns)
            return Side(panel, panel_row, self.one)
        at = j * self.ldb + block.p0 if self.transpose_b else block.p0 * self.ldb + j
        way = pack_b_columns if self.transpose_b else pack_b_edge
        pack = self._pack(way, self.reader_b, self.tile.lanes)
        pack(self.b.at(at), self.ldb, block.depth, panel, panel_row, columns)
        return Side(panel, panel_row, self.one)

    def _pack(
        self, write: Callable[..., None], reader: Reader | None, *sizes: int
    ) -> Callable[..., None]:
        """One of the functions of pack.py, as a subroutine for a reader and constant `sizes`."""
        way = self.c.item if reader is None else reader.name
        name = "_".join(map(str, (write.__name__, way, *sizes)))
        body = functools.partial(write, *(() if reader is None else (reader,)), *sizes)
        return lambda *operands: self.code.subroutine(name, body, *operands)

    # ------------------------------------------------------------------ panels

    def _whole_panel(
        self, block: _Block, a: PanelOfA | JoinedRows, b: Side, j: Value, ahead: Ahead
    ) -> None:
        """All tiles of one panel, and beside them hints about another."""
        code, tile = self.code, self.tile
        rows, steps = block.rows, self.reader_a.steps(block.depth)
        one = block.last & ~block.resume  # block of k: no other panel's sums wait
        kept = self.scratch["sums"].at(code.select(one, 0, (j - block.j0) * self.blocking.rows))
        sums = Side(kept, code.integer(tile.columns), self.one)
        goal = Side(self.c.at(block.i0 * self.ldc + j), self.ldc, self.one)
        finishing = None if self.finishing.is_plain else self.finishing
        ending = self._ending(block, j, code.integer(tile.columns), kept) if finishing else None
        panel = Panel(steps, a, b, sums, goal, block.resume, block.last, ending)
        unroll = self.blocking.unroll
        write_panel(code, tile, unroll, finishing, True, rows, panel, ahead, self.transpose_b)

    def _edge_panel(self, block: _Block, a: PanelOfA | JoinedRows, j: Value) -> None:
        """The last panel, narrower than a tile: sums in scratch memory, then what exists goes to C."""
        code, largest = self.code, self.tile
        rows, columns = block.rows, block.j1 - j
        steps = self.reader_a.steps(block.depth)
        widths = (*(w for w in _WIDTHS if w < largest.width), largest.width)
        wide = code.integer(largest.width)
        for width in reversed(widths[:-1]):
            wide = code.select(columns <= width * largest.lanes, width, wide)
        b = self._edge_side_b(block, j, wide * largest.lanes)
        for width in widths:
            tile = Tile(largest.rows, width, largest.lanes)
            with code.when(wide.equals(width)):
                sums = Side(self.scratch["edge"], code.integer(tile.columns), self.one)
                panel = Panel(steps, a, b, sums, sums, block.resume, block.last, None)
                write_panel(code, tile, 1, None, False, rows, panel, below=self._far_below())
        with code.when(block.last):
            ending = self._ending(block, j, columns, self.scratch["edge"])
            self.finishing.write_edge(code, largest.lanes, rows, ending, wide)

    def _far_below(self) -> bool:
        """Whether a tile's rows of A come in lines that no step before has read, and hints fit beside it.

        Narrower vectors are through with a step sooner, and lose by hints what these gain.
        """
        return self.transpose_a and self.tile.lanes * item_bytes(self.c.item) == LINE_BYTES

    def _ending(self, block: _Block, j: Value, columns: Value, sums: Array) -> Ending:
        far = block.rows * self.ldc > _NEAR_ELEMENTS
        return Ending(sums, self.frame.block, block.i0, j, columns, far)
