"""The innermost part of a matrix product: one small tile of C held in registers.

A tile is `rows` rows by `width` vectors. Per step of k it takes `width` vectors of B and one element
of A for each row, spread over a vector::

    for p in 0 ... k-1:   sum[i, j] = fma(A[i, p], B[p, j], sum[i, j])

so every element of C is one chain of FMAs in the order of k, whatever the tile's shape. A chain that is
cut at some k is stored, and taken up again with `resume`, without any rounding: it stays the same chain.
Where A and B hold words of two elements, a step is two of k, in the order that `dots.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from magmadnn.compiler.llvm.ir.builder import I8, I32, Array, Code, Value, Variable, vector
from magmadnn.compiler.llvm.ir.target import Target

from .dots import pair_dot
from .joined_axes import JoinedRows

Totals = list[list[Variable]]  # of a tile, by rows

_ROWS_OF_POINTER = 3  # of A: addresses with once and twice their distance cost nothing


@dataclass(frozen=True)
class Tile:
    """Shape of a register tile: `rows` rows by `width` vectors of `lanes` elements."""

    rows: int
    width: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of C that the tile covers."""
        return self.width * self.lanes


def largest_tile(target: Target, item_bytes: int) -> Tile:
    """The largest tile that fits the registers: 6 x 2 vectors of 16 registers, 8 x 3 of 32.

    Decision 005 has the times of others.
    """
    rows, width = (6, 2) if target.vector_registers < 32 else (8, 3)
    return Tile(rows, width, target.lanes(item_bytes))


@dataclass(frozen=True)
class Side:
    """A or B, or a copy of a part of it: element [x, y] lies at `start[x * row + y * step]`."""

    start: Array
    row: Value
    step: Value


@dataclass(frozen=True)
class Hints:
    """What is announced to the caches beside the products of one tile.

    Attributes:
        start: where the first hint points to,
        apart: the next one, in elements,
        beside: and further ones beside each.
    """

    start: Array
    apart: Value
    beside: tuple[int, ...]

    def write(self, code: Code, number: Value) -> None:
        """Those with a number."""
        there = self.start.at(number * self.apart)
        for x in self.beside:
            code.prefetch(there, x, written=False)


def write_tile(
    tile: Tile,
    unroll: int,
    below: bool,
    code: Code,
    depth: Value,
    a: Side | JoinedRows,
    b: Side,
    sums: Side,
    goal: Side,
    resume: Value,
) -> None:
    """One tile: sums of `depth` products, from zero or with `resume` from `sums`, stored in `goal`.

    B's step is 1, and so are those of the sums and the goal. With `below`, hints about the rows of A
    that the tile below needs go beside the products.
    """
    totals = zeros(code, tile, sums.start.item)
    with code.when(resume):
        load_totals(tile, sums, totals)
    hints = None
    if below and isinstance(a, Side):
        last = a.start.at(a.row * (2 * tile.rows - 1))  # lines may begin amid the rows below
        hints = Hints(last, a.step * unroll, (0,))
    write_products(code, tile, unroll, depth, a, b, totals, hints)
    store_totals(tile, totals, goal)


def zeros(code: Code, tile: Tile, item: Any) -> Totals:
    """Sums of a tile, all zero."""
    kind = vector(item, tile.lanes)
    return [[code.variable(code.zero(kind)) for _ in range(tile.width)] for _ in range(tile.rows)]


def _placed(tile: Tile, totals: Totals, row: Value) -> Iterator[tuple[Variable, Value]]:
    """Each of the sums, and where it lies in a matrix."""
    for i, across in enumerate(totals):
        for j, total in enumerate(across):
            yield total, row * i + j * tile.lanes


def load_totals(tile: Tile, sums: Side, totals: Totals) -> None:
    """Take sums up again."""
    for total, at in _placed(tile, totals, sums.row):
        total.value = sums.start.vector(at, tile.lanes)


def store_totals(tile: Tile, totals: Totals, goal: Side) -> None:
    """Store sums in the rows of `goal`."""
    for total, at in _placed(tile, totals, goal.row):
        goal.start.put(at, total.value)


def write_products(
    code: Code,
    tile: Tile,
    unroll: int,
    depth: Value,
    a: Side | JoinedRows,
    b: Side,
    totals: Totals,
    hints: Hints | None = None,
) -> None:
    """The loop over k, with some `hints` before each `unroll` steps."""
    multiplied = pair_dot if b.start.item == I32 else Code.fma
    walks: list[_Walk | _JoinedWalk]
    if isinstance(a, JoinedRows):
        walks = [_JoinedWalk(code, a, b.start.item, tile.rows)]
    else:
        walks = [
            _Walk(code, a, first, min(_ROWS_OF_POINTER, tile.rows - first))
            for first in range(0, tile.rows, _ROWS_OF_POINTER)
        ]
    rows_of_b = _Walk(code, Side(b.start, b.step, b.row), 0, 1)

    def step(p: Value) -> None:
        (row_of_b,) = rows_of_b.step(p)
        vectors = [row_of_b.vector(j * tile.lanes, tile.lanes) for j in range(tile.width)]
        numbers = [number for walk in walks for number in walk.step(p)]
        for across, number in zip(totals, numbers, strict=True):
            spread = code.spread(number, tile.lanes)
            for total, elements in zip(across, vectors, strict=True):
                total.value = multiplied(code, spread, elements, total.value)

    whole = depth - depth % unroll if unroll > 1 else depth
    with code.loop(0, whole, unroll) as p:
        if hints is not None:
            hints.write(code, p // unroll)
        for more in range(unroll):
            step(p + more)
    if unroll > 1:
        with code.loop(whole, depth) as p:
            step(p)


class _Walk:
    """Some rows of A, or the one of B, step by step along k, from one pointer.

    The rows lie at multiples of their distance behind it, as CPUs compute addresses while they load. LLVM
    would find pointers of its own, and add to each of them.
    """

    def __init__(self, code: Code, a: Side, first: int, rows: int) -> None:
        self._code, self._a, self._rows = code, a, rows
        start = code.number_of(a.start.at(a.row * first))
        self._at = code.variable(code.opaque(start))

    def step(self, p: Value) -> list[Array]:
        """Where each row is at step `p`, the next one; afterwards the pointer stands at the one behind it."""
        code, a = self._code, self._a
        here = code.memory_at(self._at.value, a.start.item)
        found = [here.at(a.row * i) for i in range(self._rows)]
        self._at.value = code.opaque(code.number_of(here.at(a.step)))
        return found


class _JoinedWalk:
    """Rows of A that lie anywhere, step by step along k: an address for each, one distance for all."""

    def __init__(self, code: Code, a: JoinedRows, item: Any, rows: int) -> None:
        self._columns, self._item = a.columns, item
        self._rows = [code.memory_at(code.opaque(a.rows[i]), I8) for i in range(rows)]

    def step(self, p: Value) -> list[Array]:
        """Where each row is at step `p`."""
        behind = self._columns[p]
        return [row.at(behind).viewed(self._item) for row in self._rows]
