"""Products whose result is a single row or a single column: a matrix, read once, times a vector.

They cost what reading the matrix costs, so the loops follow the way that it lies in memory.

Stored [k, elements of C]: a few of its rows at a time, each times its element of the vector, are added to a
piece of sums that stays in the first-level cache. An element of C is one chain `sum = fma(a, b, sum)` from
0 in the order of k: the same bits as in `gemm.py`.

Stored [elements of C, k]: an element of C is a row of the matrix times the vector. As in sums along rows
(`rows.py`), product p is added, `partial = fma(a, b, partial)`, to partial sum p mod 32 (float64: mod 16),
the last block of them is filled with zeros, and then the partial sums are halved until one is left. So
neither vector width nor threads change a bit; `gemm.py` sums in another order. Factors of half precision
become float32 as they are read.
"""

from __future__ import annotations

from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.llvm.expressions.row_walk import PARTIAL_BYTES
from magmadnn.compiler.llvm.ir.builder import (
    FLOATS,
    Array,
    Code,
    Value,
    Variable,
    item_bytes,
    vector,
)
from magmadnn.compiler.llvm.ir.frame import ALIGNMENT, Frame
from magmadnn.compiler.llvm.ir.target import Target

from .epilogue import Finisher, Place, finisher
from .packing.read import readers_of

_PIECE_BYTES = 16 << 10  # of sums: half of a small first-level cache
_ROWS_ADDED = (
    6  # at a time; with more, rows that lie pages apart meet in the same sets of the cache
)
_WIDTH = 2  # vectors of sums at a time
_ROWS_SUMMED = 3  # at a time: 3 x 4 vectors of partial sums, of 16 registers, hide an FMA's latency


def gemv_scratch_bytes(target: Target) -> int:
    """Scratch memory that the kernel needs: a piece of sums, and what a vector reaches beyond."""
    return _PIECE_BYTES + ALIGNMENT


