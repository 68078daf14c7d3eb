"""Callbacks that serve several trainings, and trainings that end in a mistake: nothing is left behind."""

from __future__ import annotations

import csv
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, CheckpointError
from magmadnn.training.loop.signals import StopRequest

RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] - X[:, 1] > 0).astype(np.int64)
pytestmark = pytest.mark.usefixtures("quick_sync")
FOLDS = [np.arange(60) % 5 == k for k in range(5)]


def network(seed: int = 0, **settings: Any) -> md.Model:
    layers = [md.layers.Input((5,)), md.layers.Dense(7, activation="relu"), md.layers.BatchNorm()]
    settings = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.05)} | settings
    return md.Model([*layers, md.layers.Dense(2)], seed=seed, **settings)


def fit(model: md.Model, *callbacks: md.callbacks.Callback, epochs: int = 3) -> md.History:
    return model.fit(X, Y, batch_size=9, epochs=epochs, callbacks=callbacks, verbose=False)


def same(one: md.Model, other: md.Model) -> bool:
    found = other.values()
    return all(value.tobytes() == found[name].tobytes() for name, value in one.values().items())


def stopping() -> md.callbacks.EarlyStopping:
    return md.callbacks.EarlyStopping(patience=1, restore_best=True)


def trained_on(fold: int, stop: md.callbacks.EarlyStopping) -> tuple[md.Model, md.History]:
    model, out = network(seed=fold), FOLDS[fold]
    history = model.fit(
        X[~out],
        Y[~out],
        epochs=12,
        batch_size=9,
        validation_data=(X[out], Y[out]),
        callbacks=[stop],
        verbose=False,
    )
    return model, history


def test_one_early_stopping_over_five_folds_is_as_good_as_five() -> None:
    shared = stopping()
    for fold in range(5):
        model, history = trained_on(fold, shared)
        alone, expected = trained_on(fold, stopping())
        assert history["val_loss"] == expected["val_loss"] and len(history) > 1
        assert same(model, alone)


class Counts(md.callbacks.Callback):
    """A callback as users write them: what it counts stands in its state."""

    def __init__(self) -> None:
        self.seen = 3
        self.rows = [0.5]

    def on_epoch_end(self, fit: Any) -> None:
        self.seen += 1
        self.rows.append(fit.row["loss"])

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen, "rows": self.rows}

    def tensors(self) -> dict[str, Any]:
        return {"marks": np.full(2, self.seen)}

    def restore(self, state: dict[str, Any], tensors: dict[str, Any]) -> None:
        assert (tensors["marks"] == state["seen"]).all()
        self.seen, self.rows = state["seen"], state["rows"]


def test_the_state_of_a_callback_of_ones_own_is_set_back_when_training_begins() -> None:
    counts = Counts()
    for _ in range(3):
        fit(network(), counts, epochs=2)
        assert counts.seen == 5 and len(counts.rows) == 3 and counts.rows[0] == 0.5


def test_a_callback_that_begins_with_the_training_keeps_what_it_began_with() -> None:
    class Half(Counts):
        def on_train_begin(self, fit: Any) -> None:
            self.seen, self.rows = fit.epochs // 2, []

    half = Half()
    for epochs in (2, 4):
        fit(network(), half, epochs=epochs)
        assert half.seen == epochs // 2 + epochs


def test_a_resumed_callback_goes_on_from_the_checkpoint_wherever_it_stands(tmp_path: Path) -> None:
    class Last(Counts):
        comes_last = True  # after Checkpoint too

        def on_train_begin(self, fit: Any) -> None:
            self.seen, self.rows = 0, []

    fit(network(), md.callbacks.Checkpoint(tmp_path), Last(), epochs=2)
    last = Last()
    fit(network(), md.callbacks.Checkpoint(tmp_path), last, epochs=3)
    assert last.seen > 1


def test_a_state_that_nothing_restores_is_refused() -> None:
    class Forgets(md.callbacks.Callback):
        def state(self) -> dict[str, Any]:
            return {"seen": 1}

    with pytest.raises(ArgumentError) as raised:
        fit(network(), Forgets())
    assert str(raised.value) == (
        "Forgets: has a state, so it needs restore(self, state, tensors) too"
    )


def test_a_checkpoint_of_another_column_is_refused(tmp_path: Path) -> None:
    def train(monitor: str) -> None:
        stop = md.callbacks.EarlyStopping(monitor, patience=9)
        checkpoint = md.callbacks.Checkpoint(tmp_path)
        fit(network(metrics=["accuracy"]), stop, checkpoint)

    train("accuracy")
    with pytest.raises(CheckpointError) as raised:
        train("loss")
    assert str(raised.value) == (
        "checkpoint: EarlyStopping has the best value of 'accuracy', this one looks at 'loss'; give the "
        "same monitor, or another folder"
    )


