"""Small data and networks for tests of the search."""

from __future__ import annotations

from typing import Any

import numpy as np

import magmadnn as md

S = md.search


def table(rows: int = 97, columns: int = 5) -> tuple[Any, Any]:
    """Two classes that a small network learns in part."""
    random = np.random.default_rng(11)
    x = random.normal(size=(rows, columns)).astype(np.float32)
    noise = 0.5 * random.normal(size=rows)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] + noise > 0.2).astype(np.int64)


def build(learning_rate: float = 0.01, units: int = 4, seed: int = 0) -> Any:
    """A network of two layers for `table`."""
    layers = [md.layers.Input(5), md.layers.Dense(units, activation="tanh"), md.layers.Dense(2)]
    return md.Model(
        layers,
        loss="cross_entropy",
        optimizer=md.optim.SGD(learning_rate),
        metrics=["accuracy"],
        seed=seed,
    )


SPACE = {"lr": S.log_uniform(1e-3, 1.0), "units": S.choice([3, 5])}
GRID = {
    "lr": S.choice([0.01, 0.1, 0.5]),
    "units": S.choice([3, 5]),
    "batch_size": S.choice([16, 97]),
}


def untimed(study: Any) -> str:
    """The table without times, as CSV."""
    return str(study.table().without_times().to_csv())
