from __future__ import annotations

import gc
import os
import signal
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from magmadnn import errors, memory
from magmadnn.backends.cuda.simulated import simulated_devices
from magmadnn.memory import DEVICE, HOST, MANAGED, Kind, MemoryManager
from magmadnn.memory.pool import DEFAULT_LIMIT, DeviceSource, Pool, size_class
from magmadnn.memory.usage import in_units


@pytest.fixture(autouse=True)
def empty_pools() -> None:
    gc.collect()
    memory.trim()


def of(kind: Kind) -> memory.KindReport:
    return memory.report()[kind]


def test_blocks_are_counted_kept_and_lent_again() -> None:
    before = of(HOST)
    m = MemoryManager(1000, "float32", HOST)
    now = of(HOST)
    assert now.in_use - before.in_use == size_class(4000) == 4096
    assert now.allocations == before.allocations + 1
    address = m.host_pointer()
    del m
    kept = of(HOST)
    assert (kept.in_use, kept.pooled) == (before.in_use, 4096)
    again = MemoryManager(1001, "float32", HOST)
    assert again.host_pointer() == address, "sizes of one class share blocks"
    used = of(HOST)
    assert (used.reuses, used.allocations, used.pooled) == (kept.reuses + 1, kept.allocations, 0)
    assert used.peak >= used.in_use


def test_a_view_keeps_its_block_from_the_pool() -> None:
    before = of(HOST)
    view = MemoryManager(1000, "float32", HOST).host()[10:20]
    assert of(HOST).in_use - before.in_use == 4096
    del view
    assert of(HOST).in_use == before.in_use


def test_trim_gives_everything_back() -> None:
    with simulated_devices() as (device,):
        for kind in (DEVICE, MANAGED):
            m = MemoryManager(5003, "float64", kind)
            m.device_pointer()
            del m
        assert device.in_use > 0
        assert memory.trim() > 80_000
        assert device.in_use == 0
        assert all(kind.pooled == 0 for kind in memory.report())
        assert memory.trim() == 0


def test_the_limit_bounds_what_is_kept() -> None:
    try:
        memory.limit_pooled(HOST, 10_000)
        blocks = [MemoryManager(1000, "float32", HOST) for _ in range(7)]
        blocks.clear()
        assert of(HOST).pooled == 8192
        memory.limit_pooled("HOST", 0)
        assert of(HOST).pooled == 0
    finally:
        memory.limit_pooled(HOST, DEFAULT_LIMIT)
    with pytest.raises(errors.ArgumentError, match="got -1"):
        memory.limit_pooled(HOST, -1)


class LargeDevice:
    """Memory of a device, of addresses alone."""

    name = "a large device"

    def __init__(self, total: int) -> None:
        self.total, self.freed, self.cleared = total, list[int](), list[int]()
        self._next = 256

    def allocate(self, nbytes: int) -> int:
        self._next += nbytes
        return self._next - nbytes

    def free(self, address: int) -> None:
        self.freed.append(address)

    def fill(self, to: int, pattern: bytes, count: int) -> None:
        self.cleared.append(to)

    def free_and_total(self) -> tuple[int | None, int]:
        return None, self.total


@pytest.mark.parametrize(
    ("total", "kept"), [(16 << 30, 1 << 30), (64 << 30, 2 << 30), (160 << 30, 5 << 30)]
)
def test_large_devices_keep_large_blocks(total: int, kept: int) -> None:
    device: Any = LargeDevice(total)
    for kind, most in ((DEVICE, kept), (MANAGED, DEFAULT_LIMIT)):
        pool, source = Pool(kind), DeviceSource(device, managed=False)
        leases = [pool.lend(source, 1 << 29, zeroed=False) for _ in range(12)]
        there = {lease.block for lease in leases}
        leases.clear()
        assert pool.report().pooled == most
        device.freed.clear()
        again = [pool.lend(source, 1 << 29, zeroed=False) for _ in range(most >> 29)]
        assert {lease.block for lease in again} <= there and not device.cleared
        pool.limit = 0
        again.clear()
        assert len(device.freed) == most >> 29 and not pool.report().pooled