def test_a_checkpoint_that_a_signal_ended_listens_anew(tmp_path: Path) -> None:
    checkpoint = md.callbacks.Checkpoint(tmp_path, resume=False)
    stop = md.callbacks.LambdaCallback(
        on_epoch_begin=lambda fit: fit.epoch == 1 and signal.raise_signal(signal.SIGTERM)
    )
    with pytest.raises(SystemExit):
        fit(network(), stop, checkpoint)
    assert checkpoint.interrupted_by == signal.SIGTERM
    assert fit(network(), checkpoint).stopped is None
    assert checkpoint.interrupted_by is None


def test_a_training_that_a_signal_ended_between_two_epochs_goes_on(tmp_path: Path) -> None:
    end = md.callbacks.LambdaCallback(
        on_epoch_end=lambda fit: fit.epoch == 1 and signal.raise_signal(signal.SIGTERM)
    )
    with pytest.raises(SystemExit):
        fit(network(), end, md.callbacks.Checkpoint(tmp_path))
    history = fit(network(), md.callbacks.Checkpoint(tmp_path))
    assert history.stopped is None and len(history) == 3


# --- mistakes ---------------------------------------------------------------------------------------


def fails(hook: str) -> md.callbacks.Callback:
    def fail(fit: Any) -> None:
        raise RuntimeError(hook)

    return md.callbacks.LambdaCallback(**{hook: fail})


@pytest.mark.parametrize(
    "hook", ["on_train_begin", "on_epoch_begin", "on_batch_end", "on_epoch_end", "on_train_end"]
)
def test_after_an_error_of_one_callback_all_others_end_and_training_can_begin_again(
    hook: str, tmp_path: Path
) -> None:
    before, ended = signal.getsignal(signal.SIGTERM), []
    note = md.callbacks.LambdaCallback(on_train_end=lambda fit: ended.append(1))
    model = network()
    with pytest.raises(RuntimeError, match=hook):
        fit(model, note, fails(hook), md.callbacks.Checkpoint(tmp_path))
    assert ended == [1] and signal.getsignal(signal.SIGTERM) is before
    assert len(fit(model)) == 3


def test_signals_are_given_back_though_another_callback_fails_at_the_end(tmp_path: Path) -> None:
    class Late(md.callbacks.Callback):
        comes_last = True

        def on_train_end(self, fit: Any) -> None:
            raise RuntimeError("late")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="late"):
        fit(network(), md.callbacks.Checkpoint(tmp_path), Late())
    assert signal.getsignal(signal.SIGTERM) is before
    assert not StopRequest().requested


def test_fit_within_fit_is_refused_for_the_same_model_only() -> None:
    other, model = network(), network()
    inner = md.callbacks.LambdaCallback(on_epoch_end=lambda now: fit(other, epochs=1))
    fit(model, inner)
    again = md.callbacks.LambdaCallback(on_epoch_end=lambda now: fit(now.model, epochs=1))
    with pytest.raises(ArgumentError) as raised:
        fit(model, again)
    assert str(raised.value) == (
        "fit: this model is being trained; wait until its fit has returned, or use a copy: "
        "copy.deepcopy(model)"
    )
    fit(model)


# --- CSV --------------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_csv_logger_used_again_begins_its_file_anew(tmp_path: Path) -> None:
    log = md.callbacks.CSVLogger(tmp_path / "log.csv")
    fit(network(), log, epochs=3)
    expected = fit(network(), log, epochs=2)
    assert [float(row["loss"]) for row in rows_of(log.path)] == expected["loss"]


def test_a_resumed_csv_has_each_epoch_once(tmp_path: Path) -> None:
    path, run = tmp_path / "log.csv", tmp_path / "run"
    fit(network(), md.callbacks.Checkpoint(run), epochs=1)
    path.write_text("epoch,loss\n1,0.1\n2,0.2\n")  # the second row is later than the checkpoint
    log, checkpoint = md.callbacks.CSVLogger(path), md.callbacks.Checkpoint(run)
    history = fit(network(), log, checkpoint, epochs=3)
    assert [float(row["loss"]) for row in rows_of(path)] == history["loss"]


def test_a_csv_gets_columns_that_come_later(tmp_path: Path) -> None:
    late = md.callbacks.LambdaCallback(
        on_epoch_end=lambda fit: fit.row.update(late=1.5) if fit.epoch > 1 else None
    )
    log = md.callbacks.CSVLogger(tmp_path / "log.csv")
    history = fit(network(), late, log, epochs=4)
    assert [row["late"] for row in rows_of(log.path)] == ["", "1.5", "1.5", "1.5"]
    assert [float(row["loss"]) for row in rows_of(log.path)] == history["loss"]
