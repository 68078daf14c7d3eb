"""A network larger than one worker may hold: refused there, trained on two, of which each has a part."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import ArgumentError, DeviceError, OutOfMemoryError
from magmadnn.runtime.variables import tensor_of

DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(41, 24))  # the last batch of 16 has 9 rows
Y = DRAW.integers(0, 8, 41)
OPTIONS: dict[str, Any] = {"batch_size": 16, "epochs": 3, "verbose": False}
WAYS: dict[str, Callable[[Communicator], Any]] = {
    "parameters": lambda comm: md.parallel.DataParallel(comm, shard="parameters"),
    "model": md.parallel.ModelParallel,
    "pipeline": lambda comm: md.parallel.Pipeline(comm, micro_batches=4),
}


def network(**more: Any) -> md.Model:
    layers: list[Any] = [md.layers.Input((24,))]
    layers += [md.layers.Dense(112, activation="tanh") for _ in range(7)]
    return md.Model(
        [*layers, md.layers.Dense(8)],
        **{"loss": "cross_entropy", "optimizer": "adam", "seed": 1, "precision": "float64", **more},
    )


NEEDED = network().memory(X, Y, batch_size=16).total
LIMIT = NEEDED * 7 // 8


def test_one_worker_is_refused_with_the_bytes_and_the_ways_out() -> None:
    model = network()
    before = model.values()
    with pytest.raises(OutOfMemoryError) as told:
        model.fit(X, Y, memory_limit=LIMIT, parallel=False, **OPTIONS)
    text = str(told.value)
    assert f"batch_size=16 takes {NEEDED:,} bytes, memory_limit is {LIMIT:,}" in text
    assert "not even one row fits" in text  # weights alone are too large
    for way in ("shard='parameters'", "ModelParallel()", "Pipeline()"):
        assert way in text
    assert all((before[k] == v).all() for k, v in model.values().items())
    model.fit(X, Y, memory_limit=NEEDED, parallel=False, **OPTIONS)


def test_the_largest_batch_is_named() -> None:
    def needs(rows: int) -> int:
        return network().memory(X, Y, batch_size=rows).total

    limit = needs(11)
    with pytest.raises(OutOfMemoryError, match="largest that fits") as told:
        network().fit(X, Y, memory_limit=limit, parallel=False, **OPTIONS)
    largest = re.search(r"batch_size=(\d+), or", str(told.value))
    assert largest is not None
    assert [needs(int(largest[1]) + more) <= limit for more in (0, 1)] == [True, False]


def test_two_workers_with_whole_weights_are_refused() -> None:
    """On rank 1 alone too little: all ranks are told."""

    def run(comm: Communicator) -> str:
        way = md.parallel.DataParallel(comm)
        limit = LIMIT if comm.rank else 1 << 40
        with pytest.raises(OutOfMemoryError) as told:
            network().fit(X, Y, memory_limit=limit, parallel=way, **OPTIONS)
        return str(told.value)

    found = simulate(2, run)
    assert "on another worker" in found[0]
    assert "memory_limit is" in found[1]


@pytest.mark.parametrize("name", WAYS)
def test_two_workers_train_it(name: str) -> None:
    alone = network()
    rows = alone.fit(X, Y, parallel=False, validation_split=0.1, **OPTIONS).rows

    def run(comm: Communicator) -> Any:
        model = network()
        history = model.fit(
            X, Y, memory_limit=LIMIT, parallel=WAYS[name](comm), validation_split=0.1, **OPTIONS
        )
        return model.values(), history.rows

    for values, found in simulate(2, run):
        for key, value in alone.values().items():
            np.testing.assert_allclose(values[key], value, rtol=0, atol=1e-12)
        for row, expected in zip(found, rows, strict=True):
            assert row["loss"] == pytest.approx(expected["loss"], abs=1e-12)
            assert row["val_loss"] == pytest.approx(expected["val_loss"], abs=1e-12)
    with pytest.raises(OutOfMemoryError, match="memory_limit is"):
        simulate(1, run)


def held_bytes(model: md.Model, step: Any) -> int:
    """Bytes of weights and moments that lie on this rank, whole ones and parts."""
    pieces = [p.own for group in getattr(step, "groups", []) for p in group.pieces]
    nodes = [p.node for p in model.parameters()] + [s.node for s in step._slots.values()]
    nodes += [node for node in pieces if node is not None]
    nodes += [part.own for part in getattr(step, "parts", [])]
    there = {node: tensor_of(node) for node in nodes if not tensor_of(node).memory.is_aside}
    away = getattr(getattr(step, "_scattered", None), "_away", {}) | getattr(step, "_collected", {})
    return sum(t.nbytes for t in there.values()) + sum(a.nbytes for a in away.values())


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("name", [*WAYS, "optimiser"])
def test_what_lies_on_a_rank_while_it_trains(name: str, ranks: int) -> None:
    """Weights and two moments of Adam: a part of each, where one rank has all of all."""
    whole = sum(p.value.nbytes for p in network().parameters())
    ways = WAYS | {"optimiser": lambda comm: md.parallel.DataParallel(comm, shard="optimiser")}

    class Looks(md.callbacks.Callback):
        is_everywhere = True

        def __init__(self) -> None:
            self.seen: list[int] = []

        def looks(self, fit: Any) -> bool:
            self.seen.append(held_bytes(fit.model, fit.step))
            with pytest.raises(ArgumentError, match=r"collect\(\) on all of them"):
                fit.step.state()
            if name != "optimiser":
                with pytest.raises(DeviceError, match="lie in parts on several workers"):
                    fit.model.values()
            return False

    def run(comm: Communicator) -> Any:
        model, looks = network(), Looks()
        model.fit(X, Y, parallel=ways[name](comm), callbacks=[looks], **OPTIONS)
        step: Any = model._step and model._step[2]
        told = step.memory({"batch": 16})
        after = sum(s.nbytes for s in step.state().values())
        return max(looks.seen), told.parameters + told.optimizer, after

    found = simulate(ranks, run)
    most = max(seen for seen, _, _ in found)
    largest = 8 * 112 * 113  # the parameters of a layer, which Pipeline and "optimiser" do not cut
    part = 3 * whole / ranks if name != "optimiser" else whole + 2 * whole / ranks
    more = 3 * largest if name in ("pipeline", "optimiser") else 0.03 * part  # biases may be whole
    assert part * 0.99 <= most <= part + more
    for seen, told, after in found:
        assert seen <= told  # what is predicted has it
        assert after >= 2 * whole  # at the end all ranks have all moments


def test_what_is_no_limit_is_refused() -> None:
    with pytest.raises(ArgumentError, match="fit: memory_limit must be a number of bytes of at"):
        network().fit(X, Y, memory_limit=0)
    with pytest.raises(ArgumentError, match='memory_limit needs executor="native"'):
        network(executor="reference").fit(X, Y, memory_limit=1 << 30, parallel=False)
