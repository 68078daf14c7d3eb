from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from magmadnn import errors, memory
from magmadnn.backends.cuda.simulated import SimulatedDevice, simulated_devices
from magmadnn.memory import CUDA_MANAGED, DEVICE, HOST, MANAGED, Kind, MemoryManager

KINDS = list(Kind)


def values(count: int, dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, count).astype(memory.as_dtype(dtype))


def held(m: MemoryManager) -> np.ndarray:
    """What a memory holds, by way of HOST."""
    out = MemoryManager(m.size, m.dtype, HOST)
    out.copy_from(m)
    return out.host().copy()


def made(kind: Kind, count: int, seed: int = 0, device: int = 0) -> MemoryManager:
    m = MemoryManager(count, "float32", kind, device)
    m.copy_from(values(count, seed=seed))
    return m


# --- without a device ------------------------------------------------------------------------


def test_the_lines_of_the_tutorial() -> None:
    m = MemoryManager(20, dtype="float32", kind=MANAGED, device=0)
    n = MemoryManager(20)
    m.fill(3.5)
    n.copy_from(m)
    m.fill(0)
    m.sync()
    assert m.nbytes == 80
    assert (n.get(19), m.get(19)) == (3.5, 0)
    assert repr(n) == "MemoryManager(size=20, dtype='float32', kind=MANAGED, device=0)"


@pytest.mark.parametrize("dtype", sorted(memory.DTYPES))
@pytest.mark.parametrize("kind", [HOST, MANAGED])
def test_every_dtype(kind: Kind, dtype: str) -> None:
    m = MemoryManager(7, dtype, kind)
    assert not m.host().any(), "new memory holds zeros"
    m.fill(1)
    m.set(3, 0)
    m.set(-1, True)
    assert m.dtype == memory.DTYPES[dtype]
    assert m.nbytes == 7 * m.dtype.itemsize
    assert m.host().tolist() == [1, 1, 1, 0, 1, 1, 1]
    assert m.get(-4) == 0
    m.zero()
    assert not m.host().any()


def test_memory_that_is_used_again_holds_zeros() -> None:
    for _ in range(20):
        m = MemoryManager(1013, "int16")
        assert not m.host().any()
        m.fill(-1)
        del m


def test_host_views_share_and_guard() -> None:
    m = MemoryManager(5)
    m.host(write=True)[2] = 7
    assert m.get(2) == 7
    with pytest.raises(ValueError, match="read-only"):
        m.host()[2] = 8
    assert m.host_pointer() == m.host().ctypes.data


def test_a_numpy_view_outlives_its_manager() -> None:
    view = (m := MemoryManager(257, "int32")).host(write=True)[3:9]
    view[:] = 11
    del m
    others = [MemoryManager(257, "int32") for _ in range(50)]
    for other in others:
        other.fill(-1)
    assert view.tolist() == [11] * 6


def test_adopt_shares_memory() -> None:
    array = values(12).reshape(3, 4)
    m = MemoryManager.adopt(array)
    assert np.shares_memory(m.host(), array)
    array[2, 3] = -5
    m.set(0, 9)
    assert (m.get(11), array[0, 0]) == (-5, 9)
    fortran = np.asfortranarray(array)
    assert MemoryManager.adopt(fortran).host().tolist() == array.T.reshape(-1).tolist()


def test_adopted_read_only_memory_is_not_written() -> None:
    array = values(4)
    array.flags.writeable = False
    m = MemoryManager.adopt(array)
    assert not m.writable
    assert m.host().tolist() == array.tolist()
    for write in (lambda: m.fill(0), lambda: m.set(0, 1), lambda: m.host(write=True)):
        with pytest.raises(errors.ArgumentError, match="read-only array"):
            write()


@pytest.mark.parametrize(
    "array", [np.arange(10)[::2], np.zeros(4, ">f4"), np.zeros((4, 6))[:, 1:3]]
)
def test_adopt_refuses_what_it_cannot_describe(array: np.ndarray) -> None:
    with pytest.raises(errors.ArgumentError, match="expected a contiguous, aligned array"):
        MemoryManager.adopt(array)


def test_managed_memory_needs_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("MANAGED memory asked for a device")

    monkeypatch.setattr("magmadnn.memory.sides.device_memory", fail)
    m = made(MANAGED, 7)
    m.sync()
    m.prefetch("host")
    m.fill(2)
    n = copy.copy(m)
    assert n.host().tolist() == [2] * 7
    assert (m.host_valid, m.device_valid) == (True, False)


