"""BLAS's trsm: equations whose matrix is a triangle, in place of a copy of their right sides."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Value

from .arguments import LibraryArguments


def write_trsm(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: op(A) X = B; in column order X' op(A)' = B', where a lower triangle is an upper one."""
    code, n, columns = arguments.code, arguments.rows, arguments.columns
    triangle, right = arguments.operand(0, matrix), arguments.operand(1, matrix)
    result = arguments.result(matrix)
    lower, transpose = arguments.settings
    arguments.copy(right, result, n * columns)
    with code.loop(0, n) as row:
        arguments.fail_when(
            triangle[row * n + row].equals(0.0)
        )  # there is no solution, or more than one
    size, width = arguments.integer(n), arguments.integer(columns)
    arguments.call(
        arguments.letter("R"), arguments.letter("U" if lower else "L"),
        arguments.letter("T" if transpose else "N"), arguments.letter("N"), width, size,
        arguments.real(1.0), triangle, size, result, width,
    )  # fmt: skip
