"""Optimisers as records: frozen, compared, kept as JSON, found by name; and wrong settings."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from magmadnn import optim
from magmadnn.errors import ArgumentError, FrozenError, UnknownNameError

NAMES = ["SGD", "AdaGrad", "RMSProp", "Adam", "AdamW", "LARS", "LAMB"]
RECORDS: list[Any] = [
    *(optim.by_name(name) for name in NAMES),
    optim.SGD(optim.warm_up(optim.cosine(0.1, steps=50), steps=5), momentum=0.9, nesterov=True),
    optim.Adam(optim.piecewise((3, 5), (0.1, 0.2, 0.3)), clip_norm=optim.constant(1.0)),
    optim.chain(optim.ClipValue(0.5), optim.LayerNormRatio(), optim.LearningRate(0.1)),
]

DEFAULTS: dict[str, dict[str, Any]] = {
    "SGD": {"learning_rate": 0.01, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "AdaGrad": {"learning_rate": 0.01, "eps": 1e-10, "weight_decay": 0.0},
    "RMSProp": {
        "learning_rate": 0.001, "decay": 0.9, "momentum": 0.0, "eps": 1e-8, "weight_decay": 0.0,
    },
    "Adam": {
        "learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0,
    },
    "AdamW": {
        "learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01,
    },
    "LARS": {
        "learning_rate": 1.0, "momentum": 0.9, "weight_decay": 0.0005, "trust_coefficient": 0.001,
    },
    "LAMB": {
        "learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_defaults(name: str) -> None:
    expected = {"name": name, **DEFAULTS[name], "clip_value": None, "clip_norm": None}
    assert optim.by_name(name).config() == expected


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_config_goes_through_json(record: Any) -> None:
    again = optim.from_config(json.loads(json.dumps(record.config(), allow_nan=False)))
    assert again == record
    assert type(again) is type(record)
    assert hash(again) == hash(record)
    assert again.parts() == record.parts()


def test_equal_settings_make_equal_optimisers() -> None:
    assert optim.SGD(1) == optim.SGD(1.0)
    assert optim.SGD(1) != optim.SGD(2)
    assert optim.Adam(0.1) != optim.AdamW(0.1, weight_decay=0.0)
    assert len({optim.Adam(0.1), optim.Adam(0.1), optim.Adam(0.2)}) == 2


def test_optimisers_are_frozen_and_say_what_to_write() -> None:
    optimizer: Any = optim.SGD(0.1)
    text = r"SGD: learning_rate cannot be set.* SGD\(learning_rate=0.2\); .*model.optimizer = .*step.set"
    with pytest.raises(dataclasses.FrozenInstanceError, match=text):
        optimizer.learning_rate = 0.2
    with pytest.raises(FrozenError, match=r"SGD: lr cannot be set.*: write learning_rate$"):
        optimizer.lr = 0.2
    with pytest.raises(FrozenError, match="settings are learning_rate, momentum, nesterov"):
        optimizer.rate = 0.2
    with pytest.raises(FrozenError, match="SGD: momentum cannot be set"):
        del optimizer.momentum
    schedule: Any = optim.cosine(0.1, 5)
    with pytest.raises(FrozenError, match=r"make another one, cosine\(steps=7\)$"):
        schedule.steps = 7
    assert optimizer == optim.SGD(0.1) and schedule == optim.cosine(0.1, 5)


def test_what_is_derived_from_an_optimiser_may_keep_things() -> None:
    class Noted(optim.SGD):
        pass

    noted: Any = Noted(0.1)
    noted.note = "mine"
    assert noted.note == "mine"
    with pytest.raises(FrozenError, match="Noted: momentum cannot be set"):
        noted.momentum = 0.9


def test_names_in_any_case() -> None:
    assert optim.by_name("adamw", weight_decay=0.1) == optim.AdamW(weight_decay=0.1)
    assert optim.of("sgd") == optim.SGD()
    optimizer = optim.Adam()
    assert optim.of(optimizer) is optimizer


def test_a_plain_function_cannot_be_kept() -> None:
    optimizer = optim.SGD(lambda step: 0.1)
    with pytest.raises(ArgumentError, match=r"SGD: learning_rate is .*cannot be kept as JSON"):
        optimizer.config()


NAME_MISTAKES: list[tuple[Any, type[ArgumentError], str]] = [
    (
        lambda: optim.by_name("addam"), UnknownNameError,
        "optimiser 'addam' is not known: did you mean 'Adam'? known are",
    ),
    (
        lambda: optim.by_name("cosine"), UnknownNameError,  # a schedule
        "optimiser 'cosine' is not known: ",
    ),
    (
        lambda: optim.by_name("adam", learningrate=0.1), UnknownNameError,
        "Adam: setting 'learningrate' is not known: did you mean 'learning_rate'? known are beta1,",
    ),
    (
        lambda: optim.by_name("chain"), ArgumentError,
        "Chain: chained is missing; it has no default",
    ),
    (
        lambda: optim.of(3), ArgumentError,  # type: ignore[arg-type]
        "optimizer: expected an optimiser such as md.optim.Adam() or its name, got 3",
    ),
    (
        lambda: optim.from_config({"learning_rate": 0.1}), ArgumentError,
        "optimiser: expected a dict with a name and settings, as config() gives, got {",
    ),
    (
        lambda: optim.from_config({"name": "SGD", "learning_rate": {"name": "os.system"}}),
        UnknownNameError, "record 'os.system' is not known: ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "text"), NAME_MISTAKES)
def test_mistakes_in_names(make: Any, error: type[ArgumentError], text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_our_names_are_not_taken() -> None:
    with pytest.raises(ArgumentError) as caught:
        type("adam", (optim.Part,), {})
    text = "optimiser part adam: md.optim.Adam is known by the name 'adam'; give yours another name"
    assert str(caught.value) == text


def test_own_names_are_taken_by_the_latest() -> None:
    def define(default: float) -> type[optim.Optimizer]:
        @dataclasses.dataclass(frozen=True)
        class Plain(optim.Optimizer):
            learning_rate: float = default

            def parts(self) -> tuple[optim.Transform, ...]:
                return (optim.LearningRate(self.learning_rate),)

        return Plain

    first, second = define(0.1), define(0.2)  # as when a cell of a notebook is run again
    assert optim.by_name("plain") == second() != first()


# --- wrong settings: each setting of each optimiser, each mistake ------------------------------

RANGES = {
    "learning_rate": ("a number of at least 0", [-0.1]),
    "weight_decay": ("a number of at least 0", [-0.1]),
    "momentum": ("at least 0 and below 1", [-0.1, 1.0]),
    "decay": ("at least 0 and below 1", [-0.1, 1.0]),
    "beta1": ("at least 0 and below 1", [-0.1, 1.0]),
    "beta2": ("at least 0 and below 1", [-0.1, 1.0]),
    "eps": ("a number above 0", [0.0, -1e-8]),
    "trust_coefficient": ("a number above 0", [0.0]),
    "clip_value": ("a number above 0", [0.0, -1.0]),
    "clip_norm": ("a number above 0", [0.0, -1.0]),
}
NONSENSE = [float("nan"), float("inf"), "0.1", True, [0.1]]
TABLE = [
    (name, setting, value)
    for name in NAMES
    for setting in [*DEFAULTS[name], "clip_value", "clip_norm"]
    if setting != "nesterov"
    for value in RANGES[setting][1] + NONSENSE
]


@pytest.mark.parametrize(("name", "setting", "value"), TABLE)
def test_wrong_settings(name: str, setting: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        optim.by_name(name, **{setting: value})
    text = f"{name}: {setting} must be {RANGES[setting][0]}, got {value!r}"
    more = "" if isinstance(value, float | bool) else "; give a number or a schedule"
    assert str(caught.value) == text + more


def test_nesterov_wants_momentum() -> None:
    with pytest.raises(ArgumentError) as caught:
        optim.SGD(0.1, nesterov=True)
    text = "SGD: nesterov needs a momentum above 0, got 0.0; take 0.9, say"
    assert str(caught.value) == text


def test_none_is_not_a_learning_rate() -> None:
    with pytest.raises(
        ArgumentError, match="SGD: learning_rate must be a number of at least 0, got"
    ):
        optim.SGD(None)  # type: ignore[arg-type]
