"""A factor of a matrix product in panels, copied once where many parts of C read it.

Threads take parts of C one by one. Where C is cut by columns, each part reads all of A, and where it is cut
by rows, all of B: if each copied it for itself, small parts would be slow, and no copy served two of them.

The copy has the blocks of k one behind the other, each as far from the next as slot `lda` or `ldb` of the
product says; in a block lie the panels of the tile's rows (A) or columns (B), as in `pack.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.llvm.gemm.register_tile import Tile
from magmadnn.compiler.llvm.ir.builder import FLOATS, Array, Code, Value, item_bytes
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

from .pack import pack_a_columns, pack_a_rows, pack_b_edge, pack_b_rows
from .read import Reader


@dataclass(frozen=True)
class Panels:
    """The kernel that copies a factor, panels `first` to `last` of those that its rows or columns make.

    Slots: `first, last`, numbers of panels; `length`, all rows of A or columns of B; `k`, and `steps` of it
    in a block; `block`, elements from block to block; `source, ld`, the factor; `goal`.

    Attributes:
        dtype: float32 or float64.
        side: "a" or "b".
        transposed: whether A is stored [k, m]; B must not be.
        tile: for which the panels are.
    """

    dtype: str
    side: str
    transposed: bool
    tile: Tile
    slots = ("first", "last", "length", "k", "steps", "block", "source", "ld", "goal")

    @property
    def wide(self) -> int:
        """Rows or columns in a panel."""
        return self.tile.rows if self.side == "a" else self.tile.columns

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        k, steps, each = (frame.integer(x) for x in ("k", "steps", "block"))
        first, length = frame.integer("first"), frame.integer("length")
        count = code.smaller(frame.integer("last") * self.wide, length) - first * self.wide
        item = FLOATS[self.dtype]
        source, ld, goal = (
            frame.array("source", item),
            frame.integer("ld"),
            frame.array("goal", item),
        )
        by_rows = self.side == "b" or self.transposed  # rows of memory are steps of k
        source = source.at(first * self.wide * (1 if by_rows else ld))
        with code.loop(0, k, steps) as p:
            depth = code.smaller(k - p, steps)
            here = source.at(p * (ld if by_rows else 1))
            there = goal.at(p // steps * each + first * panel_elements(self.side, self.tile, depth))
            if self.side == "a":
                self._pack_a(code, here, ld, depth, there, count)
            else:
                self._pack_b(code, here, ld, depth, there, count)

    def _pack_a(
        self, code: Code, a: Array, lda: Value, depth: Value, copy: Array, count: Value
    ) -> None:
        """A block of k of some panels of A."""
        rows, lanes = self.tile.rows, self.tile.lanes
        size = panel_elements("a", self.tile, depth)
        if self.transposed:
            pack_a_columns(Reader(self.dtype), rows, lanes, code, a, lda, depth, copy, size, count)
        else:
            pack_a_rows(rows, lanes, code, a, lda, depth, copy, size, count)

    def _pack_b(
        self, code: Code, b: Array, ldb: Value, depth: Value, copy: Array, count: Value
    ) -> None:
        """A block of k of some panels of B, of which the last one may be narrower."""
        reader, columns, lanes = Reader(self.dtype), self.tile.columns, self.tile.lanes
        panels, rest = count // columns, count % columns
        pack_b_rows(reader, self.tile.width, lanes, code, b, ldb, depth, copy, panels)
        with code.when(rest > 0):
            edge, last = b.at(panels * columns), copy.at(panels * columns * depth)
            wide = code.integer(columns)
            pack_b_edge(reader, lanes, code, edge, ldb, depth, last, wide, rest)


def panel_elements(side: str, tile: Tile, depth: Value) -> Value:
    """Elements of a panel with so many steps of k; panels of A have room for a vector more."""
    return depth * tile.rows + tile.lanes if side == "a" else depth * tile.columns


@dataclass(frozen=True)
class SharedLayout:
    """How a shared copy lies in memory.

    Attributes:
        panels: how many there are in a block of k,
        steps: of k in a block,
        block: elements from block to block,
        nbytes: of everything.
    """

    panels: int
    steps: int
    block: int
    nbytes: int


def shared_layout(kernel: Panels, depth: int, length: int, k: int) -> SharedLayout:
    """How a copy lies in memory; `depth` as in the product's blocking, `length` rows or columns."""
    panels, steps = -(-length // kernel.wide), even_steps(k, depth)
    each = steps * kernel.wide + (kernel.tile.lanes if kernel.side == "a" else 0)
    block = panels * each
    return SharedLayout(
        panels, steps, block, -(-k // steps) * block * item_bytes(FLOATS[kernel.dtype])
    )


def even_steps(k: int, depth: int) -> int:
    """Steps of k in a block, as the loops of a product cut it."""
    blocks = max((k + depth // 2) // depth, 1)
    return max(-(-k // blocks), 1)