def write_gemv(gemv: Gemv, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    _Writer(gemv, code, frame, target, finisher(gemv.epilogue, code, frame)).write()


class _Writer:
    """Writes one kernel: y[j] = sum of x[p] times the matrix's element of j and p."""

    def __init__(
        self, gemv: Gemv, code: Code, frame: Frame, target: Target, finish: Finisher | None
    ) -> None:
        self.gemv, self.code, self.frame, self.finish = gemv, code, frame, finish
        self.item = FLOATS[gemv.dtype]
        self.lanes = target.lanes(item_bytes(self.item))
        self.k, one = frame.integer("k"), code.integer(1)
        reader_a, reader_b = readers_of(gemv, target)
        a, b = frame.array("a", reader_a.item), frame.array("b", reader_b.item)
        lda, ldb = frame.integer("lda"), frame.integer("ldb")
        slots = ("row0", "row1", "column0") if gemv.column else ("column0", "column1", "row0")
        self.first, self.last, self.fixed = (frame.integer(slot) for slot in slots)
        if gemv.column:
            self.matrix, self.stride, self.reader, self.reader_x = a, lda, reader_a, reader_b
            across, self.step = (ldb, one) if gemv.transpose_b else (one, ldb)
            self.x = b.at(self.fixed * across)
        else:
            self.matrix, self.stride, self.reader, self.reader_x = b, ldb, reader_b, reader_a
            across, self.step = (one, lda) if gemv.transpose_a else (lda, one)
            self.x = a.at(self.fixed * across)
        self.sums = frame.scratch.viewed(self.item)

    def write(self) -> None:
        """Pieces of C one after the other: sums in scratch memory, then what is stored."""
        piece = _PIECE_BYTES // item_bytes(self.item)
        with self.code.loop(self.first, self.last, piece) as j0:
            count = self.code.smaller(self.last - j0, piece)
            if self.gemv.along_k:
                self._sum_rows(self.matrix.at(j0 * self.stride), count)
            else:
                self._add_rows(self.matrix.at(j0), count)
            self._store(j0, count)

    # ------------------------------------------------------------------ stored [k, elements]

    def _add_rows(self, matrix: Array, count: Value) -> None:
        code = self.code
        with code.loop(0, count, self.lanes) as j:
            self.sums.put(j, code.zero(vector(self.item, self.lanes)))
        whole = self.k - self.k % _ROWS_ADDED
        with code.loop(0, whole, _ROWS_ADDED) as p:
            self._add(matrix, count, p, _ROWS_ADDED)
        with code.loop(whole, self.k) as p:
            self._add(matrix, count, p, 1)

    def _add(self, matrix: Array, count: Value, p: Value, rows: int) -> None:
        """sums[j] = fma(x[p + r], matrix[p + r, j], sums[j]) for one r after the other."""
        code, lanes = self.code, self.lanes
        numbers = [self.reader_x.number(code, self.x, (p + r) * self.step) for r in range(rows)]
        factors = [code.splat(number, lanes) for number in numbers]
        sources = [matrix.at((p + r) * self.stride) for r in range(rows)]

        def add(j: Value, mask: Value | None) -> None:
            total = self.sums.vector(j, lanes)
            for factor, source in zip(factors, sources, strict=True):
                total = code.fma(factor, self.reader.vector(code, source, j, lanes, mask), total)
            self.sums.put(j, total)

        whole = count - count % (_WIDTH * lanes)
        with code.loop(0, whole, _WIDTH * lanes) as j:
            for x in range(_WIDTH):
                add(j + x * lanes, None)
        with code.loop(whole, count, lanes) as j:
            add(j, code.first(count - j, lanes))

    # ------------------------------------------------------------------ stored [elements, k]

    def _sum_rows(self, matrix: Array, count: Value) -> None:
        whole = count - count % _ROWS_SUMMED
        with self.code.loop(0, whole, _ROWS_SUMMED) as j:
            self._sum(matrix, j, _ROWS_SUMMED)
        with self.code.loop(whole, count) as j:
            self._sum(matrix, j, 1)

    def _sum(self, matrix: Array, j: Value, rows: int) -> None:
        """The sums of some rows from row `j` on."""
        code, lanes = self.code, self.lanes
        width = PARTIAL_BYTES // item_bytes(self.item) // lanes
        sources = [matrix.at((j + r) * self.stride) for r in range(rows)]
        totals = [
            [code.variable(code.zero(vector(self.item, lanes))) for _ in range(width)]
            for _ in range(rows)
        ]

        def add(p: Value, masks: list[Value | None]) -> None:
            for i, mask in enumerate(masks):
                at = p + i * lanes
                factors = self.reader_x.vector(code, self.x, at, lanes, mask)
                for source, across in zip(sources, totals, strict=True):
                    elements = self.reader.vector(code, source, at, lanes, mask)
                    across[i].value = code.fma(factors, elements, across[i].value)

        whole = self.k - self.k % (width * lanes)
        with code.loop(0, whole, width * lanes) as p:
            add(p, [None] * width)
        with code.when(whole < self.k):
            add(whole, [code.first(self.k - whole - i * lanes, lanes) for i in range(width)])
        for r, across in enumerate(totals):
            self.sums[j + r] = self._halved(across)

    def _halved(self, partial: list[Variable]) -> Value:
        """Partial sums i and i + count / 2 added until one is left."""
        code, values = self.code, [total.value for total in partial]
        while len(values) > 1:
            half = len(values) // 2
            values = [x + y for x, y in zip(values[:half], values[half:], strict=True)]
        value, count = values[0], self.lanes
        while count > 1:
            count //= 2
            low = code.shuffle(value, value, range(count))
            value = low + code.shuffle(value, value, range(count, 2 * count))
        return code.lane(value, 0)

    # ------------------------------------------------------------------ the result

    def _store(self, j0: Value, count: Value) -> None:
        code, lanes = self.code, self.lanes
        c, ldc = self.frame.array("c", self.item), self.frame.integer("ldc")
        if self.finish is not None:
            self.finish.begin(j0 if self.gemv.column else self.fixed)
        if not self.gemv.column:
            with code.loop(0, count, lanes) as j:
                mask = code.first(count - j, lanes)
                place = Place(self.fixed, j0 + j, lanes, mask)
                value = self._finished(self.sums.vector(j, lanes), place)
                c.put(self.fixed * ldc + place.column, value, mask)
        elif self.finish is None:
            with code.loop(0, count) as j:
                c[(j0 + j) * ldc + self.fixed] = self.sums[j]
        else:
            one = code.first(code.integer(1), lanes)
            with code.loop(0, count) as j:
                place = Place(j0 + j, self.fixed, lanes, one)
                value = self._finished(self.sums.vector(j, lanes, one), place)
                c.put(place.row * ldc + self.fixed, value, one)
                self.finish.next_row()

    def _finished(self, value: Value, place: Place) -> Value:
        return value if self.finish is None else self.finish.write(value, place)
