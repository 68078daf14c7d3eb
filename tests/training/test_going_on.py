"""What a checkpoint keeps of the end of an epoch, whatever the order of the callbacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import CheckpointError
from magmadnn.storage.checkpoint import CheckpointStore, State

RANDOM = np.random.default_rng(31)
X = RANDOM.normal(size=(61, 5)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)


class Worse(md.callbacks.Callback):
    """A figure that gets worse after the second epoch."""

    def on_epoch_end(self, fit) -> None:
        fit.row["scripted_loss"] = abs(fit.epoch - 2.0)


class Break(md.callbacks.Callback):
    """Ends the program after a step, as far as training can tell."""

    comes_last = True

    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch_end(self, fit) -> None:
        if fit.steps == self.step:
            raise KeyboardInterrupt


def train(*callbacks, epochs: int = 9) -> tuple[md.Model, md.History]:
    layers = md.layers
    model = md.Model(
        [
            layers.Input((5,)), layers.Dense(7, activation="relu"), layers.BatchNorm(),
            layers.Dropout(0.2), layers.Dense(2),
        ],
        loss="cross_entropy",
        optimizer=md.optim.Adam(md.optim.cosine(0.01, 50), clip_norm=1.0),
    )  # fmt: skip
    stopping = md.callbacks.EarlyStopping(
        "scripted_loss", mode="min", patience=2, restore_best=True
    )
    half = md.callbacks.Schedule(lambda epoch: 0.5 / (epoch + 1), "clip_norm")
    history = model.fit(
        X,
        Y,
        batch_size=7,
        epochs=epochs,
        verbose=False,
        callbacks=[*callbacks, Worse(), stopping, half],
    )
    return model, history


def values(model: md.Model) -> list[bytes]:
    return [np.asarray(p.value.read()).tobytes() for p in model.variables()]


@pytest.fixture(scope="module")
def whole() -> tuple[md.Model, md.History]:
    return train()


# 9 steps an epoch; training stops after step 45, whose checkpoint may be of before or after that.
@pytest.mark.parametrize(("every", "step"), [(None, 10), (None, 41), (3, 4), (3, 28), (3, 45)])
def test_all_that_counts_goes_on_when_the_checkpoint_is_named_first(
    tmp_path: Path, whole, every: int | None, step: int
) -> None:
    model, expected = whole
    assert expected.stopped is not None and len(expected) == 5
    saving = {"every_steps": every, "monitor": "loss", "signals": False}
    with pytest.raises(KeyboardInterrupt):
        train(md.callbacks.Checkpoint(tmp_path, **saving), Break(step))
    resumed, history = train(md.callbacks.Checkpoint(tmp_path, **saving))
    assert values(resumed) == values(model)
    assert history.stopped == expected.stopped
    assert history["scripted_loss"] == expected["scripted_loss"]


def test_a_training_that_has_stopped_stays_so(tmp_path: Path) -> None:
    saving = {"monitor": "loss", "signals": False}
    first, one = train(md.callbacks.Checkpoint(tmp_path, **saving))
    again, other = train(md.callbacks.Checkpoint(tmp_path, **saving))
    assert values(again) == values(first)
    assert other.stopped == one.stopped and len(other) == len(one) == 5


def test_a_checkpoint_of_something_else_is_one_error(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(1, State({"a": np.ones(3)}, {"seed": 0}))
    with pytest.raises(CheckpointError) as raised:
        train(md.callbacks.Checkpoint(tmp_path, signals=False))
    assert str(raised.value) == (
        "checkpoint: expected one of a training, but 'batch' is missing; give another folder"
    )


def plain(folder: Path, epochs: int, *callbacks: md.callbacks.Callback) -> md.History:
    model = md.Model(
        [md.layers.Input((5,)), md.layers.Dense(2)],
        loss="cross_entropy",
        optimizer=md.optim.SGD(0.1),
    )
    saving = md.callbacks.Checkpoint(folder, signals=False)
    return model.fit(X, Y, epochs=epochs, verbose=False, callbacks=[*callbacks, saving])


def test_callbacks_that_decide_and_are_others_than_before_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping, plateau = md.callbacks.EarlyStopping, md.callbacks.ReduceLROnPlateau
    plain(tmp_path / "a", 2, stopping(patience=3), stopping("loss"))
    assert capsys.readouterr().err == ""
    logger = md.callbacks.CSVLogger(tmp_path / "log.csv")
    plain(tmp_path / "a", 3, stopping(patience=3), logger, stopping("loss"))
    assert capsys.readouterr().err == ""
    history = plain(tmp_path / "a", 5, stopping(patience=4, mode="min"), plateau(patience=50))
    told = capsys.readouterr().err
    assert "fit: goes on with callbacks that are not those of the checkpoint: " in told
    assert (
        "EarlyStopping has patience=4, before 3; EarlyStopping has mode=min, before auto; "
        "ReduceLROnPlateau is new; EarlyStopping is gone; "
    ) in told
    assert len(history) == 5


def test_of_a_checkpoint_that_does_not_tell_callbacks_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain(tmp_path, 2)
    store = CheckpointStore(tmp_path)
    found = store.latest()
    assert found is not None
    record = {name: value for name, value in found.record.items() if name != "arguments"}
    store.save(found.record["steps"] + 1, State(found.tensors, record))
    assert len(plain(tmp_path, 3, md.callbacks.EarlyStopping(patience=3))) == 3
    assert capsys.readouterr().err == ""
