"""Rings hide their messages behind products, and the planner's times are those of the simulator's clock."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from magmadnn.comm import Network, SimulatedCommunicator, simulate
from magmadnn.dmath import Columns, Layout, Rates, Rows
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
