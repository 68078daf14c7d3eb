"""Products of matrices in any layouts by every plan that the planner looks at, on simulated workers."""

from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
import pytest

from magmadnn.comm import Communicator
from magmadnn.comm.simulated import simulate
from magmadnn.dmath import Columns, Layout, Rates, Rows
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import running
from magmadnn.dmath.products.arithmetic import arithmetic_of
from magmadnn.dmath.products.choosing import auto_layout, candidates, explained, predict, ranked
from magmadnn.dmath.products.multiplying import matmul
from magmadnn.dmath.products.plans import grid, grid_layouts
from magmadnn.memory.dtypes import BFLOAT16
from tests.dmath.drawn import SIZES, check_parts, drawn_layout, parts_of, plain


def multiplied(seed: int, every: bool) -> None:
    """One random product: by all plans, or as the planner chooses."""
    rng = random.Random(seed)
    workers = rng.randint(1, 6)
    m, k, n = (rng.choice(SIZES) for _ in range(3))
    turn_a, turn_b = rng.random() < 0.4, rng.random() < 0.4
    draw = np.random.default_rng(seed)
    dtype = rng.choice([np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.float32)])
    a = draw.integers(-9, 10, (m, k)).astype(dtype)
    b = draw.integers(-9, 10, (k, n)).astype(dtype)
    lies_a = drawn_layout(rng, (k, m) if turn_a else (m, k), workers)
    lies_b = drawn_layout(rng, (n, k) if turn_b else (k, n), workers)
    target = drawn_layout(rng, (m, n), workers) if rng.random() < 0.7 else None

    def one(comm: Communicator) -> None:
        team = Team(comm)
        left = parts_of(team, a.T if turn_a else a, lies_a)
        right = parts_of(team, b.T if turn_b else b, lies_b)
        left = left.transposed() if turn_a else left
        right = right.transposed() if turn_b else right
        if not every:
            made = matmul(left, right, target)
            assert target is None or made.layout == target
            check_parts(made, a @ b)  # whole numbers this small are exact
            return
        for one in ranked(left.layout, right.layout, target, dtype.itemsize, Rates()):
            before = team.total().sent_bytes
            check_parts(
                running.run(
                    left,
                    right,
                    one.plan,
                    dtype,
                    arithmetic_of(left.dtype, right.dtype, np.dtype(dtype)),
                ),
                a @ b,
            )
            sent = sum(comm.exchange(team.total().sent_bytes - before))
            assert sent == one.moved * dtype.itemsize, one.plan.name
        total = team.total()
        assert total.sent_bytes == total.planned_bytes

    simulate(workers, one)


@pytest.mark.parametrize("seed", range(120))
def test_the_planners_choice_for_any_layouts(seed: int) -> None:
    multiplied(seed, every=False)


@pytest.mark.parametrize("seed", range(500, 560))
def test_every_plan_is_right_and_sends_what_was_foretold(seed: int) -> None:
    multiplied(seed, every=True)


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(100))
def test_the_planners_choice_again(hundred: int) -> None:
    for seed in range(10_000 + 100 * hundred, 10_100 + 100 * hundred):
        multiplied(seed, every=False)


def test_each_triple_of_blocks_is_multiplied_once() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        workers = rng.randint(1, 6)
        m, k, n = (rng.choice(SIZES) for _ in range(3))
        a, b = drawn_layout(rng, (m, k), workers), drawn_layout(rng, (k, n), workers)
        for plan in candidates(a, b, None):
            if plan.way == "fetch":
                done = sum(plan.work(w) for w in range(workers))
                assert done == 2 * m * k * n, plan.name


@pytest.mark.parametrize("counts", [(2, 1, 2), (2, 2, 2), (4, 4, 4), (8, 1, 8), (2, 1, 4)])
def test_bytes_of_grids_against_the_lower_bound(counts: tuple[int, int, int]) -> None:
    # 3 (n^2 / P^(2/3) - n^2 / P) words received by each worker: Al Daas et al., SPAA 2022. Two-dimensional
    # grids are bound by their memory: 2 (n^2 / sqrt(P) - n^2 / P).
    n, workers = 64, int(np.prod(counts))
    a, b, c = grid_layouts(n, n, n, counts)
    rates = Rates(bytes_per_second=1.0)
    balanced = [
        plan
        for plan in candidates(a, b, c)
        if len({plan.work(w) for w in range(workers)}) == 1  # the bound is for these
    ]
    best = min(predict(plan, a, b, 8, rates).moved for plan in balanced) / workers
    cube = 3 * (n * n / workers ** (2 / 3) - n * n / workers)
    assert best >= cube * (1 - 1e-9)
    if counts[0] == counts[2]:
        plane = 2 * (n * n / workers**0.5 - n * n / workers)
        bound = plane if counts[1] == 1 else cube
        assert best <= 1.25 * bound


