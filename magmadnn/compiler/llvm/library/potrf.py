"""LAPACK's potrf: the Cholesky factor of a positive definite matrix, in place of a copy of it."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Value

from .arguments import LibraryArguments


def write_potrf(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: L with L L^T = A, whose upper triangle is U with U^T U = A in column order."""
    code, n = arguments.code, arguments.rows
    source, result = arguments.operand(0, matrix), arguments.result(matrix)
    with code.loop(0, n) as row:
        with code.loop(0, row + 1) as column:
            result[row * n + column] = source[row * n + column]
        with code.loop(row + 1, n) as column:
            result[row * n + column] = 0.0
    size, found = arguments.integer(n), arguments.integer(0)
    arguments.call(arguments.letter("U"), size, result, size, found)
    arguments.fail_when(found[0].differs(0))  # the order of the first minor that is not positive