NO_DEVICE = "device 0 cannot be used: no driver here"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: MemoryManager(-1), errors.ArgumentError, "size must be an integer of at least 0, got -1"),
        (lambda: MemoryManager(2.5), errors.ArgumentError, "at least 0, got 2.5"),
        (lambda: MemoryManager(True), errors.ArgumentError, "at least 0, got True"),
        (lambda: MemoryManager(3, device=-1), errors.ArgumentError, "device must be an integer"),
        (lambda: MemoryManager(3, "float23"), errors.DTypeError, "did you mean 'float32'"),
        (lambda: MemoryManager(3, "uint64"), errors.DTypeError, "'uint64' is not known"),
        (lambda: MemoryManager(3, None), errors.DTypeError, "None is not known"),
        (lambda: MemoryManager(3, kind="HOTS"), errors.ArgumentError, "did you mean 'HOST'"),
        (lambda: MemoryManager(3, kind=2), errors.ArgumentError, "expected one of HOST, DEVICE"),
        (lambda: MemoryManager(3, kind=DEVICE), errors.DeviceError, NO_DEVICE),
        (lambda: MemoryManager(3, kind="CUDA_MANAGED"), errors.DeviceError, "use HOST or MANAGED"),
        (lambda: MemoryManager(3).device_pointer(), errors.DeviceError, "work on its host side"),
        (lambda: MemoryManager(3).prefetch("device"), errors.DeviceError, NO_DEVICE),
        (lambda: MemoryManager(3).prefetch("left"), errors.ArgumentError, "got 'left'"),
        (lambda: MemoryManager(3, kind=HOST).prefetch("device"), errors.ArgumentError, "no device side"),
        (lambda: MemoryManager(3, kind=HOST).device_pointer(), errors.DeviceError, "no device side"),
        (lambda: MemoryManager(10**17), errors.OutOfMemoryError, "355.3 PiB were asked for on the host"),
        (lambda: MemoryManager(3).get(3), errors.IndexOutOfRangeError, "index 3 is out of bounds for 3"),
        (lambda: MemoryManager(3).set(-4, 0), IndexError, "index -4 is out of bounds for 3"),
        (lambda: MemoryManager(3, "int8").fill(300), errors.ArgumentError, "int8 cannot be 300"),
        (lambda: MemoryManager(3, "int8").set(0, float("nan")), errors.ArgumentError, "cannot be nan"),
        (lambda: MemoryManager(3).copy_from(values(4)), errors.ArgumentError, "0 to 4 of this memory"),
        (lambda: MemoryManager(3).copy_from(values(3), to=1), errors.ArgumentError, "which has 3"),
        (lambda: MemoryManager(9).copy_from(values(4), 2, 3), errors.ArgumentError, "2 to 5 of the source"),
        (lambda: MemoryManager(9).copy_from(values(4), 5), errors.ArgumentError, "5 to 5 of the source"),
        (lambda: MemoryManager(9).copy_from(values(4), -1), errors.ArgumentError, "begin must be"),
        (lambda: MemoryManager(3).copy_from(values(3, "int32")), errors.DTypeError, "holds int32"),
        (lambda: MemoryManager.adopt(values(3), DEVICE), errors.ArgumentError, "not DEVICE"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, error: type[Exception], text: str) -> None:
    from magmadnn.backends import cuda

    before = cuda.install(cuda.Provider(lambda: (0, "no driver here"), lambda n: None))
    try:
        with pytest.raises(error, match=text) as caught:
            make()
    finally:
        cuda.install(before)
    assert isinstance(caught.value, errors.MagmaDNNError)
    assert "\n" not in str(caught.value)


# --- copies: all sixteen pairs ---------------------------------------------------------------


@pytest.mark.parametrize("other_device", [0, 1])
@pytest.mark.parametrize("to_kind", KINDS)
@pytest.mark.parametrize("from_kind", KINDS)
def test_copy_from_every_pair(
    devices: list[SimulatedDevice], from_kind: Kind, to_kind: Kind, other_device: int
) -> None:
    source, target = made(from_kind, 11, seed=1), made(to_kind, 13, seed=2, device=other_device)
    expected = values(13, seed=2)
    target.copy_from(source, 3, 5, 7)
    expected[7:12] = values(11, seed=1)[3:8]
    assert np.array_equal(held(target), expected)
    target.copy_from(source)
    expected[:11] = values(11, seed=1)
    assert np.array_equal(held(target), expected)
    target.copy_from(source, 11)
    target.copy_from(source, 2, 0, 13)
    assert np.array_equal(held(target), expected), "copies of nothing"
    assert np.array_equal(held(source), values(11, seed=1)), "the source is unchanged"
    whole = made(to_kind, 11, seed=3, device=other_device)
    whole.copy_from(source)
    assert np.array_equal(held(whole), values(11, seed=1))


