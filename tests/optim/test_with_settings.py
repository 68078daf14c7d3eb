"""An optimiser with the settings that were set over its own is an optimiser that has them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import optim

OPTIMISERS: list[Any] = [
    optim.SGD(0.1, momentum=0.9, weight_decay=0.01, clip_norm=1.0),
    optim.Adam(0.1, weight_decay=0.1, clip_value=0.5),
    optim.AdamW(0.1), optim.AdaGrad(0.1), optim.RMSProp(0.1, momentum=0.5), optim.LARS(0.1), optim.LAMB(0.1),
    optim.chain(optim.ClipNorm(1.0), optim.Momentum(0.9), optim.LearningRate(0.1), optim.LearningRate(0.7)),
]  # fmt: skip


def step_of(optimizer: Any) -> Any:
    w = md.variable("w", np.ones(3, np.float32))
    return optimizer.step(md.ops.sum(w * w), [w])


@pytest.mark.parametrize("optimizer", OPTIMISERS, ids=lambda o: type(o).__name__)
def test_every_setting_of_every_optimizer(optimizer: Any) -> None:
    for name, value in step_of(optimizer).settings.items():
        step = step_of(optimizer)
        step.set(**{name: value * 0.5})
        found = optimizer.with_settings(step.overrides)
        assert step_of(found).settings == step.settings, name
        named = type(optimizer) is not type(OPTIMISERS[-1])
        assert not named or type(found) is type(optimizer)
    assert optimizer.with_settings({}) is optimizer


def test_a_schedule_too() -> None:
    rate = optim.cosine(0.1, 5)
    assert optim.Adam(0.3).with_settings({"learning_rate": rate}) == optim.Adam(rate)


def test_one_whose_field_means_something_else_becomes_a_chain() -> None:
    @dataclass(frozen=True)
    class Doubled(optim.Optimizer):
        learning_rate: float = 0.1

        def parts(self) -> Any:
            return (optim.LearningRate(2 * self.learning_rate),)

    assert step_of(Doubled()).settings == {"learning_rate": 0.2}
    found = Doubled().with_settings({"learning_rate": 0.5})
    assert found == optim.chain(optim.LearningRate(0.5))


def test_every_named_optimizer_is_tried() -> None:
    named = {
        c for c in vars(optim).values() if inspect.isclass(c) and issubclass(c, optim.Optimizer)
    }
    assert {c for c in named if not inspect.isabstract(c)} <= {type(o) for o in OPTIMISERS}
