"""The CUDA driver's functions that graphs need, through ctypes: modules, streams, graphs.

The driver is where explicit graphs are, with edges that let a kernel begin before the one in front of it has
ended. Its functions keep their binary interface for good: each name here carries its version.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_uint8, c_uint64, c_void_p
from functools import cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DeviceError, OutOfMemoryError

from .engine import KernelNode, NativeCall
from .stream_flags import MemoryCall

_OUT_OF_MEMORY = 2
_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_PREFERRED_LOCATION = 3  # CU_MEM_ADVISE_SET_PREFERRED_LOCATION
_HOST = -1  # CU_DEVICE_CPU
_WITHOUT_TIME = 2  # CU_EVENT_DISABLE_TIMING
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_PROGRAMMATIC = 1  # edge type, and port of a kernel
_KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_PRIORITY = 8  # CU_LAUNCH_ATTRIBUTE_PRIORITY
_FIRST = -1  # which others, of priority 0, let go first
_BY_NODES = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


_allowed: dict[int, int] = {}  # dynamic shared memory, by function; modules are never given back


class KernelParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
        ("parameters", POINTER(c_void_p)), ("extra", c_void_p), ("kernel", c_void_p),
        ("context", c_void_p),
    )  # fmt: skip


class _AttributeValue(ctypes.Structure):
    """CUlaunchAttributeValue: what an attribute of a kernel in a graph is set to, in 64 bytes."""

    _fields_ = (("number", c_int), ("others", c_uint8 * 60))


class EdgeData(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = (
        ("from_port", c_uint8), ("to_port", c_uint8), ("kind", c_uint8), ("reserved", c_uint8 * 5),
    )  # fmt: skip


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of dimensions, padded to its 72 bytes."""

    _fields_ = (
        ("kind", c_uint), ("padding", c_uint), ("x", c_uint), ("y", c_uint), ("z", c_uint),
        ("rest", c_uint * 13),
    )  # fmt: skip


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: how many blocks and threads, bytes shared, the stream, and attributes."""

    _fields_ = (
        ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p),
        ("attributes", POINTER(_LaunchAttribute)), ("count", c_uint),
    )  # fmt: skip


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    """Call a function of the driver.

    Raises:
        OutOfMemoryError, DeviceError: if it fails, with the driver's text.
    """
    prepared(name, *arguments)()


def prepared(name: str, *arguments: object) -> Callable[[], None]:
    """A function of the driver with its arguments, to be called often; it raises what `call` does."""
    called = function(name)

    def again() -> None:
        if status := called(*arguments):
            fail(name, status)

    return again


def function(name: str) -> Callable[..., int]:
    """A function of the driver as it is: it gives 0, or the number of an error."""
    found: Callable[..., int] = getattr(_library(), name)
    return found


def call_of(name: str, *arguments: int, held: object = None) -> NativeCall:
    """The same for native code."""
    return NativeCall(name, (address_of(name), *arguments), held)


@cache
def address_of(name: str) -> int:
    """The address of a function of the driver, by its name."""
    return ctypes.cast(getattr(_library(), name), c_void_p).value or 0


def fail(name: str, status: int) -> NoReturn:
    """Raise the error that a function of the driver gave, with the driver's text."""
    text = c_char_p()
    _library().cuGetErrorString(c_int(status), byref(text))
    message = f"{name}: {(text.value or b'error').decode()} ({status})"
    if status == _OUT_OF_MEMORY:
        raise OutOfMemoryError(f"the device has no memory left: {message}")
    raise DeviceError(f"the device failed: {message}; results since the last wait are not known")


def current_context() -> int:
    """The context of the calling thread; 0 where there is none."""
    context = c_void_p()
    call("cuCtxGetCurrent", byref(context))
    return context.value or 0


def use_context(context: int) -> Callable[[], None]:
    """What makes it the calling thread's."""
    return prepared("cuCtxSetCurrent", c_void_p(context))


class CurrentContext:
    """With a context, and alone; may be entered again by who is in it.

    Attributes:
        lock: who has it is alone;
        use: makes the context that of the calling thread: both for who enters it for each launch.
    """

    def __init__(self, context: int) -> None:
        self.lock, self.use = threading.RLock(), use_context(context)

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self.use()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def new_stream(*, apart: bool = False) -> int:
    """A stream that is in one order with the default stream; `apart` from it, as capturing needs."""
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), c_uint(apart))
    return stream.value or 0


def wait_for(stream: int) -> Callable[[], None]:
    """What returns once all that a stream was given is done."""
    return prepared("cuStreamSynchronize", c_void_p(stream))


def prefer(address: int, nbytes: int, device: int) -> None:
    """Advise that managed memory is best kept on a device: pages go back there when kernels use them."""
    call(
        "cuMemAdvise", c_uint64(address), ctypes.c_size_t(nbytes), c_int(_PREFERRED_LOCATION),
        c_int(device),
    )  # fmt: skip


