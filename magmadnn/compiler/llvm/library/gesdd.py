"""LAPACK's gesdd: singular values and vectors."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Value

from .arguments import LibraryArguments
from .room import Room, Sizes

_BLOCK = 66  # columns that are reduced at once, and two more


def room_of_gesdd(sizes: Sizes) -> Room:
    """Where it works, and a copy of the matrix."""
    m, n = sizes["height"], sizes["width"]
    k = min(m, n)
    return Room(words=8 * k, numbers=4 * k * k + 7 * k + _BLOCK * (m + n) + m * n)


def write_gesdd(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: singular values, then U [m, k] and V^T [k, n], or both square.

    In column order the matrix is A^T = V S U^T.
    """
    m, n = arguments.height, arguments.width
    vectors, full = arguments.settings
    result, k = arguments.result(matrix), arguments.less(m, n)
    space = k * k * 4 + k * 7 + (m + n) * _BLOCK
    work = arguments.numbers(k * 8)
    copy = work.at(space)
    arguments.copy(arguments.operand(0, matrix), copy, m * n)
    are_finite = arguments.fail_unless_finite(copy, m * n)
    left = m if full else k
    u = result.at(k)
    v = u.at(m * left) if vectors else u
    height, width, found = arguments.integer(m), arguments.integer(n), arguments.integer(0)
    arguments.fail_when(k < 1)  # LAPACK leaves vectors of empty matrices as they are
    with arguments.code.when(are_finite & (k >= 1)):  # it prints what is wrong
        arguments.call(
            arguments.letter("N" if not vectors else "A" if full else "S"), width, height, copy, width,
            result, v, width, u, arguments.integer(left), work, arguments.integer(space),
            arguments.words, found,
        )  # fmt: skip
    arguments.fail_when(found[0].differs(0))  # it did not converge
