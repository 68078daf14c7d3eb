"""Equations whose matrices are triangles, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import Code, Number, Value

from .lanes import Lanes, in_blocks, in_blocks_backward, reduced

Place = Callable[[Number, Number], Value]  # of a row and a column: the number of the element


@dataclass(frozen=True)
class Seen:
    """A matrix as it lies in memory: element [i, j] is `memory[i * down + j * across]`."""

    memory: Lanes
    down: Number
    across: Number

    def __getitem__(self, index: tuple[Value, Value]) -> Value:
        return self.memory[self.place(*index)]

    def __setitem__(self, index: tuple[Value, Value], value: Value) -> None:
        self.memory[self.place(*index)] = value

    def place(self, i: Value, j: Value) -> Value:
        """The element's number."""
        made: Value = i * self.down + j * self.across
        return made

    @property
    def turned(self) -> Seen:
        """Its transpose."""
        return Seen(self.memory, self.across, self.down)


def substitute(
    code: Code,
    triangle: Seen,
    x: Seen,
    size: tuple[Value, Value],
    tile: int,
    *,
    lower: bool,
    unit: bool,
) -> None:
    """X with T X = B in the place of B [n, k]; `unit`: ones on the diagonal, whatever stands there."""
    n, columns = size

    def block(i: Value, height: int, j: Value, width: int) -> None:
        totals = [[x[i + r, j + c] for c in range(width)] for r in range(height)]
        sums = (0, i) if lower else (i + height, n)
        found = reduced(
            code, totals, sums, lambda r, p: triangle[i + r, p], lambda p, c: x[p, j + c]
        )
        order = range(height) if lower else reversed(range(height))
        for r in order:
            known = range(r) if lower else range(height - 1, r, -1)
            for k in known:
                factor = -triangle[i + r, i + k]
                for c in range(width):
                    found[r][c] = code.fma(factor, found[k][c], found[r][c])
            for c in range(width):
                if not unit:
                    found[r][c] = found[r][c] / triangle[i + r, i + r]
                x[i + r, j + c] = found[r][c]

    def right_sides(j: Value, width: int) -> None:
        if lower:
            in_blocks(code, 0, n, tile, lambda i, height: block(i, height, j, width))
        else:
            in_blocks_backward(code, n, tile, lambda i, height: block(i, height, j, width))

    in_blocks(code, 0, columns, tile, right_sides)
