"""LAPACK's gesv: equations with a square matrix, whose factors are not kept."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Value

from .arguments import LibraryArguments
from .room import Room, Sizes


def room_of_gesv(sizes: Sizes) -> Room:
    """The exchanges, and copies of the matrix and of the right sides, column by column."""
    n = sizes["width"]
    return Room(words=n, numbers=n * n + n * sizes["columns"])


def write_gesv(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix [n, n] and its right sides [n, k]."""
    n, count = arguments.width, arguments.columns
    (transpose,) = arguments.settings
    factors = arguments.numbers(n)
    right, result = factors.at(n * n), arguments.result(matrix)
    source = arguments.operand(0, matrix)
    if transpose:  # row by row it is the transpose in the order of columns
        arguments.copy(source, factors, n * n)
    else:
        arguments.turned(source, factors, n, n)
    arguments.turned(arguments.operand(1, matrix), right, n, count)
    arguments.fail_unless_finite(factors, n * n + n * count)
    size, width, found = arguments.integer(n), arguments.integer(count), arguments.integer(0)
    arguments.call(size, width, factors, size, arguments.words, right, size, found)
    arguments.fail_when(found[0].differs(0))  # a pivot is 0
    arguments.turned(right, result, count, n)