# what one whole copy between fresh memories moves: (to the device, to the host, on the device)
MOVES = {
    (HOST, HOST): (0, 0, 0), (HOST, DEVICE): (1, 0, 0), (HOST, MANAGED): (0, 0, 0),
    (HOST, CUDA_MANAGED): (1, 0, 0), (DEVICE, HOST): (0, 1, 0), (DEVICE, DEVICE): (0, 0, 1),
    (DEVICE, MANAGED): (0, 0, 1), (DEVICE, CUDA_MANAGED): (0, 0, 1), (MANAGED, HOST): (0, 0, 0),
    (MANAGED, DEVICE): (1, 0, 0), (MANAGED, MANAGED): (0, 0, 0), (MANAGED, CUDA_MANAGED): (1, 0, 0),
    (CUDA_MANAGED, HOST): (0, 1, 0), (CUDA_MANAGED, DEVICE): (0, 0, 1),
    (CUDA_MANAGED, MANAGED): (0, 0, 1), (CUDA_MANAGED, CUDA_MANAGED): (0, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("to_kind", KINDS)
@pytest.mark.parametrize("from_kind", KINDS)
def test_no_pair_moves_more_than_it_must(
    devices: list[SimulatedDevice], from_kind: Kind, to_kind: Kind
) -> None:
    source, target = made(from_kind, 11, seed=1), made(to_kind, 11, seed=2)
    counts = devices[0].counts
    before = counts.to_device, counts.to_host, counts.on_device
    target.copy_from(source)
    after = counts.to_device, counts.to_host, counts.on_device
    moved = tuple(a - b for a, b in zip(after, before, strict=True))
    assert moved == MOVES[from_kind, to_kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("begin", "size", "to"), [(0, 9, 2), (2, 9, 0), (3, 4, 3), (0, 11, 0)])
def test_copies_within_one_memory_may_overlap(
    devices: list[SimulatedDevice], kind: Kind, begin: int, size: int, to: int
) -> None:
    m, expected = made(kind, 11), values(11)
    m.copy_from(m, begin, size, to)
    expected[to : to + size] = expected[begin : begin + size].copy()
    assert np.array_equal(held(m), expected)


# --- the two sides of MANAGED ----------------------------------------------------------------


def test_managed_copies_only_when_the_side_that_is_read_is_stale(
    devices: list[SimulatedDevice],
) -> None:
    m, counts = made(MANAGED, 11), devices[0].counts
    assert (counts.to_device, devices[0].in_use) == (0, 0), "not used on the device yet"
    m.device_pointer()
    m.device_pointer()
    assert (counts.to_device, counts.to_host, counts.bytes_to_device) == (1, 0, 44)
    assert (m.host_valid, m.device_valid) == (True, True)
    m.host()
    assert counts.to_host == 0, "the host was valid"
    address = m.device_pointer(write=True)
    devices[0].fill(address, np.float32(6).tobytes(), 11)
    assert (m.host_valid, m.device_valid) == (False, True)
    assert m.host().tolist() == [6.0] * 11
    m.host()
    assert (counts.to_host, counts.bytes_to_host) == (1, 44)
    m.host(write=True)[:] = 8
    assert (m.host_valid, m.device_valid) == (True, False)
    m.sync()
    assert (m.host_valid, m.device_valid, counts.to_device) == (True, True, 2)
    m.sync()
    assert counts.to_device == 2


def test_managed_sync_brings_either_side_up_to_date(devices: list[SimulatedDevice]) -> None:
    m = made(MANAGED, 7)
    devices[0].fill(m.device_pointer(write=True), np.float32(5).tobytes(), 7)
    m.sync()
    assert (m.host_valid, m.device_valid) == (True, True)
    assert m.host().tolist() == [5.0] * 7


def test_managed_whole_overwrites_copy_no_old_values(devices: list[SimulatedDevice]) -> None:
    m, counts = made(MANAGED, 7), devices[0].counts
    m.device_pointer(write=True)  # the host is stale now
    m.copy_from(values(7, seed=4))
    assert counts.to_host == 0
    assert np.array_equal(m.host(), values(7, seed=4))
    m.device_pointer()
    m.fill(3)  # on the device, since that is where it is used
    assert (m.host_valid, m.device_valid, counts.to_host) == (False, True, 0)
    assert m.host().tolist() == [3.0] * 7


def test_managed_part_overwrites_stay_on_the_valid_side(devices: list[SimulatedDevice]) -> None:
    m, counts = made(MANAGED, 7), devices[0].counts
    m.device_pointer(write=True)
    sent = counts.to_device
    m.copy_from(np.full(2, 9, np.float32), to=4)
    assert (counts.to_device - sent, counts.to_host, m.host_valid) == (1, 0, False)
    expected = values(7)
    expected[4:6] = 9
    assert np.array_equal(m.host(), expected)


def test_prefetch_runs_in_the_background_and_the_next_use_waits(
    devices: list[SimulatedDevice],
) -> None:
    m, counts = made(MANAGED, 7), devices[0].counts
    m.prefetch("device")
    waits = counts.waits
    out = MemoryManager(7, "float32", DEVICE)
    out.copy_from(m)
    assert counts.waits == waits + 1
    assert np.array_equal(held(out), values(7))
    devices[0].fill(m.device_pointer(write=True), np.float32(2).tobytes(), 7)
    m.prefetch("host")
    assert m.host().tolist() == [2.0] * 7


def test_prefetch_outlives_its_memory(devices: list[SimulatedDevice]) -> None:
    for seed in range(5):
        m = made(MANAGED, 64, seed=seed)
        m.prefetch("device")
        del m
        reused = [MemoryManager(64, "float32", MANAGED) for _ in range(4)]
        for other in reused:
            other.device_pointer(write=True)  # so that what the device holds is what is read
        devices[0].wait()
        assert not any(held(other).any() for other in reused)


def test_cuda_managed_is_seen_by_both_sides(devices: list[SimulatedDevice]) -> None:
    m, counts = MemoryManager(7, "int32", CUDA_MANAGED), devices[0].counts
    assert not m.host().any()
    view = m.host(write=True)
    assert view.ctypes.data == m.device_pointer() == m.host_pointer()
    view[:] = 4
    devices[0].fill(m.device_pointer(write=True), np.int32(5).tobytes(), 3)
    waits = counts.waits
    assert m.host().tolist() == [5, 5, 5, 4, 4, 4, 4]
    assert counts.waits == waits + 1, "the host reads when the device is done"
    m.prefetch("device")
    m.prefetch("host")
    assert counts.prefetches == 2
    assert (counts.to_device, counts.to_host) == (0, 0)
    del m
    MemoryManager(7, "int32", CUDA_MANAGED).fill(-1)
    assert view.tolist() == [5, 5, 5, 4, 4, 4, 4], "a view keeps the block"


def test_device_memory_is_not_seen_by_the_host(devices: list[SimulatedDevice]) -> None:
    m = MemoryManager(5, "int64", DEVICE)
    assert [m.get(i) for i in range(5)] == [0] * 5, "zeroed, though a device gives garbage"
    with pytest.raises(errors.DeviceError, match="cannot be seen by the host"):
        m.host()
    m.fill(7)
    m.set(2, -1)
    assert [m.get(i) for i in range(-5, 0)] == [7, 7, -1, 7, 7]
    with pytest.raises(errors.ArgumentError, match="DEVICE memory has no host side"):
        m.prefetch("host")


def test_a_full_device_says_how_full() -> None:
    with simulated_devices(capacity=10_000):
        a = MemoryManager(1000, "float32", DEVICE)
        with pytest.raises(errors.OutOfMemoryError) as caught:
            MemoryManager(2000, "float32", DEVICE)
        assert "7.8 KiB were asked for on the device 0 (simulated), which has 9.8 KiB" in str(
            caught.value
        )
        assert a.get(0) == 0
        del a
        MemoryManager(2000, "float32", DEVICE)  # kept blocks are given back when it is tight
        memory.trim()


def test_what_others_keep_is_taken_back_when_it_is_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_devices(capacity=10_000) as (device, *_):
        kept = device.allocate(8_000)
        monkeypatch.setattr(device, "trim", lambda: device.free(kept))
        MemoryManager(2000, "float32", DEVICE)
        memory.trim()


# --- copies of a memory as an object ---------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_copy_and_pickle(devices: list[SimulatedDevice], kind: Kind) -> None:
    m = made(kind, 9, device=1)
    for twin in (copy.copy(m), copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert (twin.kind, twin.device, twin.dtype) == (kind, 1, m.dtype)
        assert np.array_equal(held(twin), held(m))
        twin.fill(0)
    assert np.array_equal(held(m), values(9))


@pytest.mark.parametrize("kind", [HOST, MANAGED, DEVICE])
def test_a_version_tells_of_every_write(devices: list[SimulatedDevice], kind: Kind) -> None:
    m, other = made(kind, 5), made(kind, 5)
    versions = [m.version, other.version]
    for read in (lambda: held(m), lambda: other.copy_from(m), m.sync):
        read()
        assert m.version == versions[0]
    writes = [lambda: m.fill(1), lambda: m.set(2, 5), lambda: m.copy_from(other), m.zero]
    if kind is not DEVICE:
        writes.append(lambda: m.host(write=True))
    for write in writes:
        write()
        assert m.version not in versions
        versions.append(m.version)


def test_nobody_tells_what_others_write(devices: list[SimulatedDevice]) -> None:
    m = made(DEVICE, 5)
    m.device_pointer()
    assert m.version is not None
    m.device_pointer(write=True)
    assert m.version is None
    assert made(CUDA_MANAGED, 5).version is None
    assert (
        MemoryManager.adopt_device(made(DEVICE, 5).device_pointer(), 5, "int64", 0, m).version
        is None
    )