def move(address: int, nbytes: int, device: int | None, stream: int) -> None:
    """Begin to move pages of managed memory to a device, or with None to the host."""
    call(
        "cuMemPrefetchAsync", c_uint64(address), ctypes.c_size_t(nbytes),
        c_int(_HOST if device is None else device), c_void_p(stream),
    )  # fmt: skip


def new_event(*, timed: bool = True) -> int:
    """An event; it keeps the time where that is asked for."""
    event = c_void_p()
    call("cuEventCreate", byref(event), c_uint(0 if timed else _WITHOUT_TIME))
    return event.value or 0


def destroy_event(event: int) -> None:
    """Give an event back."""
    call("cuEventDestroy_v2", c_void_p(event))


def wait_for_event(event: int) -> Callable[[], None]:
    """What returns once all is done that an event was recorded behind; in any context."""
    return prepared("cuEventSynchronize", c_void_p(event))


def milliseconds(first: int, last: int) -> float:
    """The time between two events that are past."""
    found = ctypes.c_float()
    call("cuEventElapsedTime", byref(found), c_void_p(first), c_void_p(last))
    return found.value


def load_module(image: bytes) -> int:
    """A module of machine code."""
    module = c_void_p()
    call("cuModuleLoadData", byref(module), c_char_p(image))
    return module.value or 0


def function_of(module: int, name: str) -> int:
    """A function of a module."""
    function = c_void_p()
    call("cuModuleGetFunction", byref(function), c_void_p(module), c_char_p(name.encode()))
    return function.value or 0


def allow_shared_bytes(function: int, nbytes: int) -> None:
    """Let a function have so much dynamic shared memory; needed where it has 48 KiB with its static one."""
    if nbytes > _allowed.get(function, 0):
        call("cuFuncSetAttribute", c_void_p(function), c_int(_DYNAMIC_SHARED_BYTES), c_int(nbytes))
        _allowed[function] = nbytes


def clusters_at_once(node: KernelNode, blocks: int) -> int:
    """How many clusters of so many blocks of a kernel the device runs at the same time."""
    cluster = _LaunchAttribute(_CLUSTER_DIMENSION, 0, blocks, 1, 1)
    grid, block = (c_uint * 3)(*node.grid), (c_uint * 3)(*node.block)
    how = _LaunchConfig(grid, block, node.shared_bytes, None, ctypes.pointer(cluster), 1)
    found = c_int()
    call("cuOccupancyMaxActiveClusters", byref(found), c_void_p(node.function), byref(how))
    return found.value


def copy(to: int, source: int, nbytes: int, stream: int) -> None:
    """Begin to copy between any two addresses."""
    call("cuMemcpyAsync", c_uint64(to), c_uint64(source), ctypes.c_size_t(nbytes), c_void_p(stream))


def write_and_wait(stream: int, calls: Sequence[MemoryCall]) -> None:
    """Give a stream writes of numbers and waits for numbers, one after the other."""
    if calls:
        array = (MemoryCall * len(calls))(*calls)
        call("cuStreamBatchMemOp_v2", c_void_p(stream), c_uint(len(calls)), array, c_uint(0))


def launch_kernel(
    stream: int,
    function: int,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[int],
) -> None:
    """Begin to run a kernel; its arguments are copied."""
    _held, places = packed(arguments)
    call(
        "cuLaunchKernel",
        c_void_p(function), *map(c_uint, grid), *map(c_uint, block), c_uint(shared_bytes),
        c_void_p(stream), places, None,
    )  # fmt: skip


def launch_call(
    stream: int,
    function: int,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: NDArray[np.int64],
) -> NativeCall:
    """The same for native code, with the arguments that stand there then."""
    start, step = arguments.ctypes.data, arguments.strides[0]
    places = (c_void_p * len(arguments))(*(start + step * k for k in range(len(arguments))))
    return call_of(
        "cuLaunchKernel",
        function, *grid, *block, shared_bytes, stream, ctypes.addressof(places), 0,
        held=(places, arguments),
    )  # fmt: skip


