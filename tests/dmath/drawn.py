"""Random layouts and products, and arrays on simulated workers; shared by the tests of dmath."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from magmadnn.dmath import Blocks, Columns, Layout, Replicated, Rows
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.moves import within
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products.arithmetic import Arithmetic, arithmetic_of

SIZES = (1, 2, 3, 5, 7, 11, 13, 16)


def drawn_layout(rng: random.Random, shape: tuple[int, int], workers: int) -> Layout:
    """Rows, columns, copies, cyclic blocks, or uneven ones with any owners, some of them empty."""
    some = tuple(rng.sample(range(workers), rng.randint(1, workers)))
    recipe: Any = rng.choice(
        [
            Rows(),
            Rows(on=some),
            Columns(on=some),
            Rows(block=rng.randint(1, 4)),
            Replicated(),
            Replicated(on=some),
            Blocks((rng.randint(1, 7), rng.randint(1, 7))),
        ]
    )
    if rng.random() < 0.4:
        cuts = tuple(
            tuple(sorted([0, n, *(rng.randint(0, n) for _ in range(rng.randint(0, 3)))]))
            for n in shape
        )
        grid = [len(c) - 1 for c in cuts]
        owners = [[rng.randrange(workers) for _ in range(grid[1])] for _ in range(grid[0])]
        recipe = Blocks(cuts=cuts, owners=owners)
    return resolve(recipe, shape, workers)


def parts_of(team: Team, x: np.ndarray, layout: Layout) -> Parts:
    """This worker's copies of its blocks of `x`."""
    whole = tuple((0, n) for n in x.shape)
    blocks = {n: x[within(layout.boxes[n], whole)].copy() for n in layout.held[team.rank]}
    return Parts(team, layout, x.dtype, blocks)


def check_parts(parts: Parts, x: np.ndarray, tolerance: float | np.ndarray = 0.0) -> None:
    """Every block that this worker should hold is there and right, within an absolute tolerance."""
    whole = tuple((0, n) for n in x.shape)
    assert sorted(parts.blocks) == sorted(parts.layout.held[parts.team.rank])
    bound = np.broadcast_to(np.asarray(tolerance, float), x.shape)
    for number, block in parts.blocks.items():
        box = within(parts.layout.boxes[number], whole)
        assert block.dtype == parts.dtype
        off = np.abs(np.asarray(block, float) - np.asarray(x[box], float))
        assert (off <= bound[box]).all(), (parts.layout, number)


def plain(x: np.ndarray) -> Arithmetic:
    """The arithmetic of `x @ x`."""
    return arithmetic_of(x.dtype, x.dtype, x.dtype)
