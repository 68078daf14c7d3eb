"""How fused kernels see the memory of their operands and results."""

from __future__ import annotations

from copy import copy

from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
    Operand,
    PaddedOperand,
    Result,
    row_constant,
)
from magmadnn.compiler.llvm.ir.builder import I1, Array, Code, Value
from magmadnn.compiler.llvm.ir.frame import Slots
from magmadnn.compiler.llvm.ir.halves import narrowed, widened

from .formulas import cast, memory_item, register_item


class RowStarts:
    """Where the rows of strided operands begin, one row after the other, without a division for each."""

    def __init__(self, code: Code, slots: Slots, operand: Operand, row: Value) -> None:
        """`row` is the first."""
        self._code = code
        numbers = [slots.integer(slot) for slot in operand.slots[1:]]
        self._sizes, self._steps = [None, *numbers[: operand.axes - 1]], numbers[operand.axes - 1 :]
        begin, self._left = code.integer(0), [code.variable(row) for _ in self._steps]
        for axis in range(operand.axes - 1, 0, -1):
            size = self._sizes[axis]
            assert size is not None
            size = code.larger(size, 1)  # where there are no rows at all
            begin = begin + row % size * self._steps[axis]
            self._left[axis].value = size - row % size
            row = row // size
        self.begin = code.variable(begin + row * self._steps[0])

    def advance(self) -> None:
        """To the next row."""
        self._step(len(self._steps) - 1)

    def _step(self, axis: int) -> None:
        """One further along an axis; from its end to the beginning, and one further along the axis before."""
        self.begin.value = self.begin.value + self._steps[axis]
        size, left = self._sizes[axis], self._left[axis]
        if size is None:
            return
        left.value = left.value - 1
        with self._code.when(left.value.equals(0)):
            left.value = size
            self.begin.value = self.begin.value - size * self._steps[axis]
            self._step(axis - 1)


class PaddedStarts:
    """Where the rows of a padded operand begin, and which of them are the operand's at all."""

    def __init__(self, code: Code, slots: Slots, operand: PaddedOperand, row: Value) -> None:
        """`row` is the first."""
        self._code, name, count = code, operand.name, range(operand.axes)
        self._sizes = [None, *(slots.integer(f"{name}_size{k}") for k in count[1:])]
        self._steps, self._firsts, self._ends = (
            [slots.integer(f"{name}_{what}{k}") for k in count] for what in ("step", "first", "end")
        )
        begin, indices = code.integer(0) - slots.integer(f"{name}_origin"), list[Value]()
        for axis in reversed(count):
            size = self._sizes[axis]
            if size is not None:
                size = code.larger(size, 1)  # where there are no rows at all
                indices.insert(0, row % size)
                row = row // size
            else:
                indices.insert(0, row)
            begin = begin + indices[0] * self._steps[axis]
        self._indices = [code.variable(index) for index in indices]
        self.begin = code.variable(begin)

    @property
    def is_inside(self) -> Value:
        """Whether the row is one of the operand's."""
        axes = zip(self._indices, self._firsts, self._ends, strict=True)
        tests = [(index.value >= first) & (index.value < end) for index, first, end in axes]
        found = tests[0]
        for test in tests[1:]:
            found = found & test
        return found

    def advance(self) -> None:
        """To the next row."""
        self._step(len(self._steps) - 1)

    def _step(self, axis: int) -> None:
        index, size = self._indices[axis], self._sizes[axis]
        index.value = index.value + 1
        self.begin.value = self.begin.value + self._steps[axis]
        if size is None:
            return
        with self._code.when(index.value.equals(size)):
            index.value = self._code.integer(0)
            self.begin.value = self.begin.value - size * self._steps[axis]
            self._step(axis - 1)


def starts_of(code: Code, slots: Slots, operand: Operand, row: Value) -> RowStarts | PaddedStarts:
    """Where the rows of an operand begin, from row `row` on."""
    if isinstance(operand, PaddedOperand):
        return PaddedStarts(code, slots, operand, row)
    return RowStarts(code, slots, operand, row)


