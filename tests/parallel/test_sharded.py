"""An optimiser that is shared out over ranks: the bits of `DataParallel`, a part of its memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import ArgumentError, MagmaDNNError, NumericError
from magmadnn.storage.checkpoint import parameters_sha256

DRAW = np.random.default_rng(13)
X = DRAW.normal(size=(103, 5)).astype(np.float32)
Y = DRAW.integers(0, 3, 103)
SIZES = [5 * 17, 17, 17, 17, 17 * 11, 11, 11 * 3, 3]  # elements of the parameters, in their order
OPTIMISERS = {
    "adam": md.optim.Adam(0.01),
    "clipped": md.optim.SGD(0.2, momentum=0.9, clip_norm=0.05),
    "lars": md.optim.LARS(0.1),
}


def network(optimizer: Any) -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((5,)), layers.Dense(17, activation="tanh"), layers.BatchNorm(),
            layers.Dropout(0.3), layers.Dense(11, activation="relu"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=optimizer, metrics=["accuracy"], seed=3,
    )  # fmt: skip


def trained(comm: Communicator, name: str, shard: Any, **options: Any) -> tuple[Any, Any, Any]:
    model = network(OPTIMISERS[name])
    given: dict[str, Any] = {"batch_size": 32, "epochs": 2, "verbose": False} | options
    way = md.parallel.DataParallel(comm, shard=shard)
    history = model.fit(X, Y, parallel=way, **given)
    assert model._step is not None
    step = model._step[2]
    state = {k: np.asarray(v).tobytes() for k, v in step.state().items()}
    held = sum(slot.value.nbytes for slot in step._slots.values())
    sha = parameters_sha256(model.values().items())
    return (sha, state, [row["loss"] for row in history.rows]), held, len(step._slots)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_bits_are_those_of_data_parallel(name: str) -> None:
    (expected, whole, slots), *_ = simulate(1, lambda comm: trained(comm, name, None))
    for ranks in (1, 2, 3, 4, 8):
        found = simulate(ranks, lambda comm: trained(comm, name, "optimiser"))
        assert all(each[0] == expected for each in found)
        assert sum(each[2] for each in found) == slots
        assert sum(each[1] for each in found) == whole
        best = min(
            max(sum(SIZES[a:b]) for a, b in itertools.pairwise([0, *begins, len(SIZES)]))
            for begins in itertools.combinations(range(1, len(SIZES)), ranks - 1)
        )
        assert max(each[1] for each in found) == whole * best // sum(SIZES)


def test_groups_of_batches() -> None:
    expected = simulate(1, lambda comm: trained(comm, "adam", None, accumulate=3))[0]
    for found in simulate(3, lambda comm: trained(comm, "adam", "optimiser", accumulate=3)):
        assert found[0][0] == expected[0][0]


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_checkpoints_go_on_on_any_number_of_ranks(tmp_path: Any, ranks: int) -> None:
    expected = simulate(1, lambda comm: trained(comm, "adam", None))[0][0][:2]

    def run(comm: Communicator, epochs: int, shard: Any) -> Any:
        keep = [md.callbacks.Checkpoint(tmp_path / "kept", signals=False)]
        return trained(comm, "adam", shard, epochs=epochs, callbacks=keep)[0][:2]

    simulate(3, run, 1, "optimiser")
    shard = None if ranks == 1 else "optimiser"  # one way goes on with what the other has left
    assert all(found == expected for found in simulate(ranks, run, 2, shard))


def test_nan_is_told_on_all_ranks_and_nothing_is_updated() -> None:
    """Kernels grow beyond float32, biases do not: the last of 8 ranks has a bias alone."""

    def run(comm: Communicator) -> str:
        model = network(md.optim.SGD(1e38, weight_decay=100.0))
        before = parameters_sha256(model.values().items())
        way = md.parallel.DataParallel(comm, shard="optimiser")
        with pytest.raises(NumericError) as found:
            model.fit(X, Y, batch_size=103, verbose=False, parallel=way)
        assert parameters_sha256(model.values().items()) == before
        return str(found.value)

    assert all("infinity" in text or "NaN" in text for text in simulate(8, run))


def test_mistakes() -> None:
    with pytest.raises(ArgumentError, match="shard must be 'optimiser'"):
        md.parallel.DataParallel(shard="moments")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="ParameterServer: shard must be"):
        md.parallel.ParameterServer(shard="optimiser")

    def run(comm: Communicator) -> None:
        model = md.Model(
            [md.layers.Input((5,)), md.layers.Dense(3)], loss="cross_entropy", optimizer="sgd"
        )
        way = md.parallel.DataParallel(comm, shard="optimiser")
        model.fit(X, Y, verbose=False, parallel=way)

    with pytest.raises(MagmaDNNError, match="3 ranks cannot share 2: use 2 ranks"):
        simulate(3, run)
