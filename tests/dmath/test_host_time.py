"""What a worker's host hands to its GPU takes time too: counted beforehand, measured, and predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.dmath import predicted
from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks, Columns, Rates, Rows, cyclic
from magmadnn.dmath.arrays import pulling
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import cutting, running
from magmadnn.dmath.products.choosing import candidates, explained, predict, ranked
from magmadnn.dmath.products.rates import measured
from tests.dmath.drawn import parts_of, plain
from tests.dmath.shared_memory import SharedPeers

RECIPES = {
    "rows": (Rows(), Rows(), Rows()),
    "blocks": (Blocks((6, 6), owners=cyclic(2, 2)),) * 3,
    "rows by columns": (Rows(), Columns(), Columns()),
    "small pieces": (Blocks((4, 4), owners=cyclic(2, 2)),) * 3,
}


class Counting(SharedPeers):
    """Counts what it is asked for."""

    asked = 0

    def copy(self, out: np.ndarray, source: np.ndarray) -> None:
        self.asked += 1
        super().copy(out, source)

    def begin(self) -> None:
        self.asked += 3
        super().begin()

    def end(self) -> None:
        self.asked += 3
        super().end()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("shortest", [1, 512])
def test_calls_are_as_many_as_foretold(
    monkeypatch: pytest.MonkeyPatch, name: str, shortest: int
) -> None:
    monkeypatch.setattr(cutting, "SHORTEST", shortest)
    monkeypatch.setattr(cutting, "FIRST", 2)
    monkeypatch.setattr(cutting, "MOST_TERMS", 1000)
    n, workers, board = 12, 4, dict[tuple[int, int], Any]()
    a, b, c = (resolve(recipe, (n, n), workers) for recipe in RECIPES[name])
    plan = next(p for p in candidates(a, b, c) if p.name == "C stays")
    x = np.arange(float(n * n)).reshape(n, n)
    own = [0] * workers
    copy_own = pulling.Fetch.copy_own

    def counted(fetch: pulling.Fetch) -> None:
        rank = fetch._x.team.rank
        steps = [step for one in fetch._plan.steps.values() for step in one]
        own[rank] += sum(step.move.source == rank for step in steps)
        copy_own(fetch)

    monkeypatch.setattr(pulling.Fetch, "copy_own", counted)

    def one(comm: SimulatedCommunicator) -> int:
        peers = Counting(comm, board)
        products = [0]

        def multiplied(left: np.ndarray, right: np.ndarray) -> np.ndarray:
            products[0] += 1
            made: np.ndarray = left @ right
            return made

        team = Team(comm, peers=peers, multiply=multiplied)
        running.run(parts_of(team, x, a), parts_of(team, x, b), plan, x.dtype, plain(x))
        return products[0] + peers.asked + own[comm.rank]

    made, foretold = max(simulate(workers, one)), cutting.calls_of(a, b, plan)
    assert 0.7 * made <= foretold <= 1.3 * made
    if shortest == 1 and name in ("rows", "blocks"):  # in others own pieces are copied too
        assert made == foretold


def test_short_products_take_as_long_as_the_host_that_hands_them_over() -> None:
    fast = Rates(1e14, 1e14, 4e11, 0.0, overlapped=True)
    slow = Rates(1e14, 1e14, 4e11, 0.0, seconds_per_call=5e-5, overlapped=True)
    rows = resolve(Rows(), (2048, 2048), 4)
    plan = next(p for p in candidates(rows, rows, rows) if p.name == "C stays")
    # 4 products, 3 blocks that come, 2 meetings of 3 calls: 13 calls
    assert predict(plan, rows, rows, 2, slow).seconds == pytest.approx(13 * 5e-5)
    assert predict(plan, rows, rows, 2, fast).seconds < 2e-4
    large = resolve(Rows(), (32768, 32768), 4)
    plan = next(p for p in candidates(large, large, large) if p.name == "C stays")
    both = [predict(plan, large, large, 2, rates).seconds for rates in (fast, slow)]
    assert both[0] == both[1] > 0.1


def test_the_planner_counts_the_hosts_time() -> None:
    """Where calls cost, a product by few workers, with few calls, is predicted to be faster."""
    slow = Rates(1e14, 1e14, 4e11, 0.0, seconds_per_call=1e-3, overlapped=True)
    first = resolve(Rows(on=(0,)), (2048, 2048), 4)
    best = ranked(first, first, None, 2, slow)[0]
    assert best.active == 1 and best.seconds == 1e-3  # one call
    assert "1  " in explained((best,), 2).splitlines()[1]


def test_products_on_four_gpus_are_predicted_from_one_and_two() -> None:
    """Times of `benchmarks/results`, of one run."""
    errors = {
        (kind, n, name): fitted / time - 1
        for kind, n, name, _, fitted, time in predicted.compared()
    }
    assert len(errors) == 14
    assert not {row for row, error in errors.items() if abs(error) > predicted.GOAL}


@pytest.mark.parametrize("n", [512, 2048, 8192, 32768])
def test_copies_are_preferred_to_rings_however_short_products_are(n: int) -> None:
    """A ring's messages are calls too."""
    rows = resolve(Rows(), (n, n), 4)
    for call in (0.0, 1e-6, 1e-5, 1e-4):
        rates = Rates(1e14, 1e14, 4e11, 2e-5, seconds_per_call=call, overlapped=True)
        assert not ranked(rows, rows, rows, 4, rates)[0].plan.way.startswith("ring"), call


@pytest.mark.parametrize("n", [2048, 8192, 16384])
@pytest.mark.parametrize("halves", [False, True])
def test_the_way_that_was_fastest_on_two_gpus_is_chosen(n: int, halves: bool) -> None:
    """As in `benchmarks/results/2026-11-28-nvidia-h200-two-gpus-rings.md`: C stays, of rows, where A stays is
    the same, and of four blocks, where other ways copy blocks together.
    """
    flops = 8.8e14 if halves else 4.5e14
    rates = Rates(flops, flops, 3.6e11, 5e-5, 5e-6, 5e-6, True, (0, 1))
    itemsize = 2 if halves else 4
    for recipe in (Rows(), Blocks((n // 2, n // 2), owners=cyclic(1, 2))):
        lies = resolve(recipe, (n, n), 2)
        assert ranked(lies, lies, lies, itemsize, rates)[0].plan.name == "C stays"
    stays = next(p for p in candidates(lies, lies, lies) if p.name == "B stays")
    assert cutting.own_bytes(lies, lies, stays, itemsize, 4) == n * n // 2 * itemsize
    first = next(p for p in candidates(lies, lies, lies) if p.name == "C stays")
    assert cutting.own_bytes(lies, lies, first, itemsize, 4) == 0


def test_the_hosts_time_is_measured_where_blocks_come_by_copies() -> None:
    board = dict[tuple[int, int], Any]()

    def one(comm: SimulatedCommunicator) -> tuple[Rates, Rates]:
        how = plain(np.ones((2, 2), np.float32))
        team = Team(comm, peers=SharedPeers(comm, board))
        found = measured(team, how), measured(Team(comm), how)
        assert team.total().sent_bytes == team.total().planned_bytes == team.total().messages == 0
        return found

    (copies, messages), other = simulate(2, one)
    assert copies.overlapped and 0 < copies.seconds_per_call < 1
    assert not messages.overlapped and messages.seconds_per_call == 0
    assert other == (copies, messages)
