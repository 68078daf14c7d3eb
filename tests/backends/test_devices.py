"""What every device must do, tried on simulated ones and, where there is one, on a real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from magmadnn.backends import cuda
from magmadnn.backends.cuda.protocol import DeviceMemory, fill_by_doubling
from magmadnn.backends.cuda.simulated import SimulatedDevice, simulated_devices
from magmadnn.errors import DeviceError

HAS_DEVICE, REASON = cuda.available()
REAL = pytest.param(
    "real", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_DEVICE, reason=REASON)]
)


@pytest.fixture(params=["simulated", REAL])
def device(request: pytest.FixtureRequest) -> Iterator[DeviceMemory]:
    if request.param == "real":
        yield cuda.device_memory(0)
        return
    with simulated_devices() as devices:
        yield devices[0]
        assert devices[0].in_use == 0, "a test left blocks behind"


def some_bytes(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 255, count, dtype=np.uint8)


def fetched(device: DeviceMemory, address: int, nbytes: int) -> np.ndarray:
    out = np.zeros(nbytes, np.uint8)
    device.copy_to_host(out, address)
    device.wait()
    return out


@pytest.mark.parametrize("managed", [False, True])
def test_bytes_go_there_and_back(device: DeviceMemory, managed: bool) -> None:
    source = some_bytes(1009, 1)
    block = device.allocate_managed(1009) if managed else device.allocate(1009)
    device.copy_to_device(block, source)
    assert np.array_equal(fetched(device, block, 1009), source)
    assert np.array_equal(fetched(device, block + 13, 101), source[13:114])
    device.free(block)


def test_copies_on_the_device_and_offsets(device: DeviceMemory) -> None:
    source = some_bytes(211, 2)
    a, b = device.allocate(211), device.allocate(307)
    device.copy_to_device(a, source)
    device.fill(b, b"\x07", 307)
    device.copy_on_device(b + 5, a + 11, 200)
    expected = np.full(307, 7, np.uint8)
    expected[5:205] = source[11:]
    assert np.array_equal(fetched(device, b, 307), expected)
    device.free(a)
    device.free(b)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 97])
@pytest.mark.parametrize("pattern", [b"\x03", b"\x01\x02", b"\x00\x00\x80\x3f", bytes(range(8))])
def test_fill(device: DeviceMemory, pattern: bytes, count: int) -> None:
    block = device.allocate(1000)
    device.fill(block, b"\xee", 1000)
    device.fill(block, pattern, count)
    expected = pattern * count + b"\xee" * (1000 - len(pattern) * count)
    assert fetched(device, block, 1000).tobytes() == expected
    device.free(block)


def test_fill_by_doubling_takes_few_copies(simulated: SimulatedDevice) -> None:
    block = simulated.allocate(4000)
    fill_by_doubling(simulated, block, b"\1\2\3\4", 4000)
    assert simulated.counts.on_device == 10, "1000 elements: 1, 2, 4, ... 512 and the rest"
    simulated.free(block)


def test_copies_in_the_background_have_arrived_after_wait(device: DeviceMemory) -> None:
    source, out = some_bytes(100_003, 3), np.zeros(100_003, np.uint8)
    block = device.allocate(100_003)
    device.copy_to_device(block, source, hold=source)
    device.wait()
    device.copy_to_host(out, block, hold=out)
    device.wait()
    assert np.array_equal(out, source)
    device.free(block)


def test_a_full_device_says_so(device: DeviceMemory) -> None:
    free, total = device.free_and_total()
    assert free is not None
    assert 0 < free <= total
    for allocate in (device.allocate, device.allocate_managed):
        with pytest.raises(MemoryError):
            allocate(total + 1)


# --- the simulated device refuses what a real one refuses ------------------------------------


@pytest.fixture
def simulated() -> Iterator[SimulatedDevice]:
    with simulated_devices() as devices:
        yield devices[0]


def test_background_copies_wait(simulated: SimulatedDevice) -> None:
    block = simulated.allocate(8)
    simulated.copy_to_device(block, np.full(8, 9, np.uint8), hold=1)
    assert fetched_at_once(simulated, block) == 0xCB
    simulated.wait()
    assert fetched_at_once(simulated, block) == 9


def fetched_at_once(device: SimulatedDevice, address: int) -> int:
    out = np.zeros(1, np.uint8)
    device.copy_to_host(out, address)
    return int(out[0])


def test_misuse_of_addresses_is_an_error(simulated: SimulatedDevice) -> None:
    block = simulated.allocate(100)
    with pytest.raises(DeviceError, match="no block of a device has the 101 bytes"):
        simulated.copy_to_host(np.zeros(101, np.uint8), block)
    with pytest.raises(DeviceError, match="overlap"):
        simulated.copy_on_device(block + 1, block, 50)
    with pytest.raises(DeviceError, match="is not managed"):
        simulated.prefetch_managed(block, 100, True)
    simulated.free(block)
    with pytest.raises(DeviceError, match="has no block at address"):
        simulated.free(block)


# --- is there a device, and why not ----------------------------------------------------------


def test_no_device_says_what_is_missing() -> None:
    before = cuda.install(cuda.Provider(lambda: (0, "no driver"), lambda n: None))
    try:
        assert cuda.available() == (False, "no driver")
        with pytest.raises(DeviceError, match="device 0 cannot be used: no driver"):
            cuda.device_memory(0)
    finally:
        cuda.install(before)


def test_a_device_number_that_is_not_there() -> None:
    with simulated_devices(2):
        assert cuda.device_count() == 2
        assert cuda.available()[0]
        with pytest.raises(DeviceError, match="device 2 is not there: this machine has 2"):
            cuda.device_memory(2)


def test_probe_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(cuda.ctypes, "CDLL", missing)
    assert cuda._probe_cupy() == (0, "no NVIDIA driver was found (libcuda.so.1)")


def test_probe_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "magmadnn.backends.cuda._cupy", raising=False)
    monkeypatch.delattr(cuda, "_cupy", raising=False)
    count, reason = cuda._probe_cupy()
    assert count == 0
    assert reason.startswith("CuPy cannot be loaded")
    assert 'pip install "magmadnn[cuda13]"' in reason


def test_probe_where_a_library_of_cuda_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text(
        'raise RuntimeError("Failed to dlopen\\nlibcublasLt.so.13")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: None)
    for name in ("cupy", "magmadnn.backends.cuda._cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(cuda, "_cupy", raising=False)
    count, reason = cuda._probe_cupy()
    assert count == 0
    assert reason.startswith(r"CuPy cannot be loaded (Failed to dlopen\nlibcublasLt.so.13): ")


def test_probe_with_a_driver_that_gives_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy stands in here: only the wording is tested."""

    class Refusal(Exception):
        pass

    def refuse() -> int:
        raise Refusal("cudaErrorNoDevice: no CUDA-capable device is detected")

    runtime = ModuleType("cupy.cuda.runtime")
    runtime.getDeviceCount, runtime.CUDARuntimeError = refuse, Refusal
    fake, fake_cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    fake.cuda, fake_cuda.runtime = fake_cuda, runtime
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: None)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda", fake_cuda)
    monkeypatch.delitem(sys.modules, "magmadnn.backends.cuda._cupy", raising=False)
    monkeypatch.delattr(cuda, "_cupy", raising=False)
    try:
        count, reason = cuda._probe_cupy()
        assert count == 0
        assert reason == (
            "the NVIDIA driver gives no device "
            "(cudaErrorNoDevice: no CUDA-capable device is detected)"
        )
    finally:
        sys.modules.pop("magmadnn.backends.cuda._cupy", None)
