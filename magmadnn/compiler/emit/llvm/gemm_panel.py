"""A panel of a matrix product: all rows of a block of C, as wide as one tile."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from .builder import Array, Code, Value
from .gemm_tile import Scale, Side, Tile, write_tile

_TAIL_ROWS = (4, 2, 1)  # heights of the tiles for rows that do not fill the largest one


@dataclass(frozen=True)
class PanelOfA:
    """A, or a copy of a block of it, from the block's first row and k on.

    Row i starts at `start[i // rows * panel + i % rows * row]`, where `rows` are those of the largest
    tile, and its elements lie `step` apart: `panel = rows * row` for A itself.
    """

    start: Array
    panel: Value
    row: Value
    step: Value

    def tile(self, i: Value, rows: int) -> Side:
        """The tile that starts at row `i`."""
        at = i // rows * self.panel + i % rows * self.row
        return Side(self.start.at(at), self.row, self.step)


def write_panel(
    code: Code,
    tile: Tile,
    unroll: int,
    rows: Value,
    depth: Value,
    a: PanelOfA,
    b: Side,
    sums: Side,
    resume: Value,
    scale: Scale | None,
) -> None:
    """Cover `rows` rows with tiles, the highest first; a subroutine that kernels share."""
    key = _key(tile, b, unroll, scale)

    def write(code: Code, rows: Value, *others: Any) -> None:
        done = code.variable(code.integer(0))
        for height in (tile.rows, *(r for r in _TAIL_ROWS if r < tile.rows)):
            shape = Tile(height, tile.width, tile.lanes)
            with code.loop(done.value, rows - (height - 1), height) as i:
                _write_row(code, tile, shape, unroll, rows, i, *others)
                done.value = i + height

    code.subroutine(f"panel_{key}", write, rows, depth, a, b, sums, resume, scale)


def _write_row(
    code: Code,
    largest: Tile,
    tile: Tile,
    unroll: int,
    rows: Value,
    i: Value,
    depth: Value,
    a: PanelOfA,
    b: Side,
    sums: Side,
    resume: Value,
    scale: Scale | None,
) -> None:
    """The tile at row `i`, after hints that its part of C will be written."""
    here = Side(sums.start.at(i * sums.row), sums.row, sums.step)
    if scale is not None:
        scale = Scale(scale.last, scale.c.at(i * scale.row), scale.row, scale.alpha, scale.beta)
    if tile == largest:
        c, row = (scale.c, scale.row) if scale else (here.start, here.row)
        for x in range(tile.rows):
            code.prefetch(c, row * x)
            code.prefetch(c, row * x + (tile.columns - 1))
    left = a.tile(i, largest.rows)
    steps = unroll if tile == largest else 1
    name = f"tile_{_key(tile, b, steps, scale)}"
    code.subroutine(
        name, functools.partial(write_tile, tile, steps), depth, left, b, here, resume, scale
    )


def _key(tile: Tile, b: Side, unroll: int, scale: Scale | None) -> str:
    """What the code of a tile depends on, as a part of a name."""
    shape = f"{tile.rows}x{tile.width}x{tile.lanes}_{b.start.item}_{unroll}"
    return shape + ("_scaled" if scale else "")
