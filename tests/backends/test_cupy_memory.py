"""The binding of CuPy, on a stand-in that copies nothing before somebody waits."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.backends import cuda

MODULE = "magmadnn.backends.cuda._cupy"


class Refusal(Exception):
    status = 2


class StandIn:
    """CUDA's runtime over memory of this process; allocations fail while CuPy keeps a block."""

    def __init__(self) -> None:
        self.kept, self.blocks, self.asked = False, dict[int, Any](), list[Any]()
        self.waiting: list[Callable[[], object]] = []

    def malloc(self, nbytes: int) -> int:
        if self.kept or nbytes > 1 << 20:
            raise Refusal
        block = np.zeros(nbytes, np.uint8)
        self.blocks[block.ctypes.data] = block
        return int(block.ctypes.data)

    def free_all_blocks(self) -> None:
        self.kept = False

    def copy_later(self, to: int, source: int, nbytes: int, *_: object) -> None:
        self.waiting.append(lambda: ctypes.memmove(to, source, nbytes))

    def wait(self) -> None:
        waiting, self.waiting = self.waiting, []
        for copy in waiting:
            copy()

    def modules(self) -> dict[str, ModuleType]:
        """CuPy as far as the binding needs it."""
        runtime, library, inner = map(ModuleType, ("cupy.cuda.runtime", "cupy", "cupy.cuda"))
        vars(runtime).update(
            CUDARuntimeError=Refusal, malloc=self.malloc, mallocManaged=self.malloc,
            free=lambda address: self.blocks.pop(address, None), memcpyAsync=self.copy_later, memcpyDefault=4,
            deviceSynchronize=self.wait, deviceGetAttribute=lambda *_: 1,
            memGetInfo=lambda: (1 << 20, 1 << 21),
        )  # fmt: skip
        stream = SimpleNamespace(ptr=7, wait_event=lambda event: self.asked.append("wait"))
        event = SimpleNamespace(record=lambda stream: self.asked.append(("record", stream)))
        streams = type("Stream", (), {"null": "null", "__new__": lambda *_, **__: stream})
        vars(inner).update(
            runtime=runtime, Device=Here, Stream=streams, Event=lambda **_: event,
            alloc_pinned_memory=lambda n: np.zeros(n, np.uint8),
        )  # fmt: skip
        vars(library).update(cuda=inner, get_default_memory_pool=lambda: self)
        return {"cupy": library, "cupy.cuda": inner}


class Here:
    """The current device."""

    def __init__(self, device: int) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StandIn, Any]]:
    one = StandIn()
    for name, module in one.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.delattr(cuda, "_cupy", raising=False)
    try:
        binding = importlib.import_module(MODULE)
        driver = ModuleType("driver")
        vars(driver).update(
            prefer=lambda *given: one.asked.append(("prefer", *given[1:])),
            move=lambda *given: one.asked.append(("move", *given[1:])),
        )
        monkeypatch.setattr(binding, "driver", driver)
        yield one, binding.CupyMemory(0)
    finally:
        sys.modules.pop(MODULE, None)
        vars(cuda).pop("_cupy", None)


def test_what_cupy_keeps_is_given_back(stand_in: Any) -> None:
    one, memory = stand_in
    one.kept = True
    with pytest.raises(MemoryError):
        memory.allocate(64)
    memory.trim()
    assert memory.allocate(64) in one.blocks


def test_copies_in_the_background_are_staged_and_ordered(stand_in: Any) -> None:
    one, memory = stand_in
    address, source = memory.allocate(5), np.arange(5, dtype=np.uint8)
    memory.copy_to_device(address, source, hold=source)
    source[:] = 9  # what is copied was taken when it was asked for
    assert not one.blocks[address].any() and one.asked == [("record", "null"), "wait"]
    memory.wait()
    assert one.blocks[address].tolist() == [0, 1, 2, 3, 4]
    to = np.zeros(5, np.uint8)
    memory.copy_to_host(to, address, hold=to)
    assert not to.any()
    memory.wait()
    assert to.tolist() == [0, 1, 2, 3, 4]


def test_managed_pages_are_advised_and_moved_both_ways(stand_in: Any) -> None:
    one, memory = stand_in
    address = memory.allocate_managed(64)
    memory.prefetch_managed(address, 64, to_device=True)
    memory.prefetch_managed(address, 64, to_device=False)
    assert one.asked == [("prefer", 64, 0), ("move", 64, 0, 7), ("move", 64, None, 7)]
