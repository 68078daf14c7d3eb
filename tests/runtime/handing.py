"""Small models that are built alike, for the tests of what one that is gone leaves to the next."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn import optim
from magmadnn.runtime import handed_on
from tests.runtime.cuda.devices import DEVICES, on, samples

PLACES = ["cpu", *DEVICES]
ROWS, SIZES = 53, (13, 11, 3)  # the last batch is shorter


@contextmanager
def nothing_waits(place: str) -> Iterator[str]:
    """Where models are trained; no other test has left anything there, and none finds anything."""
    with nullcontext() if place == "cpu" else on(place):
        gc.collect()  # models of other tests that are parts of circles
        handed_on._waiting.clear()
        yield "cpu" if place == "cpu" else "cuda"
        handed_on._waiting.clear()


def model(device: str, seed: int, inside: list[Any] | None = None, **settings: Any) -> Any:
    """One of them; `inside`: layers between the two."""
    layers: list[Any] = [md.layers.Input((SIZES[0],)), md.layers.Dense(SIZES[1], activation="relu")]
    layers += [*(inside or []), md.layers.Dense(SIZES[2])]
    settings = {"loss": "cross_entropy", "optimizer": optim.Adam(0.01)} | settings
    return md.Model(layers, device=device, seed=seed, **settings)


def fit(made: Any, epochs: int = 2, **options: Any) -> Any:
    """The model, trained further."""
    x, y = samples(ROWS, SIZES[0], SIZES[2])
    made.fit(x, y, **{"batch_size": 8, "epochs": epochs, "verbose": 0, **options})
    return made


def trained(device: str, seed: int) -> Any:
    """A model, trained."""
    return fit(model(device, seed))


def numbers(made: Any) -> dict[str, np.ndarray]:
    """Its values."""
    return {name: np.array(value) for name, value in made.values().items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Whether values are the same to the last bit."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def alone(device: str, seed: int) -> dict[str, np.ndarray]:
    """What a model is after a fit for which nothing had been left."""
    handed_on._waiting.clear()
    return numbers(trained(device, seed))
