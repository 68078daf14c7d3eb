"""Fused kernels that reduce over the rows of matrices: bias gradients, batch statistics.

Formulas of the results follow, such as a mean or the update of a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

from .operands import Operand, Result, all_slots
from .rows import Reduction


@dataclass(frozen=True)
class Columns:
    """A kernel that reduces the rows `row0` to `row1` of its operands, for columns of a tile.

    Slots: `row0, row1, column0, column1`, then those of operands and results. The rows must be all rows.
    Leaves beside arguments and constants: `("rows",)`, their number as a float, and in the results
    `("value", name)`, a reduction.

    Attributes:
        operands: what formulas read; those of results only `row` and `scalar` ones.
        reduce: what is reduced over the rows.
        store: results [columns].
        dtype: of numbers that only constants make.
    """

    operands: tuple[Operand, ...]
    reduce: tuple[Reduction, ...]
    store: tuple[Result, ...]
    dtype: str = "float32"

    @property
    def parts(self) -> list[Operand | Result]:
        """Everything that has memory."""
        return [*self.operands, *self.store]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        return ("row0", "row1", "column0", "column1", *all_slots(self.parts))
