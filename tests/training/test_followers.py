"""Models that follow one that is built like them: when they do, and that all is as by fits of their own."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.errors import OutOfMemoryError
from magmadnn.runtime.cpu.sliced.blocks import CourseBlock
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.tensor.lazy import LazyTensor
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.history import History
from magmadnn.training.many.course import FitCourse
from magmadnn.training.many.following import followers
from magmadnn.training.many.following.followers import Lead, Leads, keeping
from tests.training.test_many_fits import BATCH, X, Y, measured

HELD = X[:11] + 1, Y[:11]


class Looks(md.callbacks.Callback):
    """Looks at each epoch."""

    def on_epoch_end(self, fit: Fit) -> None:
        """Nothing."""


def network(k: int, optimizer: Any = None, **given: Any) -> md.Model:
    return md.Model(
        [layers.Input((7,)), layers.Dense(11, activation="tanh"), layers.Dense(3)],
        loss=given.pop("loss", "cross_entropy"),
        optimizer=optimizer or optim.Adam(0.01 * (k + 1), beta1=0.9 - 0.02 * k),
        metrics=["accuracy"],
        seed=k,
        **given,
    )


def own_loss(prediction: Any, target: Any) -> Any:
    return md.losses.CrossEntropy()(prediction, target)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many models followed, in each native call."""
    counts: list[int] = []
    train = Lead._train

    def noted(self: Lead, members: Any, *given: Any) -> None:
        train(self, members, *given)
        counts.append(sum(member.is_done for member in members))

    monkeypatch.setattr(Lead, "_train", noted)
    return counts


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Fit]:
    """Trainings for which a course was made."""
    found: list[Fit] = []
    making = FitCourse.made.__func__  # type: ignore[attr-defined]

    def noted(cls: Any, fit: Fit) -> Any:
        found.append(fit)
        return making(cls, fit)

    monkeypatch.setattr(FitCourse, "made", classmethod(noted))
    return found


def assert_as_alone(
    build: Callable[[int], md.Model] = network, count: int = 4, **given: Any
) -> list[md.Model]:
    """Trains models together and each alone, then each once more."""
    given = {"epochs": 3, "batch_size": BATCH} | given
    together, alone = ([build(k) for k in range(count)] for _ in range(2))
    histories = md.fit_many(together, X, Y, verbose=False, **given)
    for model, other, history in zip(together, alone, histories, strict=True):
        own = other.fit(X, Y, verbose=False, **given)
        assert measured(own) == measured(history)
        assert history.last == history.rows[-1]
        assert len(history) == 3
        for again in range(2):
            sums = [parameters_sha256(m.values().items()) for m in (model, other)]
            assert sums[0] == sums[1], again
            assert model.epochs_done == other.epochs_done == 3 + again
            model.fit(X, Y, batch_size=BATCH, verbose=False)
            other.fit(X, Y, batch_size=BATCH, verbose=False)
    return together


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("held", [None, HELD])
@pytest.mark.parametrize("batch_size", [BATCH, 53, 64])
def test_followers_are_trained_as_by_themselves(
    shuffle: bool, held: Any, batch_size: int, followed: list[int]
) -> None:
    assert_as_alone(shuffle=shuffle, validation_data=held, batch_size=batch_size)
    assert followed == [3]


INITS = [
    md.init.glorot_uniform(), md.init.he_uniform(), md.init.he_normal(), md.init.orthogonal(),
    md.init.truncated_normal(0.0, 0.1), md.init.uniform(-0.5, 0.25), md.init.constant(0.125),
]  # fmt: skip


@pytest.mark.parametrize("init", [*INITS, None])
def test_all_initial_values(init: Any, followed: list[int]) -> None:
    def build(k: int) -> md.Model:
        own = md.init.normal(0.0, 0.1 * (k + 1)) if init is None else init  # others for each model
        net = [layers.Input((7,)), layers.Dense(3, kernel_init=own, bias_init="ones")]
        return md.Model(net, loss="cross_entropy", optimizer=optim.AdaGrad(0.05), seed=k)

    assert_as_alone(build)
    assert followed == [3]


def test_a_raw_table_is_prepared_once(followed: list[int], made: list[Fit]) -> None:
    given: dict[str, Any] = {"preparation": md.data.Standardize()}
    models = assert_as_alone(lambda k: network(k, **given), validation_data=HELD)
    assert followed == [3]
    assert np.array_equal(models[2].predict_class(X), models[2].predict_class(X))


@pytest.mark.parametrize(
    "given",
    [
        {"callbacks": [Looks()]}, {"class_weight": "balanced"}, {"validation_split": 0.2},
        {"sample_weight": np.linspace(0.5, 2, 53).astype(np.float32)}, {"accumulate": 2},
    ],
)  # fmt: skip
def test_nobody_follows_where_more_decides_on_a_step(
    given: dict[str, Any], followed: list[int]
) -> None:
    assert_as_alone(**given)
    assert not followed


