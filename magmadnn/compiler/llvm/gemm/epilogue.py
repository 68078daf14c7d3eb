"""What is done to the elements of a matrix product before they are stored, as vector code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.gemm import Epilogue, Finish
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    ROW,
    Operand,
    Result,
    row_constant,
)
from magmadnn.compiler.llvm.expressions.formulas import Writer, register_item
from magmadnn.compiler.llvm.expressions.operands import Matrix
from magmadnn.compiler.llvm.ir.builder import Code, Value, item_type, vector
from magmadnn.compiler.llvm.ir.frame import Slots


@dataclass(frozen=True)
class Place:
    """Where in C a vector of the epilogue stands.

    Attributes:
        row: number of the row.
        column: number of the first column.
        lanes: columns in the vector.
        mask: lanes that exist; None if all do.
    """

    row: Value
    column: Value
    lanes: int
    mask: Value | None


Finisher = Callable[[Value, Place], Value]


class WrittenEpilogue(Protocol):
    """An epilogue that writes its own vector code, beside those that are formulas.

    A frozen dataclass whose `repr` says everything about its code.
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots it adds to the argument block."""
        ...

    def write(self, code: Code, slots: Slots, value: Value, place: Place) -> Value:
        """The vector to store in place of `value`."""
        ...


def finisher(epilogue: Epilogue | None, code: Code, slots: Slots) -> Finisher | None:
    """What writes an epilogue, wherever it is needed in the function that `code` writes from here on."""
    if epilogue is None:
        return None
    if isinstance(epilogue, Finish):
        return _written(epilogue, code, slots)
    written = cast(WrittenEpilogue, epilogue)
    return lambda value, place: written.write(code, slots, value, place)


def tile_finisher(finish: Finish, code: Code, slots: Slots) -> Callable[[], Finisher]:
    """What makes, for each tile, a finisher that loads a part of an operand once for all of its rows."""
    parts: list[Operand | Result] = [*finish.operands, *finish.results]
    matrices = {part: Matrix(code, slots, part) for part in parts}

    def of_tile() -> Finisher:
        loaded: dict[tuple[Operand, Value | None], Value] = {}

        def load(operand: Operand, place: Place) -> Value:
            if operand.spread in (FULL, COLUMN):
                return matrices[operand].load(place.row, place.column, place.lanes, place.mask)
            key = (operand, place.column if operand.spread == ROW else None)
            if key not in loaded:
                value = matrices[operand].load(place.row, place.column, place.lanes, place.mask)
                loaded[key] = value
            return loaded[key]

        return _of(finish, code, matrices, load)

    return of_tile


def _written(finish: Finish, code: Code, slots: Slots) -> Finisher:
    """The vector to store in place of another; addresses are read here, once for all vectors."""
    parts: list[Operand | Result] = [*finish.operands, *finish.results]
    matrices = {part: Matrix(code, slots, part) for part in parts}

    def load(operand: Operand, place: Place) -> Value:
        mask = None if row_constant(operand) else place.mask
        return matrices[operand].load(place.row, place.column, place.lanes, mask)

    return _of(finish, code, matrices, load)


def _of(
    finish: Finish,
    code: Code,
    matrices: Mapping[Operand | Result, Matrix],
    load: Callable[[Operand, Place], Value],
) -> Finisher:
    """What writes the formulas over what `load` gives."""

    def write(value: Value, place: Place) -> Value:
        def leaf(formula: Formula) -> Value:
            return value if formula == ("product",) else load(finish.operands[formula[1]], place)

        kind = item_type(value.type)
        writer = Writer(code, leaf, vector(kind, place.lanes))
        stored = [(result, writer.write(result.formula)) for result in finish.results]
        main = writer.write(finish.formula)
        for result, made in stored:
            wide = vector(register_item(result.dtype), place.lanes)
            matrices[result].store(place.row, place.column, code.lift(made, wide), place.mask)
        return code.lift(main, value.type)

    return write
