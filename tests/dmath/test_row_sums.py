"""Sums of rows and columns, in the fixed order and in the fastest: both right, and what each sends."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks, Layout, Replicated, Rows
from magmadnn.dmath.arrays.team import Count, Team
from magmadnn.dmath.functions import reducing
from magmadnn.dmath.functions.row_sums import by_all_reduce
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.worker import Worker
from tests.dmath.drawn import drawn_layout, parts_of

HOW: dict[str, dict[str, Any]] = {"deterministic": {}, "fast": {"fast": True}}


def added(
    x: np.ndarray,
    v: np.ndarray,
    lies: Layout,
    goal: Layout,
    axis: int,
    how: str,
    alpha: float = 2.0,
    beta: float = 0.5,
) -> tuple[list[dict[int, np.ndarray]], Count]:
    """Each worker's blocks of v after the operation, and what was sent in all."""

    def one(comm: SimulatedCommunicator) -> tuple[dict[int, np.ndarray], Count]:
        worker = Worker(Team(comm))
        worker.arrays = {0: parts_of(worker.team, v, goal), 1: parts_of(worker.team, x, lies)}
        settings = {"axis": axis, "alpha": alpha, "beta": beta, "fixed": False, **HOW[how]}
        answer, _ = worker.run({"op": "add_row_col_sum", "in": [0, 1], "set": settings})
        assert answer is None
        changed: Any = worker.arrays[0]
        assert changed.data.version > 0  # kept copies of v are of no use any more
        return changed.blocks, worker.team.total()

    done = simulate(lies.workers, one)
    sent = (sum(getattr(count, name) for _, count in done) for name in vars(Count()))
    return [blocks for blocks, _ in done], Count(*sent)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seed", range(40))
def test_sums_of_any_layout_into_any_other(seed: int, how: str) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    workers, axis = seed % 5 + 1, seed % 2
    shape = (rng.choice((1, 3, 17, 40)), rng.choice((1, 5, 40, 900)))
    if seed % 8 == 7:
        shape = (0, 6) if axis == 0 else (6, 0)
    dtype = rng.choice([np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64])
    x, v = draw.integers(-3, 4, shape), draw.integers(-3, 4, shape[1 - axis])
    lies = drawn_layout(rng, shape, workers)
    goal = resolve(rng.choice([Rows(), Replicated(), Rows(block=3)]), v.shape, workers)
    expected = 2 * x.sum(axis) + 4 * v
    if dtype is not np.int64:
        x, v = x.astype(dtype), v.astype(dtype)
    for blocks in added(x, v, lies, goal, axis, how, beta=4.0)[0]:
        for number, block in blocks.items():
            ((low, high),) = goal.boxes[number]
            assert block.dtype == v.dtype
            assert (block.astype(float) == expected[low:high].astype(v.dtype)).all()


def test_what_is_not_read_may_be_anything() -> None:
    x, v = np.ones((6, 4)), np.full(4, np.nan)
    lies, goal = resolve(Rows(), x.shape, 2), resolve(Rows(), v.shape, 2)
    for how in HOW:
        for blocks in added(x, v, lies, goal, 0, how, beta=0.0)[0]:
            assert all((block == 12).all() for block in blocks.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1])
def test_both_orders_are_as_exact_as_the_bound(axis: int, dtype: type) -> None:
    """n terms in any order are off by at most n u times the sum of their sizes."""
    x = np.random.default_rng(3).standard_normal((700, 600)).astype(dtype)
    v, count = np.zeros(x.shape[1 - axis], dtype), x.shape[axis]
    lies, goal = resolve(Blocks((64, 64)), x.shape, 3), resolve(Replicated(), v.shape, 3)
    exact = x.astype(np.longdouble).sum(axis)
    bound = (count + 2) * np.finfo(dtype).eps / 2 * np.abs(x.astype(np.longdouble)).sum(axis)
    found = {}
    for how in HOW:
        blocks = [one[0] for one in added(x, v, lies, goal, axis, how, 1.0, 0.0)[0]]
        assert all((block == blocks[0]).all() for block in blocks[1:])  # copies are alike
        assert (np.abs(blocks[0] - exact) <= bound).all()
        found[how] = blocks[0]
    again = [one[0] for one in added(x, v, lies, goal, axis, "deterministic", 1.0, 0.0)[0]]
    assert (again[0] == found["deterministic"]).all()

    def summed(comm: SimulatedCommunicator) -> np.ndarray:
        return reducing.reduce("sum", parts_of(Team(comm), x, lies), axis, layout=goal).blocks[0]

    assert (simulate(3, summed)[0] == found["deterministic"]).all()  # in the order of `sum`


@pytest.mark.parametrize(
    ("count", "goal", "kept", "quick"),
    [
        # Into spread sums: (P - 1) n elements, at once; small sums go to all workers first.
        (1024, Rows(), 4 * 3, 3),
        (8192, Rows(), 3, 3),
        # Into copies: all to all, or shares that are added up and handed round.
        (512, Replicated(), 4 * 3, 4 * 3),
        (1024, Replicated(), 4 * 3, 2 * 3),
        (8192, Replicated(), 2 * 3, 2 * 3),
    ],
)
def test_elements_that_each_order_sends(count: int, goal: Any, kept: int, quick: int) -> None:
    x, v = np.ones((8, count)), np.zeros(count)
    lies, target = resolve(Rows(), x.shape, 4), resolve(goal, v.shape, 4)
    for how, elements in (("deterministic", kept), ("fast", quick)):
        _, sent = added(x, v, lies, target, 0, how)
        assert sent.sent_bytes == sent.planned_bytes == elements * count * 8, how
    partial = reducing.partial_layout(lies, (0,))
    assert by_all_reduce(partial, target, 8) == (quick == 2 * 3)


def test_an_all_reduce_has_to_send_less() -> None:
    """Two workers exchange their sums: as many bytes, in one round."""
    lies = reducing.partial_layout(resolve(Rows(), (8, 8192), 2), (0,))
    assert not by_all_reduce(lies, resolve(Replicated(), (8192,), 2), 8)


def test_uncut_axes_send_nothing() -> None:
    x, v = np.ones((12, 40)), np.zeros(12)
    lies, goal = resolve(Rows(), x.shape, 4), resolve(Rows(), v.shape, 4)
    assert added(x, v, lies, goal, 1, "fast")[1].messages == 0
