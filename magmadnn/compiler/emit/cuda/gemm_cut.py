"""How a matrix product is cut into blocks, warps and steps: by sizes alone, as the order of its sums is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_STEP = 16  # of k
_MOST_WARPS = 12  # that share a tile's k
_MOST_STEPS = 16
_HELD = 96  # numbers of operands that a lane may have under way
_EARLY = 80  # and those of an operand that it may have read before earlier kernels are done
_OUTER_REGISTERS = 80
_SHORT_K = 256  # for which whole tiles of both operands lie in shared memory
# 16 rows and 8 columns of a warp, times; in the order of preference.
_TILES = ((1, 4), (2, 2), (2, 4), (1, 2), (1, 1))
# The same with the warps of a block, where k is short.
_OUTER_TILES = ((1, 4, 4, 2), (2, 4, 4, 2), (1, 4, 4, 1), (1, 4, 2, 1))


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
    def registers(self) -> int:
        """Of a thread, roughly."""
        if self.whole_k:
            return _OUTER_REGISTERS
        down, across = self.tile
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


def cut_for(
    sizes: tuple[int, int, int],
    transposes: tuple[bool, bool],
    item: int,
    processors: int,
    shared: int,
    early: Collection[str] = (),
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
    """
    rows, columns, deep = sizes
    total = max(-(-deep // _STEP), 1)
    if transposes == (True, False) and deep <= _SHORT_K and min(rows, columns) >= 32:
        outer = [Cut(True, t[:2], (*t[2:], 1), total, 1) for t in _OUTER_TILES]
        fitting = [c for c in outer if c.shared_bytes(False, item) <= shared]
        if fitting:
            return _best(fitting, rows, columns, processors, ())
    steps = -(-total // _MOST_WARPS)
    if steps > _MOST_STEPS:
        return None
    warps = -(-total // steps)
    made = []
    for down, across in _TILES:
        held = (8 * down + 4 * across) * item // 4
        ahead = max(min(_HELD // held, steps), 1)
        made.append(Cut(False, (down, across), (1, 1, warps), steps, ahead))
    fitting = [c for c in made if c.shared_bytes(transposes[1], item) <= shared]
    return _best(fitting, rows, columns, processors, early) if fitting else None


def _best(cuts: list[Cut], rows: int, columns: int, processors: int, early: Collection[str]) -> Cut:
    def cost(cut: Cut) -> int:
        down = cut.block[0] if cut.whole_k else -(-rows // cut.down(rows))
        late = {slot: 1 if slot in early and cut.early(slot) else 2 for slot in "ab"}
        read = late["a"] * down + late["b"] * cut.block[1]
        return -(-cut.blocks(rows, columns) // processors) * read

    return min(cuts, key=cost)
