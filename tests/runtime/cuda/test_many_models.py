"""Many models of which some run on a device: each as by its own fit, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import optim
from magmadnn.comm import simulate
from magmadnn.data import split_rows
from magmadnn.storage.checkpoint import parameters_sha256
from tests.runtime.cuda.devices import network, samples
from tests.runtime.cuda.emulator import emulated_device, needs_compiler


def models() -> list[md.Model]:
    rates = zip((0.3, 0.1, 0.3, 0.02), ("cuda", "cpu", "cuda", "cpu"), strict=True)
    return [network((13, 17, 5), optim.SGD(rate), device=device) for rate, device in rates]


@needs_compiler
def test_models_on_a_device_beside_others() -> None:
    x, y = samples(30, 13, 5)
    with emulated_device():
        together, alone = models(), models()
        histories = md.fit_many(together, x, y, batch_size=8, epochs=3, verbose=False)
        for model, history in zip(alone, histories, strict=True):
            own = model.fit(x, y, batch_size=8, epochs=3, verbose=0)
            assert own["loss"] == history["loss"]
        found = [[parameters_sha256(m.values().items()) for m in s] for s in (together, alone)]
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@needs_compiler
def test_ranks_share_out_models_on_devices() -> None:
    """A rank takes over what another has trained onto its device, and goes on from there."""
    x, y = samples(30, 13, 5)

    def run(comm: Any) -> list[str]:
        own = [
            network((13, 17, 5), optim.Adam(0.01 * (k + 1)), device=device)
            for k, device in enumerate(("cuda", "cuda", "cpu", "cuda"))
        ]
        for epochs in (2, 1):
            md.fit_many(own, x, y, batch_size=8, epochs=epochs, verbose=False, parallel=comm)
        return [parameters_sha256(m.values().items()) for m in own]

    with emulated_device():
        expected = run(False)
        assert simulate(2, run) == [expected] * 2
        assert len(set(expected)) == 4


@needs_compiler
def test_an_ensemble_on_a_device() -> None:
    x, _ = samples(30, 13, 5)
    with emulated_device():
        members = [m for m in models() if m.device != "cpu"]
        mean = (members[0].predict(x).astype(np.float64) + members[1].predict(x)) / 2
        np.testing.assert_allclose(md.Ensemble(members).predict(x), mean, rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize("workers", [None, 2])
def test_a_search_on_a_device(workers: int | None) -> None:
    """Each trial ends with the bits of its own fit there, in this process and on workers."""
    x, y = samples(40, 13, 5)

    def build(learning_rate: float) -> md.Model:
        return network((13, 17, 5), optim.SGD(learning_rate), device="cuda")

    space = {"learning_rate": md.search.choice([0.3, 0.1, 0.02])}
    given = {"method": "grid", "epochs": 2, "batch_size": 8, "seed": 4}
    with emulated_device():
        study = md.search.run(build, space, x, y, workers=workers, **given)
        assert [t.state for t in study.trials] == ["done"] * 3, [t.reason for t in study.trials]
        kept, _ = split_rows(len(x), 0.2, 4)
        found = []
        for trial in study.trials:
            model = build(trial.point["learning_rate"])
            model.fit(x[kept], y[kept], batch_size=8, epochs=2, verbose=False)
            found.append(parameters_sha256(model.values().items()))
    assert [t.parameters_sha256 for t in study.trials] == found
    assert len(set(found)) == 3
