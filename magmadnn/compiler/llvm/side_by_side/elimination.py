"""Factors L and U of matrices side by side, whose rows are exchanged in each lane by itself."""

from __future__ import annotations

from magmadnn.compiler.llvm.ir.builder import F32, I64, Code, Value

from .lanes import Lanes, in_blocks, reduced
from .substitution import Seen

# A pivot that is below the least normal number has an inverse that overflows: it is scaled before.
_LEAST = {4: (2.0**-126, 2.0**60), 8: (2.0**-1022, 2.0**200)}


def factorise(code: Code, a: Lanes, pivots: Lanes, n: Value, tile: int) -> None:
    """L and U in the place of A [n, n]; `pivots` [n]: the number of the row that each was exchanged with.

    Columns from left to right, in blocks of the tile's size, as LAPACK's getrf: the largest element of what
    is left of a column is the pivot, the first of equal ones. A column of zeros stays, and U has a 0 there.
    """
    seen = Seen(a, n, 1)

    def less_earlier(i: Value, j: Value, end: Value, rows: int, columns: int) -> list[list[Value]]:
        totals = [[seen[i + r, j + c] for c in range(columns)] for r in range(rows)]
        return reduced(
            code, totals, (0, end), lambda r, p: seen[i + r, p], lambda p, c: seen[p, j + c]
        )

    def column_block(j: Value, width: int) -> None:
        def above(i: Value, height: int) -> None:
            found = less_earlier(i, j, i, height, width)
            for r in range(height):
                for k in range(r):
                    factor = -seen[i + r, i + k]
                    for c in range(width):
                        found[r][c] = code.fma(factor, found[k][c], found[r][c])
                for c in range(width):
                    seen[i + r, j + c] = found[r][c]

        def below(i: Value, height: int) -> None:
            for r, row in enumerate(less_earlier(i, j, j, height, width)):
                for c, value in enumerate(row):
                    seen[i + r, j + c] = value

        in_blocks(code, 0, j, tile, above)
        in_blocks(code, j, n, tile, below)
        for c in range(width):
            _eliminate(code, seen, pivots, n, j + c, width - c - 1)

    in_blocks(code, 0, n, tile, column_block)


def _eliminate(code: Code, a: Seen, pivots: Lanes, n: Value, k: Value, more: int) -> None:
    """Column k: its pivot, the exchange of rows, multipliers; and what they take from `more` columns."""
    best = code.variable(code.call_like("llvm.fabs", a[k, k]))
    where = code.variable(pivots.constant(code.convert(k, pivots.memory.item)))
    with code.loop(k + 1, n) as i:
        value = code.call_like("llvm.fabs", a[i, k])
        larger = value > best.value
        best.value = code.select(larger, value, best.value)
        number = pivots.constant(code.convert(i, pivots.memory.item))
        where.value = code.select(larger, number, where.value)
    pivots[k] = where.value
    exchange(code, a, pivots, n, k)
    pivot = a[k, k]
    least, factor = _LEAST[4 if pivots.memory.item == F32 else 8]
    scale = code.select(best.value < least, pivots.constant(factor), 1.0)
    inverse = pivots.constant(1.0) / (pivot * scale)
    inverse = code.select(best.value.equals(0.0), pivots.constant(0.0), inverse)
    rest = [a[k, k + c] for c in range(1, more + 1)]
    with code.loop(k + 1, n) as i:
        multiplier = a[i, k] * scale * inverse
        a[i, k] = multiplier
        for c, value in enumerate(rest, 1):
            a[i, k + c] = code.fma(-multiplier, value, a[i, k + c])


def exchange(code: Code, x: Seen, pivots: Lanes, columns: Value, k: Value) -> None:
    """Exchange row k of [n, columns] with the one that `pivots` tells, in each lane."""
    others = code.convert(pivots[k], I64)
    with code.when(code.any(others.differs(k))), code.loop(0, columns) as column:
        x.memory.swap(x.place(k, column), others * x.down + column * x.across)


def exchange_all(
    code: Code, x: Seen, pivots: Lanes, size: tuple[Value, Value], backward: bool
) -> None:
    """All exchanges of the rows of [n, columns], one after the other."""
    n, columns = size
    with code.loop(0, n) as number:
        exchange(code, x, pivots, columns, n - 1 - number if backward else number)
