"""A synchronous parameter server: the bits of data parallel training, and moments on all ranks at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import simulate
from magmadnn.errors import NumericError
from magmadnn.storage.checkpoint import parameters_sha256
from tests.parallel.test_data_parallel import WEIGHTS, X, Y, network, noisy

WAYS = {"server": md.parallel.ParameterServer, "data": md.parallel.DataParallel}


def trained(comm: Any, way: str, **options: Any) -> Any:
    model = noisy()
    given: dict[str, Any] = {"batch_size": 32, "epochs": 2, "verbose": False} | options
    history = model.fit(X, Y, parallel=WAYS[way](comm), **given)
    state = {name: np.asarray(slot).tobytes() for name, slot in model._step[2].state().items()}
    return parameters_sha256(model.values().items()), history["loss"], state


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("options", [{"sample_weight": WEIGHTS}, {"accumulate": 2}], ids=str)
def test_it_has_the_bits_of_data_parallel_training(ranks: int, options: dict[str, Any]) -> None:
    expected = simulate(2, lambda comm: trained(comm, "data", **options))[0]
    for found in simulate(ranks, lambda comm: trained(comm, "server", **options)):
        assert found == expected


def test_what_fails_on_rank_0_is_told_on_all() -> None:
    def run(comm: Any) -> int:
        layers = [md.layers.Input((5,)), md.layers.Dense(3)]
        model = md.Model(layers, loss="mse", optimizer=md.optim.SGD(1.7e38))
        before = parameters_sha256(model.values().items())
        y = np.ones((len(X), 3), np.float32) * 1e3
        with pytest.raises(NumericError):
            model.fit(
                X, y, batch_size=103, verbose=False, parallel=md.parallel.ParameterServer(comm)
            )
        assert parameters_sha256(model.values().items()) == before
        return model._step[2].count

    assert simulate(3, run) == [0, 0, 0]


def test_a_fit_alone_goes_on_from_it_on_any_rank() -> None:
    def run(comm: Any) -> str:
        model = network()
        given: dict[str, Any] = {"batch_size": 32, "verbose": False}
        model.fit(X, Y, parallel=md.parallel.ParameterServer(comm), **given)
        model.fit(X, Y, parallel=False, **given)
        return parameters_sha256(model.values().items())

    assert len(set(simulate(3, run))) == 1
