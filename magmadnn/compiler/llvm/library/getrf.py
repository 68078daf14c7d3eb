"""LAPACK's getrf: L and U of a matrix whose rows were exchanged, and the exchanges."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import I64, Value

from .arguments import LibraryArguments
from .room import Room, Sizes


def room_of_getrf(sizes: Sizes) -> Room:
    """The exchanges, as the function gives them."""
    return Room(words=sizes["columns"])


def write_getrf(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: exchanges as numbers from 0 in the first row, below them the factors, column by column."""
    code, n = arguments.code, arguments.columns
    result = arguments.result(matrix)
    factors, pivots = result.at(n), arguments.words
    arguments.turned(arguments.operand(0, matrix), factors, n, n)
    arguments.fail_unless_finite(factors, n * n)
    size, found = arguments.integer(n), arguments.integer(0)
    arguments.call(size, size, factors, size, pivots, found)  # what it finds is a 0 in U, too
    with code.loop(0, n) as row:
        result[row] = code.convert(code.convert(pivots[row], I64) - 1, arguments.item)
