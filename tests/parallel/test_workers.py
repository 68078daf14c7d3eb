"""A fit in `with md.workers(...)`: by processes of its own, with the bits of simulated ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, CommunicationError, DataError, MagmaDNNError
from tests.parallel import slow_data  # noqa: F401 - workers import it from here

ROOT = Path(__file__).resolve().parents[2]
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(75, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 75)
WEIGHTS = DRAW.uniform(0, 2, 75)
WAY = md.parallel.DataParallel


@pytest.fixture(autouse=True)
def package_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """By the workers, which have the client's environment."""
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{before}" if before else str(ROOT))
    yield


def network(*more: Any) -> md.Model:
    layers = [
        md.layers.Input((6,)), md.layers.Dense(9), *more, md.layers.BatchNorm(), md.layers.Dropout(0.2),
        md.layers.Dense(3),
    ]  # fmt: skip
    return md.Model(layers, loss="cross_entropy", optimizer="adam", metrics=["accuracy"])


@pytest.mark.parametrize("count", [0, 2])
def test_fits_follow_each_other_with_the_same_bits(count: int) -> None:
    """Moments, counters and the order of the data go on in the client between two fits."""
    if count:
        pytest.importorskip("mpi4py")
    given: dict[str, Any] = {"batch_size": 16, "sample_weight": WEIGHTS, "verbose": False}
    whole, parts = network(), network()
    rows = whole.fit(X, Y, epochs=3, parallel=md.parallel.DataParallel(), **given).rows
    with md.workers(count):
        first = parts.fit(X, Y, epochs=2, validation_data=(X[:9], Y[:9]), **given)
        second = parts.fit(X, Y, **given)
    assert [r["loss"] for r in (*first.rows, *second.rows)] == [r["loss"] for r in rows]
    assert "val_loss" in first.columns
    assert parts.epochs_done == 3
    for name, value in whole.values().items():
        np.testing.assert_array_equal(parts.values()[name], value)
    alone, after = network(), network()
    for model in (alone, after):
        model.fit(X, Y, **given)
    for name, value in alone.values().items():
        np.testing.assert_array_equal(after.values()[name], value)


def test_what_cannot_travel_is_told() -> None:
    saving = md.callbacks.Checkpoint("nowhere")
    with md.workers(0):
        for options, what in (
            ({"callbacks": [md.callbacks.TimeLimit(seconds=9)]}, "TimeLimit looks at batches"),
            ({"callbacks": [Seen(), saving]}, "Checkpoint beside other callbacks"),
            ({"batch_size": lambda epoch: 8}, "a function for batch_size"),
            ({"augment": [object()]}, "a list for augment"),
        ):
            with pytest.raises(ArgumentError, match=what):
                network().fit(X, Y, verbose=False, **options)
        with pytest.raises(ArgumentError, match="batches of an iterable"):
            network().fit([(X, Y)], verbose=False)
        with pytest.raises(MagmaDNNError, match="function"):
            network(md.layers.Lambda(lambda x: x + 1)).fit(X, Y, verbose=False)
        with pytest.raises(DataError, match="class"):
            network().fit(X, Y + 3, verbose=False)
        model = network()
        model.fit(
            X, Y, verbose=False, parallel=False, callbacks=[md.callbacks.EarlyStopping("loss")]
        )
        assert model.epochs_done == 1


def test_masked_data_is_refused_and_numbers_of_numpy_are_numbers() -> None:
    x, y, weights = (
        np.ma.masked_less(X, -1),
        np.ma.masked_equal(Y, 2),
        np.ma.masked_less(WEIGHTS, 0.1),
    )
    with md.workers(0):
        for given in (
            {"x": x, "y": Y}, {"x": X, "y": y}, {"x": X, "y": Y, "sample_weight": weights},
            {"x": X, "y": Y, "validation_data": (X, y)},
        ):  # fmt: skip
            for fit in (network().fit, lambda **given: md.fit_many([network()], **given)):
                with pytest.raises(DataError, match="elements are masked"):
                    fit(**given, verbose=False)
        given = {"batch_size": np.int64(16), "epochs": np.int32(2), "accumulate": np.int8(2)}
        model = network()
        model.fit(
            X,
            Y,
            class_weight={np.int64(k): np.float32(1) for k in range(3)},
            **given,
            verbose=False,
        )
        assert model.epochs_done == 2