def test_blocks_of_a_device_are_cleared_where_zeros_are_wanted() -> None:
    device: Any = LargeDevice(1 << 30)
    pool, source = Pool(DEVICE), DeviceSource(device, managed=False)
    for zeroed in (False, True, True, False):  # new, again, again, again
        device.cleared.clear()
        lease = pool.lend(source, 1000, zeroed)
        assert device.cleared == [lease.block] * zeroed
        del lease
    device.cleared.clear()
    lease = pool.lend(source, 2000)
    assert device.cleared == [lease.block]


@pytest.mark.parametrize("nbytes", [0, 1, 64, 65, 127, 128, 1000, 4097, 10**6 + 3, 2**40 + 1])
def test_size_classes_waste_at_most_an_eighth(nbytes: int) -> None:
    block = size_class(nbytes)
    assert block >= max(nbytes, 64)
    assert block % 64 == 0
    assert block - nbytes <= max(nbytes / 8, 64)
    assert size_class(block) == block, "a class is its own class"


def test_there_are_few_size_classes() -> None:
    assert len({size_class(n) for n in range(1, 100_001)}) < 90


def test_no_leak_over_ten_thousand_allocations() -> None:
    """What is in use, kept, and traced by Python after 2,000 and after 10,000 rounds is the same."""
    rng = np.random.default_rng(7)
    sizes = rng.integers(1, 5000, 10_000)
    before = of(MANAGED)
    tracemalloc.start()
    try:
        for step, size in enumerate(sizes):
            m = MemoryManager(int(size), "float32")
            m.host(write=True)[-1] = 1
            if step == 2_000:
                gc.collect()
                traced, pooled = tracemalloc.get_traced_memory()[0], of(MANAGED).pooled
        del m
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - traced
    finally:
        tracemalloc.stop()
    after = of(MANAGED)
    assert after.in_use == before.in_use
    assert after.allocations - before.allocations < 100, "the rest were reuses"
    assert after.reuses - before.reuses > 9_900
    assert after.pooled - pooled <= 3 * size_class(20_000), "a size class seen late, at most"
    assert grown < 3 * size_class(20_000) + 20_000


def test_leases_in_reference_cycles_come_back() -> None:
    before = of(HOST)
    for _ in range(100):
        cycle: list[object] = [MemoryManager(100_000, "float32", HOST)]
        cycle.append(cycle)
    del cycle
    gc.collect()
    assert of(HOST).in_use == before.in_use


def test_many_threads_share_the_pool() -> None:
    before = of(MANAGED)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        kept: list[tuple[MemoryManager, int]] = []
        for step in range(400):
            m = MemoryManager(int(rng.integers(1, 300)), "int32")
            if m.host().any():
                wrong.append(step)
            m.fill(seed * 1000 + step)
            kept.append((m, seed * 1000 + step))
            if len(kept) > 5:
                old, expected = kept.pop(0)
                if not (old.host() == expected).all():
                    wrong.append(step)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert of(MANAGED).in_use == before.in_use


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_can_allocate_while_the_parent_holds_the_lock() -> None:
    from magmadnn.memory.pool import POOLS

    with POOLS[HOST]._returns:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits for the lock would wait for ever
            os._exit(0 if MemoryManager(10, kind=HOST).get(3) == 0 else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_report_prints() -> None:
    lines = str(memory.report()).splitlines()
    assert lines[0].split() == ["kind", "in", "use", "peak", "pooled", "allocations", "reuses"]
    assert [line.split()[0] for line in lines[1:]] == [k.name for k in Kind]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (10**17, "88.8 PiB")],
)
def test_units(nbytes: int, text: str) -> None:
    assert in_units(nbytes) == text


def test_memory_that_is_lent_again_is_cleared_unless_all_of_it_will_be_written() -> None:
    sizes = (1234, 98_765)  # of other classes than what other tests hold
    for size in sizes:
        first = MemoryManager(size, "float64", "HOST")
        address = first.host_pointer(write=True)
        first.host(write=True)[:] = 7.0
        del first
        again = MemoryManager(size, "float64", "HOST", zeroed=False)
        assert again.host_pointer() == address and (again.host() == 7.0).all()
        del again
        cleared = MemoryManager(size, "float64", "HOST")
        assert cleared.host_pointer() == address and (cleared.host() == 0.0).all()
