"""Launches with other memory each time: calls that are recorded once, on stand-ins of the libraries."""

from __future__ import annotations

import ctypes
import gc
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda import _driver as driver
from magmadnn.backends.cuda._cublaslt import Products
from magmadnn.backends.cuda._replay import CudaReplay
from magmadnn.backends.cuda.engine import (
    ArrayNode,
    CopyNode,
    FourierNode,
    KernelNode,
    MatrixNode,
    NativeCall,
    ProductNode,
)
from magmadnn.backends.cuda.libraries.cufft import Transforms
from magmadnn.backends.cuda.libraries.cusolver import MatrixFunctions
from magmadnn.backends.cuda.libraries.recorded import RecordedCall
from magmadnn.backends.cuda.nodes.arrays import DeviceArray
from magmadnn.backends.cuda.nodes.stand_ins import number_of, parted, stand_in, with_addresses
from magmadnn.errors import DeviceError
from tests.backends import test_cublaslt, test_cufft, test_cusolver
from tests.runtime.cuda.emulator import _seen

RNG = np.random.default_rng(6)
STREAM = 7


class Driver:
    """Functions of the driver that are called, in this process's memory."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.status = 0

    def function(self, name: str) -> Any:
        return {
            "cuLaunchKernel": self._launch,
            "cuMemcpyAsync": self._copy,
            "cuGraphLaunch": self._launch_graph,
        }[name]

    def _launch_graph(self, made: Any, stream: Any) -> int:
        assert stream.value == STREAM
        self.launched.append(("graph", made.value))
        return self.status

    def _copy(self, to: Any, source: Any, nbytes: Any, stream: Any) -> int:
        assert stream.value == STREAM
        ctypes.memmove(to.value, source.value, nbytes.value)
        return self.status

    def _launch(self, function: Any, *told: Any) -> int:
        *sizes, shared, stream, places, extra = told
        assert (stream.value, extra) == (STREAM, None)
        count = function.value  # of its arguments
        values = [ctypes.c_int64.from_address(places[k]).value for k in range(count)]
        self.launched.append(([x.value for x in sizes], shared.value, values))
        return self.status


class Device:
    """Records calls, as an engine does."""

    stream = STREAM

    def __init__(self) -> None:
        self.lt, self.fourier = test_cublaslt.Library(), test_cufft.Library()
        self.blas, self.solver = test_cusolver.Library(), test_cusolver.Library()
        self._products = Products(self.lt, STREAM)
        self._functions = MatrixFunctions(self.blas, self.solver, STREAM)
        self._transforms = Transforms(self.fourier, STREAM)
        self.inside, self.used, self.graphs = 0, 0, list[Any]()
        self.lock = self

    def use(self) -> None:
        assert self.inside
        self.used += 1

    def __enter__(self) -> None:
        self.inside += 1

    def __exit__(self, *error: object) -> None:
        self.inside -= 1

    def product(self, node: ProductNode, held: ExitStack) -> RecordedCall:
        return self._products.recorded(node, held)

    def matrices(self, node: MatrixNode) -> list[RecordedCall]:
        return self._functions.recorded(node)

    def transform(self, node: FourierNode) -> list[RecordedCall]:
        return self._transforms.recorded(node)

    def call_arrays(self, node: ArrayNode) -> None:
        assert self.inside
        node.run([_seen(array) for array in node.arrays])

    def graph(self, nodes: Any) -> Any:
        self.graphs.append(list(nodes))
        return SimpleNamespace(call=NativeCall("cuGraphLaunch", (0, len(self.graphs), STREAM)))

    def replay(self, *nodes: Any) -> CudaReplay:
        return CudaReplay(nodes, self, self)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(driver, "function", made.function)
    return made


def test_stand_ins_are_no_addresses_and_no_numbers() -> None:
    assert number_of(stand_in(3)) == 3 and parted(stand_in(3) + 24) == (3, 24)
    assert parted(stand_in(0) - 8) == (0, -8)
    scales = [np.float64(x).view(np.int64).item() for x in (1 / 12, -3.0, 1e-200, 1e300, np.inf)]
    for other in (0, 7, -1, -(1 << 60), 1 << 47, (1 << 50) - (1 << 41), *scales):
        assert number_of(other) is None and parted(other) is None
    node = CopyNode(stand_in(1) + 8, stand_in(0), 16)
    assert with_addresses(node, [512, 1024]) == CopyNode(1032, 512, 16)
    arrays = ArrayNode("x", (DeviceArray(stand_in(0), (2,), (8,), np.dtype("f8")),), print)
    assert with_addresses(arrays, [256]).arrays[0].address == 256


def test_kernels_and_copies(calls: Driver) -> None:
    a, b = np.arange(4.0), np.zeros(4)
    kernel = KernelNode(4, (1, 2, 3), (32, 1, 1), 0, (5, stand_in(1) + 8, -1, stand_in(0)))
    device = Device()
    replay = device.replay(kernel, CopyNode(stand_in(1), stand_in(0), a.nbytes))
    for left, right in ((a, b), (b, a)):
        left[:] = RNG.normal(size=4)
        places = [left.ctypes.data, right.ctypes.data]
        replay.launch(places)
        np.testing.assert_array_equal(left, right)
        assert calls.launched[-1][0] == [1, 2, 3, 32, 1, 1]
        assert calls.launched[-1][2] == [5, places[1] + 8, -1, places[0]]
    assert device.used == 2 and not device.inside


def test_functions_of_matrices(calls: Driver) -> None:
    """Factors and a solution in memory that is elsewhere, and exchanges that stay."""
    n = 5
    exchanges, info = np.zeros(n, np.int32), np.zeros(1, np.int32)
    told = {
        "dtype": "float64", "tables": (), "info": info.ctypes.data, "workspace": 99, "height": n,
        "width": n, "pieces": (exchanges.ctypes.data,), "matrices": 1, "columns": n,
    }  # fmt: skip
    first, second = (stand_in(0),), (stand_in(1) + 16,)
    nodes = (
        MatrixNode("getrf", settings=(), rows=n + 1, operands=(first,), **told),
        MatrixNode("getrs", settings=(False,), rows=2, operands=(first, second), **told),
    )
    device = Device()
    replay = device.replay(*nodes)
    before = len(device.solver.calls)
    for _ in range(3):
        a, b = RNG.normal(size=(n, n)), RNG.normal(size=(2, n))
        factors, right = a.T.copy(), np.r_[0.0, 0.0, b.reshape(-1)]
        replay.launch([factors.ctypes.data, right.ctypes.data])
        np.testing.assert_allclose(right[2:].reshape(2, n), np.linalg.solve(a, b.T).T, atol=1e-10)
    assert len(device.solver.calls) == before + 6  # nothing is asked again


def test_products_hold_their_descriptions(calls: Driver) -> None:
    node = ProductNode(
        "float64", False, (3, 4, 5), (False, True), stand_in(0), stand_in(1), stand_in(2), (5, 5, 4), 99,
        algorithm=bytes([3] + [0] * 63),
    )  # fmt: skip
    device = Device()
    held = len(device.lt.held)
    replay = device.replay(node)
    assert len(device.lt.held) == held + 4
    for _ in range(2):
        a, b, c = RNG.normal(size=(3, 5)), RNG.normal(size=(4, 5)), np.full((3, 4), np.nan)
        replay.launch([x.ctypes.data for x in (a, b, c)])
        np.testing.assert_allclose(c, a @ b.T)
    assert device.lt.calls == ["float64 algorithm 3 stream 7"] * 2
    del replay
    gc.collect()
    assert len(device.lt.held) == held


def test_transforms_and_functions_of_arrays(calls: Driver) -> None:
    room, n = np.zeros(96, np.uint8), 6
    transform = FourierNode("c2c", True, (n,), 1, False, stand_in(0), stand_in(1), room.ctypes.data)
    arrays = tuple(DeviceArray(stand_in(k), (n,), (16,), np.dtype("complex128")) for k in (1, 2))

    def doubled(given: Any) -> None:
        given[1][...] = 2 * given[0]

    replay = Device().replay(transform, ArrayNode("doubled", arrays, doubled))
    for _ in range(2):
        x, y, z = (np.array(RNG.normal(size=n), np.complex128) for _ in range(3))
        replay.launch([v.ctypes.data for v in (x, y, z)])
        np.testing.assert_allclose(z, 2 * np.fft.fft(x))


def test_the_same_addresses_again_become_a_graph(calls: Driver) -> None:
    """Of all but copies, in order, while other addresses are launched as before."""
    product = ProductNode(
        "float64", False, (3, 4, 5), (False, True), stand_in(0), stand_in(1), stand_in(2), (5, 5, 4), 99,
        algorithm=bytes([3] + [0] * 63),
    )  # fmt: skip
    kernel = KernelNode(1, (1, 1, 1), (32, 1, 1), 0, (stand_in(2) + 8,))
    a, b, c, word = (
        RNG.normal(size=(3, 5)), RNG.normal(size=(4, 5)), np.zeros((3, 4)), np.zeros(1),
    )  # fmt: skip
    device = Device()
    replay = device.replay(product, kernel, CopyNode(stand_in(3), stand_in(2), 8))
    places = [x.ctypes.data for x in (a, b, c, word)]
    for _ in range(4):
        replay.launch(places)
    assert len(device.lt.calls) == 4 and not device.graphs
    for _ in range(3):
        word[:] = 0
        replay.launch(places)
        assert calls.launched[-1] == ("graph", 1) and word[0] == c[0, 0] != 0
    assert len(device.lt.calls) == 4 and len(device.graphs) == 1
    first, second = device.graphs[0]
    assert (first.a, first.b, first.c, first.after) == (*places[:3], ())
    assert (second.arguments, second.after) == ((places[2] + 8,), (0,))
    other = np.full((3, 4), np.nan)
    replay.launch([*places[:2], other.ctypes.data, places[3]])
    np.testing.assert_allclose(other, a @ b.T)
    replay.launch(places)
    assert calls.launched[-1] == ("graph", 1)
    others = np.zeros((6, 3, 4))
    for _ in range(400):  # in turns: few graphs are kept, and seldom one is made
        for one in others:
            replay.launch([*places[:2], one.ctypes.data, places[3]])
    assert len(device.graphs) < 20 and len(replay._kept) == 4
    np.testing.assert_allclose(others[-1], a @ b.T)


def test_calls_that_cannot_be_a_graph_go_on_as_calls(
    calls: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def fails(self: object, nodes: object) -> Any:
        tried.append(nodes)
        raise DeviceError("no memory for a graph")

    monkeypatch.setattr(Device, "graph", fails)
    product = ProductNode(
        "float64", False, (3, 4, 5), (False, True), stand_in(0), stand_in(1), stand_in(2), (5, 5, 4), 99,
        algorithm=bytes([3] + [0] * 63),
    )  # fmt: skip
    replay = Device().replay(product)
    b = RNG.normal(size=(4, 5))
    a, c = np.zeros((3, 5)), np.zeros((3, 4))
    for number in range(20):
        a[:] = number
        replay.launch([x.ctypes.data for x in (a, b, c)])
        np.testing.assert_allclose(c, a @ b.T)
    assert len(tried) == 1


def test_functions_that_no_graph_holds_are_called(calls: Driver) -> None:
    x, y = (np.array(RNG.normal(size=6), np.complex128) for _ in range(2))
    arrays = tuple(DeviceArray(stand_in(k), (6,), (16,), np.dtype("complex128")) for k in (0, 1))

    def doubled(given: Any) -> None:
        given[1][...] = 2 * given[0]

    device = Device()
    replay = device.replay(ArrayNode("doubled", arrays, doubled))
    for _ in range(9):
        y[:] = 0
        replay.launch([x.ctypes.data, y.ctypes.data])
        np.testing.assert_array_equal(y, 2 * x)
    assert not device.graphs


def test_failures_name_the_function(calls: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.fourier = test_cufft.Library("cufftExecZ2Z")
    device._transforms = Transforms(device.fourier, STREAM)
    node = FourierNode("c2c", True, (6,), 1, False, stand_in(0), stand_in(1), 99)
    with pytest.raises(DeviceError, match="the device failed: cufftExecZ2Z gives status 5"):
        device.replay(node).launch([0, 0])
    calls.status = 700
    monkeypatch.setattr(driver, "fail", lambda name, status: pytest.fail(f"{name} {status}"))
    with pytest.raises(pytest.fail.Exception, match="cuMemcpyAsync 700"):
        replay = device.replay(CopyNode(stand_in(0), stand_in(1), 8))
        replay.launch([room.ctypes.data for room in np.zeros((2, 1))])
