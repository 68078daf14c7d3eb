"""Dimensions and spaces: exact steps, positions and back, conditions, refusals."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, CallError, UnknownNameError
from magmadnn.search.spaces.space import Space, key_of, space_of_plain
from tests.mistakes import error_of

S = md.search


@pytest.mark.parametrize(
    ("start", "stop", "step", "values"),
    [
        (0.0, 0.3, 0.1, [0.0, 0.1, 0.2, 0.3]),  # 0.1 + 0.1 + 0.1 is not 0.3
        (0.0, 1e-2, 2e-3, [0.0, 0.002, 0.004, 0.006, 0.008, 0.01]),
        (-0.7, 0.7, 0.7, [-0.7, 0.0, 0.7]),
        (1, 7, 3, [1, 4, 7]),
        (5, 5, 1, [5]),
        (1e-5, 3e-5, 1e-5, [1e-5, 2e-5, 3e-5]),
    ],
)
def test_steps_are_exact_and_ends_inclusive(
    start: float, stop: float, step: float, values: list[float]
) -> None:
    one = S.grid(start, stop, step=step)
    assert one.values() == values
    assert [type(value) for value in one.values()] == [type(value) for value in values]
    assert one.count == len(values)


def test_a_long_grid_has_no_error_that_grows() -> None:
    values = S.grid(0.0, 1000.0, step=0.001).values()
    assert len(values) == 1_000_001
    assert values[::997] == [float(f"{k // 1000}.{k % 1000:03}") for k in range(0, 1_000_001, 997)]


DIMENSIONS = [
    S.uniform(-3.0, 5.0),
    S.uniform(-1.7e308, 1.7e308),
    S.log_uniform(1e-4, 1e-1),
    S.integer(-2, 9),
    S.log_integer(1, 1000),
    S.choice([3, "a", None, True, 1.5, (1, 2)]),
    S.grid(0.0, 1e-2, step=2e-3),
]


@pytest.mark.parametrize("one", DIMENSIONS, ids=lambda one: one.text[:20])
def test_positions_lead_to_values_and_back(one: Any) -> None:
    drawn = random.Random(7)
    for position in (0.0, 1 - 2**-53, *(drawn.random() for _ in range(300))):
        value = one.at(position)
        back = one.position(value)
        assert back is not None and 0.0 <= back <= 1.0
        again = one.at(min(back, 1 - 2**-53))
        if one.count is None:  # rounding of exp and log, of a size like the range's
            assert again == pytest.approx(value, rel=1e-12, abs=1e-12 * abs(one.high))
            assert back == pytest.approx(position, abs=1e-12)
        else:
            assert again == value
            assert type(again) is type(value)
    if one.count is not None:
        reached = {key_of({"v": one.at((k + 0.5) / 20_000)}) for k in range(20_000)}
        assert reached == {key_of({"v": value}) for value in one.values()}


def test_log_integer_draws_small_numbers_more_often() -> None:
    one = S.log_integer(1, 1000)
    drawn = [one.at((k + 0.5) / 10_000) for k in range(10_000)]
    # ln(10.5 / 0.5) / ln(1000.5 / 0.5) of the positions
    assert sum(value <= 10 for value in drawn) / 10_000 == pytest.approx(0.4005, abs=0.001)


def conditional() -> Space:
    return Space.of(
        {
            "momentum": S.choice([0.0, 0.9]).when(optimizer="sgd"),
            "nesterov": S.choice([False, True]).when(momentum=0.9),
            "optimizer": S.choice(["sgd", "adam"]),
            "units": 16,
        }
    )


def test_conditions_leave_parameters_out() -> None:
    points = list(conditional().points())
    assert points == [
        {"momentum": 0.0, "optimizer": "sgd", "units": 16},
        {"momentum": 0.9, "nesterov": False, "optimizer": "sgd", "units": 16},
        {"momentum": 0.9, "nesterov": True, "optimizer": "sgd", "units": 16},
        {"optimizer": "adam", "units": 16},
    ]
    drawn = random.Random(3)
    space = conditional()
    found = {key_of(space.point_at([drawn.random() for _ in space.dimensions])) for _ in range(200)}
    assert found == {key_of(point) for point in points}


def test_a_grid_is_the_product() -> None:
    space = Space.of({"a": S.integer(0, 2), "b": S.choice(["xy", "y"])})
    expected = [{"a": a, "b": b} for a, b in itertools.product([0, 1, 2], ["xy", "y"])]
    assert list(space.points()) == expected
    assert space.count == 6


def test_a_space_is_plain_data_and_back() -> None:
    space = Space.of(
        {**{f"p{k}": one for k, one in enumerate(DIMENSIONS)}, **conditional().dimensions}
    )
    assert space_of_plain(space.plain()) == space


REFUSED = [
    (lambda: S.uniform(2.0, 1.0), ArgumentError, "low 2.0 is above high 1.0; write uniform(1.0, 2.0)"),
    (lambda: S.uniform(1.0, 1.0), ArgumentError, "low and high are both 1.0"),
    (lambda: S.uniform(0.0, float("inf")), ArgumentError, "high must be a finite number, got inf"),
    (lambda: S.uniform("0", 1.0), ArgumentError, "low must be a finite number, got '0'"),
    (lambda: S.log_uniform(0.0, 1.0), ArgumentError, "low must be above 0, got 0.0; use uniform"),
    (lambda: S.integer(3, 1), ArgumentError, "write integer(1, 3)"),
    (lambda: S.integer(1, 2.5), ArgumentError, "integer: high must be an integer, got 2.5"),
    (lambda: S.log_integer(0, 4), ArgumentError, "low must be at least 1, got 0"),
    (lambda: S.choice([]), ArgumentError, "the list of values is empty"),
    (lambda: S.choice("adam"), ArgumentError, "expected a list such as [32, 64], got 'adam'"),
    (lambda: S.choice([32, 64, 32]), ArgumentError, "32 is there twice"),
    (lambda: S.choice([len]), ArgumentError, "give a name, and let build look it up"),
    (lambda: S.grid(0.0, 1e-2, step=3e-3), ArgumentError, "the last is 0.009; give stop=0.009"),
    (lambda: S.grid(1.0, 0.0, step=0.5), ArgumentError, "start 1.0 is above stop 0.0"),
    (lambda: S.grid(0.0, 1.0, step=0.0), ArgumentError, "step must be above 0, got 0.0"),
    (lambda: S.grid(0.0, 1.0), CallError, "grid: argument 'step' is missing"),  # type: ignore[call-arg]
    (lambda: S.grid(0.0, 1.0, step=1e-12), ArgumentError, "give a larger step"),
    (lambda: Space.of({}), ArgumentError, "there is nothing to search"),
    (lambda: Space.of({"units": 3}), ArgumentError, "there is nothing to search"),
    (lambda: Space.of({"units": [32, 64]}), ArgumentError, "write md.search.choice([32, 64])"),
    (lambda: Space.of({"lr": S.uniform}), ArgumentError, "expected one of uniform, log_uniform"),
    (lambda: Space.of([1]), ArgumentError, "expected a dict of parameters"),
    (
        lambda: Space.of({"a": S.integer(0, 1).when(optimiser="x"), "optimizer": S.choice(["x"])}),
        UnknownNameError,
        "did you mean 'optimizer'?",
    ),
    (
        lambda: Space.of({"a": S.integer(0, 1).when(b="z"), "b": S.choice(["x", "y"])}),
        ArgumentError,
        "its condition is b='z', which choice(['x', 'y']) does not have",
    ),
    (
        lambda: Space.of({"a": S.integer(0, 1).when(b=1), "b": S.integer(0, 1).when(a=1)}),
        ArgumentError,
        "the conditions of a, b depend on each other",
    ),
    (lambda: S.integer(0, 1).when(), ArgumentError, "give a condition"),
    (lambda: list(Space.of({"lr": S.uniform(0.0, 1.0)}).points()), ArgumentError, "grid: lr is a range"),
    (lambda: space_of_plain({"lr": {"uniforn": [0, 1]}}), ArgumentError, "did you mean 'uniform'?"),
    (lambda: space_of_plain({"lr": {"uniform": [0]}}), ArgumentError, "space: lr: uniform: expected two"),
    (lambda: space_of_plain({"d": {"start": 0, "stop": 1}}), ArgumentError, "space: d: step is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED)
def test_what_makes_no_space_is_refused(call: Any, kind: type, words: str) -> None:
    found, text = error_of(call)
    assert found is kind
    assert words in text
    assert "\n" not in text
