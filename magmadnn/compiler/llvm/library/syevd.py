"""LAPACK's syevd: eigenvalues and eigenvectors of symmetric matrices."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Value

from .arguments import LibraryArguments
from .room import Room, Sizes

_BLOCK = 64  # columns that are reduced at once


def room_of_syevd(sizes: Sizes) -> Room:
    """Where it works; and a copy of the matrix, whose memory eigenvectors have otherwise."""
    n = sizes["columns"]
    return Room(words=3 + 5 * n, numbers=1 + (6 + _BLOCK) * n + 3 * n * n)


def write_syevd(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: eigenvalues in the first row, below it eigenvectors, each a row."""
    n, result = arguments.columns, arguments.result(matrix)
    lower, vectors = arguments.settings
    words, space = n * 5 + 3, n * n * 2 + n * (6 + _BLOCK) + 1
    work = arguments.numbers(words)
    goal = result.at(n) if vectors else work.at(space)
    arguments.copy(arguments.operand(0, matrix), goal, n * n)
    arguments.fail_unless_finite_triangle(goal, n, lower)
    size, found = arguments.integer(n), arguments.integer(0)
    arguments.call(
        arguments.letter("V" if vectors else "N"), arguments.letter("U" if lower else "L"),
        size, goal, size, result, work, arguments.integer(space),
        arguments.words, arguments.integer(words), found,
    )  # fmt: skip
    arguments.fail_when(found[0].differs(0))  # it did not converge
