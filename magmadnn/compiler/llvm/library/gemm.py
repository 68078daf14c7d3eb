"""Products of small matrices: tiles of results stay in registers, no library is called."""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.compiler.llvm.ir.builder import I64, Code, Value, item_bytes, vector
from magmadnn.compiler.llvm.side_by_side.lanes import in_blocks

from .arguments import LibraryArguments

_VECTORS = 2  # of a tile
_AHEAD, _LINE = (
    1024,
    64,
)  # bytes of a stack between what is computed with and what is asked for; of a line
_UNROLLED = 8  # terms of sums written one after the other, where sizes are known


def write_gemm(arguments: LibraryArguments, matrix: Value) -> None:
    """One matrix: every element is one chain of multiply-adds, whatever the tile.

    Known are rows, inner size and columns, where the kernel is for these alone, and whether results are
    stored past the caches: rows are then whole vectors.
    """
    code, item = arguments.code, arguments.item
    assert code.target is not None
    lanes = code.target.lanes(item_bytes(item))
    rows, columns, inner = arguments.rows, arguments.columns, arguments.width
    if arguments.known:
        # a row of few columns fills a narrower vector, of which a processor may compute two at a time
        lanes = min(lanes, 1 << (int(arguments.known[2]) - 1).bit_length())
        rows, inner, columns = (code.lift(int(size), I64) for size in arguments.known[:3])
    chains = 16 if code.target.vector_registers >= 32 else 8  # sums at once, of the registers
    a, b = arguments.operand(0, matrix), arguments.operand(1, matrix)
    result = arguments.result(matrix)
    zero = code.lift(0.0, vector(item, lanes))
    streamed = bool(arguments.known and arguments.known[3])
    ahead = _Ahead(arguments, matrix)

    def strip(column: Value, vectors: int, mask: Value | None = None) -> None:
        """All rows of so many vectors of columns."""

        def block(row: Value, height: int) -> None:
            held = [[code.variable(zero) for _ in range(vectors)] for _ in range(height)]

            def add(p: Value) -> None:
                right = [
                    b.vector(p * columns + column + k * lanes, lanes, mask) for k in range(vectors)
                ]
                ahead.of_right(p * columns + column, vectors * lanes)
                for r, totals in enumerate(held):
                    factor = code.spread(a.at((row + r) * inner + p), lanes)
                    for total, one in zip(totals, right, strict=True):
                        total.value = code.fma(factor, one, total.value)

            for r in range(height):
                ahead.of_rows(row + r)
            _terms(code, inner, int(arguments.known[1]) if arguments.known else None, add)
            for r, totals in enumerate(held):
                for k, total in enumerate(totals):
                    place = (row + r) * columns + column + k * lanes
                    if streamed and mask is None:
                        result.stream(place, total.value)
                    else:
                        result.put(place, total.value, mask)

        most = chains // vectors
        rest = int(arguments.known[0]) % most if arguments.known else 0
        in_blocks(code, 0, rows - rest, most, block)
        if rest:  # row by row, each would read the second operand again
            block(rows - rest, rest)

    wide = columns // (lanes * _VECTORS) * (lanes * _VECTORS)
    whole = columns // lanes * lanes
    with code.loop(0, wide, lanes * _VECTORS) as column:
        strip(column, _VECTORS)
    with code.loop(wide, whole, lanes) as column:
        strip(column, 1)
    with code.when(whole < columns):
        strip(whole, 1, code.lane_numbers(lanes, I64) < columns - whole)


class _Ahead:
    """Prefetches of a matrix of the stack that comes soon, beside the arithmetic on this one.

    None where a vector fills a cache line: there would be one prefetch for each eight multiply-adds, which
    takes a quarter of the time, and processors with such vectors prefetch stacks by themselves.
    """

    def __init__(self, arguments: LibraryArguments, matrix: Value) -> None:
        target = arguments.code.target
        assert target is not None
        self._code = arguments.code
        self._known = bool(arguments.known) and target.vector_bytes < _LINE
        if not self._known:
            return
        m, k, n, self._streamed = map(int, arguments.known)
        item = item_bytes(arguments.item)
        after = matrix + (1 + _AHEAD // max(m * k * item, k * n * item))
        self._line, self._inner, self._columns = _LINE // item, k, n
        self._a, self._b = arguments.operand(0, after), arguments.operand(1, after)
        self._result = arguments.result(after)

    def of_rows(self, row: Value) -> None:
        """A row of the first operand, and of the result."""
        if self._known:
            for place in range(0, self._inner, self._line):
                self._code.prefetch(self._a, row * self._inner + place, written=False)
            for place in () if self._streamed else range(0, self._columns, self._line):
                self._code.prefetch(self._result, row * self._columns + place)

    def of_right(self, place: Value, count: int) -> None:
        """So many elements of the second operand."""
        if self._known:
            for more in range(0, min(count, self._columns), self._line):
                self._code.prefetch(self._b, place + more, written=False)


def _terms(code: Code, inner: Value, known: int | None, add: Callable[[Value], None]) -> None:
    """`add(p)` for each term of the sums, in order."""
    if known is None:
        with code.loop(0, inner) as p:
            add(p)
        return
    whole = known // _UNROLLED * _UNROLLED
    if whole > _UNROLLED:
        with code.loop(0, whole, _UNROLLED) as first:
            for k in range(_UNROLLED):
                add(first + k)
    for k in range(whole if whole > _UNROLLED else 0, known):
        add(code.lift(k, I64))
