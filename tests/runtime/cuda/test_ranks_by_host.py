"""Ways to train whose ranks compute on devices while arrays travel by way of the hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comm.test_launch import launched
from tests.runtime.cuda.devices import DEVICES

SCRIPT = """
import json
from contextlib import nullcontext

import numpy as np

import magmadnn as md
from magmadnn.dmath import Blocks, Rows, cyclic
from tests.runtime.cuda.emulator import emulated_device

draw = np.random.default_rng(7)
x = draw.normal(size=(136, 6))
y = (x @ draw.normal(size=(6, 3))).argmax(axis=1)
comm = md.comm.world()


def fit(device, way):
    layers = [
        md.layers.Input((6,)), md.layers.Dense(11, activation="tanh"),
        md.layers.Dropout(0.1 if WAY == "AsyncSGD" else 0.0), md.layers.Dense(3),
    ]
    model = md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.SGD(0.3), precision="float64", device=device, seed=2
    )
    history = model.fit(x, y, batch_size=32, epochs=EPOCHS, verbose=False, parallel=way)
    return [v.tolist() for _, v in sorted(model.values().items())], history.rows[-1]["loss"]


alone = fit("cpu", False)
WAYS = {
    "AsyncSGD": md.parallel.AsyncSGD,
    "ParameterServer": md.parallel.ParameterServer,
    "Pipeline": lambda: md.parallel.Pipeline(micro_batches=3),
    "layouts": lambda: md.parallel.Hybrid({
        "dense_1": Blocks((2, 3), owners=cyclic(1, 2)), "dense_2": Rows(block=2)
    }),
}
computes = comm.rank or WAY != "AsyncSGD"  # whose server only updates
device = "cpu"
if computes:
    device = "cuda" if DEVICE == "emulated" else f"cuda:{comm.rank - (WAY == 'AsyncSGD')}"
with emulated_device() if DEVICE == "emulated" and computes else nullcontext():
    found = fit(device, WAYS[WAY]())
told = comm.exchange([alone, found])
if comm.rank == 0:
    print(json.dumps(told))
"""


def trained(folder: Path, device: str, way: str, ranks: int, epochs: int) -> list[Any]:
    pytest.importorskip("mpi4py")
    if device == "gpu":
        from magmadnn.backends import cuda

        if cuda.device_count() < ranks - (way == "AsyncSGD"):
            pytest.skip("too few GPUs")
    words = f"DEVICE, WAY, EPOCHS = {device!r}, {way!r}, {epochs}\n"
    code, out, errors, _ = launched(folder, ranks, words + SCRIPT, "")
    assert code == 0, errors
    found: list[Any] = json.loads(out.splitlines()[-1])
    assert all(own == found[0][1] for _, own in found)  # all ranks end with the same values
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_one_asynchronous_worker_trains_as_alone(device: str, tmp_path: Path) -> None:
    """No gradient is stale then: a server on the CPU, and a worker that computes on a device."""
    alone, found = trained(tmp_path, device, "AsyncSGD", 2, 3)[0]
    assert found[1] == pytest.approx(alone[1], rel=1e-12)
    for value, expected in zip(found[0], alone[0], strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
def test_asynchronous_workers_learn(device: str, tmp_path: Path) -> None:
    alone, found = trained(tmp_path, device, "AsyncSGD", 3, 8)[0]
    assert found[1] < 1.3 * alone[1] < 0.6  # chance is 1.1


@pytest.mark.parametrize("way", ["ParameterServer", "Pipeline", "layouts"])
@pytest.mark.parametrize("device", DEVICES)
def test_ranks_train_as_alone(device: str, way: str, tmp_path: Path) -> None:
    """A server, stages of layers, weights in blocks; without Dropout, of which parts draw their own."""
    alone, found = trained(tmp_path, device, way, 2, 3)[0]
    assert found[1] == pytest.approx(alone[1], rel=1e-12)
    for value, expected in zip(found[0], alone[0], strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-11)
