"""Rings hide their messages behind products, and the planner's times are those of the simulator's clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest

from magmadnn.comm import Network, SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks, Columns, Layout, Rates, Rows, cyclic
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import rates, running
from magmadnn.dmath.products.choosing import auto_layout, candidates, predict, ranked
from magmadnn.dmath.products.plans import ProductPlan
from tests.dmath.drawn import check_parts, parts_of, plain

N, WORKERS = 48, 4
ROWS = resolve(Rows(), (N, N), WORKERS)
COLUMNS = resolve(Columns(), (N, N), WORKERS)


def simulated_seconds(plan: ProductPlan, lies: Layout, rates: Rates) -> float:
    """The clock of the last worker, where products and messages take what the rates say."""
    x = np.random.default_rng(0).integers(-3, 4, (N, N)).astype(float)
    network = Network(rates.seconds_per_message, rates.bytes_per_second)

    def one(comm: SimulatedCommunicator) -> float:
        def timed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            comm.advance(2 * a.shape[0] * a.shape[1] * b.shape[1] / rates.flops)
            made: np.ndarray = a @ b
            return made

        team = Team(comm, multiply=timed)
        check_parts(
            running.run(parts_of(team, x, lies), parts_of(team, x, lies), plan, x.dtype, plain(x)),
            x @ x,
        )
        return comm.clock

    return max(simulate(WORKERS, one, network=network))


def rates_with(ratio: float) -> Rates:
    """A stage's block of B takes `ratio` times as long to send as to multiply by."""
    flops = 1e9
    stage = 2 * (N / WORKERS) ** 2 * N / flops
    block_bytes = N / WORKERS * N * 8
    return Rates(flops, flops, block_bytes / (ratio * stage), 0.0, 0.0)


@pytest.mark.parametrize(("name", "lies"), [("ring of B", ROWS), ("ring of A", COLUMNS)])
@pytest.mark.parametrize("ratio", [0.2, 0.9, 3.0])
def test_messages_are_hidden_behind_products(name: str, lies: Layout, ratio: float) -> None:
    rates = rates_with(ratio)
    plan = next(p for p in candidates(lies, lies, lies) if p.name == name)
    product = 2 * N**3 / WORKERS / rates.flops
    stage = product / WORKERS
    expected = stage + (WORKERS - 1) * max(stage, ratio * stage)
    assert simulated_seconds(plan, lies, rates) == pytest.approx(expected, rel=1e-9)
    assert expected < product + (WORKERS - 1) * ratio * stage  # one after the other


@pytest.mark.parametrize("lies", [ROWS, COLUMNS])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 2.0])
def test_predicted_times_are_those_of_the_simulator(ratio: float, lies: Layout) -> None:
    rates = rates_with(ratio)
    for plan in candidates(lies, lies, lies):
        predicted = predict(plan, lies, lies, 8, rates).seconds
        seconds = simulated_seconds(plan, lies, rates)
        # Steps are predicted one after the other. Where some workers wait, messages of two steps overlap.
        assert predicted >= 0.99 * seconds, plan.name
        if all(plan.work(w) for w in range(WORKERS)):
            assert predicted <= 1.15 * seconds, plan.name