def test_models_that_are_not_alike_do_not_follow(followed: list[int]) -> None:
    kinds = [
        {}, {"optimizer": optim.SGD(0.1)}, {"optimizer": optim.SGD(optim.step_decay(0.1, 3, 0.5))},
        {"precision": "float64"}, {"loss": md.losses.FunctionLoss(own_loss, outputs="classes")},
    ]  # fmt: skip
    assert_as_alone(lambda k: network(k, **kinds[k % len(kinds)]), count=2 * len(kinds))
    assert followed == [1, 1, 1]  # but for a schedule, and a loss of one's own


def test_frozen_layers_tell_models_apart(followed: list[int]) -> None:
    def build(k: int) -> md.Model:
        model = network(k)
        model.layers[0].trainable = k % 2 == 0
        return model

    assert_as_alone(build, count=6)
    assert followed == [2, 2]


def test_models_with_values_follow_with_these(followed: list[int]) -> None:
    def build(k: int) -> md.Model:
        model = network(k)
        if k:
            model.assign({name: value / (k + 1) for name, value in network(7).values().items()})
        return model

    assert_as_alone(build)
    assert followed == [3]


def test_a_model_that_becomes_nan_is_trained_by_itself(followed: list[int]) -> None:
    def build(k: int) -> md.Model:
        return network(k, optim.SGD(1e39 if k == 2 else 0.1))

    models = [build(k) for k in range(4)]
    histories = md.fit_many(models, X, Y, epochs=3, batch_size=BATCH, verbose=False)
    assert followed == [2]
    assert [h.failed for h in histories] == [False, False, True, False]
    assert "NaN" in (histories[2].stopped or "") or "inf" in (histories[2].stopped or "")
    alone = build(3)
    alone.fit(X, Y, epochs=3, batch_size=BATCH, verbose=False)
    sums = [parameters_sha256(m.values().items()) for m in (models[3], alone)]
    assert sums[0] == sums[1]


@pytest.mark.parametrize("name", ["_LONGEST", "_BYTES"])
def test_long_trainings_and_those_without_memory(
    name: str, followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, name, 0)
    assert_as_alone()
    assert followed == ([] if name == "_LONGEST" else [1, 1, 1])  # one at a time at least


def test_no_room_for_a_block(followed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: CourseBlock, *given: Any) -> Any:
        raise OutOfMemoryError("pool: full")

    monkeypatch.setattr(CourseBlock, "run", full)
    assert_as_alone()
    assert not followed


def test_a_plan_needs_no_data() -> None:
    models = [network(k) for k in range(3)]
    md.fit_many(models, X, Y, batch_size=BATCH, verbose=False)
    assert models[2].plan(batch_size=BATCH) == models[0].plan(batch_size=BATCH)


def test_leads_are_kept_for_the_same_data(made: list[Fit], followed: list[int]) -> None:
    with keeping(Leads()):
        for first in (0, 3):
            models = [network(k) for k in range(first, first + 3)]
            md.fit_many(models, X, Y, batch_size=BATCH, epochs=2, verbose=False)
        assert followed == [2, 3]
        assert len(made) == 1
        x = X.copy()
        md.fit_many([network(k) for k in range(2)], x, Y, batch_size=BATCH, epochs=2, verbose=False)
        assert len(made) == 2
    alone = network(5)
    alone.fit(X, Y, batch_size=BATCH, epochs=2, verbose=False)
    assert parameters_sha256(models[2].values().items()) == parameters_sha256(
        alone.values().items()
    )


def test_rows_of_a_history_are_made_when_they_are_asked_for() -> None:
    asked: list[int] = []

    def row(number: int) -> dict[str, float]:
        asked.append(number)
        return {"epoch": number + 1.0, "seconds": 0.5, "loss": 2.0 - number}

    history = History.later(3, row)
    assert (len(history), history.last["epoch"], history.median_seconds) == (3, 3.0, 0.5)
    assert asked == [2]
    assert history["loss"] == [2.0, 1.0, 0.0]
    history.rows.append({"epoch": 4.0, "seconds": 9.0})
    assert (len(history), history.last["epoch"], history.median_seconds) == (4, 4.0, 0.5)


@dataclass(frozen=True)
class Doubled(md.init.uniform):
    def make(self, *given: Any) -> Any:
        return np.float32(2) * super().make(*given)


class OwnCall(md.init.glorot_uniform):
    def __call__(self, *given: Any) -> Any:
        return np.float32(3) * super().__call__(*given)


class Shifted(md.init.zeros):
    def make(self, shape: Any, dtype: Any, seed: int, stream: int) -> Any:
        return np.full(shape, 0.25, dtype)


class NotCompared(md.init.Initializer):
    def __init__(self, value: float) -> None:
        object.__setattr__(self, "value", value)

    def make(self, shape: Any, dtype: Any, seed: int, stream: int) -> Any:
        return np.full(shape, self.__dict__["value"])


