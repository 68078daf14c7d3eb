"""Programs on another device than the first: managed memory comes to the device that works on it."""

from __future__ import annotations

import numpy as np
import pytest

import magmadnn as md
from magmadnn.memory import MemoryManager
from magmadnn.runtime.cuda.running.sliced import slices
from magmadnn.runtime.variables import tensor_of
from tests.runtime.cuda.devices import distance, network, samples
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

pytestmark = needs_compiler


def test_a_model_on_the_second_device_runs_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    known = slices.CudaSlices.launch

    def launch(self: slices.CudaSlices, order: np.ndarray, settings: dict) -> object:
        counts.append(len(order))
        return known(self, order, settings)

    monkeypatch.setattr(slices.CudaSlices, "launch", launch)
    x, y = samples(96, 13, 5)
    found = []
    with emulated_device(devices=2):
        for device in ("cuda:0", "cuda:1"):
            model = network((13, 7, 5), md.optim.Adam(0.01), device=device)
            losses = model.fit(x, y, batch_size=16, epochs=2, verbose=0).rows
            found.append(([row["loss"] for row in losses], sum(counts), model))
            counts.clear()
            assert {tensor_of(p.node).device for p in model.parameters()} == {int(device[-1])}
        assert found[0][:2] == found[1][:2] and found[0][1] == 2 * 96
        assert distance(found[0][2], found[1][2]) == 0


def test_a_variable_goes_from_device_to_device_with_its_values() -> None:
    with emulated_device(devices=2):
        v = md.variable("v", np.arange(6.0))
        steps = [
            md.runtime.Executable(
                [(v * 1.0).node],
                [(v.node, (v * 2.0 + k).node)],
                device=f"cuda:{k}",
                executor="native",
            )
            for k in (0, 1)
        ]
        expected = np.arange(6.0)
        for k in (0, 1, 1, 0, 1, 0, 0):
            (before,) = steps[k].run({})
            np.testing.assert_array_equal(before, expected)
            expected = 2 * expected + k
            if k:  # and the host looks at it
                np.testing.assert_array_equal(v.eval(), expected)
        np.testing.assert_array_equal(v.eval(), expected)


def test_memory_that_stays_is_named() -> None:
    with emulated_device(devices=2):
        memory = MemoryManager(4, "float32", "DEVICE", 0)
        with pytest.raises(
            md.errors.ArgumentError, match="move_to: DEVICE memory stays on device 0"
        ):
            memory.move_to(1)
        memory = MemoryManager(4, "float32", "MANAGED", 0)
        memory.host(write=True)[...] = 3
        first = memory.device_pointer(write=True)
        memory.move_to(1)
        assert memory.device == 1 and memory.device_pointer() != first
        assert memory.host().tolist() == [3] * 4
