"""An Embedding among layers that ranks share: its table is whole, numbers come from where they are made."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import MagmaDNNError
from magmadnn.tensor import Operation
from tests.parallel.parameters import assert_near

Columns, Rows, Replicated = md.dmath.Columns, md.dmath.Rows, md.dmath.Replicated
DRAW = np.random.default_rng(5)
ROWS = 55  # of which the last batch of 16 has 7
WORDS, X = DRAW.integers(0, 9, (ROWS, 5)), DRAW.normal(size=(ROWS, 6))
Y = DRAW.integers(0, 3, ROWS)


def signs(x: Operation) -> Operation:
    return (x > 0).astype("int64")


def first(optimizer: Any = "sgd") -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((5,), dtype="int64"), layers.Embedding(9, 4, dtype="float64"), layers.Flatten(),
            layers.Dense(12, activation="tanh"), layers.Dense(8, activation="relu"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=optimizer, seed=3, precision="float64",
    )  # fmt: skip


def between(optimizer: Any = "sgd") -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Lambda(signs),
            layers.Embedding(2, 4, dtype="float64"), layers.Flatten(),
            layers.Dense(12, activation="tanh"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=optimizer, seed=3, precision="float64",
    )  # fmt: skip


NETWORKS: dict[str, Any] = {"first": (first, WORDS), "between": (between, X)}
LAYERS: dict[str, Any] = {
    "auto": "auto",
    "columns and rows": {"dense_1": "columns", "dense_2": "rows"},
    "one": {"dense_1": Columns(on=(0,))},
    "others": {"dense_1": Columns(on=(1,)), "dense_2": Replicated(on=(0,))},
    "apart": {"dense_1": Rows(on=(0,)), "dense_2": Rows(on=(1,)), "dense_3": Replicated(on=(0,))},
    "copies": {"dense_1": Replicated(on=(1, 0)), "dense_2": Columns(on=(1,))},
    "blocks": {"dense_1": md.dmath.Blocks((2, 3)), "dense_2": Columns(block=2)},
}


def trained(comm: Communicator | None, network: str, layers: Any, clips: bool) -> Any:
    make, x = NETWORKS[network]
    optimizer = md.optim.SGD(0.2, momentum=0.9, clip_norm=0.05) if clips else md.optim.Adam(0.01)
    model = make(optimizer)
    way = False if comm is None else md.parallel.Hybrid(layers, comm)
    rows = model.fit(x, Y, batch_size=16, epochs=2, verbose=False, parallel=way).rows
    return model.values(), [row["loss"] for row in rows]


@cache
def alone(network: str, clips: bool) -> Any:
    return trained(None, network, None, clips)


def runs() -> Iterator[Any]:
    """Each layout for one network on two ranks; with --all both, and four ranks."""
    for number, layers in enumerate(LAYERS):
        for turn, network in enumerate(NETWORKS):
            for ranks in (2, 4):
                usual = ranks == 2 and (number + turn) % 2 == 0
                yield pytest.param(network, layers, ranks, marks=() if usual else pytest.mark.long)


@pytest.mark.parametrize(("network", "layers", "ranks"), list(runs()))
def test_it_is_the_training_of_one_rank(network: str, layers: str, ranks: int) -> None:
    clips = layers in ("others", "apart")
    expected = alone(network, clips)
    table = next(name for name in expected[0] if "embedding" in name)
    assert (expected[0][table] != NETWORKS[network][0]().values()[table]).any()
    for found in simulate(ranks, lambda comm: trained(comm, network, LAYERS[layers], clips)):
        assert_near(found[0], expected[0])
        assert found[1] == pytest.approx(expected[1], abs=1e-12)


def test_a_number_outside_ends_the_training_on_all_ranks() -> None:
    wrong = WORDS.copy()
    wrong[40, 2] = 9

    def fit(comm: Communicator) -> str:
        model = first(md.optim.Adam(0.01))
        way = md.parallel.Hybrid({"dense_1": Columns(on=(0,)), "dense_2": Rows(on=(1,))}, comm)
        with pytest.raises(MagmaDNNError) as found:
            model.fit(wrong, Y, batch_size=16, epochs=1, verbose=False, parallel=way)
        return str(found.value)

    said = simulate(2, fit)
    assert all("9" in one for one in said), said