class Matrix:
    """The memory of an operand or a result inside a kernel."""

    def __init__(
        self,
        code: Code,
        slots: Slots,
        part: Operand | Result,
        starts: RowStarts | PaddedStarts | None = None,
    ) -> None:
        """`starts`: of the rows of a strided or padded operand."""
        self._code, self._part, self._starts = code, part, starts
        self._sides: tuple[Value, Value] | None = None
        if isinstance(part, PaddedOperand) and part.has_edges:
            left, right = (slots.integer(f"{part.name}_{side}") for side in ("left", "right"))
            self._sides = left, right
        self._item = memory_item(part.dtype)
        self._base = slots.array(part.name, self._item)
        self._row_step = slots.integer(part.slots[1]) if part.spread == FULL else code.integer(0)

    def walked(self, starts: RowStarts | PaddedStarts) -> Matrix:
        """The same of a strided or padded operand in a walk over its rows."""
        other = copy(self)
        other._starts = starts
        return other

    def moved(self, elements: Value) -> Matrix:
        """The same of memory that lies further on."""
        other = copy(self)
        other._base = self._base.at(elements)
        return other

    def at_row(self, row: Value) -> MatrixRow:
        """One row, to be used where its number is known."""
        if isinstance(self._part, PaddedOperand):
            assert isinstance(self._starts, PaddedStarts)
            elements = self._base.at(self._begin)
            return PaddedRow(
                self._code, self, elements, self._part, self._starts.is_inside, self._sides
            )
        return MatrixRow(self._code, self, self._row(row))

    def _row(self, row: Value) -> Array:
        if self._part.spread == FULL:
            return self._base.at(row * self._row_step)
        return self._base.at(self._begin) if self._part.spread == STRIDED else self._base

    @property
    def _begin(self) -> Value:
        """Where the row begins that a walk over strided operands is at."""
        assert self._starts is not None
        return self._starts.begin.value

    def load(self, row: Value, column: Value, lanes: int, mask: Value | None) -> Value:
        """A vector of row `row`, from `column` on; a scalar where the operand does not change."""
        if self._part.spread == SCALAR:
            return self.seen(self._base[0])
        if self._part.spread == COLUMN:
            return self.seen(self._base[row])
        if self._part.spread == STRIDED_COLUMN:
            return self.seen(self._base[self._begin])
        return self.seen(self._row(row).vector(column, lanes, mask))

    def store(self, row: Value, column: Value, value: Value, mask: Value | None) -> None:
        """Store a vector in row `row` from `column` on."""
        self._code.put(self._row(row), column, self.kept(value), mask)

    def store_one(self, index: Value, value: Value) -> None:
        """Store one element."""
        self._base[index] = self.kept(value)

    def seen(self, value: Value) -> Value:
        """As formulas see it: bytes of truth become truth values, halves float32."""
        if self._part.dtype in HALVES:
            return widened(self._code, value, self._part.dtype)
        return cast(self._code, value, I1) if self._part.dtype == "bool" else value

    def kept(self, value: Value) -> Value:
        """As memory keeps it."""
        value = cast(self._code, value, register_item(self._part.dtype))
        if self._part.dtype in HALVES:
            return narrowed(self._code, value, self._part.dtype)
        return self._code.widened(value, self._item) if self._part.dtype == "bool" else value


class MatrixRow:
    """A row of a matrix; its address is computed once."""

    def __init__(self, code: Code, matrix: Matrix, elements: Array) -> None:
        self._code, self._matrix, self._elements = code, matrix, elements

    def load(self, column: Value, lanes: int, mask: Value | None) -> Value:
        """A vector from `column` on."""
        return self._matrix.seen(self._elements.vector(column, lanes, mask))

    def load_one(self, column: Value) -> Value:
        """The element at `column`."""
        return self._matrix.seen(self._elements[column])

    def store(self, column: Value, value: Value, mask: Value | None) -> None:
        """Store a vector from `column` on."""
        self._code.put(self._elements, column, self._matrix.kept(value), mask)

    def stream(self, column: Value, value: Value, align: int) -> None:
        """Store a vector from `column` on, past the caches; registers lie at multiples of `align`."""
        self._elements.stream(column, self._matrix.kept(value), align)

    def prefetch(self, column: Value, first: bool = True) -> None:
        """A hint that the element at `column` will be read soon, from the first-level cache or the second."""
        self._code.prefetch(self._elements, column, written=False, first=first)


class PaddedRow(MatrixRow):
    """A row of which a part, or nothing, lies in memory."""

    def __init__(
        self,
        code: Code,
        matrix: Matrix,
        elements: Array,
        operand: PaddedOperand,
        inside: Value,
        sides: tuple[Value, Value] | None,
    ) -> None:
        """`inside`: whether any of it does; `sides`: the first column that does, and that behind the last."""
        super().__init__(code, matrix, elements)
        self._inside, self._sides = inside, sides
        item = register_item(operand.dtype)
        self._fill = (
            code.lift(operand.fill[1], item) if item != I1 else code.lift(bool(operand.fill[1]), I1)
        )

    def load(self, column: Value, lanes: int, mask: Value | None) -> Value:
        """A vector from `column` on."""
        code = self._code
        there = code.splat(self._inside, lanes)
        if self._sides is not None:
            left, right = self._sides
            there = there & code.first(right - column, lanes) & ~code.first(left - column, lanes)
        read = there if mask is None else there & mask
        value = self._matrix.seen(self._elements.vector(column, lanes, read))
        return code.select(there, value, code.splat(self._fill, lanes))

    def load_one(self, column: Value) -> Value:
        """The element at `column`."""
        code, there = self._code, self._inside
        if self._sides is not None:
            there = there & (column >= self._sides[0]) & (column < self._sides[1])
        found = code.variable(self._fill)
        with code.when(there):
            found.value = self._matrix.seen(self._elements[column])
        result: Value = found.value
        return result


def lanes_for(target_bytes: int, parts: list[Operand | Result]) -> int:
    """Lanes of a loop over `parts`: a register full of the widest type that is read as vectors."""
    vectors = [part for part in parts if not row_constant(part)]
    widest = 8 if any(part.dtype in ("float64", "int64") for part in vectors) else 4
    return target_bytes // widest
