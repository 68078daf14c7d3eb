"""Values that a callback of rank 0 gives a model are those of all ranks, at whichever event and way."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate

DRAW = np.random.default_rng(5)
X, Y = DRAW.normal(size=(103, 5)), DRAW.integers(0, 3, 103)
WAYS: dict[str, Callable[[Communicator], Any]] = {
    "data parallel": md.parallel.DataParallel,
    "optimiser": lambda comm: md.parallel.DataParallel(comm, shard="optimiser"),
    "parameters": lambda comm: md.parallel.DataParallel(comm, shard="parameters"),
    "synchronised": lambda comm: md.parallel.DataParallel(comm, sync=True),
    "server": md.parallel.ParameterServer,
    "model": md.parallel.ModelParallel,
    "hybrid": lambda comm: md.parallel.Hybrid(None, comm),
    "pipeline": md.parallel.Pipeline,
}
EVENTS = ("on_train_begin", "on_epoch_begin", "on_batch_end", "on_epoch_end", "on_train_end")


class Halves(md.callbacks.Callback):
    """At one event, after two steps at least where there are any, it halves all values."""

    def __init__(self, event: str) -> None:
        self.done = False
        setattr(self, event, self._halve)

    def _halve(self, fit: Any) -> None:
        if not self.done and (fit.steps >= 2 or fit.epoch == 0 == fit.batch):
            self.done = True
            fit.model.assign({name: value / 2 for name, value in fit.model.values().items()})


def trained(comm: Communicator | None, way: str, event: str) -> dict[str, np.ndarray]:
    layers = [
        md.layers.Input((5,)), md.layers.Dense(8, activation="tanh"), md.layers.Dense(6),
        md.layers.Dense(3),
    ]  # fmt: skip
    model = md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), precision="float64", seed=3
    )  # fmt: skip
    parallel = False if comm is None else WAYS[way](comm)
    model.fit(
        X, Y, batch_size=16, epochs=3, verbose=False, parallel=parallel, callbacks=[Halves(event)]
    )
    return model.values()


@cache
def alone(event: str) -> dict[str, np.ndarray]:
    return trained(None, "", event)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_have_what_a_callback_of_rank_0_set(way: str, event: str) -> None:
    found = simulate(2, lambda comm: trained(comm, way, event))
    for name, value in alone(event).items():
        np.testing.assert_array_equal(found[0][name], found[1][name])
        np.testing.assert_allclose(found[0][name], value, rtol=0, atol=1e-12)


class Stops(md.callbacks.Callback):
    """Before the second epoch."""

    def on_epoch_begin(self, fit: Any) -> None:
        if fit.epoch == 1:
            fit.stop("enough")


@pytest.mark.parametrize("way", [None, *WAYS])
def test_no_batch_runs_after_a_stop_before_an_epoch(way: str | None) -> None:
    def run(comm: Communicator | None) -> list[int]:
        steps = list[int]()
        seen = md.callbacks.LambdaCallback(on_batch_end=lambda fit: steps.append(fit.steps))
        layers = [md.layers.Input((5,)), md.layers.Dense(8), md.layers.Dense(4)]
        model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=1)
        parallel = WAYS[way](comm) if way and comm else False
        model.fit(
            X,
            Y,
            batch_size=16,
            epochs=3,
            verbose=False,
            parallel=parallel,
            callbacks=[seen, Stops()],
        )
        return steps

    found = run(None) if way is None else simulate(2, run)[0]
    assert found == [1, 2, 3, 4, 5, 6, 7]


def test_an_asynchronous_server_tells_its_workers() -> None:
    def run(comm: Communicator) -> dict[str, np.ndarray]:
        WAYS["asynchronous"] = md.parallel.AsyncSGD
        return trained(comm, "asynchronous", "on_train_end")

    server, worker = simulate(2, run)
    assert all(np.array_equal(server[name], worker[name]) for name in server)


def test_an_error_at_the_end_of_rank_0_is_raised() -> None:
    class Fails(md.callbacks.Callback):
        def on_train_end(self, fit: Any) -> None:
            raise KeyError("at the end")

    def run(comm: Communicator) -> None:
        layers = [md.layers.Input((5,)), md.layers.Dense(3)]
        model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=1)
        way = md.parallel.DataParallel(comm)
        model.fit(X, Y, epochs=1, verbose=False, parallel=way, callbacks=[Fails()])

    with pytest.raises(KeyError, match="at the end"):
        simulate(2, run)


class Stands(md.callbacks.Callback):
    """Neither looks at anything nor changes anything."""

    stands_aside = True


class HalvesToo(Stands, Halves):
    """Derived from a class that stands aside, which does not hold for this one."""


def test_a_class_derived_from_one_that_stands_aside_may_set_values() -> None:
    def run(comm: Communicator) -> list[bytes]:
        model = md.Model(
            [md.layers.Input((5,)), md.layers.Dense(3)],
            loss="cross_entropy",
            optimizer="sgd",
            seed=3,
        )
        halves = HalvesToo("on_epoch_end")
        given = {"batch_size": 16, "epochs": 2, "verbose": False, "callbacks": [halves]}
        model.fit(X, Y, parallel=md.parallel.DataParallel(comm), **given)
        assert halves.done == (comm.rank == 0)
        return [value.tobytes() for value in model.values().values()]

    first, second = simulate(2, run)
    assert first == second
