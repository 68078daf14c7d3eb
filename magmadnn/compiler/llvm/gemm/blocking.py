"""How the loops of a matrix product are cut: a rule, by the processor and the tile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.ir.builder import FLOATS, item_bytes
from magmadnn.compiler.llvm.ir.target import Target

from .cache_hints import LINE_BYTES
from .register_tile import Tile

_MOST_TILES = 128  # one below the other in a block
_PANELS_FOR_A = 24  # that make a copy of A worth its time
_COLUMNS_FOR_A = 64  # the same where A is stored transposed, or four panels if those are wider
# The same with vectors of whole lines, where rows crowd caches: panels for A, stored transposed; rows for B.
_CROWDED_PANELS, _CROWDED_ROWS = 8, 128
_CROWDED_HINT_ROWS = 32  # of C, for which panels of crowded rows are announced all the same
_NEVER = 1 << 30
_DEPTH_OF_TURNS = 512  # steps of k in a block where operations on a vector take two turns
_WAITING_BYTES = 8192  # of a row, of sums that wait for a further block of k
_WIDEST_JOINED = {16: 2, 32: 4}  # vectors across, by the number of registers


@dataclass(frozen=True)
class Blocking:
    """How the loops are cut; no choice changes a bit of the result.

    Copies pay where the same elements are read often, and where rows lie so far apart that they get in
    each other's way in caches and page tables. What is converted is always copied.

    Attributes:
        depth: steps of k in a block, about.
        rows: rows of C in a block at most.
        columns: columns of C in a block where sums wait in scratch memory for a further block of k.
        pack_a_rows: copy blocks of A for so many columns of C, and for half of them where rows of A lie in
            few sets of the first-level cache.
        pack_a_columns: copy them for so many where A is stored transposed.
        crowded_panels: where its rows lie so, copy them for more than so many panels.
        pack_b_rows: copy panels of B for so many rows of C. (Where B is stored transposed: always.)
        pack_b_colliding_rows: the same where rows of B lie in few sets of the first-level cache.
        group: panels of B copied at a time, so that rows of B are read in longer pieces.
        far_group: the same where rows of B lie a page of memory apart or more.
        unroll: steps of k written out in the tile's loop.
        crowded_hint_rows: announce panels of B for so many rows of C also where its rows lie in few sets of
            the first-level cache.
        kept_bytes: copies of panels of B up to this size serve all blocks of rows.
        tile: the register tile; None: the largest one.
    """

    depth: int
    rows: int
    columns: int = 2048
    pack_a_rows: int = 384
    pack_a_columns: int = 64
    crowded_panels: int = 1
    pack_b_rows: int = 160
    pack_b_colliding_rows: int = 8
    group: int = 4
    far_group: int = 8
    unroll: int = 1
    crowded_hint_rows: int = _NEVER
    kept_bytes: int = 16 << 20
    tile: Tile | None = None

    @property
    def max_depth(self) -> int:
        """The most steps of k in a block: blocks are even, and the last would be half as deep."""
        return self.depth + self.depth // 2 + 1

    def whole(self, tile: Tile) -> Blocking:
        """The same with rows and columns of whole tiles: scratch memory has room for no more."""
        rows, columns = (
            -(-size // unit) * unit
            for size, unit in ((self.rows, tile.rows), (self.columns, tile.columns))
        )
        return replace(self, rows=rows, columns=columns)


def default_blocking(target: Target, tile: Tile, item: int) -> Blocking:
    """A panel of B fills half of the first-level cache, a block of A the second-level one.

    At least 128 steps: with vectors of 512 bits 256 are all of that cache, and take up to 1.06 of the time.
    Where operations on such vectors take two turns, a tile needs so long for a step that B may come from
    the second-level cache, and sums wait for a further block of k less often. That cache holds a panel
    whose rows crowd the first one too, so it is announced: products of 32 rows take 0.75 of the time, of 49
    rows 0.84 to 0.91, but of 16 rows 1.05.
    """
    depth = max(128, target.l1_bytes // 2 // (tile.columns * item))
    two_turns = target.turns > 1 and tile.lanes * item == target.vector_bytes
    if two_turns:
        depth = _DEPTH_OF_TURNS
    rows = min(-(-target.l2_bytes // (depth * item) // tile.rows), _MOST_TILES) * tile.rows
    # Written out, steps save the loop's own instructions; LLVM's scheduler for ARM would move their loads
    # so far up that registers run out.
    unroll = 4 if target.triple.startswith("x86_64") else 1
    blocking = Blocking(
        depth,
        rows,
        _WAITING_BYTES // item,
        _PANELS_FOR_A * tile.columns,
        max(_COLUMNS_FOR_A, 4 * tile.columns),
        unroll=unroll,
        crowded_hint_rows=_CROWDED_HINT_ROWS if two_turns else _NEVER,
    )
    if target.vector_bytes >= LINE_BYTES:
        blocking = replace(
            blocking, crowded_panels=_CROWDED_PANELS, pack_b_colliding_rows=_CROWDED_ROWS
        )
    return blocking.whole(tile)


def for_joined_rows(gemm: Gemm, target: Target, columns: int) -> Gemm:
    """A product whose A has joined axes, with the tile for so many columns.

    On x86 each row of such a tile has an address in one of 16 registers: eight rows by three vectors took
    twice as long as six by four. A tile as wide as C, where that is narrow, has no panel at its edge.
    """
    if not target.triple.startswith("x86_64"):
        return gemm
    item = item_bytes(FLOATS[gemm.dtype])
    lanes = target.lanes(item)
    width = min(-(-columns // lanes), _WIDEST_JOINED[target.vector_registers])
    tile = Tile(8 if width == 1 else 6, max(width, 1), lanes)
    return replace(gemm, blocking=replace(default_blocking(target, tile, item), tile=tile))


def block_elements(tile: Tile, blocking: Blocking, converted: bool) -> int:
    """Room for a copied block of A, with that of one more vector behind each panel of a tile's rows.

    Behind each row, where rows are `converted`.
    """
    most = blocking.rows * blocking.max_depth
    if converted:
        return most + (blocking.rows + 1) * 2 * tile.lanes
    return most + (blocking.rows // tile.rows + 1) * tile.lanes
