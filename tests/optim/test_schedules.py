"""Schedules: their values against formulas written out, JSON, and mistakes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

from magmadnn import optim
from magmadnn.errors import ArgumentError
from magmadnn.optim.records import restore

VALUES: list[tuple[Any, dict[int, float]]] = [
    (optim.constant(0.3), {0: 0.3, 7: 0.3, 10**6: 0.3}),
    (
        optim.step_decay(0.8, every=5, factor=0.5),
        {0: 0.8, 4: 0.8, 5: 0.4, 9: 0.4, 10: 0.2, 23: 0.05},
    ),
    (optim.step_decay(0.8, every=5), {4: 0.8, 5: 0.08}),
    (optim.exponential(0.8, 0.5), {0: 0.8, 1: 0.4, 3: 0.1}),
    (optim.exponential(0.8, 0.25, every=2), {0: 0.8, 1: 0.4, 2: 0.2, 5: 0.8 / 32}),
    (
        optim.cosine(0.9, steps=6, final=0.1),
        {0: 0.9, 1: 0.5 + 0.2 * math.sqrt(3), 2: 0.7, 3: 0.5, 6: 0.1, 7: 0.1, 99: 0.1},
    ),
    (optim.warm_up(0.8, steps=3), {0: 0.2, 1: 0.4, 2: 0.6, 3: 0.8, 4: 0.8, 99: 0.8}),
    (
        optim.warm_up(optim.step_decay(0.8, every=2, factor=0.5), steps=3),
        {0: 0.2, 2: 0.6, 3: 0.8, 4: 0.8, 5: 0.4, 7: 0.2},
    ),
    (optim.piecewise((3, 7), (0.5, 0.2, 0.1)), {0: 0.5, 2: 0.5, 3: 0.2, 6: 0.2, 7: 0.1, 50: 0.1}),
    (optim.piecewise((), (0.5,)), {0: 0.5, 50: 0.5}),
    (
        optim.per_epoch(optim.exponential(0.8, 0.5), steps_per_epoch=10),
        {0: 0.8, 9: 0.8, 10: 0.4, 29: 0.2},
    ),
    (optim.growing_batch(30, at=(2, 5)), {0: 30, 1: 30, 2: 150, 4: 150, 5: 750, 99: 750}),
    (optim.growing_batch(30, at=(2, 5), maximum=600), {2: 150, 5: 600}),
    (optim.growing_batch(3, at=(1, 2, 3), factor=1.5), {0: 3, 1: 4, 2: 7, 3: 10}),  # rounded
    (optim.growing_batch(64), {0: 64, 9: 64}),
]


@pytest.mark.parametrize(("schedule", "values"), VALUES, ids=lambda v: str(v)[:40])
def test_values(schedule: Any, values: dict[int, float]) -> None:
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value, rel=1e-14), step


@pytest.mark.parametrize("schedule", [s for s, _ in VALUES], ids=str)
def test_config_goes_through_json(schedule: Any) -> None:
    again = restore(optim.Schedule, json.loads(json.dumps(schedule.config())))  # type: ignore[type-abstract]
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert [again(t) for t in range(20)] == [schedule(t) for t in range(20)]


def test_batch_sizes_are_integers() -> None:
    schedule = optim.growing_batch(3, at=(1,), factor=1.5, maximum=4)
    assert [type(schedule(e)) for e in range(3)] == [int] * 3


def test_lists_are_taken_for_tuples() -> None:
    assert optim.piecewise([3], [1, 2]) == optim.piecewise((3,), (1.0, 2.0))  # type: ignore[arg-type]


def test_own_schedule() -> None:
    @dataclass(frozen=True)
    class Halving(optim.Schedule):
        initial: float

        def __call__(self, step: int) -> float:
            return self.initial / 2**step

    optimizer = optim.SGD(Halving(0.8))
    assert optim.from_config(json.loads(json.dumps(optimizer.config()))) == optimizer


MISTAKES: list[tuple[Any, str]] = [
    (
        lambda: optim.cosine(0.1, steps=0),
        "cosine: steps must be a whole number of at least 1, got 0",
    ),
    (
        lambda: optim.cosine(0.1, steps=2.5),  # type: ignore[arg-type]
        "cosine: steps must be a whole number of at least 1, got 2.5",
    ),
    (
        lambda: optim.constant(float("nan")),
        "constant: value must be a finite number, got nan",
    ),
    (
        lambda: optim.constant("0.1"),  # type: ignore[arg-type]
        "constant: value must be a finite number, got '0.1'",
    ),
    (
        lambda: optim.step_decay(0.1, every=3, factor=-1.0),
        "step_decay: factor must be a number above 0, got -1.0",
    ),
    (
        lambda: optim.exponential(0.1, factor=0.0),
        "exponential: factor must be a number above 0, got 0.0",
    ),
    (
        lambda: optim.warm_up("fast", steps=3),  # type: ignore[arg-type]
        "warm_up: after must be a finite number, got 'fast'; give a number or a schedule",
    ),
    (
        lambda: optim.piecewise((3, 3), (1.0, 2.0, 3.0)),
        "piecewise: boundaries must rise, got (3, 3)",
    ),
    (
        lambda: optim.piecewise((0, 3), (1.0, 2.0, 3.0)),
        "piecewise: boundaries: each must be a whole number of at least 1, got 0",
    ),
    (
        lambda: optim.piecewise((3,), (1.0,)),
        "piecewise: 1 boundaries need 2 values, got 1",
    ),
    (
        lambda: optim.piecewise(3, (1.0,)),  # type: ignore[arg-type]
        "piecewise: boundaries must be a tuple, got 3",
    ),
    (
        lambda: optim.growing_batch(0),
        "growing_batch: initial must be a whole number of at least 1, got 0",
    ),
    (
        lambda: optim.growing_batch(64, factor=0.5),
        "growing_batch: factor must be a number of at least 1, got 0.5",
    ),
    (
        lambda: optim.growing_batch(64, maximum=32),
        "growing_batch: maximum must be at least initial, which is 64, got 32",
    ),
    (
        lambda: optim.growing_batch(64, at=(5, 2)),
        "growing_batch: at must rise, got (5, 2)",
    ),
]


@pytest.mark.parametrize(("make", "text"), MISTAKES)
def test_mistakes(make: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert str(caught.value) == text
