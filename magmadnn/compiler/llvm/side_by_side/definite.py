"""Cholesky factors of matrices side by side."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import Code, Value

from .lanes import Lanes, in_blocks, reduced


def factorise_definite(code: Code, a: Lanes, n: Value, tile: int) -> Value:
    """L with L L^T = A in the place of A [n, n], of which the lower triangle is read; zeros above it.

    Columns from left to right, each a block of the tile's size: what earlier columns take from it, then its
    own triangle, then the rows below. Every element is one chain of multiply-adds, whatever the tile.

    Returns:
        A truth value in each lane: whether a leading minor is not positive, or NaN.
    """
    bad = code.variable(code.compare("!=", a.constant(0.0), 0.0))

    def less_earlier(i: Value, j: Value, rows: int, columns: int) -> list[list[Value]]:
        """The tile at [i, j], less the product of L's rows over the columns before j."""
        totals = [[a[(i + r) * n + (j + c)] for c in range(columns)] for r in range(rows)]
        return reduced(
            code, totals, (0, j), lambda r, p: a[(i + r) * n + p], lambda p, c: a[(j + c) * n + p]
        )

    def column_block(j: Value, width: int) -> None:
        found = less_earlier(j, j, width, width)
        scale = []
        for c in range(width):
            pivot = found[c][c]
            bad.value = bad.value | ~(pivot > 0.0)
            root = code.call_like("llvm.sqrt", pivot)
            scale.append(a.constant(1.0) / root)
            found[c][c] = root
            for r in range(c + 1, width):
                found[r][c] = found[r][c] * scale[c]
                for k in range(c + 1, r + 1):
                    found[r][k] = code.fma(-found[r][c], found[k][c], found[r][k])
        for r in range(width):
            for c in range(width):
                a[(j + r) * n + (j + c)] = found[r][c] if c <= r else a.constant(0.0)

        def below(i: Value, height: int) -> None:
            rest = less_earlier(i, j, height, width)
            for r in range(height):
                for c in range(width):
                    for k in range(c):
                        rest[r][c] = code.fma(-rest[r][k], found[c][k], rest[r][c])
                    rest[r][c] = rest[r][c] * scale[c]
                    a[(i + r) * n + (j + c)] = rest[r][c]
                    a[(j + c) * n + (i + r)] = a.constant(0.0)

        in_blocks(code, j + width, n, tile, below)

    in_blocks(code, 0, n, tile, column_block)
    return bad.value
