"""Fused kernels that reduce over the rows of a matrix, or of each of a stack: bias gradients, statistics.

Formulas of the results follow, such as a mean or the update of a bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from magmadnn.backends.cpu.forks import cached_property

from .kernel import hashed_once
from .operands import SCALAR, Operand, Result, all_slots
from .rows import Reduction

DEVIATIONS = "deviations"


@hashed_once
@dataclass(frozen=True)
class Columns:
    """A kernel that reduces the rows `row0` to `row1` of its operands, for columns of a tile.

    Beside what combines elements there is `deviations`: sum((f - mean(f)) ** 2) of a formula f, from one
    reading; it stands right behind the sum of the same formula.

    Slots: `row0, row1, column0, column1`, then those of operands and results. The rows must be all rows.
    Leaves beside arguments and constants: `("rows",)`, their number as a float, and in the results
    `("value", name)`, a reduction.

    Attributes:
        operands: what formulas read; those of results only `row` and `scalar` ones.
        reduce: what is reduced over the rows.
        store: results [columns].
        dtype: of numbers that only constants make.
        stacked: operands are stacks of matrices, of which those from `outer0` to `outer1` are reduced, each
            by itself; none of them is strided or padded. Slots `<name>_outer` have the elements from one
            matrix to the next, and from its `row` operands and results to the next ones: 0 for what is the
            same for all.
        blocked: operands are one matrix, in blocks of `row1` rows that are reduced like matrices of a stack,
            into a row of results each. A further slot `rows` has the number of all rows: the last block may
            have fewer. Rows of strided and padded operands are numbered through all blocks.
        joins: what is reduced is what such a kernel made of blocks, and is combined in their order. Two more
            slots: `rows` has the number of all rows, `each` that of a block.
        put: results [rows, columns] of what is reduced, stored as it is read; on a GPU, where threads have
            neighbouring columns, and no deviations are among what is reduced.
    """

    operands: tuple[Operand, ...]
    reduce: tuple[Reduction, ...]
    store: tuple[Result, ...]
    dtype: str = "float32"
    stacked: bool = False
    blocked: bool = False
    joins: bool = False
    put: tuple[Result, ...] = ()

    @property
    def parts(self) -> list[Operand | Result]:
        """Everything that has memory."""
        return [*self.operands, *self.store, *self.put]

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        plain = ("row0", "row1", "column0", "column1", *all_slots(self.parts))
        if self.joins:
            return ("rows", "each", *plain)
        if not self.in_pieces:
            return plain
        apart = dict.fromkeys(f"{part.name}_outer" for part in self.apart)
        return ("outer0", "outer1", *(("rows",) if self.blocked else ()), *plain, *apart)

    @property
    def sums(self) -> dict[Reduction, Reduction]:
        """Deviations, and the sum of the same elements."""
        pairs = pairwise(self.reduce)
        return {one: before for before, one in pairs if one.kind == DEVIATIONS}

    @property
    def in_pieces(self) -> bool:
        """Whether matrices of a stack, or blocks of rows, are numbered."""
        return self.stacked or self.blocked

    @property
    def apart(self) -> list[Operand | Result]:
        """What each matrix of a stack, or block of rows, has for itself, or shares with others row by row."""
        return [part for part in self.parts if part.spread != SCALAR]
