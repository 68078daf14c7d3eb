"""The mistakes that users make: each, in each place where it can be made, with class and text.

In the tests of this folder `PYTHON` holds what is done from Python, `COMMAND` what is typed; a mistake that
can be made in both places has the same name in both. Every text is one line, and on the command line the
exit code is 2. In the texts {p} is the test's folder; a text that begins with ~ is a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.cli import main
from magmadnn.errors import MagmaDNNError

PythonCase = tuple[Callable[[Path], object], type[MagmaDNNError], str]
CommandCase = tuple[tuple[str, ...], str]

X = np.random.default_rng(4).normal(size=(23, 5)).astype(np.float32)
Y = (np.arange(23) % 3).astype(np.int64)
TRAIN = ("train", "--data", "good.csv", "--epochs", "1", "--hidden", "3")
D = md.layers.Dense


class NoEpoch(md.callbacks.Callback):
    """Training must not begin."""

    def on_epoch_begin(self, fit: object) -> None:
        raise AssertionError("an epoch was begun")


def network(*last: md.layers.Layer, **changes: object) -> md.Model:
    layers = [md.layers.Input((5,))]
    layers += last or [md.layers.Dense(7, activation="relu"), md.layers.Dense(3)]
    return md.Model(
        layers, **{"loss": "cross_entropy", "optimizer": "adam", "metrics": ["accuracy"], **changes}
    )


def binary() -> md.Model:
    return network(md.layers.Dense(1), loss="binary_cross_entropy", metrics=[])


def rows() -> md.Model:
    """A class for each of 4 places in a sample."""
    return md.Model(
        [md.layers.Input((4, 5)), md.layers.Dense(3)], loss="cross_entropy", optimizer="adam"
    )


def fit(x: object = X, y: object = Y, model: md.Model | None = None, **options: object) -> None:
    (model or network()).fit(x, y, **{"epochs": 1, "verbose": False, **options})


def changed(array: np.ndarray, place: object, value: float) -> np.ndarray:
    copy = array.copy()
    copy[place] = value
    return copy


def table(text: str = "") -> str:
    rows = [f"{k * 0.37 % 1:.3f},{k * 0.71 % 2:.3f},{'no' if k % 3 else 'yes'}" for k in range(40)]
    return text or "\n".join(["wind,rain,storm", *rows])


def fits(text: str, expected: str, place: Path) -> bool:
    """Whether a text is the expected one, or matches it where that begins with ~."""
    if expected.startswith("~"):
        return re.fullmatch(expected[1:], text) is not None
    return text == expected.replace("{p}", str(place))


def check_in_python(place: Path, case: PythonCase) -> None:
    act, error, expected = case
    with pytest.raises(MagmaDNNError) as raised:
        act(place)
    text = str(raised.value)
    assert fits(text, expected, place), text
    assert type(raised.value) is error
    assert "\n" not in text


def check_on_the_command_line(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    case: CommandCase,
    while_training: bool = False,
) -> None:
    """Nothing is left of a run, unless the mistake is found while training."""
    arguments, expected = case
    before = sorted(place.iterdir())
    assert main(arguments) == 2
    _, err = capsys.readouterr()
    assert err.startswith("magmadnn: error: ") and err.endswith("\n")
    text = err.removeprefix("magmadnn: error: ").removesuffix("\n")
    assert fits(text, expected, place), text
    assert "\n" not in text
    assert while_training or sorted(place.iterdir()) == before
