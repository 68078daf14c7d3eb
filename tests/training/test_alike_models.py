"""Models that are built like an earlier one: what they share is what they would have made themselves."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, losses, ops, optim
from magmadnn.compiler.plan.built_alike import other_sizes, reuse
from magmadnn.data.preparation.standardize import Standardize
from magmadnn.optim.building import alike
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training.loop.history import Totals, totals_of_epochs
from magmadnn.training.objective import objective as objectives
from magmadnn.training.objective.objective import Objective

DRAW = np.random.default_rng(11)
X = DRAW.normal(size=(29, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 29)
WEIGHTS = DRAW.uniform(0.5, 2.0, 29).astype(np.float32)
HELD = X[:9] + 1, Y[:9]


@contextmanager
def nothing_known() -> Iterator[None]:
    """As in a fresh process: nothing that models share is there, before nor behind."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (objectives, "_known"), (alike, "_known"), (reuse, "_templates"), (reuse, "_alike"),
            (other_sizes, "_made"),
        ):  # fmt: skip
            patch.setattr(module, name, type(getattr(module, name))())
        yield


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with nothing_known():
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Objective]:
    """The objectives whose graphs were made."""
    found: list[Objective] = []
    make = Objective._made

    def noted(objective: Objective) -> Any:
        found.append(objective)
        return make(objective)

    monkeypatch.setattr(Objective, "_made", noted)
    return found


# each setting with its values; the first is that of a plain model
SETTINGS: dict[str, tuple[Any, ...]] = {
    "activation": ("relu", "tanh", "gelu"),
    "units": (9, 18, 24),
    "rate": (0.0, 0.2, 0.4),
    "normalised": (False, True),
    "axis": (1, 2),
    "regularizer": (None, layers.L2(0.01), layers.L2(0.02), layers.L1(0.01)),
    "label_smoothing": (0.0, 0.1, 0.2),
    "class_weight": (None, (1.0, 2.0, 3.0), (1.0, 2.0, 2.5)),
    "metrics": ((), ("accuracy",), ("accuracy", "f1"), (md.metrics.TopK(2),), (md.metrics.TopK(1),)),
    "optimizer": (optim.SGD(0.05), optim.SGD(0.05, momentum=0.5), optim.Adam(0.05), optim.Adam(0.01)),
    "frozen": (False, True),
    "dtype": ("float32", "float64"),
    "precision": ("float32", "float64", "mixed_bf16"),
    "weighted": (False, True),
    "bias": (True, False),
}  # fmt: skip
PLAIN = {name: values[0] for name, values in SETTINGS.items()}


class Shares(layers.Layer):
    """A layer of the user's."""

    axis: int = 1

    def forward(self, x: Any) -> Any:
        """Softmax along an axis."""
        return ops.softmax(x, axis=self.axis)


