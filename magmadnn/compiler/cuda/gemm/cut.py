"""How a matrix product is cut into blocks, warps and steps: by sizes alone, as the order of its sums is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

_STEP = 16  # of k
_MOST_WARPS = 12  # that share a tile's k
_MOST_STEPS = 16
_HELD = 96  # numbers of operands that a lane may have under way
_EARLY = 80  # and those of an operand that it may have read before earlier kernels are done
_OUTER_REGISTERS = 80
_SHORT_K = 256  # for which whole tiles of both operands lie in shared memory
# 16 rows and 8 columns of a warp, times; in the order of preference.
_TILES = ((1, 4), (2, 2), (2, 4), (1, 2), (1, 1))
_NARROW_TILE = (4, 2)  # of few blocks
# The same with the warps of a block, where k is short.
_OUTER_TILES = ((1, 4, 4, 2), (2, 4, 4, 2), (1, 4, 4, 1), (1, 4, 2, 1))
# The same for several products that share a round: the first with which they do.
_LARGE_TILES = ((1, 6, 6, 2), (1, 6, 7, 2), (2, 6, 4, 3), (2, 6, 5, 3))


Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class Cut:
    """How a product is cut.

    Attributes:
        whole_k: both tiles lie in shared memory with all of their k; else operands go straight to registers.
        tile: rows and columns of a warp, in units of 16 and 8.
        warps: of a block, over rows, columns and k.
        steps: of 16 k that a warp takes.
        ahead: steps whose operands are under way at a time.
        most_rows: that a block takes, if fewer than its tile has.
    """

    whole_k: bool
    tile: tuple[int, int]
    warps: tuple[int, int, int]
    steps: int
    ahead: int
    most_rows: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        down, across, deep = self.warps
        return 32 * down * across * deep

    @property
    def is_large(self) -> bool:
        """Whether no other block has room beside one."""
        return self.whole_k and (*self.tile, *self.warps[:2]) in _LARGE_TILES

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        down, across = self.tile
        if self.whole_k:
            return _OUTER_REGISTERS + (24 * down if self.is_large else 0)
        return 40 + 4 * down * across + self.ahead * (8 * down + 4 * across)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return 16 * self.tile[0] * self.warps[0], 8 * self.tile[1] * self.warps[1]

    def down(self, rows: int) -> int:
        """How many blocks lie below each other."""
        return -(-rows // (self.most_rows or self.block[0]))

    def blocks(self, rows: int, columns: int) -> int:
        """How many blocks there are."""
        return self.down(rows) * -(-columns // self.block[1])

    def shared_bytes(self, transpose_b: bool, item: int) -> int:
        """Shared memory of a block: tiles of operands, or sums over parts of k."""
        rows, columns = self.block
        if self.whole_k:
            return self.steps * _STEP * (rows + columns + 16) * item
        return self.warps[2] * rows * (columns + (8 if transpose_b else 4)) * item

    def early(self, slot: str) -> bool:
        """Whether there is room to read an operand before earlier kernels are done."""
        one = 8 * self.tile[0] if slot == "a" else 4 * self.tile[1]
        return self.whole_k or self.steps * one <= _EARLY


def is_outer(sizes: Sizes, transposes: tuple[bool, bool]) -> bool:
    """Whether whole tiles of both operands may lie in shared memory, as those of weight gradients do."""
    return transposes == (True, False) and sizes[2] <= _SHORT_K and min(sizes[:2]) >= 32


def cut_for(
    sizes: Sizes,
    transposes: tuple[bool, bool],
    item: int,
    processors: int,
    shared: int,
    early: Collection[str] = (),
    beside: Sequence[Sizes] | None = None,
) -> Cut | None:
    """The cut of a product of m x k and k x n; None where k is too long for one of these kernels.

    Of the tiles the one whose blocks read least, times the rounds in which processors take the blocks. What
    is read early, while others still run, counts half. Which tile is taken changes no bit.

    Args:
        sizes: m, n, k.
        transposes: whether A is stored [k, m] and B [n, k].
        item: bytes of a number.
        processors: how many blocks run at a time.
        shared: most shared memory of a block.
        early: operands that are known early.
        beside: sizes of products with whole k in shared memory that run at the same time; if given, narrow
            weight gradients take few blocks, which find room beside others.
    """
    rows, columns, deep = sizes
    total = max(-(-deep // _STEP), 1)
    if is_outer(sizes, transposes):
        cuts = outer_cuts((sizes, *(beside or ())), item, processors, shared)
        if cuts is not None:
            return cuts[0]
    steps = -(-total // _MOST_WARPS)
    if steps > _MOST_STEPS:
        return None
    warps = -(-total // steps)
    made = []
    narrow = beside is not None and transposes == (True, False) and deep <= _SHORT_K
    for down, across in (*_TILES, _NARROW_TILE) if narrow else _TILES:
        held = (8 * down + 4 * across) * item // 4
        ahead = max(min(_HELD // held, steps), 1)
        made.append(Cut(False, (down, across), (1, 1, warps), steps, ahead))
    fitting = [c for c in made if c.shared_bytes(transposes[1], item) <= shared]
    if narrow:  # nobody waits for it
        return min(fitting, key=lambda c: c.blocks(rows, columns), default=None)
    return _best(fitting, rows, columns, processors, early) if fitting else None


@cache
def outer_cuts(
    sizes: tuple[Sizes, ...], item: int, processors: int, shared: int
) -> tuple[Cut, ...] | None:
    """Cuts of products with whole k in shared memory that run together; None where one is too long for it.

    Large tiles for all of them, whose blocks have a multiprocessor each, where that makes one round and they
    read no more; else each has its own tile. One by itself fills the chip with small ones.
    """
    steps = [max(-(-deep // _STEP), 1) for _, _, deep in sizes]

    def cuts(tile: tuple[int, int, int, int]) -> tuple[Cut, ...]:
        return tuple(Cut(True, tile[:2], (*tile[2:], 1), count, 1) for count in steps)

    def fit(some: Sequence[Cut]) -> bool:
        return all(cut.shared_bytes(False, item) <= shared for cut in some)

    def read(some: Sequence[Cut]) -> list[int]:
        return [cut.blocks(*one[:2]) * sum(cut.block) for cut, one in zip(some, sizes, strict=True)]

    own = []
    for one, candidates in zip(sizes, zip(*map(cuts, _OUTER_TILES), strict=True), strict=True):
        fitting = [cut for cut in candidates if fit([cut])]
        if not fitting:
            return None
        own.append(_best(fitting, *one[:2], processors, ()))
    for some in map(cuts, _LARGE_TILES if len(sizes) > 1 else ()):
        blocks = sum(cut.blocks(*one[:2]) for cut, one in zip(some, sizes, strict=True))
        if fit(some) and blocks <= processors:
            return some if processors * sum(some[0].block) <= sum(read(own)) else tuple(own)
    return tuple(own)


def _best(cuts: list[Cut], rows: int, columns: int, processors: int, early: Collection[str]) -> Cut:
    def cost(cut: Cut) -> int:
        down = cut.block[0] if cut.whole_k else -(-rows // cut.down(rows))
        late = {slot: 1 if slot in early and cut.early(slot) else 2 for slot in "ab"}
        read = late["a"] * down + late["b"] * cut.block[1]
        return -(-cut.blocks(rows, columns) // processors) * read

    return min(cuts, key=cost)
