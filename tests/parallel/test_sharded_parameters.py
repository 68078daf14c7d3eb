"""Parameters of which each rank keeps a piece: the bits of `DataParallel`, a part of its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import DeviceError, MagmaDNNError, NumericError
from magmadnn.storage.checkpoint import parameters_sha256

DRAW = np.random.default_rng(13)
X = DRAW.normal(size=(103, 5)).astype(np.float32)  # the last batch of 32 has 7 rows
Y = DRAW.integers(0, 3, 103)
IMAGES = DRAW.normal(size=(44, 9, 7, 2)).astype(np.float32)
SIZES = [5 * 17, 17, 17, 17, 17 * 11, 11, 11 * 3, 3]
LARGEST = 17 * 11 + 11  # elements of the largest layer


def network(optimizer: Any = None) -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((5,)), layers.Dense(17, activation="tanh"), layers.BatchNorm(),
            layers.Dropout(0.3), layers.Dense(11, activation="relu"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=optimizer or md.optim.Adam(0.01), metrics=["accuracy"], seed=3,
    )  # fmt: skip


def images() -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((9, 7, 2)), layers.Conv2D(4, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(2), layers.Conv2D(8, 3, activation="tanh"), layers.BatchNorm(),
            layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=md.optim.SGD(0.1, momentum=0.9), seed=3,
    )  # fmt: skip


CASES: dict[str, Any] = {
    "dense": (network, X, {}),
    "groups": (network, X, {"accumulate": 3}),
    "images": (images, IMAGES, {}),
}


def trained(comm: Communicator, case: str, shard: Any, **options: Any) -> tuple[Any, Any]:
    make, x, given = CASES[case]
    model = make()
    given = {"batch_size": 32, "epochs": 2, "verbose": False} | given | options
    way = md.parallel.DataParallel(comm, shard=shard)
    history = model.fit(x, Y[: len(x)], parallel=way, **given)
    assert model._step is not None
    step: Any = model._step[2]
    state = {k: np.asarray(v).tobytes() for k, v in step.state().items()}
    sha = parameters_sha256(model.values().items())
    return (sha, state, [row["loss"] for row in history.rows]), step


@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_data_parallel(case: str) -> None:
    expected = simulate(1, lambda comm: trained(comm, case, None))[0][0]
    for ranks in (1, 2, 3, 8):
        for found, _ in simulate(ranks, lambda comm: trained(comm, case, "parameters")):
            assert found == expected


def test_each_rank_keeps_its_piece() -> None:
    """The model's arrays have no memory in the middle of an epoch; pieces are even."""
    seen: list[int] = []

    class Looks(md.callbacks.Callback):
        is_everywhere = True

        def looks(self, fit: Any) -> bool:
            with pytest.raises(DeviceError, match="these values lie in parts on several workers"):
                fit.model.parameters()[0].node.value.read()
            seen.append(sum(not p.value.memory.is_aside for p in fit.model.parameters()))
            return False

    def run(comm: Communicator) -> Any:
        _, step = trained(comm, "dense", "parameters", callbacks=[Looks()])
        return step.own_bytes, step.most_gathered, step.text({"batch": 32})

    for ranks in (2, 3):
        found = simulate(ranks, run)
        assert sum(own for own, *_ in found) == 3 * 4 * sum(SIZES)
        for own, gathered, text in found:
            assert own <= 3 * 4 * (sum(SIZES) // ranks + 3)  # rounded up, in each of three groups
            assert gathered <= 2 * 4 * LARGEST < 4 * 3 * sum(SIZES)
            assert f"of {ranks} keeps" in text and "group 1: dense_2" in text
    assert set(seen) == {0}


@pytest.mark.parametrize("shard", ["parameters", "optimiser", None])
def test_checkpoints_go_on_with_another_number_of_ranks(tmp_path: Any, shard: Any) -> None:
    expected = simulate(1, lambda comm: trained(comm, "dense", None))[0][0][:2]

    def run(comm: Communicator, epochs: int, shard: Any) -> Any:
        keep = [md.callbacks.Checkpoint(tmp_path / "kept", signals=False)]
        return trained(comm, "dense", shard, epochs=epochs, callbacks=keep)[0][:2]

    simulate(3, run, 1, "parameters")
    for found in simulate(2, run, 2, shard):
        assert found == expected


@pytest.mark.parametrize("where", ["forward", "update"])
def test_nan_is_told_on_all_ranks_and_parameters_are_whole_again(where: str) -> None:
    bad = X.copy()
    bad[50, 2] = 3e38 if where == "forward" else bad[50, 2]

    def run(comm: Communicator) -> str:
        layers = [md.layers.Input((5,)), md.layers.Dense(7), md.layers.Dense(3)]
        linear = md.Model(layers, loss="cross_entropy", optimizer="sgd")
        grown = md.optim.SGD(1e38, weight_decay=100.0)  # kernels grow beyond float32, biases do not
        model = linear if where == "forward" else network(grown)
        if where == "forward":
            kernel = model.parameters()[0].node.value
            kernel.write(np.full(kernel.shape, 2, np.float32))  # twice 3e38 is infinity
        before = parameters_sha256(model.values().items())
        way = md.parallel.DataParallel(comm, shard="parameters")
        with pytest.raises(NumericError) as found:
            model.fit(bad, Y, batch_size=103, verbose=False, parallel=way, shuffle=False)
        assert parameters_sha256(model.values().items()) == before
        return str(found.value)

    assert all("infinity" in text or "NaN" in text for text in simulate(3, run))


def test_mistakes() -> None:
    def run(comm: Communicator) -> None:
        model = network(md.optim.SGD(0.1, clip_norm=1.0))
        way = md.parallel.DataParallel(comm, shard="parameters")
        model.fit(X, Y, verbose=False, parallel=way)

    with pytest.raises(
        MagmaDNNError, match=r"looks at whole gradients, .* use shard='optimiser', or a part"
    ):
        simulate(2, run)
