"""Matrices of a stack in the lanes of vectors: element e of all of them is vector e of the working memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magmadnn.compiler.llvm.ir.builder import I64, Array, Code, Number, Value, item_bytes, vector
from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.compiler.llvm.ir.transposing import transposed


def lanes_of(target: Target, item: object) -> int:
    """Matrices side by side."""
    return target.lanes(item_bytes(item))


def tile_size(target: Target) -> int:
    """Rows and columns of a tile of results that stays in registers, with a row and a column of factors."""
    return 4 if target.vector_registers >= 32 else 2


class Lanes:
    """Working memory of vectors, of which each lane belongs to one matrix: `m[e]` is element e of all.

    Attributes:
        code: writes the kernel.
        lanes: matrices side by side.
        memory: so many numbers for each element.
    """

    def __init__(self, code: Code, lanes: int, memory: Array) -> None:
        self.code, self.lanes, self.memory = code, lanes, memory

    def __getitem__(self, element: Number) -> Value:
        return self.memory.vector(self.code.lift(element, I64) * self.lanes, self.lanes)

    def __setitem__(self, element: Number, value: Value) -> None:
        self.memory.put(self.code.lift(element, I64) * self.lanes, value)

    def at(self, element: Value) -> Lanes:
        """The same memory from an element on."""
        return Lanes(self.code, self.lanes, self.memory.at(element * self.lanes))

    def constant(self, number: Number) -> Value:
        """A number in every lane."""
        return self.code.lift(number, vector(self.memory.item, self.lanes))

    def swap(self, one: Value, others: Value) -> None:
        """Exchange an element with another one in each lane; those are numbers in a vector."""
        places = others * self.lanes + self.code.lane_numbers(self.lanes, I64)
        kept, found = self[one], self.memory.gathered(places)
        self.memory.scatter(places, kept)
        self[one] = found

    # --- from and to matrices ---------------------------------------------------------------------

    def read(self, sources: Sequence[Array], count: Value) -> Value:
        """Take so many numbers of each matrix; gives 0 in each lane, NaN where one is not finite."""
        code, lanes = self.code, self.lanes
        found = code.variable(self.constant(0.0))

        def block(at: Value) -> None:
            for k, turned in enumerate(transposed(code, [s.vector(at, lanes) for s in sources])):
                self[at + k] = turned
                found.value = code.fma(turned, 0.0, found.value)

        def single(at: Value) -> None:
            for lane, source in enumerate(sources):
                self.memory[at * lanes + lane] = source[at]
            found.value = code.fma(self[at], 0.0, found.value)

        self._in_blocks(count, block, single)
        return found.value

    def write(self, goals: Sequence[Array], count: Value, columns: Value | None = None) -> None:
        """Give each matrix so many of its numbers, in the order of memory; a square one column by column."""
        code, lanes = self.code, self.lanes

        def places(at: Value, some: int) -> list[Value]:
            return _by_column(code, at, some, columns) if columns else [at + k for k in range(some)]

        def block(at: Value) -> None:
            rows = transposed(code, [self[place] for place in places(at, lanes)])
            for goal, row in zip(goals, rows, strict=True):
                goal.put(at, row)

        def single(at: Value) -> None:
            (place,) = places(at, 1)
            for lane, goal in enumerate(goals):
                goal[at] = self.memory[place * lanes + lane]

        self._in_blocks(count, block, single)

    def _in_blocks(
        self, count: Value, block: Callable[[Value], None], single: Callable[[Value], None]
    ) -> None:
        """As many elements as lanes at a time, the last ones with some of those before; few one by one."""
        code, lanes = self.code, self.lanes
        with code.choose(count < lanes) as (few, many):
            with few, code.loop(0, count) as at:
                single(at)
            with many, code.loop(0, count, lanes) as at:
                block(code.smaller(at, count - lanes))


def _by_column(code: Code, at: Value, count: int, n: Value) -> list[Value]:
    """Where elements `at`, `at + 1`, ... of the order column by column lie in a matrix [n, n]."""
    column, row = at // n, at % n
    found = []
    for _ in range(count):
        found.append(row * n + column)
        ends = (row + 1).equals(n)
        column, row = code.select(ends, column + 1, column), code.select(ends, 0, row + 1)
    return found


# --- tiles ----------------------------------------------------------------------------------------


def in_blocks(
    code: Code, start: Number, end: Value, size: int, body: Callable[[Value, int], None]
) -> None:
    """`body(first, height)` for blocks of a size from `start` on, and for what is left one by one."""
    whole = (end - start) // size * size + start
    with code.loop(start, whole, size) as first:
        body(first, size)
    with code.loop(whole, end) as first:
        body(first, 1)


def in_blocks_backward(
    code: Code, end: Value, size: int, body: Callable[[Value, int], None]
) -> None:
    """The same blocks as from 0 to `end`, the last first."""
    whole = end // size * size
    with code.loop(0, end - whole) as number:
        body(end - 1 - number, 1)
    with code.loop(0, whole, size) as number:
        body(whole - size - number, size)


def reduced(
    code: Code,
    totals: list[list[Value]],
    sums: tuple[Number, Number],
    left: Callable[[int, Value], Value],
    right: Callable[[Value, int], Value],
) -> list[list[Value]]:
    """A tile less the sum over p of left(i, p) right(p, j): one multiply-add after the other."""
    held = [[code.variable(total) for total in row] for row in totals]
    with code.loop(*sums) as p:
        factors = [-left(i, p) for i in range(len(held))]
        for j in range(len(held[0])):
            factor = right(p, j)
            for i, row in enumerate(held):
                row[j].value = code.fma(factors[i], factor, row[j].value)
    return [[total.value for total in row] for row in held]
