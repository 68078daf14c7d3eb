"""The emulated device itself: late work and memory that was given back are found out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import optim
from magmadnn.backends.cuda import device_memory
from magmadnn.backends.cuda.engine import ProductNode
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import network, samples
from tests.runtime.cuda.emulated_lanes import EmulatedMark
from tests.runtime.cuda.emulator import addresses_of, emulated_device, needs_compiler


def product(a: int, b: int, c: int) -> ProductNode:
    return ProductNode("float32", False, (3, 5, 7), (False, False), a, b, c, (7, 5, 5), 0)


def test_who_does_not_wait_reads_garbage() -> None:
    source = np.arange(5, dtype=np.float32)
    with emulated_device() as engine:
        memory = device_memory(0)
        to, found = memory.allocate(source.nbytes), np.zeros(5, np.float32)
        memory.copy_to_device(to, np.zeros(20, np.uint8))
        engine.copy(to, source.ctypes.data, source.nbytes)
        engine.copy(found.ctypes.data, to, source.nbytes)
        assert not found.any()
        engine.wait()
        np.testing.assert_array_equal(found, source)
        memory.copy_to_host(found.view(np.uint8), to, hold=found)
        source += 1
        engine.copy(to, source.ctypes.data, source.nbytes)
        memory.copy_on_device(to, to, 0)  # in one order with what was launched
        memory.wait()
        np.testing.assert_array_equal(found, source)  # a copy in the background may be that late


def test_what_is_given_memory_that_was_given_back_is_told() -> None:
    with emulated_device() as engine:
        memory = device_memory(0)
        a, b, c = (memory.allocate(200) for _ in range(3))
        graph = engine.graph([product(a, b, c)])
        graph.launch()
        memory.free(b)  # waits, as a driver does
        graph.launch()
        with pytest.raises(AssertionError, match=r"arguments \[1\] .* given back"):
            engine.wait()


def test_writing_to_memory_that_was_given_back_is_told() -> None:
    with (
        pytest.raises(AssertionError, match="was written to memory that had been given back"),
        emulated_device(),
    ):
        memory = device_memory(0)
        address = memory.allocate(200)
        memory.free(address)
        memory.copy_to_device(address + 40, np.zeros(8, np.uint8))


def trained() -> Any:
    x, y = samples(24, 13, 5)
    model = network((13, 17, 5), optim.SGD(0.3), device="cuda")
    return model, [model.fit(x, y, batch_size=8, verbose=0).rows[0]["loss"] for _ in range(2)]


@needs_compiler
def test_a_slice_that_is_not_waited_for_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it fetched is garbage then, which looks as if something had gone wrong."""
    finishes = CudaSlices.finish
    refused: list[bool] = []

    def noted(self: CudaSlices, *arguments: Any) -> Any:
        found = finishes(self, *arguments)
        refused.append(found is None)
        return found

    monkeypatch.setattr(CudaSlices, "finish", noted)
    with emulated_device():
        trained()
        assert refused and not any(refused)
        monkeypatch.setattr(EmulatedMark, "wait", lambda mark: None)
        trained()
        assert any(refused)
        monkeypatch.undo()


@needs_compiler
def test_graphs_that_outlive_their_memory_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    with emulated_device() as engine:
        model, _ = trained()
        assert engine.memory is not None
        given = [k for graph in engine.graphs for node in graph.nodes for k in addresses_of(node)]
        block = next(
            start for start, end in engine.memory.spans() if any(start <= k < end for k in given)
        )
        engine.memory.free(block)
        with pytest.raises(AssertionError, match="given back"):
            model.fit(*samples(24, 13, 5), batch_size=8, verbose=0)
        engine.memory.take_again(block)
