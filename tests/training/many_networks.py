"""The small network that sets of trainings are tested on, and what tells trained ones apart."""

from __future__ import annotations

from typing import Any

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.storage.checkpoint import parameters_sha256


def network(seed: int, **given: Any) -> md.Model:
    """Six numbers into three classes; the learning rate grows with the seed."""
    return md.Model(
        [
            layers.Input((6,)),
            layers.Dense(9, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(3),
        ],
        loss="cross_entropy",
        optimizer=optim.Adam(0.01 * (seed + 1)),
        seed=seed,
        **given,
    )


def digests(models: list[md.Model]) -> list[str]:
    """Of the parameters of each."""
    return [parameters_sha256(m.values().items()) for m in models]