@pytest.mark.parametrize("callbacks", [[], [md.callbacks.EarlyStopping("loss")]])
def test_each_worker_says_how_long_it_waited_for_data(callbacks: list[Any]) -> None:
    pytest.importorskip("mpi4py")
    model = network()
    with md.workers(2) as workers:
        workers.call("test.slow_data", [0.0, 0.1])
        model.fit(X, Y, batch_size=16, epochs=3, verbose=False, callbacks=callbacks)
        profile = model.profile(X, Y)
        (quick, _), (slow, seconds) = profile.waited_by_worker
        assert quick < 0.1 < 3 * 0.1 <= slow <= seconds
        assert profile.waited == (slow, seconds)
        line = f"worker 1 in the last fit waited {slow:.3g} s of {seconds:.3g} s"
        assert line in str(profile) and "worker 0 in the last fit" in str(profile)
    model.fit(X, Y, verbose=False)
    profile = model.profile(X, Y)
    assert profile.waited is not None and not profile.waited_by_worker
    assert "worker" not in str(profile)


def test_one_worker_in_this_process_has_one_line() -> None:
    model = network()
    with md.workers(0):
        model.fit(X, Y, verbose=False)
    profile = model.profile(X, Y)
    assert profile.waited is not None and not profile.waited_by_worker


class Seen(md.callbacks.Callback):
    """Notes what it sees in the client, and in which process."""

    def __init__(self, last: int = 99) -> None:
        self.last, self.seen = last, list[tuple[int, float, int]]()

    def on_epoch_end(self, fit: Any) -> None:
        self.seen.append((fit.epoch, fit.row["loss"], os.getpid()))
        if fit.epoch == self.last:
            fit.stop("seen enough")


@pytest.mark.parametrize("count", [0, 2])
def test_callbacks_are_called_in_the_client_and_see_its_model(count: int) -> None:
    if count:
        pytest.importorskip("mpi4py")
    whole, model = network(), network()
    given: dict[str, Any] = {"batch_size": 16, "verbose": False, "validation_split": 0.2}
    rows = whole.fit(X, Y, epochs=3, parallel=md.parallel.DataParallel(), **given).rows
    seen, stopping = Seen(last=3), md.callbacks.EarlyStopping("loss", patience=9)
    with md.workers(count):
        history = model.fit(X, Y, epochs=7, callbacks=[seen, stopping], **given)
        looking = md.callbacks.LambdaCallback(on_epoch_end=lambda fit: fit.step.plan)
        with pytest.raises(ArgumentError, match=r"asks for step\.plan, which workers have"):
            model.fit(X, Y, epochs=9, callbacks=[looking], **given)
        bent = md.callbacks.LambdaCallback(
            on_epoch_end=lambda fit: fit.step.set(learning_rate=lambda step: 0.1)
        )
        with pytest.raises(ArgumentError, match="learning_rate was set to a function"):
            model.fit(X, Y, epochs=9, callbacks=[bent], **given)
    assert seen.seen == [(n + 1, rows[n]["loss"], os.getpid()) for n in range(3)]
    assert history.stopped == "seen enough" and len(history.rows) == 3
    assert stopping.best_epoch in range(1, 4)


def halve(fit: Any) -> None:
    if fit.epoch == 1:
        own = fit.model.values()
        fit.model.assign({name: (value / 2).astype(value.dtype) for name, value in own.items()})


CHANGES: dict[str, Any] = {
    "plateau": lambda: md.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1.0),
    "schedule": lambda: md.callbacks.Schedule(lambda epoch: 0.01 / (epoch + 1)),
    "of steps": lambda: md.callbacks.LambdaCallback(
        on_train_begin=lambda fit: fit.step.set(learning_rate=md.optim.exponential(0.01, 0.5, 4))
    ),
    "values": lambda: md.callbacks.LambdaCallback(on_epoch_end=halve),
    "values before": lambda: md.callbacks.LambdaCallback(on_epoch_begin=halve),
}


