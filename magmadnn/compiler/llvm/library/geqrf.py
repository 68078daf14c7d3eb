"""LAPACK's geqrf and orgqr: a matrix as reflections and a triangle, and the product of the reflections."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Value

from .arguments import LibraryArguments
from .room import Room, Sizes

_BLOCK = 64  # columns that are reflected at once


def room_of_geqrf(sizes: Sizes) -> Room:
    """Where it works, on so many columns."""
    return Room(numbers=_BLOCK * sizes["rows"])


def write_geqrf(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix [m, n]: what scales reflections in the first row, below it the columns."""
    code, m, n = arguments.code, arguments.height, arguments.width
    result = arguments.result(matrix)
    columns = result.at(m)
    arguments.turned(arguments.operand(0, matrix), columns, m, n)
    arguments.fail_unless_finite(columns, m * n)
    with code.loop(0, m) as row:
        result[row] = 0.0
    height, width, found = arguments.integer(m), arguments.integer(n), arguments.integer(0)
    arguments.call(
        height, width, columns, height, result, arguments.numbers(0),
        arguments.integer(arguments.rows * _BLOCK), found,
    )  # fmt: skip


def write_orgqr(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: as many columns of Q, each a row here, as the result has."""
    code, m, count = arguments.code, arguments.columns, arguments.rows
    packed, result = arguments.operand(0, matrix), arguments.result(matrix)
    n = arguments.height - 1
    given = arguments.less(n, count)
    arguments.copy(packed.at(m), result, given * m)
    with code.loop(given * m, count * m) as element:
        result[element] = 0.0
    height, found = arguments.integer(m), arguments.integer(0)
    arguments.call(
        height, arguments.integer(count), arguments.integer(arguments.less(m, given)), result,
        height, packed, arguments.numbers(0), arguments.integer(count * _BLOCK), found,
    )  # fmt: skip