def test_halves_are_summed_in_single_precision() -> None:
    draw = np.random.default_rng(1)
    a, b = draw.standard_normal((13, 300)), draw.standard_normal((300, 11))
    for dtype, unit in ((np.dtype(np.float16), 2.0**-11), (BFLOAT16, 2.0**-8)):
        left, right = a.astype(dtype), b.astype(dtype)
        exact = left.astype(float) @ right.astype(float)
        # One rounding at the end, and 300 of float32 before.
        sizes = np.abs(left.astype(float)) @ np.abs(right.astype(float))
        bound = unit * np.abs(exact) + 300 * 2.0**-24 * sizes

        def one(
            comm: Communicator,
            left: np.ndarray = left,
            right: np.ndarray = right,
            dtype: np.dtype = dtype,
            exact: np.ndarray = exact,
            bound: np.ndarray = bound,
        ) -> None:
            team = Team(comm)
            lies_a, lies_b = resolve(Columns(), left.shape, 3), resolve(Rows(), right.shape, 3)
            for plan in candidates(lies_a, lies_b, resolve(Rows(), (13, 11), 3)):
                here = parts_of(team, left, lies_a), parts_of(team, right, lies_b)
                made = running.run(
                    *here, plan, dtype, arithmetic_of(here[0].dtype, here[1].dtype, dtype)
                )
                assert made.dtype == dtype
                check_parts(made, exact, bound)

        simulate(3, one)


def test_bits_depend_neither_on_layouts_nor_on_the_number_of_workers() -> None:
    draw = np.random.default_rng(2)
    a = draw.standard_normal((261, 600)).astype(np.float32)
    b = draw.standard_normal((600, 70)).astype(np.float32)
    found = []
    for workers, seed in ((1, 0), (2, 1), (3, 2), (4, 3), (5, 4)):
        rng = random.Random(seed)
        lies = drawn_layout(rng, a.shape, workers), drawn_layout(rng, b.shape, workers)
        target = resolve(Rows(on=(0,)), (261, 70), workers)

        def one(
            comm: Communicator, lies: tuple[Layout, Layout] = lies, target: Layout = target
        ) -> np.ndarray | None:
            team = Team(comm)
            made = matmul(
                parts_of(team, a, lies[0]), parts_of(team, b, lies[1]), target, fixed=True
            )
            return made.blocks.get(0)

        found.append(simulate(workers, one)[0])
    assert all((one == found[0]).all() for one in found)
    exact = a.astype(float) @ b.astype(float)
    sizes = np.abs(a.astype(float)) @ np.abs(b.astype(float))
    assert (np.abs(found[0] - exact) <= 600 * 2.0**-24 * sizes).all()


SLOW_LINK = Rates(flops=1e10, flops_alone=1e10, bytes_per_second=1e8, seconds_per_message=1e-4)
FAST_LINK = Rates(flops=1e10, flops_alone=1e10, bytes_per_second=1e11, seconds_per_message=1e-6)
SHARED_CORES = Rates(flops=1e10, flops_alone=4e10, bytes_per_second=1e10, seconds_per_message=2e-5)


@pytest.mark.parametrize("rates", [SLOW_LINK, FAST_LINK, SHARED_CORES])
@pytest.mark.parametrize("n", [64, 512, 2048, 8192])
def test_more_workers_are_never_predicted_to_be_slower(rates: Rates, n: int) -> None:
    """Operands where layout="auto" puts them."""
    best = []
    for workers in (1, 2, 4, 8):
        lies = auto_layout((n, n), workers, 4, rates)
        best.append(ranked(lies, lies, None, 4, rates)[0].seconds)
    for fewer, more in pairwise(best):
        assert more <= fewer * (1 + 1e-9)


def test_small_products_use_fewer_workers_and_the_table_says_so() -> None:
    assert auto_layout((64, 64), 4, 4, SLOW_LINK).active == (0,)
    lies = auto_layout((4096, 4096), 4, 4, FAST_LINK)
    assert lies.active == (0, 1, 2, 3)
    fast = ranked(lies, lies, None, 4, FAST_LINK)
    assert fast[0].active == 4
    table = explained(fast, 4)
    assert table.splitlines()[1].startswith("->")
    assert "ring of B" in table


def test_a_ring_sends_each_block_once_round_and_to_neighbours_only() -> None:
    n, workers = 12, 4
    rows = resolve(Rows(), (n, n), workers)
    plan = next(p for p in candidates(rows, rows, rows) if p.name == "ring of B")
    x = np.arange(n * n, dtype=float).reshape(n, n)

    def one(comm: Communicator) -> int:
        team = Team(comm)
        check_parts(
            running.run(parts_of(team, x, rows), parts_of(team, x, rows), plan, x.dtype, plain(x)),
            x @ x,
        )
        return team.total().messages

    assert simulate(workers, one) == [workers - 1] * workers


def test_grids_hold_every_place_once() -> None:
    for counts, order in product([(2, 3, 1), (1, 2, 2)], [(0, 1, 2), (2, 1, 0)]):
        a, b, c = grid(7, 9, 5, counts, order, 8)
        used = int(np.prod(counts))
        assert sum(map(len, a.holders)) == counts[0] * counts[1] * counts[2] == used
        assert sum(map(len, b.holders)) == used
        assert c.partial == (counts[1] > 1)
