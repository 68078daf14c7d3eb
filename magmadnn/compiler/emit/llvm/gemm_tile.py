"""The innermost part of a matrix product: one small tile of C held in registers.

A tile is `rows` rows by `width` vectors. Per step of k it takes `width` vectors of B and one element
of A for each row, spread over a vector::

    for p in 0 ... k-1:   sum[i, j] = fma(A[i, p], B[p, j], sum[i, j])

so every element of C is one chain of FMAs in the order of k, whatever the tile's shape. A chain that is
cut at some k is stored, and taken up again with `resume`, without any rounding: it stays the same chain.
Where A and B hold words of two elements, a step is two of k, in the order that `gemm_dots.py` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .builder import I32, Array, Code, Value, Variable, vector
from .gemm_dots import pair_dot
from .target import Target

_SPARE_REGISTERS = 2  # beside the sums and the vectors of B: elements of A spread out


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
    """The largest tile that fits the registers: 6 x 2 vectors of 16 registers, 6 x 4 of 32."""
    width = 2 if target.vector_registers < 32 else 4
    rows = (target.vector_registers - width - _SPARE_REGISTERS) // width
    return Tile(rows, width, target.lanes(item_bytes))


@dataclass(frozen=True)
class Side:
    """A or B, or a copy of a part of it: element [x, y] lies at `start[x * row + y * step]`."""

    start: Array
    row: Value
    step: Value


def write_tile(
    tile: Tile,
    unroll: int,
    code: Code,
    depth: Value,
    a: Side,
    b: Side,
    sums: Side,
    goal: Side,
    resume: Value,
) -> None:
    """One tile: sums of `depth` products, from zero or with `resume` from `sums`, stored in `goal`.

    B's step is 1, and so are those of the sums and the goal.
    """
    totals = [
        [code.variable(code.zero(vector(sums.start.item, tile.lanes))) for _ in range(tile.width)]
        for _ in range(tile.rows)
    ]

    def each(row: Value) -> Iterator[tuple[Variable, Value]]:
        for i, across in enumerate(totals):
            for j, total in enumerate(across):
                yield total, row * i + j * tile.lanes

    with code.when(resume):
        for total, at in each(sums.row):
            total.value = sums.start.vector(at, tile.lanes)
    _write_products(code, tile, unroll, depth, a, b, totals)
    for total, at in each(goal.row):
        goal.start.put(at, total.value)


def _write_products(
    code: Code,
    tile: Tile,
    unroll: int,
    depth: Value,
    a: Side,
    b: Side,
    totals: list[list[Variable]],
) -> None:
    """The loop over k."""
    multiplied = pair_dot if b.start.item == I32 else Code.fma
    rows_of_a = [a.start.at(a.row * i) for i in range(tile.rows)]

    def step(p: Value) -> None:
        row_of_b = b.start.at(p * b.row)
        vectors = [row_of_b.vector(j * tile.lanes, tile.lanes) for j in range(tile.width)]
        for across, row_of_a in zip(totals, rows_of_a, strict=True):
            spread = code.splat(row_of_a[p * a.step], tile.lanes)
            for total, elements in zip(across, vectors, strict=True):
                total.value = multiplied(code, spread, elements, total.value)

    whole = depth - depth % unroll if unroll > 1 else depth
    with code.loop(0, whole, unroll) as p:
        for u in range(unroll):
            step(p + u)
    if unroll > 1:
        with code.loop(whole, depth) as p:
            step(p)
