"""What is done to the elements of a matrix product before they are stored, as formulas."""

from __future__ import annotations

from dataclasses import dataclass

from .builder import Code, Value, item_type, vector
from .formulas import ITEMS, Formula, Writer
from .gemm_loops import Place
from .kernel import Frame
from .operands import Matrix, Operand, Result, all_slots, row_constant


@dataclass(frozen=True)
class Finish:
    """An epilogue: the formula of the result, and further results, over `("product",)` and operands.

    Attributes:
        operands: what formulas read beside the product.
        results: what is stored besides.
        formula: what is stored as the product's result.
    """

    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    formula: Formula

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots that it adds."""
        return all_slots([*self.operands, *self.results])

    def write(self, code: Code, frame: Frame, value: Value, place: Place) -> Value:
        """The vector to store in place of `value`."""
        parts: list[Operand | Result] = [*self.operands, *self.results]
        matrices = {part: Matrix(code, frame, part) for part in parts}

        def leaf(formula: Formula) -> Value:
            if formula == ("product",):
                return value
            operand = self.operands[formula[1]]
            mask = None if row_constant(operand) else place.mask
            return matrices[operand].load(place.row, place.column, place.lanes, mask)

        kind = item_type(value.type)
        writer = Writer(code, leaf, vector(kind, place.lanes))
        stored = [(result, writer.write(result.formula)) for result in self.results]
        main = writer.write(self.formula)
        for result, made in stored:
            wide = vector(ITEMS[result.dtype], place.lanes)
            matrices[result].store(place.row, place.column, code.lift(made, wide), place.mask)
        return code.lift(main, value.type)
