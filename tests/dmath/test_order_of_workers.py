"""Workers stand in the order of their links: rings, copies, and which workers compute where few do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from magmadnn.comm import Communicator, Network, SimulatedCommunicator, simulate
from magmadnn.comm.topology import ring_order
from magmadnn.dmath import Columns, Layout, Rates, Rows
from magmadnn.dmath.arrays.pulling import pull
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.devices import on_devices
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import running
from magmadnn.dmath.products.choosing import auto_layout, candidates, explained, ranked
from magmadnn.dmath.products.pipelining import pipelined
from magmadnn.dmath.worker import Worker
from tests.dmath import gpu
from tests.dmath.drawn import check_parts, drawn_layout, parts_of, plain
from tests.dmath.shared_memory import SharedPeers

FAR = [
    [4 if (a - b) % 2 else 0 for b in range(4)] for a in range(4)
]  # two PCIe roots, dealt in turns
ORDER = ring_order(FAR)
RINGS = ("ring of B", "ring of A", "ring of sums")


@pytest.mark.parametrize("seed", range(24))
def test_rings_are_right_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    workers = rng.randint(2, 6)
    order = tuple(rng.sample(range(workers), workers))
    m, k, n = (rng.randint(workers, 19) for _ in range(3))
    draw = np.random.default_rng(seed)
    a, b = draw.integers(-9, 10, (m, k)), draw.integers(-9, 10, (k, n))
    on = tuple(sorted(rng.sample(range(workers), rng.randint(2, workers))))
    recipe = rng.choice([Rows(on=on), Columns(on=on), Rows(), Columns()])
    lies_a, lies_b, lies_c = (resolve(recipe, s, workers) for s in ((m, k), (k, n), (m, n)))
    plans = [p for p in candidates(lies_a, lies_b, lies_c, order=order) if p.name in RINGS]
    assert plans

    def one(comm: Communicator) -> None:
        team = Team(comm, order=order)
        for plan in plans:
            parts = parts_of(team, a, lies_a), parts_of(team, b, lies_b)
            check_parts(running.run(*parts, plan, np.dtype(np.int64), plain(a)), a @ b)

    simulate(workers, one)


@pytest.mark.parametrize("seed", range(12))
def test_copies_are_right_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    workers, n = rng.randint(2, 5), 13
    order = tuple(rng.sample(range(workers), workers))
    x = np.random.default_rng(seed).integers(-9, 10, (n, n)).astype(np.float32)
    lies = [drawn_layout(rng, (n, n), workers) for _ in range(3)]
    plan = next(p for p in candidates(lies[0], lies[1], lies[2]) if p.name == "C stays")
    board: dict[tuple[int, int], Any] = {}

    def one(comm: Communicator) -> None:
        team = Team(comm, order=order, peers=SharedPeers(comm, board))
        check_parts(pull(parts_of(team, x, lies[0]), lies[1], np.dtype(np.float32)), x)
        half = pull(parts_of(team, x, lies[0]), lies[1], np.dtype(np.float16))
        check_parts(half, x)
        parts = parts_of(team, x, lies[0]), parts_of(team, x, lies[1])
        check_parts(pipelined(*parts, plan, plain(x), np.dtype(np.float32)), x @ x)

    simulate(workers, one)


def seconds(order: tuple[int, ...], name: str, lies: Layout) -> float:
    """Of a ring whose messages between the two groups share a link, and whose products take no time."""
    network = Network(bandwidth=1e6, groups=(0, 1, 0, 1), between=1e6)
    x = np.random.default_rng(0).integers(-3, 4, lies.shape).astype(float)
    plan = next(p for p in candidates(lies, lies, lies) if p.name == name)

    def one(comm: SimulatedCommunicator) -> float:
        team = Team(comm, order=order)
        team.group(team.ring)  # made before the clock counts
        before = comm.clock
        parts = parts_of(team, x, lies), parts_of(team, x, lies)
        check_parts(running.run(*parts, plan, x.dtype, plain(x)), x @ x)
        return comm.clock - before

    return max(simulate(4, one, network=network))


@pytest.mark.parametrize("name", RINGS)
def test_a_ring_in_the_order_of_links_takes_half_the_time(name: str) -> None:
    lies = resolve(Columns() if name == "ring of A" else Rows(), (32, 32), 4)
    natural, ordered = seconds((), name, lies), seconds(ORDER, name, lies)
    block = 32 * 8 * 8 / 1e6
    if name == "ring of sums":  # operands are brought first, as fast in either order
        assert ordered <= natural - 0.9 * 3 * block
    else:
        assert ordered == pytest.approx(3 * block, rel=0.01)
        assert natural == pytest.approx(2 * ordered, rel=0.01)


def test_few_workers_are_near_ones_and_explain_says_so() -> None:
    slow = Rates(
        flops=1e10, flops_alone=1e10, bytes_per_second=2e8, seconds_per_message=1e-4, order=ORDER
    )
    for n in range(64, 1024, 64):
        lies = auto_layout((n, n), 4, 4, slow)
        if len(lies.active) == 2:
            break
    assert lies.active == (0, 2)
    table = explained(ranked(lies, lies, None, 4, slow), 4, order=slow.order)
    assert table.endswith("by links workers stand in the order 0, 2, 1, 3")
    plain_rates = Rates(order=(0, 1, 2, 3))
    assert "stand in" not in explained(
        ranked(lies, lies, None, 4, plain_rates), 4, order=(0, 1, 2, 3)
    )
    alike = [  # on workers 0 and 2 a grid is the same work as "C stays"
        p
        for p in candidates(lies, lies, None, order=ORDER)
        if p.name in ("C stays", "grid 2 x 1 x 1")
    ]
    assert {p.a.active for p in alike} == {(0, 1), (0, 2)}


def test_workers_on_gpus_take_the_order_of_their_links(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.on_stand_ins(monkeypatch)
    monkeypatch.setattr("magmadnn.comm.gpu.read_links", lambda group: FAR)

    def one(comm: Communicator) -> tuple[Any, int]:
        team = on_devices(Team(comm))
        members = team.group(team.ring)
        assert members is not None
        return team.order, members.rank

    assert simulate(4, one) == [(ORDER, place) for place in (0, 2, 1, 3)]


def test_the_client_knows_the_order_too() -> None:
    def one(comm: Communicator) -> None:
        worker = Worker(Team(comm, order=ORDER))
        answer, _ = worker.run({"op": "measure", "set": {"kind": "float32"}})
        answer["order"] = list(answer["order"])  # as JSON has it
        assert Rates(**answer).order == ORDER
        hash(Rates(**answer))

    simulate(4, one)
