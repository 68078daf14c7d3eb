"""Edges of graphs: who waits for whom, from what launches read and write."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from magmadnn import optim
from magmadnn.backends.cuda.engine import KernelNode
from magmadnn.runtime.cuda.running import graphs
from magmadnn.runtime.cuda.schedule import launches, small
from magmadnn.runtime.cuda.schedule.hazards import edges_of, slack_of
from tests.runtime.cuda import emulator
from tests.runtime.cuda.devices import network, samples
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

A, B, C = (0, 10), (10, 20), (20, 30)


def test_readers_wait_for_writers_and_writers_for_readers() -> None:
    touched = [([], [A]), ([A], [B]), ([A], [C]), ([], [A])]
    assert edges_of(touched) == [(), (0,), (0,), (1, 2)]


def test_what_another_has_waited_for_is_left_out() -> None:
    assert edges_of([([], [A]), ([A], [B]), ([A, B], [C])]) == [(), (0,), (1,)]


def test_spans_may_overlap_in_part() -> None:
    assert edges_of([([], [(0, 15)]), ([(14, 16)], [C]), ([(0, 14)], [])]) == [(), (0,), (0,)]


def test_slack_is_how_much_later_a_launch_could_run() -> None:
    """A chain of five, one beside its second and third, and two that nobody waits for."""
    edges = [(), (0,), (1,), (2,), (3,), (0,), (4, 5), (), (7,)]
    assert slack_of(edges) == [0, 0, 0, 0, 0, 3, 0, 4, 4]
    assert slack_of([]) == []


@needs_compiler
def test_launches_that_can_wait_let_calls_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In graphs of kernels only none does."""
    x, y = samples(80, 13, 5)

    def made(width: int) -> list[Any]:
        with emulated_device() as engine:
            model = network((13, width, 11, 9, 7, 12, 8, 5), optim.SGD(0.3), device="cuda")
            model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
            return [*engine.graphs]

    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    assert not any(graph.patient for graph in made(17))
    monkeypatch.setattr(launches, "choose_gemm", lambda *_: None)  # all products are calls
    found = [g for g in made(19) if not all(isinstance(node, KernelNode) for node in g.nodes)]
    assert any(graph.patient for graph in found)
    for graph in found:
        slacks = slack_of([node.after for node in graph.nodes])
        assert graph.patient == {k for k, slack in enumerate(slacks) if slack >= graphs.PATIENT}


def test_any_order_that_the_edges_allow_is_right() -> None:
    draw = random.Random(11)
    for _ in range(50):
        spans = [(k, k + draw.randint(1, 9)) for k in range(0, 30, 3)]
        touched = [
            (draw.sample(spans, draw.randint(0, 3)), draw.sample(spans, draw.randint(0, 2)))
            for _ in range(25)
        ]
        edges, done, order = edges_of(touched), set[int](), list[int]()
        while len(order) < len(touched):
            ready = [k for k in range(len(touched)) if k not in done and set(edges[k]) <= done]
            order.append(draw.choice(ready))
            done.add(order[-1])
        assert _values(touched, range(len(touched))) == _values(touched, order)


def _values(touched: list, order: object) -> list[object]:
    """What memory holds, and what each launch has read, where values tell all that they came from."""
    memory: list[object] = [None] * 60
    seen: dict[int, object] = {}
    for number in order:  # type: ignore[attr-defined]
        reads, writes = touched[number]
        seen[number] = hash(tuple(hash(memory[k]) for span in reads for k in range(*span)))
        for start, end in writes:
            memory[start:end] = [(number, seen[number])] * (end - start)
    return [memory, sorted(seen.items())]


SEEDS = (1, 2, 3)


def trained(seed: int) -> tuple[dict[str, np.ndarray], int]:
    """Parameters of a network trained on the emulated device, and how many nodes its largest graph has."""
    x, y = samples(24, 13, 5)
    with emulated_device(seed=seed) as engine:
        model = network((13, 17, 11, 5), optim.SGD(0.3), device="cuda")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return dict(model.values()), max(len(g.nodes) for g in engine.graphs)


@needs_compiler
def test_each_missing_edge_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No edge too many, and the emulated device finds each that is missing: it runs nodes in any order."""
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    # A step that is counted too early takes its rows' numbers from beyond the last, where garbage would end
    # the process.
    monkeypatch.setattr(emulator, "_NEW", 0)
    right, largest = trained(SEEDS[0])
    for seed in SEEDS[1:]:
        assert _equal(trained(seed)[0], right)
    whole, missing, edges_seen = graphs.nodes_of, [0], [0]

    def without_one(engine: Any, items: Sequence[Any], edges: Sequence[tuple[int, ...]]) -> Any:
        if len(items) == largest:
            pairs = [(number, k) for number, after in enumerate(edges) for k in after]
            edges_seen[0] = len(pairs)
            gone = pairs[missing[0]]
            edges = [
                tuple(k for k in after if (number, k) != gone) for number, after in enumerate(edges)
            ]
        return whole(engine, items, edges)

    monkeypatch.setattr(graphs, "nodes_of", without_one)
    unseen = []
    while missing[0] == 0 or missing[0] < edges_seen[0]:
        if all(_equal(trained(seed)[0], right) for seed in SEEDS):
            unseen.append(missing[0])
        missing[0] += 1
    assert edges_seen[0] >= 7
    assert unseen == []


def _equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in b)
