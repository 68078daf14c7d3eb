"""LAPACK's getrs: equations whose matrix was factorised by getrf."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import I32, I64, Value

from .arguments import LibraryArguments
from .room import Room, Sizes


def room_of_getrs(sizes: Sizes) -> Room:
    """The exchanges, as the function wants them."""
    return Room(words=sizes["columns"])


def write_getrs(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: right sides and solutions are rows here, columns for the function."""
    code, count, n = arguments.code, arguments.rows, arguments.columns
    packed, result, pivots = arguments.operand(0, matrix), arguments.result(matrix), arguments.words
    factors = packed.at(n)
    arguments.copy(arguments.operand(1, matrix), result, count * n)
    arguments.fail_unless_finite(result, count * n)
    with code.loop(0, n) as row:
        arguments.fail_when(factors[row * n + row].equals(0.0))  # there is no solution, or many
        pivots[row] = code.convert(code.to_integer(packed[row], I64), I32) + 1
    size, width, found = arguments.integer(n), arguments.integer(count), arguments.integer(0)
    (transpose,) = arguments.settings
    letter = arguments.letter("T" if transpose else "N")
    arguments.call(letter, size, width, factors, size, pivots, result, size, found)
