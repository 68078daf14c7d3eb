"""What is done to the elements of a matrix product before they are stored, as vector code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.gemm import Epilogue, Finish
from magmadnn.compiler.kernels.operands import ROW, SCALAR, Operand, Result, row_constant
from magmadnn.compiler.llvm.expressions.formulas import Writer, register_item
from magmadnn.compiler.llvm.expressions.operands import Matrix, RowStarts
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


class Finisher(Protocol):
    """Writes an epilogue, row after row."""

    def begin(self, row: Value) -> None:
        """The rows that follow are this one and the next ones, one after the other."""
        ...

    def next_row(self) -> None:
        """The row that was worked on is done."""
        ...

    def write(self, value: Value, place: Place) -> Value:
        """The vector to store in place of `value`, in the row that the walk is at."""
        ...


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
        return _FinishWriter(epilogue, code, slots)
    return _OwnWriter(cast(WrittenEpilogue, epilogue), code, slots)


class _OwnWriter:
    """An epilogue that writes itself."""

    def __init__(self, written: WrittenEpilogue, code: Code, slots: Slots) -> None:
        self._written, self._code, self._slots = written, code, slots

    def begin(self, row: Value) -> None:
        """Each place says its row."""

    def next_row(self) -> None:
        """Each place says its row."""

    def write(self, value: Value, place: Place) -> Value:
        """The vector to store in place of `value`."""
        return self._written.write(self._code, self._slots, value, place)


class _FinishWriter:
    """Writes formulas; addresses of operands are read here, once for all vectors."""

    def __init__(self, finish: Finish, code: Code, slots: Slots) -> None:
        self.finish, self.code, self._slots = finish, code, slots
        parts: list[Operand | Result] = [*finish.operands, *finish.results]
        self._matrices = {part: Matrix(code, slots, part) for part in parts}
        self._starts: dict[str, RowStarts] = {}

    def begin(self, row: Value) -> None:
        """Find where rows of strided operands begin: a division for each axis, additions from here on."""
        strided = [o for o in self.finish.operands if o.axes]
        self._starts = {
            o.name: RowStarts(self.code, self._slots, o, row) for o in strided if not o.like
        }
        for operand in strided:
            starts = self._starts[operand.like or operand.name]
            self._matrices[operand] = self._matrices[operand].walked(starts)

    def next_row(self) -> None:
        """Go on where rows of strided operands begin."""
        for starts in self._starts.values():
            starts.advance()

    def load(self, operand: Operand, place: Place) -> Value:
        """The vector of an operand at a place."""
        mask = None if row_constant(operand) else place.mask
        return self._matrices[operand].load(place.row, place.column, place.lanes, mask)

    def write(self, value: Value, place: Place) -> Value:
        """The vector to store in place of `value`."""
        finish, code = self.finish, self.code

        def leaf(formula: Formula) -> Value:
            return (
                value if formula == ("product",) else self.load(finish.operands[formula[1]], place)
            )

        kind = item_type(value.type)
        writer = Writer(code, leaf, vector(kind, place.lanes))
        stored = [(result, writer.write(result.formula)) for result in finish.results]
        main = writer.write(finish.formula)
        for result, made in stored:
            wide = vector(register_item(result.dtype), place.lanes)
            self._matrices[result].store(place.row, place.column, code.lift(made, wide), place.mask)
        return code.lift(main, value.type)


class TileFinisher(_FinishWriter):
    """The same for one tile after the other: a part of an operand is loaded once for all rows of a tile."""

    def __init__(self, finish: Finish, code: Code, slots: Slots) -> None:
        super().__init__(finish, code, slots)
        self._loaded: dict[tuple[Operand, Value | None], Value] = {}

    def begin(self, row: Value) -> None:
        """A tile's first row."""
        super().begin(row)
        self._loaded = {}

    def load(self, operand: Operand, place: Place) -> Value:
        """The vector of an operand at a place."""
        if operand.spread not in (ROW, SCALAR):
            return super().load(operand, place)
        key = (operand, place.column if operand.spread == ROW else None)
        if key not in self._loaded:
            self._loaded[key] = super().load(operand, place)
        return self._loaded[key]