def build(seed: int = 0, **given: Any) -> md.Model:
    way = {**PLAIN, **given}
    norm = [layers.BatchNorm()] if way["normalised"] else []
    first = layers.Dense(
        way["units"], activation=way["activation"], kernel_regularizer=way["regularizer"]
    )
    net = [
        layers.Input((6,), dtype=way["dtype"]), first, *norm,
        layers.Reshape((3, way["units"] // 3)), Shares(way["axis"]), layers.Flatten(),
        layers.Dropout(way["rate"]), layers.Dense(3, use_bias=way["bias"]),
    ]  # fmt: skip
    model = md.Model(
        net,
        loss=losses.CrossEntropy(way["label_smoothing"], way["class_weight"]),
        metrics=list(way["metrics"]),
        optimizer=way["optimizer"],
        precision=way["precision"],
        seed=seed,
    )
    first.trainable = not way["frozen"]
    return model


def trained(model: md.Model, weighted: bool = False) -> tuple[Any, ...]:
    """What one training leaves: parameters, the optimiser's state, the history, the step as text."""
    (history,) = md.fit_many(
        [model], X, Y, batch_size=8, epochs=2, validation_data=HELD, verbose=False,
        sample_weight=WEIGHTS if weighted else None,
    )  # fmt: skip
    assert model._step is not None
    state = {name: np.asarray(v).tobytes() for name, v in model._step[2].state().items()}
    times = ("seconds", "samples_per_second")
    rows = [{k: v for k, v in row.items() if k not in times} for row in history]
    digest = parameters_sha256(model.values().items())
    return digest, state, repr(rows), model.plan(batch_size=8)


def apart(**way: Any) -> tuple[Any, ...]:
    with nothing_known():
        return trained(build(5, **way), way.get("weighted", False))


class Looks(md.callbacks.Callback):
    """Looks at each epoch, so that a training is made for its model."""

    def on_epoch_end(self, fit: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("callbacks", [(), (Looks(),)])
def test_the_third_model_makes_no_graph_and_has_the_bits_of_its_own(
    callbacks: Any, made: list[Objective]
) -> None:
    models = [build(k, optimizer=optim.Adam(0.01 + k)) for k in range(6)]
    alone = [build(k, optimizer=optim.Adam(0.01 + k)) for k in range(6)]
    given = {"batch_size": 8, "epochs": 2, "validation_data": HELD, "verbose": False}
    md.fit_many(models, X, Y, callbacks=callbacks, **given)
    first = 2 if callbacks else 1  # without, all others follow the first
    assert len(made) == first
    for model, other in zip(models, alone, strict=True):
        with nothing_known():
            other.fit(X, Y, **given)
        sums = [parameters_sha256(one.values().items()) for one in (model, other)]
        assert sums[0] == sums[1]
    assert len(made) == first + 6


@pytest.mark.parametrize("name", SETTINGS)
def test_models_that_differ_in_one_setting_share_nothing_wrong(name: str) -> None:
    ways = [{name: value} for value in SETTINGS[name]]
    alone = [apart(**way) for way in ways]
    for first, second in itertools.permutations(range(len(ways)), 2):
        with nothing_known():
            for seed in range(3):  # from the third on graphs are not made
                trained(build(seed, **ways[first]), bool(ways[first].get("weighted")))
            way = ways[second]
            assert trained(build(5, **way), bool(way.get("weighted"))) == alone[second]


@pytest.mark.parametrize("number", range(12))
def test_random_pairs_of_settings(number: int) -> None:
    draw = random.Random(number)
    first = {name: draw.choice(values) for name, values in SETTINGS.items()}
    second = dict(first)
    for name in draw.sample(sorted(SETTINGS), draw.randint(1, 3)):
        second[name] = draw.choice(SETTINGS[name])
    for seed in range(3):
        trained(build(seed, **first), first["weighted"])
    for way in (second, first, second):
        assert trained(build(5, **way), way["weighted"]) == apart(**way)


EDITS: dict[str, Callable[[md.Model], None]] = {
    "frozen": lambda model: setattr(model.layers[0], "trainable", False),
    "loss": lambda model: setattr(model, "loss", losses.CrossEntropy(0.3)),
    "metrics": lambda model: setattr(model, "metrics", ["accuracy"]),
    "optimizer": lambda model: setattr(model, "optimizer", optim.Adam(0.01, beta1=0.5)),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_is_edited_after_building_is_noticed(name: str) -> None:
    for seed in range(3):
        trained(build(seed))
    model, other = build(5), build(5)
    EDITS[name](model)
    EDITS[name](other)
    found = trained(model)
    with nothing_known():
        assert trained(other) == found
    assert found != trained(build(5))


def test_losses_metrics_and_layers_of_the_user_may_do_anything(made: list[Objective]) -> None:
    factor = 1.0

    def off(predictions: Any, targets: Any) -> Any:
        return ops.sum(ops.square(predictions - factor), axis=1)

    class Scaled(layers.Layer):
        def forward(self, x: Any) -> Any:
            return x * factor

    def own(seed: int, **given: Any) -> md.Model:
        net = [layers.Input((6,)), layers.Dense(3), *given.pop("more", ())]
        return md.Model(net, seed=seed, optimizer=optim.SGD(0.1), **given)

    y = np.zeros((29, 3), np.float32)
    ways: list[dict[str, Any]] = [{"loss": off}, {"loss": "mse", "metrics": [off]}]
    for way in ways:
        found = []
        for number in range(4):
            factor = float(number)
            model = own(0, **way)
            history = model.fit(X, y, epochs=2, verbose=False)
            found.append(repr([history[k] for k in history.columns if "second" not in k]))
        assert len(set(found)) == 4
    made.clear()
    found = []
    for number in range(6):
        factor = 2.0 + number // 3  # what a layer has made is seen in the graph
        model = own(0, loss="mse", more=[Scaled()])
        model.fit(X, y, epochs=2, verbose=False)
        found.append(parameters_sha256(model.values().items()))
    assert found[0] == found[1] == found[2] != found[3] == found[4] == found[5]
    assert len(made) == 4


def test_several_outputs_with_metrics_of_their_own() -> None:
    def both(seed: int) -> md.Model:
        x = layers.Input((6,))
        y = layers.Dense(8, activation="tanh")(x)
        outputs = [layers.Dense(3, name="kind")(y), layers.Dense(1, name="size")(y)]
        return md.Model(
            inputs=x, outputs=outputs, loss={"kind": "cross_entropy", "size": "mse"},
            loss_weights={"kind": 1.0, "size": 0.5},
            metrics={"kind": ["accuracy", md.metrics.TopK(2)], "size": ["mae", "r2"]},
            optimizer=optim.Adam(0.01), seed=seed,
        )  # fmt: skip

    targets = {"kind": Y, "size": X[:, :1].copy()}
    rows = []
    for fresh_process in (False, False, False, True):
        model = both(3)
        with nothing_known() if fresh_process else pytest.MonkeyPatch.context():
            history = model.fit(X, targets, epochs=2, verbose=False, validation_data=(X, targets))
        rows.append(repr([history[k] for k in history.columns if "second" not in k]))
    assert len(set(rows)) == 1


def test_what_is_shared_is_bounded_and_keeps_no_model() -> None:
    for units in range(1, 140):
        net = [layers.Input((6,)), layers.Dense(units), layers.Dense(3)]
        model = md.Model(net, loss="cross_entropy", optimizer="sgd")
        objective = Objective(model, [Y], None)
        assert len(objectives._known) == min(units, objectives._MOST)
    gone = weakref.ref(model), weakref.ref(objective), weakref.ref(model.layers[0].kernel.value)
    del model, objective, net
    gc.collect()
    assert not any(ref() for ref in gone)


def grown(models: int) -> int:
    """Blocks that Python holds more after so many models."""

    def run(count: int) -> None:
        for first in range(0, count, 50):
            built = [build(k) for k in range(first, first + 50)]
            md.fit_many(built, X, Y, batch_size=8, epochs=1, verbose=False)
        del built
        gc.collect()

    run(700)
    before = sys.getallocatedblocks()
    run(models)
    return sys.getallocatedblocks() - before


def test_memory_does_not_grow_over_500_models() -> None:
    assert grown(500) < 500


@pytest.mark.long
def test_memory_does_not_grow_over_10000_models() -> None:
    assert grown(10_000) < 10_000  # caches of a fixed size; a model that stays has thousands


def test_plans_are_copied_only_when_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    over = reuse.over_leaves

    def counted(*given: Any) -> Any:
        copies.append(1)
        return over(*given)

    models = [build(k) for k in range(5)]
    md.fit_many(models[:2], X, Y, batch_size=8, epochs=1, validation_data=HELD, verbose=False)
    monkeypatch.setattr(reuse, "over_leaves", counted)
    md.fit_many(models[2:], X, Y, batch_size=8, epochs=1, validation_data=HELD, verbose=False)
    assert not copies
    assert models[3].plan(batch_size=8) == models[0].plan(batch_size=8)
    assert copies


def test_models_of_equal_preparations_find_the_data_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits: list[Standardize] = []
    fit = Standardize.fit

    def counted(self: Standardize, *given: Any, **options: Any) -> Any:
        fits.append(self)
        return fit(self, *given, **options)

    monkeypatch.setattr(Standardize, "fit", counted)
    x = 3 * X + 1

    def prepared(seed: int) -> md.Model:
        net = [layers.Input((6,)), layers.Dense(3)]
        return md.Model(
            net, loss="cross_entropy", optimizer="adam", preparation=Standardize(), seed=seed
        )

    given = {"batch_size": 8, "epochs": 2, "validation_data": (x[:9], Y[:9]), "verbose": False}
    together, alone = [prepared(k) for k in range(4)], [prepared(k) for k in range(4)]
    md.fit_many(together, x, Y, **given)
    assert len(fits) == 1
    for model in alone:
        model.fit(x, Y, **given)
    assert len(fits) == 5
    for one, other in zip(together, alone, strict=True):
        assert one.preparation == other.preparation
        digests = [parameters_sha256(m.values().items()) for m in (one, other)]
        assert digests[0] == digests[1]
    split = {**given, "validation_data": None, "validation_split": 0.3}
    md.fit_many([prepared(k) for k in (0, 0, 1)], x, Y, **split)
    assert len(fits) == 7  # rows that are kept back depend on the seed

    def spoil(_: object) -> None:
        x[0] += 1

    watch = [md.callbacks.LambdaCallback(on_epoch_end=spoil)]
    md.fit_many([prepared(k) for k in range(3)], x, Y, callbacks=watch, **given)
    assert len(fits) == 10


@pytest.mark.parametrize("seed", range(20))
def test_totals_of_epochs_are_those_of_each_batch(seed: int) -> None:
    draw = np.random.default_rng(seed)
    objective = Objective(build(metrics=("accuracy",)), [Y], None)
    epochs, counts, sizes = int(draw.integers(1, 5)), draw.integers(1, 9, 2), (8, 5)
    parts = []
    for count, size in zip(counts.tolist(), sizes, strict=True):
        loss = draw.normal(size=epochs * count).astype(draw.choice(["float32", "float64"]))
        loss[draw.random(len(loss)) < 0.2] = -0.0
        parts.append((size, loss, [draw.normal(size=(epochs * count, 2)) * 1e6]))
    found = totals_of_epochs(objective, epochs, parts)
    for epoch, one in enumerate(found):
        expected = Totals(objective)
        for count, (size, loss, (sums,)) in zip(counts.tolist(), parts, strict=True):
            at = slice(epoch * count, (epoch + 1) * count)
            expected.add_all(size, loss[at], [sums[at]])
        assert repr(one.state()) == repr(expected.state())
