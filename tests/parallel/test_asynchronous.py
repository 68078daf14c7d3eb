"""Asynchronous gradient descent on simulated ranks, whose order of messages repeats."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import simulate
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.parallel.asynchronous import AsyncStep
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.loop.own_rows import OwnRows
from tests.parallel.parameters import assert_near

DRAW = np.random.default_rng(7)
X = DRAW.normal(size=(331, 6))
Y = (X @ DRAW.normal(size=(6, 3))).argmax(axis=1)


def network(**settings: Any) -> md.Model:
    layers = [md.layers.Input((6,)), md.layers.Dense(11, activation="tanh"), md.layers.Dense(3)]
    given = {"loss": "cross_entropy", "optimizer": md.optim.SGD(0.2), "metrics": ["accuracy"]}
    return md.Model(layers, precision="float64", seed=2, **(given | settings))


def trained(comm: Any, staleness: int | None = None, slow: float = 1.0, **options: Any) -> Any:
    model = network(**options.pop("settings", {}))

    def computed(comm: Any) -> None:
        comm.advance(slow if comm.rank == 1 else 1.0)

    way = md.parallel.AsyncSGD(comm, staleness=staleness, computed=computed)
    given: dict[str, Any] = {"batch_size": 32, "epochs": 4, "verbose": False} | options
    history = model.fit(X, Y, parallel=way, **given)
    step = model._step[2]
    assert isinstance(step, AsyncStep)
    rows = [{k: v for k, v in r.items() if "s" not in k[:2]} for r in history.rows]
    return (
        parameters_sha256(model.values().items()),
        rows,
        step.stale,
        comm.clock,
        model,
        history.stopped,
    )


def test_one_worker_is_a_training_without_workers() -> None:
    alone = network()
    history = alone.fit(X, Y, batch_size=32, epochs=4, verbose=False, parallel=False)
    for _, rows, stale, _, model, _ in simulate(2, lambda comm: trained(comm)):
        assert set(stale) <= {0}
        for row, expected in zip(rows, history.rows, strict=True):
            assert row == pytest.approx({k: expected[k] for k in row}, rel=1e-12)
        assert_near(model.values(), alone.values())
    assert model.epochs_done == 4


@pytest.mark.parametrize("bound", [None, 3, 5])
def test_all_ranks_end_alike_and_no_gradient_is_too_stale(bound: int | None) -> None:
    found = simulate(5, lambda comm: trained(comm, bound, slow=9.0, validation_split=0.1))
    assert len({str(one[:2]) for one in found}) == 1
    stale, rows = found[0][2], found[0][1]
    assert len(stale) == 4 * 10
    assert max(stale) <= (bound or 99)
    assert bound is not None or max(stale) > 5
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_slow_workers_do_not_hold_others_up() -> None:
    """44 batches by four workers, of which one takes 2: 3.5 a second; together 4 in 2 seconds."""
    found = simulate(5, lambda comm: trained(comm, slow=2.0))
    batches = 4 * -(-len(X) // 32)
    assert found[0][3] <= batches / 3.5 + 4 * 2.0
    assert simulate(5, lambda comm: trained(comm, slow=2.0))[0][0] == found[0][0]


def test_workers_count_the_time_that_they_wait_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = OwnRows.one

    def slow(self: OwnRows, *which: int) -> Any:
        time.sleep(0.005)
        return plain(self, *which)

    monkeypatch.setattr(OwnRows, "one", slow)
    found = simulate(3, lambda comm: trained(comm, epochs=2)[4]._waited)
    batches = 2 * -(-len(X) // 32)
    ((server, _),), *workers = found
    assert server < 0.005 * 2
    assert sum(waited for ((waited, _),) in workers) >= 0.005 * batches


def test_stops_within_an_epoch_and_tells_all() -> None:
    class Stops(md.callbacks.Callback):
        def on_batch_end(self, fit: Any) -> None:
            if fit.steps == 15:
                fit.stop("enough")

    found = simulate(4, lambda comm: trained(comm, callbacks=[Stops()]))
    assert {one[5] for one in found} == {"enough"}
    assert len({one[0] for one in found}) == 1
    assert len(found[0][1]) == 1


def test_what_does_not_work_is_told() -> None:
    with pytest.raises(ArgumentError, match="2 ranks or more"):
        simulate(1, trained)
    with pytest.raises(ArgumentError, match="staleness=1 is too little for 3 workers"):
        simulate(4, lambda comm: trained(comm, 1))
    with pytest.raises(ArgumentError, match="accumulate=1"):
        simulate(2, lambda comm: trained(comm, accumulate=2))
    with pytest.raises(ArgumentError, match="staleness must be"):
        md.parallel.AsyncSGD(staleness=-1)
    with pytest.raises(NumericError, match="infinity"):
        simulate(3, lambda comm: trained(comm, settings={"optimizer": md.optim.SGD(1.7e308)}))


def test_all_ranks_tell_the_time_of_the_server() -> None:
    """A worker counts no batches by itself."""

    def run(comm: Any) -> list[float]:
        way = md.parallel.AsyncSGD(comm)
        given = {"batch_size": 32, "epochs": 2, "verbose": False}
        return [row["seconds"] for row in network().fit(X, Y, parallel=way, **given).rows]

    server, *workers = simulate(3, run)
    assert all(seconds > 1e-6 for seconds in server)
    assert all(own == server for own in workers)