@pytest.mark.parametrize("count", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("change", CHANGES)
def test_what_callbacks_set_in_the_client_reaches_the_workers(count: int, change: str) -> None:
    """The optimiser's numbers and schedules, and the model's values; they stay for the next fit."""
    if count:
        pytest.importorskip("mpi4py")
    whole, model = network(), network()
    given: dict[str, Any] = {"batch_size": 16, "verbose": False}
    rows = [whole.fit(X, Y, epochs=3, callbacks=[CHANGES[change]()], parallel=WAY(), **given).rows]
    rows.append(whole.fit(X, Y, epochs=1, parallel=WAY(), **given).rows)
    found = []
    with md.workers(count):
        found.append(model.fit(X, Y, epochs=3, callbacks=[CHANGES[change]()], **given).rows)
        found.append(model.fit(X, Y, epochs=1, **given).rows)
    for name in ("loss", "learning_rate"):
        expected = [[row[name] for row in one] for one in rows]
        assert [[row[name] for row in one] for one in found] == expected
    assert len({*expected[0], *expected[1]}) > 1 or change.startswith("values")
    for name, value in whole.values().items():
        np.testing.assert_array_equal(model.values()[name], value)


@pytest.mark.parametrize(
    "turns", [((3, 2), (2, 4)), pytest.param(((2, 2), (3, 3), (0, 4)), marks=pytest.mark.long)]
)
def test_a_checkpoint_goes_on_with_another_number_of_workers(turns: Any, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    whole = network()
    given: dict[str, Any] = {"batch_size": 16, "verbose": False, "initial_epoch": 0}
    whole.fit(X, Y, epochs=4, parallel=md.parallel.DataParallel(), **given)
    for count, epochs in turns:
        model = network()
        with md.workers(count):
            model.fit(X, Y, epochs=epochs, callbacks=[md.callbacks.Checkpoint(tmp_path)], **given)
        assert model.epochs_done == epochs
    for name, value in whole.values().items():
        np.testing.assert_array_equal(model.values()[name], value)


def test_a_lost_worker_costs_the_present_epoch_only() -> None:
    """The client has the model and its optimiser as they were after the last epoch."""
    pytest.importorskip("mpi4py")

    class Kills(md.callbacks.Callback):
        def on_epoch_end(self, fit: Any) -> None:
            if fit.epoch == 2:
                os.kill(workers._staff._job.ledger.entries()[1].process, 9)

    whole, model = network(), network()
    given: dict[str, Any] = {"batch_size": 16, "verbose": False}
    whole.fit(X, Y, epochs=4, parallel=md.parallel.DataParallel(), **given)
    with md.workers(2) as workers:
        with pytest.raises(CommunicationError, match="worker 1 was killed"):
            model.fit(X, Y, epochs=4, callbacks=[Kills()], **given)
        assert model.epochs_done == 2
        workers.restart()
        model.fit(X, Y, epochs=2, **given)
    for name, value in whole.values().items():
        np.testing.assert_array_equal(model.values()[name], value)


def test_weights_lie_in_layouts_on_workers_and_are_arrays_there() -> None:
    """Hybrid per layer: columns and copies are computed in parts, and stay where they are."""
    pytest.importorskip("mpi4py")
    given: dict[str, Any] = {"batch_size": 15, "epochs": 2, "verbose": False}
    alone, model = network(), network()
    alone.fit(X, Y, **given)
    way = md.parallel.Hybrid({"dense_1": md.dmath.Columns(), "dense_2": md.dmath.Rows()})
    with md.workers(3) as workers:
        with pytest.raises(ArgumentError, match="these workers have trained no model"):
            workers.weights()
        model.fit(X, Y, parallel=way, **given)
        before = workers.counters()["client_bytes"]
        weights = workers.weights()
        kernel = weights["dense_1/kernel"]
        assert kernel.layout == md.dmath.Columns().layout((6, 9), 3)
        assert weights["dense_1/bias"].layout == md.dmath.Columns().layout((9,), 3)
        assert weights["dense_2/kernel"].layout == md.dmath.Rows().layout((9, 3), 3)
        product = md.dmath.matmul(kernel, weights["dense_2/kernel"])
        assert workers.counters()["client_bytes"] == before  # weights do not pass the client
        values = model.values()
        np.testing.assert_allclose(
            np.asarray(product), values["dense_1/kernel"] @ values["dense_2/kernel"], rtol=1e-5
        )
        for name, value in values.items():
            np.testing.assert_array_equal(np.asarray(weights[name]), value)
        with pytest.raises(ArgumentError, match="AsyncSGD cannot travel to the workers"):
            model.fit(X, Y, parallel=md.parallel.AsyncSGD())
    assert model.epochs_done == 2


@pytest.mark.long
def test_checkpoints_of_layouts_go_on_with_another_number_of_workers(tmp_path: Path) -> None:
    """The same bits as one rank, whatever layouts and how many workers."""
    pytest.importorskip("mpi4py")
    whole = network()
    given: dict[str, Any] = {"batch_size": 16, "verbose": False, "initial_epoch": 0}
    whole.fit(X, Y, epochs=3, parallel=md.parallel.DataParallel(), **given)
    layers = {"dense_1": md.dmath.Blocks((2, 4)), "dense_2": md.dmath.Columns()}
    for count, epochs in ((2, 1), (4, 2), (0, 3)):
        model, saving = network(), md.callbacks.Checkpoint(tmp_path)
        way = md.parallel.Hybrid(layers, deterministic="layout")
        with md.workers(count) as workers:
            model.fit(X, Y, epochs=epochs, callbacks=[saving], parallel=way, **given)
            if count == 4:
                lies = workers.weights()["dense_1/kernel"].layout
                assert lies == md.dmath.Blocks((2, 4)).layout((6, 9), 4)
    for name, value in whole.values().items():
        np.testing.assert_array_equal(model.values()[name], value)
