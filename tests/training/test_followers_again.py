"""Models that were trained before follow one that was trained as often: all is as by fits of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.tensor.lazy import LazyTensor
from magmadnn.training.loop.fit import Fit
from magmadnn.training.model.training_step import let_go
from tests.training.test_followers import followed as followed
from tests.training.test_followers import made as made
from tests.training.test_followers import network
from tests.training.test_many_fits import BATCH, X, Y, measured

GIVEN: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "verbose": False}


def normalised(k: int) -> md.Model:
    """Running statistics, and a regulariser."""
    net = [
        layers.Input((7,)),
        layers.Dense(5, kernel_regularizer=layers.L2(0.01)),
        layers.BatchNorm(),
        layers.Dense(3),
    ]
    rate = optim.SGD(0.05 * (k + 1), momentum=0.5)
    return md.Model(net, loss="cross_entropy", optimizer=rate, seed=k)


def digest(model: md.Model) -> str:
    return parameters_sha256(model.values().items())


def nothing(models: list[md.Model]) -> None:
    pass


def predicts(models: list[md.Model]) -> None:
    for model in models:
        model.predict(X)


def assigns(models: list[md.Model]) -> None:
    for number, model in enumerate(models):
        model.assign({name: value * (1 + number) for name, value in model.values().items()})


def begins_anew(models: list[md.Model]) -> None:
    for model in models[1:]:
        model.reset_optimizer()


@pytest.mark.parametrize("build", [network, normalised])
@pytest.mark.parametrize("between", [nothing, predicts, assigns, begins_anew])
def test_models_follow_again(
    build: Callable[[int], md.Model],
    between: Callable[[list[md.Model]], None],
    followed: list[int],
    made: list[Fit],
) -> None:
    held = (X[:11] + 1, Y[:11])
    together, alone = ([build(k) for k in range(4)] for _ in range(2))
    for call in range(3):
        histories = md.fit_many(together, X, Y, validation_data=held, **GIVEN)
        leads = 1 + (between is begins_anew)  # of which one has a step
        assert followed == [3, *[4 - leads] * call]
        for model, other, history in zip(together, alone, histories, strict=True):
            own = other.fit(X, Y, validation_data=held, **GIVEN)
            assert measured(own) == measured(history)
            assert history.last["epoch"] == 2 * call + 2
            assert digest(model) == digest(other)
            assert model.epochs_done == other.epochs_done == 2 * call + 2
        between(together)
        between(alone)
    for model, other in zip(together, alone, strict=True):
        assert measured(model.fit(X, Y, **GIVEN)) == measured(other.fit(X, Y, **GIVEN))
        assert digest(model) == digest(other)


def test_one_that_has_a_step_leads_and_others_use_theirs(
    followed: list[int], made: list[Fit]
) -> None:
    together, alone = ([network(k) for k in range(5)] for _ in range(2))
    md.fit_many(together, X, Y, **GIVEN)
    assert (followed, len(made)) == ([4], 1)
    md.fit_many(together, X, Y, **GIVEN)
    assert (followed, len(made)) == ([4, 4], 2)  # the first leads again
    together[2].fit(X, Y, **GIVEN)
    for model in (together[0], together[1], together[3], together[4]):
        md.fit_many([model], X, Y, **GIVEN)
    before = len(made)
    md.fit_many(together, X, Y, **GIVEN)
    assert followed == [4, 4]
    assert len(made) == before + 5
    for model, other in zip(together, alone, strict=True):
        for _ in range(4):
            other.fit(X, Y, **GIVEN)
        assert digest(model) == digest(other)


def test_models_that_are_not_equally_far_do_not_follow_each_other(followed: list[int]) -> None:
    together, alone = ([network(k) for k in range(6)] for _ in range(2))
    md.fit_many(together[:4], X, Y, **GIVEN)
    followed.clear()
    together[2].reset_optimizer()
    histories = md.fit_many(together, X, Y, **GIVEN)
    assert followed == [2, 1]  # two that were trained behind the first, and one of the new ones
    for k, model in enumerate(alone):
        for _ in range(1 + (k < 4)):
            own = model.fit(X, Y, **GIVEN)
            if k == 2 and model.epochs_done == 2:
                model.reset_optimizer()
        assert measured(own) == measured(histories[k])
        assert digest(model) == digest(together[k])


def test_settings_that_a_callback_has_left_count(followed: list[int]) -> None:
    class Lowers(md.callbacks.Callback):
        def on_epoch_end(self, fit: Fit) -> None:
            fit.step.set(learning_rate=0.001)

    together, alone = ([network(k) for k in range(3)] for _ in range(2))
    md.fit_many(together, X, Y, callbacks=[Lowers()], **GIVEN)
    for model in together:
        let_go(model)
    md.fit_many(together, X, Y, **GIVEN)
    assert not followed
    for model, other in zip(together, alone, strict=True):
        other.fit(X, Y, callbacks=[Lowers()], **GIVEN)
        other.fit(X, Y, **GIVEN)
        assert digest(model) == digest(other)


def test_the_optimiser_begins_anew_where_other_layers_are_trained(followed: list[int]) -> None:
    together, alone = ([network(k) for k in range(4)] for _ in range(2))
    for call in range(3):
        md.fit_many(together, X, Y, **GIVEN)
        for model, other in zip(together, alone, strict=True):
            other.fit(X, Y, **GIVEN)
            assert digest(model) == digest(other)
            model.layers[0].trainable = other.layers[0].trainable = call != 0
    assert followed == [3]


@pytest.mark.parametrize("between", [nothing, predicts])
def test_an_interrupt_leaves_a_model_as_it_was(
    between: Callable[[list[md.Model]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, hold = network(1), LazyTensor.hold
    for _ in range(2):
        alone.fit(X, Y, **GIVEN)
    for at in range(1, 5):
        models, calls = [network(k) for k in range(3)], list[int]()
        md.fit_many(models, X, Y, **GIVEN)
        between(models)
        before = digest(models[1])

        def interrupted(self: LazyTensor, values: Any, at: int = at, calls: Any = calls) -> None:
            calls.append(at)
            hold(self, values)
            if len(calls) == at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LazyTensor, "hold", interrupted)
            md.fit_many(models, X, Y, **GIVEN)
        assert [model.epochs_done for model in models] == [4, 2, 2]
        assert digest(models[1]) == before
        md.fit_many(models[1:], X, Y, **GIVEN)
        assert digest(models[1]) == digest(alone)


def test_one_that_becomes_nan_keeps_what_it_had(followed: list[int]) -> None:
    def build(k: int) -> md.Model:
        return network(k, optim.SGD(0.1))

    models = [build(k) for k in range(4)]
    md.fit_many(models, X, Y, **GIVEN)
    wrong = {name: np.full_like(value, 3e38) for name, value in models[2].values().items()}
    models[2].assign(wrong)
    histories = md.fit_many(models, X, Y, **GIVEN)
    assert followed == [3, 2]
    assert [h.failed for h in histories] == [False, False, True, False]
    assert digest(models[2]) == parameters_sha256(wrong.items())