def test_workers_that_share_cores_are_not_taken_for_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four processes on two cores each second product waits for a turn: speed is that of both together."""
    clock = iter([0.0, 1.0, 1.0, 4.0] * 9)
    monkeypatch.setattr(rates, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(rates, "_SPENT", 4.0)
    how = plain(np.ones((2, 2), np.float32))

    def one(comm: SimulatedCommunicator) -> float:
        return rates._flops(Team(comm), 8, how)

    assert simulate(1, one) == [2 * 8**3 * 2 / 4.0]


@pytest.mark.parametrize("n", [512, 1000, 4096, 16384])
def test_automatic_layouts_are_never_predicted_slower_on_more_workers(n: int) -> None:
    """Four and eight workers on two cores, which all workers together share."""
    found = []
    for workers in (1, 2, 4, 8):
        shared = Rates(
            flops=2e10 * min(1, 2 / workers),
            flops_alone=2e10,
            bytes_per_second=2e9,
            seconds_per_message=1e-4,
        )
        lies = auto_layout((n, n), workers, 4, shared)
        found.append(ranked(lies, lies, None, 4, shared)[0].seconds)
        assert len(lies.active) <= 2
    assert all(more <= fewer * (1 + 1e-12) for fewer, more in pairwise(found))


H200S: Final = {  # rates of two and of four, without flop/s, as four H200s told them
    2: Rates(0, 0, 3.336e11, 0.0, 5e-6, 47.8e-6, True, (), 73.3e-6),
    4: Rates(0, 0, 3.439e11, 0.0, 5e-6, 42.7e-6, True, (), 102.7e-6),
}
FLOPS: Final = {
    "tf32": (3.256e14, 3.088e14),
    "bfloat16": (5.7e14, 5.7e14),
    "float32": (4.7e13,) * 2,
}
MEASURED: Final = [  # microseconds on one, two and four, where each number of GPUs took part, 0: not run
    ("tf32", 2048, 70, 0, 0),
    ("tf32", 3072, 183, 157, 222),
    ("tf32", 4096, 351, 313, 381),
    ("tf32", 8192, 2832, 1615, 1073),
    ("bfloat16", 2048, 53, 0, 0),
    ("bfloat16", 4096, 180, 137, 201),
    ("bfloat16", 6144, 612, 367, 438),
    ("bfloat16", 8192, 1431, 795, 584),
    ("float32", 512, 55, 0, 0),
    ("float32", 1024, 60, 0, 0),
    ("float32", 2048, 343, 202, 134),
    ("float32", 4096, 2710, 1410, 744),
]


def rates_of(kind: str, workers: int) -> Rates:
    flops = FLOPS[kind][workers // 4]
    return replace(H200S[workers], flops=flops, flops_alone=flops)


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_matrix_lies_on_as_many_gpus_as_were_fastest(
    case: tuple[str, int, int, int, int],
) -> None:
    kind, n, *times = case
    itemsize = 2 if kind == "bfloat16" else 4
    took = {used: t for used, t in zip((1, 2, 4), times, strict=True) if t}
    for workers in (2, 4):
        best = min((used for used in took if used <= workers), key=took.__getitem__)
        lies = auto_layout((n, n), workers, itemsize, rates_of(kind, workers))
        assert len(lies.active) == best


@pytest.mark.parametrize(
    ("workers", "n", "columns"), [(2, 8192, True), (4, 8192, False), (4, 16384, False)]
)
@pytest.mark.parametrize("kind", ["tf32", "bfloat16"])
def test_rows_come_as_columns_of_whole_sums_only_where_that_was_faster(
    kind: str, workers: int, n: int, columns: bool
) -> None:
    lies = resolve(Rows(), (n, n), workers)
    itemsize = 2 if kind == "bfloat16" else 4
    plan = ranked(lies, lies, lies, itemsize, rates_of(kind, workers))[0].plan
    assert (plan.name, plan.pace > 0) == ("C stays", columns)


@pytest.mark.parametrize(
    ("kind", "n", "in_rows", "on_grid"),
    [
        ("tf32", 8192, False, False),
        ("tf32", 16384, True, False),
        ("bfloat16", 8192, False, False),
        ("bfloat16", 16384, True, False),
        ("float32", 8192, False, False),
        ("float32", 16384, True, True),
    ],
)
def test_some_rows_are_whole_sums_only_where_that_was_faster(
    kind: str, n: int, in_rows: bool, on_grid: bool
) -> None:
    itemsize = 2 if kind == "bfloat16" else 4
    for workers in (2, 4):
        blocks = Blocks((n // 2, n // 2), owners=cyclic(workers // 2, 2))
        for recipe, both in ((Rows(), in_rows), (blocks, on_grid)):
            lies = resolve(recipe, (n, n), workers)
            plan = ranked(lies, lies, lies, itemsize, rates_of(kind, workers))[0].plan
            assert plan.name == "C stays"
            assert (plan.mixed > 0) == (both and workers == 4)
            assert plan.mixed < 0.6
