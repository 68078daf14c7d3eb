"""ReduceLROnPlateau, TimeLimit, ExponentialMovingAverage, RateFinder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.emulator import needs_compiler

pytestmark = pytest.mark.usefixtures("quick_sync")
RANDOM = np.random.default_rng(51)
X = RANDOM.normal(size=(61, 5)).astype(np.float32)
Y = (X[:, 0] - X[:, 1] > 0).astype(np.int64)
C = md.callbacks


def network(optimizer: Any = None, **settings: Any) -> md.Model:
    layers = [
        md.layers.Input((5,)),
        md.layers.Dense(7, activation="relu"),
        md.layers.Dropout(0.2),
        md.layers.BatchNorm(),
        md.layers.Dense(2),
    ]
    settings = {"loss": "cross_entropy"} | settings
    return md.Model(layers, optimizer=optimizer or md.optim.Adam(0.02), **settings)


MISTAKES: dict[str, tuple[Any, str]] = {
    "a folder": (lambda: C.Checkpoint(5), "Checkpoint: the folder must be a path, got 5"),
    "steps": (
        lambda: C.Checkpoint("x", every_steps="two"),  # type: ignore[arg-type]
        "Checkpoint: every_steps must be above 0, got 'two'",
    ),
    "a file": (lambda: C.CSVLogger(None), "CSVLogger: the file must be a path, got None"),
    "a function": (
        lambda: C.LambdaCallback(on_epoch_end=3),
        (
            "LambdaCallback: on_epoch_end must be a function of the fit, got 3; write "
            "on_epoch_end=lambda fit: print(fit.row)"
        ),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_a_callback_is_not_made_of(name: str) -> None:
    call, text = MISTAKES[name]
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == text


def test_a_history_has_columns_and_rows() -> None:
    history = network().fit(X, Y, validation_split=0.2, verbose=False)
    assert "val_loss" in history and "loss" in history and history.last in history
    assert "accuracy" not in history and {"epoch": 7.0} not in history and 1 not in history


def fit(model: md.Model, *callbacks: Any, **options: Any) -> md.History:
    options = {"batch_size": 8, "epochs": 3, "verbose": False} | options
    return model.fit(X, Y, callbacks=callbacks, **options)


def same(one: md.Model, other: md.Model) -> bool:
    found = other.values()
    return all(value.tobytes() == found[name].tobytes() for name, value in one.values().items())


class Figures(C.Callback):
    """Puts given figures into the history."""

    def __init__(self, *figures: float) -> None:
        self.figures = figures

    def on_epoch_end(self, fit: Any) -> None:
        fit.row["figure"] = self.figures[fit.epoch - 1]


class Cut(C.Callback):
    """Ends the program after a step, as far as training can tell."""

    comes_last = True

    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch_end(self, fit: Any) -> None:
        if fit.steps == self.step:
            raise KeyboardInterrupt


# --- ReduceLROnPlateau ------------------------------------------------------------------------------

FALLING = (5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"patience": 1}, [8, 8, 8, 8, 4, 4, 2, 2, 1]),
        ({"patience": 0}, [8, 8, 8, 4, 2, 1, 0.5, 0.25, 0.125]),
        ({"patience": 0, "cooldown": 2}, [8, 8, 8, 4, 4, 4, 2, 2, 2]),
        ({"patience": 0, "min_learning_rate": 3e-3}, [8, 8, 8, 4, 3, 3, 3, 3, 3]),
    ],
)
def test_the_rate_is_lowered_where_a_figure_stays(options: Any, expected: list[float]) -> None:
    reduce = C.ReduceLROnPlateau("figure", mode="min", factor=0.5, **options)
    for _ in range(2):  # a callback begins anew
        model = network(md.optim.SGD(8e-3))
        history = fit(model, Figures(*FALLING), reduce, epochs=9)
        assert np.allclose(history["learning_rate"], 1e-3 * np.array(expected), 1e-12)
    assert model.optimizer is not None


@pytest.mark.parametrize("step", [13, 30, 41])
def test_a_lowered_rate_survives_a_resume(step: int, tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [
            Figures(*FALLING),
            C.ReduceLROnPlateau("figure", mode="min", factor=0.5, patience=1),
            C.Checkpoint(tmp_path, every_steps=3, signals=False),
        ]

    whole = network()
    expected = fit(whole, *callbacks()[:2], epochs=8)
    with pytest.raises(KeyboardInterrupt):
        fit(network(), *callbacks(), Cut(step), epochs=8)
    resumed = network()
    history = fit(resumed, *callbacks(), epochs=8)
    assert history["learning_rate"] == expected["learning_rate"] and same(whole, resumed)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda: C.ReduceLROnPlateau(factor=1.0), "ReduceLROnPlateau: factor must be above 0 and below 1"),
        (lambda: C.ReduceLROnPlateau(patience=-1), "ReduceLROnPlateau: patience must be an integer of at"),
        (lambda: fit(network(md.optim.SGD(md.optim.cosine(0.1, 9))), C.ReduceLROnPlateau()),
         "ReduceLROnPlateau: the optimiser's learning_rate is a schedule; give it a number"),
        (lambda: fit(network(), C.ReduceLROnPlateau(), C.Schedule(lambda epoch: 0.1)),
         "ReduceLROnPlateau: a Schedule sets learning_rate in each epoch; leave one of them out"),
        (lambda: C.TimeLimit(0), "TimeLimit: seconds must be a number above 0, got 0"),
        (lambda: C.ExponentialMovingAverage(1.0), "ExponentialMovingAverage: decay must be at"),
        (lambda: C.RateFinder(0.1, 0.1), "RateFinder: lowest must be below highest, got 0.1 and 0.1"),
        (lambda: fit(network(), C.RateFinder(), epochs=2),
         "RateFinder: the sweep has 100 steps, this fit 16; give epochs=13"),
        (lambda: C.RateFinder().suggestion, "RateFinder: there is no sweep yet; give it"),
    ],
)  # fmt: skip
def test_mistakes_are_named(act: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        act()
    assert str(raised.value).startswith(text)


# --- TimeLimit ----------------------------------------------------------------------------------------


def test_a_time_limit_says_why_it_ended_training_which_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def tick(fit: Any) -> None:
        clock[0] += 1.0

    whole = network()
    fit(whole, epochs=5)
    stops, model = [], network()
    for _ in range(9):
        callbacks = [C.LambdaCallback(on_batch_end=tick), C.TimeLimit(7.5)]
        model = network()
        history = fit(model, *callbacks, C.Checkpoint(tmp_path, signals=False), epochs=5)
        stops.append(history.stopped)
        if history.stopped is None:
            break
    assert stops == ["the time limit of 7.5 seconds is reached"] * 5 + [None]
    assert same(whole, model)


def test_a_time_limit_that_passes_while_validation_runs(tmp_path: Path) -> None:
    slow = C.LambdaCallback(on_epoch_end=lambda fit: time.sleep(0.06))
    run = C.Checkpoint(tmp_path, signals=False)
    assert len(fit(network(), slow, C.TimeLimit(0.05), run, epochs=2)) < 2
    assert len(fit(network(), C.Checkpoint(tmp_path, signals=False), epochs=2)) == 2


# --- ExponentialMovingAverage -------------------------------------------------------------------------


class Averaged(C.Callback):
    """The average by its definition, in float64."""

    def __init__(self, decay: float) -> None:
        self.decay, self.total, self.weight = decay, {}, 0.0

    def on_batch_end(self, fit: Any) -> None:
        self.weight = self.decay * self.weight + 1
        for p in fit.model.parameters():
            old = self.total.get(p.name, 0.0)
            self.total[p.name] = self.decay * old + np.array(p.value.read()).astype(np.float64)


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("precision", ["float32", "mixed_fp16"])
def test_the_average_is_that_of_all_steps(decay: float, precision: str) -> None:
    model, watched = network(precision=precision), Averaged(decay)
    fit(model, C.ExponentialMovingAverage(decay), watched)
    assert len(watched.total) == 6
    for name, total in watched.total.items():
        # each of 24 steps rounds once, the share of step 1 at 1 - decay is one more rounding
        tolerance = 64 * np.finfo(np.float32).eps / min(1 - decay**24, 1)
        np.testing.assert_allclose(model.values()[name], total / watched.weight, tolerance, 1e-6)


def test_many_steps_in_one_go_give_the_same_bits_and_training_does_not_change() -> None:
    one, other, plain = network(), network(), network()
    each = C.LambdaCallback(on_batch_end=lambda fit: None)
    a = fit(one, C.ExponentialMovingAverage(0.9))
    b = fit(other, C.ExponentialMovingAverage(0.9), each)
    c = fit(plain)
    assert same(one, other) and a["loss"] == b["loss"]
    np.testing.assert_allclose(a["loss"], c["loss"], 1e-5)
    assert not same(one, plain)


def test_validation_and_early_stopping_look_at_the_average() -> None:
    kept: dict[int, Any] = {}

    def keep(now: Any) -> None:
        kept[now.epoch] = now.values()

    figures = Figures(2.0, 1.0, 3.0, 4.0)
    stop = C.EarlyStopping("figure", mode="min", patience=1, restore_best=True)
    model = network(metrics=["accuracy"])
    history = fit(
        model, figures, C.LambdaCallback(on_epoch_end=keep), stop, C.ExponentialMovingAverage(0.9),
        validation_data=(X, Y), epochs=4,
    )  # fmt: skip
    assert all(model.values()[k].tobytes() == v.tobytes() for k, v in kept[2].items())
    assert model.evaluate(X, Y)["loss"] == history["val_loss"][1]


def test_the_model_has_the_average_at_the_end_and_the_next_fit_a_new_one() -> None:
    model, average = network(), C.ExponentialMovingAverage(0.99)
    found = []
    for _ in range(2):
        fit(model, average, C.LambdaCallback(on_epoch_end=lambda now: found.append(now.values())))
        assert all(model.values()[k].tobytes() == v.tobytes() for k, v in found[-1].items())
    watched = Averaged(0.99)
    fit(model, average, watched)
    for name, total in watched.total.items():
        np.testing.assert_allclose(model.values()[name], total / watched.weight, 1e-4, 1e-6)


def test_moments_outlive_that_an_average_comes_and_goes() -> None:
    model = network()
    fit(model, epochs=1)
    fit(model, C.ExponentialMovingAverage(0.9), epochs=1)
    fit(model, epochs=1)
    assert model._step is not None and model._step[2].count == 24


@pytest.mark.parametrize("step", [5, 8, 13])
def test_an_average_survives_a_resume_bit_for_bit(step: int, tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [
            C.Checkpoint(tmp_path, every_steps=2, signals=False),
            C.ExponentialMovingAverage(0.9),
        ]

    whole = network()
    fit(whole, C.ExponentialMovingAverage(0.9), validation_split=0.2)
    with pytest.raises(KeyboardInterrupt):
        fit(network(), *callbacks(), Cut(step), validation_split=0.2)
    resumed = network()
    fit(resumed, *callbacks(), validation_split=0.2)
    assert same(whole, resumed)


@needs_compiler
def test_an_average_on_a_gpu() -> None:
    with on("emulated"):
        model, watched = network(md.optim.SGD(0.1), device="cuda"), Averaged(0.9)
        fit(model, C.ExponentialMovingAverage(0.9), watched, epochs=1)
        for name, total in watched.total.items():
            np.testing.assert_allclose(model.values()[name], total / watched.weight, 1e-5, 1e-6)


# --- RateFinder ---------------------------------------------------------------------------------------


def test_a_sweep_finds_a_rate_and_leaves_the_model_as_it_was() -> None:
    x = RANDOM.normal(size=(4000, 5)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    model, other = network(), network()
    for one in (model, other):
        fit(one, C.Schedule(lambda epoch: 0.03), epochs=2)
    finder = C.RateFinder(1e-5, 10.0, steps=60)
    for _ in range(2):
        history = model.fit(x, y, batch_size=64, callbacks=[finder], verbose=False)
        assert (
            history.stopped is not None
            and "the sweep has ended at a learning rate of" in history.stopped
        )
        assert len(finder.rates) == len(finder.losses) <= 60
    ratios = np.diff(np.log(finder.rates))
    assert np.allclose(ratios, ratios[0]) and finder.rates[0] == 1e-5
    assert 1e-4 < finder.suggestion < 1.0
    assert model.optimizer == other.optimizer == md.optim.Adam(0.03) and model.epochs_done == 2
    fit(model)
    fit(other)
    assert same(model, other)


def test_a_loss_that_is_not_finite_ends_the_sweep_only() -> None:
    x = RANDOM.normal(size=(64, 3)).astype(np.float32)
    layers = [md.layers.Input((3,)), md.layers.Dense(4), md.layers.Dense(1)]
    model = md.Model(layers, loss="mse", optimizer=md.optim.SGD(0.1))
    before = model.values()
    finder = C.RateFinder(1e-3, 1e30, steps=12)
    history = model.fit(x, x[:, :1], batch_size=8, epochs=9, callbacks=[finder], verbose=False)
    assert history.stopped is not None and len(finder.rates) < 12
    assert all(np.array_equal(before[k], v) for k, v in model.values().items())


def test_a_sweep_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a sweep is not saved; leave the Checkpoint out"):
        fit(network(), C.RateFinder(), C.Checkpoint(tmp_path), epochs=20)