class StreamCalls:
    """Copies, launches and events that native code gives to one stream."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def copy(self, to: int, source: int, nbytes: int) -> NativeCall:
        return call_of("cuMemcpyAsync", to, source, nbytes, self._stream)

    def launch(self, node: KernelNode, arguments: NDArray[np.int64]) -> NativeCall:
        allow_shared_bytes(node.function, node.shared_bytes)
        return launch_call(
            self._stream, node.function, node.grid, node.block, node.shared_bytes, arguments
        )

    def mark(self, fence: Any) -> NativeCall:  # a CudaReusableEvent
        return call_of("cuEventRecord", fence.made, self._stream, held=fence)

    def follow(self, fence: Any) -> NativeCall:
        return call_of("cuStreamWaitEvent", self._stream, fence.made, 0, held=fence)


# --- graphs ---------------------------------------------------------------------------------------


def new_graph() -> int:
    """An empty graph."""
    graph = c_void_p()
    call("cuGraphCreate", byref(graph), c_uint(0))
    return graph.value or 0


def add_kernel(
    graph: int,
    function: int,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[int],
) -> int:
    """A kernel in a graph; its arguments are copied."""
    _held, places = packed(arguments)
    parameters = KernelParameters(
        function, (c_uint * 3)(*grid), (c_uint * 3)(*block), shared_bytes,
        ctypes.cast(places, POINTER(c_void_p)), None, None, None,
    )  # fmt: skip
    node = c_void_p()
    call("cuGraphAddKernelNode_v2", byref(node), c_void_p(graph), None, 0, byref(parameters))
    return node.value or 0


def packed(arguments: Sequence[int]) -> tuple[ctypes.Array[c_uint64], ctypes.Array[c_void_p]]:
    """Arguments of 8 bytes, to be held until they are copied, and the address of each."""
    values = (c_uint64 * max(len(arguments), 1))(*(a & 0xFFFFFFFFFFFFFFFF for a in arguments))
    start = ctypes.addressof(values)
    places = (c_void_p * max(len(arguments), 1))(*(start + 8 * k for k in range(len(arguments))))
    return values, places


def add_child(graph: int, child: int) -> int:
    """A copy of another graph in a graph."""
    node = c_void_p()
    call(
        "cuGraphAddChildGraphNode",
        byref(node), c_void_p(graph), None, ctypes.c_size_t(0), c_void_p(child),
    )  # fmt: skip
    return node.value or 0


def add_event(graph: int, event: int) -> int:
    """A node that takes down a time."""
    node = c_void_p()
    call(
        "cuGraphAddEventRecordNode",
        byref(node), c_void_p(graph), None, ctypes.c_size_t(0), c_void_p(event),
    )  # fmt: skip
    return node.value or 0


def add_edges(graph: int, edges: Sequence[tuple[int, int, bool]]) -> None:
    """Edges (from, to, early) of a graph; over an early one, kernels wait themselves."""
    count = len(edges)
    if not count:
        return
    origins = (c_void_p * count)(*(a for a, _, _ in edges))
    goals = (c_void_p * count)(*(b for _, b, _ in edges))
    data = (EdgeData * count)()
    for entry, (_, _, early) in zip(data, edges, strict=True):
        entry.from_port = entry.kind = _PROGRAMMATIC if early else 0
    if not any(early for _, _, early in edges):
        call("cuGraphAddDependencies", c_void_p(graph), origins, goals, ctypes.c_size_t(count))
    else:
        call(
            "cuGraphAddDependencies_v2",
            c_void_p(graph), origins, goals, data, ctypes.c_size_t(count),
        )  # fmt: skip


def let_first(kernel: int) -> None:
    """Let a kernel of a graph go before others where both wait for room on the multiprocessors."""
    value = _AttributeValue(_FIRST)
    call("cuGraphKernelNodeSetAttribute", c_void_p(kernel), c_int(_PRIORITY), byref(value))


def kernels_of(graph: int) -> list[int]:
    """The kernels of a graph, without those of graphs in it."""
    count, kind = ctypes.c_size_t(), c_int()
    call("cuGraphGetNodes", c_void_p(graph), None, byref(count))
    nodes, found = (c_void_p * max(count.value, 1))(), list[int]()
    call("cuGraphGetNodes", c_void_p(graph), nodes, byref(count))
    for node in nodes[: count.value]:
        call("cuGraphNodeGetType", c_void_p(node), byref(kind))
        found += [node or 0] if kind.value == _KERNEL else []
    return found


def instantiated(graph: int, by_nodes: bool = False) -> int:
    """A graph made ready to be launched; `by_nodes` if kernels of `let_first` go before others."""
    made, flags = c_void_p(), c_uint64(_BY_NODES if by_nodes else 0)
    call("cuGraphInstantiateWithFlags", byref(made), c_void_p(graph), flags)
    return made.value or 0


def launch_graph(made: int, stream: int) -> Callable[[], None]:
    """What begins to run a graph."""
    return prepared("cuGraphLaunch", c_void_p(made), c_void_p(stream))


def destroy_graph(graph: int) -> None:
    """Give a graph back that was not instantiated."""
    call("cuGraphDestroy", c_void_p(graph))


def destroy_instance(made: int) -> None:
    """Give an instantiated graph back."""
    call("cuGraphExecDestroy", c_void_p(made))


def begin_capture(stream: int) -> None:
    """Take down what a stream is given from now on, instead of running it."""
    call("cuStreamBeginCapture_v2", c_void_p(stream), c_int(_RELAXED))


def end_capture(stream: int) -> int:
    """The graph of what a stream was given."""
    graph = c_void_p()
    call("cuStreamEndCapture", c_void_p(stream), byref(graph))
    return graph.value or 0
