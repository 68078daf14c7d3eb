"""What a call of a library is made of: matrices of a stack, and arguments by address, as in Fortran."""

from __future__ import annotations

from magmadnn.compiler.kernels.library import FUNCTION, WORKSPACE, Library
from magmadnn.compiler.kernels.moves import FAULTS
from magmadnn.compiler.llvm.expressions.formulas import memory_item
from magmadnn.compiler.llvm.ir.builder import I8, I32, I64, VOID, Array, Code, Value
from magmadnn.compiler.llvm.ir.frame import Frame

from .room import LINE


class LibraryArguments:
    """The arguments of a kernel that calls a library.

    Attributes:
        code: writes the kernel.
        rows, columns: of a matrix of the result.
        height, width: of a matrix of the first operand.
        settings, known: as the kernel has them.
    """

    def __init__(self, kernel: Library, code: Code, frame: Frame) -> None:
        self.code, self._frame = code, frame
        self.item = memory_item(kernel.dtype)
        self.rows, self.columns = frame.integer("rows"), frame.integer("columns")
        self.height, self.width = frame.integer("height"), frame.integer("width")
        self.settings, self.known = kernel.settings, kernel.known

    @property
    def words(self) -> Array:
        """32-bit integers, at the begin of the workspace."""
        return self._frame.array(WORKSPACE, I32)

    def numbers(self, behind: Value | int) -> Array:
        """Numbers of the matrices' dtype, behind so many words of the workspace (`Room`)."""
        words = self.code.lift(behind, I64) * 4
        address = self._frame.integer(WORKSPACE) + (words + (LINE - 1)) // LINE * LINE
        return self.code.memory_at(address, self.item)

    def operand(self, number: int, matrix: Value) -> Array:
        """A matrix of an operand."""
        step = self._frame.integer(f"x{number}_step")
        return self._frame.array(f"x{number}", self.item).at(matrix * step)

    def result(self, matrix: Value) -> Array:
        """A matrix of the result."""
        return self._frame.array("result", self.item).at(matrix * self.rows * self.columns)

    def copy(self, source: Array, goal: Array, count: Value) -> None:
        """So many elements."""
        with self.code.loop(0, count) as element:
            goal[element] = source[element]

    def turned(self, source: Array, goal: Array, rows: Value, columns: Value) -> None:
        """Copy a matrix column by column: its transpose, row by row."""
        with self.code.loop(0, rows) as row, self.code.loop(0, columns) as column:
            goal[column * rows + row] = source[row * columns + column]

    def fail_unless_finite(self, matrix: Array, count: Value) -> Value:
        """Tell it where one of so many elements is NaN or infinite; whether none is."""
        found = self.code.variable(self.code.lift(0.0, self.item))
        with self.code.loop(0, count) as element:
            found.value = found.value + matrix[element] * 0.0
        self.fail_when(found.value.differs(0.0))
        are_finite: Value = found.value.equals(0.0)
        return are_finite

    def fail_unless_finite_triangle(self, matrix: Array, n: Value, lower: bool) -> None:
        """The same of a triangle of a square matrix, with its diagonal."""
        found = self.code.variable(self.code.lift(0.0, self.item))
        with self.code.loop(0, n) as row:
            begin, end = (0, row + 1) if lower else (row, n)
            with self.code.loop(begin, end) as column:
                found.value = found.value + matrix[row * n + column] * 0.0
        self.fail_when(found.value.differs(0.0))

    def fail_when(self, condition: Value) -> None:
        """Tell whoever runs the plan that something is wrong, where it is."""
        with self.code.when(condition):
            self._frame.array(FAULTS, I64)[0] = 1

    def letter(self, letter: str) -> Array:
        """A letter, by address."""
        return self._held(I8, ord(letter))

    def integer(self, value: Value | int) -> Array:
        """An integer of 32 bits, by address."""
        code = self.code
        return self._held(I32, value if isinstance(value, int) else code.convert(value, I32))

    def real(self, value: float) -> Array:
        """A number of the matrices' dtype, by address."""
        return self._held(self.item, value)

    def call(self, *arguments: Array) -> None:
        """Call the function."""
        self.code.call_address(self._frame.integer(FUNCTION), VOID, *arguments)

    def less(self, one: Value, other: Value) -> Value:
        """The smaller of two sizes."""
        return self.code.select(one < other, one, other)

    def _held(self, item: object, value: Value | float) -> Array:
        memory = self.code.stack(item, 1)
        memory[0] = value
        return memory
