"""A checkpoint goes on only in the training that it is of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("quick_sync")
RANDOM = np.random.default_rng(41)
X = RANDOM.normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] - X[:, 1] > 0).astype(np.int64)


def network(
    units: int = 7, activation: str = "relu", optimizer: Any = None, **more: Any
) -> md.Model:
    layers = [
        md.layers.Input((5,)), md.layers.Dense(units, activation=activation),
        md.layers.Dropout(more.pop("dropout", 0.2)), md.layers.Dense(2),
    ]  # fmt: skip
    more = {"loss": "cross_entropy", "metrics": ["accuracy"]} | more
    return md.Model(layers, optimizer=optimizer or md.optim.SGD(0.1), **more)


def fit(model: md.Model, folder: Path, x: Any = X, y: Any = Y, **more: Any) -> md.History:
    callbacks = [*more.pop("callbacks", []), md.callbacks.Checkpoint(folder, signals=False)]
    options = {"batch_size": 9, "epochs": 2, "verbose": False} | more
    return model.fit(x, y, callbacks=callbacks, **options)


def changed(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy[17] = 1 - copy[17]
    return copy


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "layer dense_1": ({"activation": "tanh"}, {}),
    "layer dropout_1": ({"dropout": 0.3}, {}),
    "loss": ({"loss": md.losses.CrossEntropy(label_smoothing=0.1)}, {}),
    "metrics": ({"metrics": []}, {}),
    "optimizer": ({"optimizer": md.optim.SGD(0.2)}, {}),
    "precision": ({"precision": "tf32"}, {}),
    "seed": ({"seed": 1}, {}),
    "batch_size": ({}, {"batch_size": 8}),
    "shuffle": ({}, {"shuffle": False}),
    "initial_epoch": ({}, {"initial_epoch": 1}),
    "validation_split": ({}, {"validation_split": 0.1}),
    "class_weight": ({}, {"class_weight": "balanced"}),
    "sample_weight": ({}, {"sample_weight": np.ones(60)}),
    "x": ({}, {"x": changed(X)}),
    "y": ({}, {"y": changed(Y)}),
    "validation x": ({}, {"validation_data": (X, Y)}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_named(name: str, tmp_path: Path) -> None:
    own, given = OTHERS[name]
    fit(network(), tmp_path)
    model = network(**own)
    before = model.values()
    with pytest.raises(CheckpointError) as raised:
        fit(model, tmp_path, **given)
    text = str(raised.value)
    assert text.startswith("checkpoint: is of another training: ")
    assert f"{name} is " in text and ", in the checkpoint " in text and "resume=False" in text
    assert all(np.array_equal(before[k], v) for k, v in model.values().items())


def test_folds_that_share_a_folder_are_refused(tmp_path: Path) -> None:
    fit(network(), tmp_path, X[:48], Y[:48])
    with pytest.raises(CheckpointError, match="x is float32"):
        fit(network(), tmp_path, X[12:], Y[12:])


@pytest.mark.parametrize("what", ["step", "all"])
def test_checkpoints_that_were_copied_between_runs_are_refused(what: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    fit(network(), one)
    fit(network(optimizer=md.optim.SGD(0.2)), other)
    if what == "all":
        shutil.rmtree(other / "checkpoints")
        shutil.copytree(one / "checkpoints", other / "checkpoints")
    else:
        step = sorted((one / "checkpoints").glob("step-*"))[-1]
        shutil.copytree(step, other / "checkpoints" / "step-00000099")
    with pytest.raises(CheckpointError, match=r"optimizer is SGD\(learning_rate=0.2\)"):
        fit(network(optimizer=md.optim.SGD(0.2)), other, epochs=3)


def test_a_checkpoint_that_says_nothing_of_its_training_is_refused(tmp_path: Path) -> None:
    from magmadnn.storage.checkpoint import CheckpointStore, State

    fit(network(), tmp_path)
    store = CheckpointStore(tmp_path)
    state = store.latest()
    assert state is not None
    del state.record["run"]
    store.save(99, State(state.tensors, state.record))
    with pytest.raises(CheckpointError, match="'run' is missing"):
        fit(network(), tmp_path)


def test_epochs_callbacks_and_executor_may_differ(tmp_path: Path, capsys: Any) -> None:
    fit(network(), tmp_path)
    more = fit(network(), tmp_path, epochs=3, callbacks=[md.callbacks.EarlyStopping(patience=9)])
    assert len(more) == 3
    assert "EarlyStopping is new" in capsys.readouterr().err
    kept = [md.callbacks.EarlyStopping(patience=9)]
    assert len(fit(network(executor="reference"), tmp_path, epochs=4, callbacks=kept)) == 4
    assert capsys.readouterr().err == ""


def test_a_training_that_has_ended_is_told(tmp_path: Path, capsys: Any) -> None:
    fit(network(), tmp_path)
    fit(network(), tmp_path)
    assert capsys.readouterr().err == (
        "magmadnn: note: fit: the training of the checkpoint has ended, its 2 epochs are done: nothing is "
        "trained; ask for more epochs, give another folder, or resume=False\n"
    )


def test_one_model_goes_on_with_its_own_training_only(tmp_path: Path) -> None:
    whole, model = network(), network()
    fit(whole, tmp_path / "whole", epochs=4)
    fit(model, tmp_path / "run", epochs=2)
    assert len(fit(model, tmp_path / "run", epochs=4)) == 4  # two more
    expected = whole.values()
    assert all(np.array_equal(expected[k], v) for k, v in model.values().items())
    model.fit(X, Y, batch_size=9, verbose=False)
    with pytest.raises(CheckpointError, match="initial values is"):
        fit(model, tmp_path / "run", epochs=4)


def test_other_initial_values_are_another_training(tmp_path: Path) -> None:
    fit(network(), tmp_path)
    model = network()
    model.assign({k: v + 1 for k, v in model.values().items()})
    with pytest.raises(CheckpointError, match="initial values is"):
        fit(model, tmp_path)


def test_a_second_training_has_its_own_epochs(tmp_path: Path) -> None:
    """The second of two trainings is broken off; when the program runs again, both end as they would have."""

    def program(stop: bool) -> md.Model:
        model = network()
        fit(model, tmp_path / "one")
        end = md.callbacks.LambdaCallback(
            on_epoch_end=lambda now: (
                now.stop("cut", goes_on=True) if stop and now.epoch == 3 else None
            )
        )
        fit(model, tmp_path / "two", callbacks=[end])
        return model

    whole = network()
    whole.fit(X, Y, batch_size=9, epochs=4, verbose=False)
    program(stop=True)
    model = program(stop=False)
    assert model.epochs_done == 4
    expected = whole.values()
    assert all(np.array_equal(expected[k], v) for k, v in model.values().items())


def test_settings_that_callbacks_set_are_kept(tmp_path: Path) -> None:
    class Once(md.callbacks.Callback):
        """Sets a rate in the first epoch, and keeps no state."""

        def __init__(self, rate: Any) -> None:
            self.rate = rate

        def on_epoch_end(self, now: Any) -> None:
            if now.epoch == 1:
                now.step.set(learning_rate=self.rate)

    for k, rate in enumerate([0.025, md.optim.cosine(0.025, 50)]):
        whole, parts = network(), network()
        expected = fit(whole, tmp_path / f"whole{k}", epochs=3, callbacks=[Once(rate)])
        fit(parts, tmp_path / f"run{k}", epochs=2, callbacks=[Once(rate)])
        parts = network()
        found = fit(parts, tmp_path / f"run{k}", epochs=3, callbacks=[Once(rate)])
        assert found["learning_rate"] == expected["learning_rate"]
    fit(network(), tmp_path / "f", epochs=2, callbacks=[Once(lambda step: 0.05)])
    with pytest.raises(CheckpointError, match="learning_rate was set to a function"):
        fit(network(), tmp_path / "f", epochs=3, callbacks=[Once(lambda step: 0.05)])


def test_of_large_arrays_some_rows_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from magmadnn.training.model.plain import identity

    monkeypatch.setattr(identity, "_WHOLE", 0)
    large = np.arange(5000.0)
    other = large.copy()
    other[-1] = 0
    assert identity._digest(large) != identity._digest(other) != identity._digest(other[:-1])
    assert identity._digest(large) == identity._digest(large.copy())


def test_an_average_of_another_decay_is_another_training(tmp_path: Path) -> None:
    averages = [md.callbacks.ExponentialMovingAverage(decay) for decay in (0.9, 0.99)]
    fit(network(), tmp_path, callbacks=averages[:1])
    for others in (averages[1:], []):
        with pytest.raises(CheckpointError, match="parts of callbacks is"):
            fit(network(), tmp_path, epochs=3, callbacks=others)


def test_starting_over_leaves_nothing_of_the_training_before(tmp_path: Path) -> None:
    fit(network(), tmp_path, epochs=4)
    anew = md.callbacks.Checkpoint(tmp_path, resume=False, every_steps=2, signals=False)

    def cut(now: Any) -> None:
        if now.steps == 5:
            raise KeyboardInterrupt

    hook = md.callbacks.LambdaCallback(on_batch_end=cut)
    with pytest.raises(KeyboardInterrupt):
        network(seed=5).fit(X, Y, batch_size=9, callbacks=[hook, anew], verbose=False)
    assert anew.store.best() is None
    steps = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert steps == ["step-00000002", "step-00000004"]
