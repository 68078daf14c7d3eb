"""Memory on a real device; the same rules as in test_memory_manager.py, without the counts."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn import errors, memory
from magmadnn.backends import cuda
from magmadnn.memory import CUDA_MANAGED, DEVICE, HOST, MANAGED, Kind, MemoryManager

HAS_DEVICE, REASON = cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_DEVICE, reason=REASON)]


def values(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, count).astype(np.float32)


def held(m: MemoryManager) -> np.ndarray:
    out = MemoryManager(m.size, m.dtype, HOST)
    out.copy_from(m)
    return out.host().copy()


@pytest.mark.parametrize("to_kind", list(Kind))
@pytest.mark.parametrize("from_kind", list(Kind))
def test_copy_from_every_pair(from_kind: Kind, to_kind: Kind) -> None:
    source, target = MemoryManager(1009, kind=from_kind), MemoryManager(1013, kind=to_kind)
    assert not held(source).any()
    source.copy_from(values(1009, 1))
    target.copy_from(values(1013, 2))
    target.copy_from(source, 3, 500, 7)
    expected = values(1013, 2)
    expected[7:507] = values(1009, 1)[3:503]
    assert np.array_equal(held(target), expected)
    target.copy_from(target, 1, 1000, 5)
    expected[5:1005] = expected[1:1001].copy()
    assert np.array_equal(held(target), expected)


def test_managed_sides_on_a_device() -> None:
    m = MemoryManager(100_003, kind=MANAGED)
    m.host(write=True)[:] = values(100_003)
    m.prefetch("device")
    device = cuda.device_memory(0)
    device.fill(m.device_pointer(write=True) + 8, np.float32(3).tobytes(), 100)
    assert not m.host_valid
    expected = values(100_003)
    expected[2:102] = 3
    m.prefetch("host")
    assert np.array_equal(m.host(), expected)
    m.fill(7)
    m.sync()
    assert m.host_valid
    assert m.device_valid
    assert np.all(m.host() == 7)


def test_cuda_managed_is_one_block() -> None:
    m = MemoryManager(1009, "int32", CUDA_MANAGED)
    view = m.host(write=True)
    assert view.ctypes.data == m.device_pointer()
    assert not view.any()
    view[:] = 4
    m.prefetch("device")
    cuda.device_memory(0).fill(m.device_pointer(write=True), np.int32(5).tobytes(), 3)
    m.prefetch("host")
    assert m.host()[:5].tolist() == [5, 5, 5, 4, 4]
    del m
    MemoryManager(1009, "int32", CUDA_MANAGED).fill(-1)
    assert view[:5].tolist() == [5, 5, 5, 4, 4]


def test_prefetch_comes_behind_kernels_and_what_is_fetched_is_there() -> None:
    device, count = cuda.device_memory(0), 10_007
    blocks = [MemoryManager(count, kind=MANAGED) for _ in range(5)]
    for k, m in enumerate(blocks):
        address = m.device_pointer(write=True)
        for value in (1, k):  # on the default stream, which `prefetch` does not wait for
            device.fill(address, np.float32(value).tobytes(), count)
        m.prefetch("host")
    for k, m in enumerate(blocks):
        assert (m.host() == k).all()
        m.host(write=True)[:] = values(count, k)
        m.prefetch("device")
    for k, m in enumerate(blocks):
        assert np.array_equal(held(m), values(count, k))


def test_managed_pages_move_both_ways() -> None:
    m = MemoryManager(1 << 20, "uint8", CUDA_MANAGED)
    for turn in range(3):
        m.host(write=True)[:] = turn
        m.prefetch("device")
        cuda.device_memory(0).fill(m.device_pointer(write=True), bytes([turn + 7]), 100)
        m.prefetch("host")
        assert np.unique(m.host()[:100]).tolist() == [turn + 7]
        assert np.unique(m.host()[100:]).tolist() == [turn]


def test_what_cupy_keeps_is_given_back_when_memory_runs_out() -> None:
    cupy = pytest.importorskip("cupy")
    device = cuda.device_memory(0)
    memory.trim()
    free, _ = device.free_and_total()
    assert free is not None
    array = cupy.empty(free * 3 // 4, cupy.uint8)
    del array  # CuPy keeps the block
    MemoryManager(free // 2, "uint8", DEVICE)
    assert cupy.get_default_memory_pool().free_bytes() == 0


def test_a_full_device_says_how_full() -> None:
    total = cuda.device_memory(0).free_and_total()[1]
    with pytest.raises(errors.OutOfMemoryError, match="were asked for on the device 0, which has"):
        MemoryManager(total, "float32", DEVICE)
    assert MemoryManager(3, kind=DEVICE).get(2) == 0
    memory.trim()


def test_no_leak_on_the_device() -> None:
    device = cuda.device_memory(0)
    MemoryManager(1 << 20, kind=DEVICE)

    def lost() -> int:
        memory.trim()
        free = device.free_and_total()[0]
        for size in np.random.default_rng(1).integers(1, 1 << 20, 500):
            MemoryManager(int(size), kind=DEVICE).fill(1)
            MemoryManager(int(size), kind=MANAGED).device_pointer()
        memory.trim()
        return free - device.free_and_total()[0]  # type: ignore[operator]  # known on a GPU

    # Other processes on the device take and give back memory too: a leak shows each time.
    assert 0 in (lost() for _ in range(9))


def test_a_block_above_the_limit_of_small_devices_is_lent_again() -> None:
    nbytes, kind = (1 << 30) + (1 << 28), np.dtype("uint8")
    if cuda.device_memory(0).free_and_total()[1] // 32 < nbytes:
        pytest.skip("the device is too small")
    memory.trim()
    before, places = memory.report()[DEVICE].allocations, set()
    for _ in range(3):
        made = MemoryManager.of(nbytes, kind, DEVICE, 0)
        places.add(made.device_pointer())
        del made
    assert len(places) == 1 and memory.report()[DEVICE].allocations == before + 1
    memory.trim()
