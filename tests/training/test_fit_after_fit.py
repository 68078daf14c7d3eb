"""A fit after a fit: it goes on, bit for bit; what it takes over from the one before is seen or said."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_memory
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.storage.checkpoint import parameters_sha256
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.emulator import needs_compiler

RANDOM = np.random.default_rng(21)
X = RANDOM.normal(size=(61, 5)).astype(np.float32)
Y = (X[:, 0] - X[:, 1] > 0).astype(np.int64)


def network(optimizer: Any = None, **settings: Any) -> md.Model:
    layers = [
        md.layers.Input((5,)),
        md.layers.Dense(7, activation="relu"),
        md.layers.Dropout(0.3),
        md.layers.BatchNorm(),
        md.layers.Dense(2),
    ]
    optimizer = optimizer or md.optim.Adam(md.optim.cosine(0.02, 100), clip_norm=1.0)
    settings = {"loss": "cross_entropy", "metrics": ["accuracy"], "seed": 3} | settings
    return md.Model(layers, optimizer=optimizer, **settings)


def fit(model: md.Model, epochs: int = 1, x: Any = X, y: Any = Y, **options: Any) -> md.History:
    sizes = {} if y is None else {"batch_size": 8}
    return model.fit(x, y, epochs=epochs, **sizes | {"verbose": False} | options)


def digest(model: md.Model) -> str:
    return parameters_sha256(model.values().items())


def half(epoch: int) -> float:
    return 0.02 / 2**epoch


# --- epochs ---------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "held back": lambda: {"validation_split": 0.2},
    "in order": lambda: {"shuffle": False, "class_weight": "balanced"},
    "batches that grow": lambda: {"batch_size": md.optim.growing_batch(5, at=(1, 2), factor=2.0)},
    "rate by epoch": lambda: {"callbacks": [md.callbacks.Schedule(half)]},
    "each batch": lambda: {"callbacks": [md.callbacks.LambdaCallback(on_batch_end=lambda fit: None)]},
    "to a checkpoint": lambda: {"callbacks": [md.callbacks.EarlyStopping(patience=9)]},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "float32": {},
    "mixed_fp16": {"precision": "mixed_fp16"},
    "reference": {"executor": "reference"},
}


@pytest.mark.parametrize("way", WAYS)
def test_three_fits_of_one_epoch_are_one_of_three(way: str) -> None:
    whole, parts = network(), network()
    expected = fit(whole, 3, **WAYS[way]())
    rows = [fit(parts, **WAYS[way]()) for _ in range(3)]
    assert digest(parts) == digest(whole)
    assert [row["loss"][0] for row in rows] == expected["loss"]
    assert [row["epoch"][0] for row in rows] == expected["epoch"] == [1, 2, 3]
    assert parts.epochs_done == 3


@pytest.mark.parametrize("kind", MODELS)
def test_so_are_they_in_every_precision_and_executor(kind: str) -> None:
    whole, parts = network(**MODELS[kind]), network(**MODELS[kind])
    fit(whole, 3, validation_split=0.2)
    for _ in range(3):
        fit(parts, validation_split=0.2)
    assert digest(parts) == digest(whole)


@needs_compiler
def test_so_are_they_on_a_gpu() -> None:
    with on("emulated"):
        whole, parts = (network("sgd", device="cuda") for _ in range(2))
        fit(whole, 3)
        for _ in range(3):
            fit(parts)
        assert digest(parts) == digest(whole)


def test_so_are_they_with_batches_from_a_function() -> None:
    def batches() -> Any:
        return ((X[k : k + 8], Y[k : k + 8]) for k in range(0, 56, 8))

    whole, parts = network(), network()
    fit(whole, 3, batches, None)
    for _ in range(3):
        fit(parts, 1, batches, None)
    assert digest(parts) == digest(whole)


@pytest.mark.parametrize("twin", ["saved", "copied"])
def test_saved_and_copied_models_know_how_many_epochs_are_done(twin: str, tmp_path: Path) -> None:
    whole, model = network("sgd"), network("sgd")
    fit(whole, 3)
    fit(model, 2)
    if twin == "saved":
        model.save(tmp_path)
        model = md.load(tmp_path)
    else:
        model = copy.deepcopy(model)
    assert model.epochs_done == 2
    fit(model)
    assert digest(model) == digest(whole)


def test_a_model_that_was_saved_without_a_count_begins_at_the_first_epoch(tmp_path: Path) -> None:
    from magmadnn.training.model.loading import model_from
    from magmadnn.training.model.saving import model_record

    model = network()
    fit(model, 2)
    record = model_record(model)
    del record["epochs_done"]
    assert model_from(record).epochs_done == 0


def test_the_first_epoch_can_be_given() -> None:
    whole, other = network("sgd"), network("sgd")
    fit(whole, 2)
    start = network("sgd").values()
    fit(other, 3)
    other.assign(start)
    other.reset_optimizer()
    history = fit(other, 2, initial_epoch=0)
    assert digest(other) == digest(whole)
    assert history["epoch"] == [1, 2] and other.epochs_done == 2
    assert fit(other, 5, initial_epoch=4)["epoch"] == [5] and other.epochs_done == 5
    assert len(fit(other, 5, initial_epoch=5)) == 0


def test_an_end_before_the_beginning_is_refused() -> None:
    with pytest.raises(ArgumentError) as raised:
        fit(network(), 5, initial_epoch=10)
    assert str(raised.value) == (
        "fit: with initial_epoch=10 training ends after epoch 5, before it begins: epochs counts those "
        "before initial_epoch too; give epochs=15 for 5 epochs, or leave initial_epoch out"
    )


def test_an_epoch_that_was_broken_off_does_not_count() -> None:
    def stop(now: Any) -> None:
        if now.steps == 11:
            now.stop("enough")

    model = network()
    fit(model, 3, callbacks=[md.callbacks.LambdaCallback(on_batch_end=stop)])
    assert model.epochs_done == 1
    assert fit(model)["epoch"] == [2]


def test_room_is_looked_for_once_for_each_size_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[int]()
    look = md.optim.step.refuse_too_large
    monkeypatch.setattr(
        md.optim.step, "refuse_too_large", lambda *a: looked.append(a[-1]) or look(*a)
    )
    md.memory.trim()  # no model that is gone has left memory for these sizes
    model = network()
    fit(model)
    fit(model, 2)
    assert looked == [8]
    fit(model, batch_size=16)
    assert looked == [8, 16]


# --- optimisers -----------------------------------------------------------------------------------


def test_a_used_up_schedule_is_said_once_and_can_begin_anew(capsys: Any) -> None:
    model = network(md.optim.SGD(md.optim.cosine(0.02, 16)))
    fit(model, 2)
    assert capsys.readouterr().err == ""
    before = digest(model)
    history = fit(model, 3)
    assert capsys.readouterr().err == (
        "magmadnn: note: fit: the learning rate is 0 from step 16 on, so nothing is learnt: "
        "cosine(initial=0.02, steps=16, final=0.0) is used up; model.reset_optimizer() begins it anew, "
        "model.optimizer = ... takes another\n"
    )
    assert history["learning_rate"] == [0.0, 0.0, 0.0]
    kernels = [n for n in model.values() if "kernel" in n]
    assert digest(model) != before and kernels  # statistics go on
    model.reset_optimizer()
    assert fit(model)["learning_rate"][0] == md.optim.cosine(0.02, 16)(7)
    assert capsys.readouterr().err == ""


def test_a_schedule_that_is_used_up_in_mid_training_is_said_too(capsys: Any) -> None:
    fit(network(md.optim.SGD(lambda step: 0.1 if step < 8 else 0.0)), 4)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "is 0 from step 8 on" in said


@pytest.mark.parametrize("rate", [0.0, md.optim.warm_up(0.1, 8), lambda step: 0.1 * (step % 8 > 4)])
def test_nothing_is_said_of_rates_that_are_meant(rate: Any, capsys: Any) -> None:
    fit(network(md.optim.SGD(rate)), 2)
    assert capsys.readouterr().err == ""


def test_the_optimizer_begins_anew_when_it_is_reset() -> None:
    model = network(md.optim.Adam(md.optim.cosine(0.02, 50)))
    fit(model, 2)
    fresh = network(md.optim.Adam(md.optim.cosine(0.02, 50)))
    fresh.assign(model.values())
    model.reset_optimizer()
    fit(model, 3, initial_epoch=2)
    fit(fresh, 3, initial_epoch=2)
    assert digest(model) == digest(fresh)


@pytest.mark.parametrize("again", ["equal", "same", "name"])
def test_an_optimizer_that_is_assigned_starts_anew(again: str) -> None:
    model = network(md.optim.Adam(0.001))
    fit(model, 2)
    fresh = network(md.optim.Adam(0.001))
    fresh.assign(model.values())
    same: Any = model.optimizer
    model.optimizer = {"equal": md.optim.Adam(0.001), "same": same, "name": "adam"}[again]
    fit(model, 3, initial_epoch=2)
    fit(fresh, 3, initial_epoch=2)
    assert digest(model) == digest(fresh)


def test_a_wrong_optimizer_is_refused_where_it_is_assigned() -> None:
    model = network()
    with pytest.raises(UnknownNameError, match="'adm'"):
        model.optimizer = "adm"
    assert fit(model, 1)


def test_neither_can_be_done_while_training() -> None:
    for act in (lambda m: m.reset_optimizer(), lambda m: setattr(m, "optimizer", "sgd")):
        hook = md.callbacks.LambdaCallback(on_epoch_end=lambda now, act=act: act(now.model))
        with pytest.raises(ArgumentError, match="this model is being trained"):
            fit(network(), callbacks=[hook])


def test_a_rate_that_a_callback_set_is_shown_said_and_forgotten_on_request(
    capsys: Any, tmp_path: Path
) -> None:
    given = md.optim.Adam(0.02)
    model, other = network(given), network(given)
    fit(model, 3, callbacks=[md.callbacks.Schedule(half)])
    assert model.optimizer == md.optim.Adam(half(2)) and other.optimizer == given
    assert capsys.readouterr().err == ""
    for told in (True, False):
        assert fit(model)["learning_rate"] == [half(2)]
        assert capsys.readouterr().err == told * (
            "magmadnn: note: fit: goes on with learning_rate 0.005, which callbacks of an earlier fit have "
            "set; model.reset_optimizer() goes back to the optimiser as it was given\n"
        )
    fit(model, callbacks=[md.callbacks.Schedule(lambda epoch: 0.25)])
    assert capsys.readouterr().err == ""
    for twin in (copy.deepcopy(model), saved(model, tmp_path)):
        assert twin.optimizer == md.optim.Adam(0.25)
        assert fit(twin)["learning_rate"] == [0.25]
    model.reset_optimizer()
    assert model.optimizer == given
    assert fit(model)["learning_rate"] == [0.02]


def saved(model: md.Model, folder: Path) -> md.Model:
    model.save(folder)
    return md.load(folder)


def test_a_frozen_layer_leaves_the_rate_that_is_shown() -> None:
    model = network()
    fit(model, callbacks=[md.callbacks.Schedule(lambda epoch: 0.125)])
    model.freeze("dense_1")
    assert fit(model)["learning_rate"] == [model.optimizer.learning_rate] == [0.125]


@pytest.mark.parametrize("change", ["targets", "loss", "weights", "metrics"])
def test_moments_outlive_what_only_changes_what_is_computed(change: str) -> None:
    """All of these leave the loss what it was."""
    model, expected = network(), network()
    options: dict[str, Any] = {}
    fit(expected, 2)
    fit(model)
    if change == "targets":
        options["y"] = Y.astype(np.int32)
    elif change == "loss":
        model.loss = md.losses.CrossEntropy()
    elif change == "metrics":
        model.metrics = ["accuracy", md.metrics.TopK(1)]
    else:
        options["sample_weight"] = np.ones(len(Y))
    fit(model, **options)
    ours, theirs = model.values(), expected.values()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_two_models_share_an_optimizer_and_a_schedule_and_nothing_else() -> None:
    rate = md.optim.cosine(0.02, 30)
    optimizer = md.optim.Adam(rate)
    one, other, alone = (network(optimizer) for _ in range(3))
    fit(one, 2)
    fit(other, 2, callbacks=[md.callbacks.Schedule(half)])
    fit(one)
    fit(alone, 3)
    assert digest(one) == digest(alone)
    assert one.optimizer is optimizer and optimizer.learning_rate is rate


def test_fits_with_other_batch_sizes_go_on_from_each_other() -> None:
    """Going there and back compiles nothing anew and loses no moments."""
    one, other = network(), network()
    for model in (one, other):
        for size in (8, 5, 8, 61):
            fit(model, batch_size=size)
    assert digest(one) == digest(other)
    assert one.optimizer is other.optimizer or one.optimizer == other.optimizer
    assert one._step is not None and one._step[2].count == 8 + 13 + 8 + 1


# --- the way through the files ----------------------------------------------------------------------


def walked(work: Callable[[], object]) -> tuple[list[str], int]:
    """Files of magmadnn whose functions run, and calls from one of them into another."""
    package, names = str(Path(md.__file__).parent), dict[str, int]()
    crossings = 0

    def note(frame: Any, event: str, _argument: object) -> None:
        nonlocal crossings
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(package):
            names[file[len(package) + 1 :]] = 1
            crossings += frame.f_back is None or frame.f_back.f_code.co_filename != file

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return list(names), crossings


def test_a_second_fit_goes_through_few_files() -> None:
    """Nothing is bound, planned or laid out again; data of the usual kinds is told from tables at once."""
    layers = [md.layers.Input((5,)), md.layers.Dense(7, activation="relu"), md.layers.Dense(2)]
    model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=1)
    for _ in range(2):
        fit(model, x=X[:56], y=Y[:56])
    files, crossings = walked(lambda: fit(model, x=X[:56], y=Y[:56]))
    again = {
        "runtime/binding.py",
        "graph/dim.py",
        "tensor/lazy.py",
        "tensor/tensor.py",
        "data/tables/libraries.py",
    }
    assert not again & set(files)
    assert len(files) <= 25 and crossings <= 250, (len(files), crossings)  # 25 as docs/walk.md says


@needs_compiler
def test_what_a_device_has_written_since_is_trained_on() -> None:
    """Of a model that trains on the processor, in slices of batches."""
    with on("emulated"):
        one, other = network(md.optim.SGD(0.1)), network(md.optim.SGD(0.1))
        for model in (one, other):
            fit(model, x=X[:56], y=Y[:56])
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            memory = p.value.memory
            written = np.frombuffer((p.value.read() * 2).tobytes(), np.uint8)
            device_memory(0).copy_to_device(memory.device_pointer(write=True), written)
            q.value.write(q.value.read() * 2)
        for model in (one, other):
            fit(model, x=X[:56], y=Y[:56])
        assert digest(one) == digest(other)
