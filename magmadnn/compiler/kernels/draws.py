"""Uniform random numbers of Philox, and what is made of each of them: a mask of dropout."""

from __future__ import annotations

from dataclasses import dataclass

from .operands import Operand, Result, all_slots


@dataclass(frozen=True)
class Draw:
    """Formulas of uniform random numbers, `("drawn",)`, for the elements `column0` to `column1`.

    The numbers are those of `magmadnn.ops.philox.uniform`. Slots: `column0, column1`; `seed`, the key's 64
    bits; those of operands and results. `column0` is a multiple of 64.

    Attributes:
        operands: the first is the stream's number; all are scalars.
        results: what is stored, [elements].
        dtype: of the numbers that are drawn, float32 or float64.
    """

    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    dtype: str = "float32"

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        return ("column0", "column1", "seed", *all_slots([*self.operands, *self.results]))