OWN_INITS: list[Callable[[int], md.init.Initializer]] = [
    lambda k: Doubled(), lambda k: OwnCall(), lambda k: Shifted(), lambda k: NotCompared(0.1 * k),
    lambda k: md.init.constant(-0.0 if k % 2 else 0.0),
]  # fmt: skip


@pytest.mark.parametrize("init", OWN_INITS)
def test_initial_values_by_classes_of_ones_own(
    init: Callable[[int], md.init.Initializer], followed: list[int]
) -> None:
    def build(k: int) -> md.Model:
        net = [layers.Input((7,)), layers.Dense(3, kernel_init=init(k), bias_init=init(k))]
        return md.Model(net, loss="cross_entropy", optimizer=optim.SGD(0.0), seed=k)

    assert_as_alone(build)
    assert followed == [3]


class Scaled(layers.Layer):
    """One parameter without axes."""

    first: float = 1.0

    def build(self, x: Any) -> None:
        self.scale = self.parameter("scale", (), init=md.init.constant(self.first))

    def forward(self, x: Any) -> Any:
        return x * self.scale


def test_other_initial_values_of_scalars(followed: list[int]) -> None:
    def build(k: int) -> md.Model:
        net = [layers.Input((7,)), Scaled(first=1.0 + k), layers.Dense(3)]
        return md.Model(net, loss="cross_entropy", optimizer="adam", seed=k)

    assert_as_alone(build)
    assert followed == [3]


@pytest.mark.parametrize("first", [2**63, 2**64 - 2, 2**70])
def test_large_seeds(first: int, followed: list[int]) -> None:
    def build(k: int) -> md.Model:
        net = [layers.Input((7,)), layers.Dense(5), layers.Dropout(0.3), layers.Dense(3)]
        return md.Model(net, loss="cross_entropy", optimizer="adam", seed=first + k)

    assert_as_alone(build)
    assert followed == [3]


def test_histories_can_be_copied_and_keep_no_models() -> None:
    models = [network(k) for k in range(4)]
    histories = md.fit_many(models, X, Y, epochs=3, batch_size=BATCH, verbose=False)
    held = [weakref.ref(next(iter(model.named().values())).node.value) for model in models]
    history = histories[2]
    assert pickle.loads(pickle.dumps(histories[3])).rows == copy.deepcopy(histories[3]).rows
    del models, histories
    gc.collect()
    assert [one() is None for one in held[1:]] == [True] * 3  # but for the lead's graphs
    copies = [pickle.loads(pickle.dumps(history)), copy.copy(history), copy.deepcopy(history)]
    assert all(one.rows == history.rows and len(one) == 3 for one in copies)
    gc.collect()
    assert held[0]() is None
    history.stopped = "enough"
    assert pickle.loads(pickle.dumps(history)).stopped == "enough"
    assert len(pickle.loads(pickle.dumps(History()))) == 0


def test_an_interrupt_leaves_a_model_trained_or_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, hold = network(1), LazyTensor.hold
    alone.fit(X, Y, epochs=3, batch_size=BATCH, verbose=False)
    for at in range(1, 5):
        models, calls = [network(k) for k in range(3)], list[int]()

        def interrupted(self: LazyTensor, values: Any, at: int = at, calls: Any = calls) -> None:
            calls.append(at)
            hold(self, values)
            if len(calls) == at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LazyTensor, "hold", interrupted)
            md.fit_many(models, X, Y, epochs=3, batch_size=BATCH, verbose=False)
        assert [model.epochs_done for model in models] == [3, 0, 0]
        md.fit_many(models[1:], X, Y, epochs=3, batch_size=BATCH, verbose=False)
        sums = [parameters_sha256(m.values().items()) for m in (models[1], alone)]
        assert sums[0] == sums[1]


@pytest.mark.parametrize("written", ["x", "y", "held"])
def test_data_that_was_written_to_is_prepared_anew(written: str, followed: list[int]) -> None:
    names = np.array(["ab", "c", "d"])[Y]
    arrays = {"x": X.copy(), "y": names, "held": X[:11] + 1}
    given: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "verbose": False}
    given["validation_data"] = arrays["held"], names[:11].copy()

    def build(k: int) -> md.Model:
        return network(k, preparation=md.data.Standardize())

    with keeping(Leads()):
        md.fit_many([build(k) for k in range(3)], arrays["x"], arrays["y"], **given)
        md.fit_many([build(5)], arrays["x"], arrays["y"], **given)
        arrays[written][:5] = arrays[written][5:10].copy()
        models = [build(k) for k in range(3)]
        histories = md.fit_many(models, arrays["x"], arrays["y"], **given)
    assert followed == [2, 1, 2]
    alone = build(2)
    assert measured(alone.fit(arrays["x"], arrays["y"], **given)) == measured(histories[2])
    assert np.array_equal(alone.predict(X), models[2].predict(X))
