"""`Engine` of a CUDA device: NVRTC through CuPy's bindings, graphs through the driver, cuBLAS."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn

import cupy  # only where the extra cuda12 or cuda13 is installed
import numpy as np
from cupy.cuda import cublas, nvrtc, runtime
from numpy.typing import NDArray

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.errors import DeviceError

from . import _driver as driver
from ._cublaslt import Products
from ._cudnn import Convolutions
from ._cudnn_library import find_cudnn
from ._cupy import CudaEvent, seen_at
from ._replay import CudaReplay
from .called import Called, CalledAlone
from .engine import (
    FUSED_CONVOLUTIONS,
    AmongNode,
    ConvolutionNode,
    EventNode,
    FourierNode,
    GraphNode,
    KernelNode,
    LibraryNode,
    MatrixNode,
    NativeCall,
    ProductNode,
    ReplayNode,
    moved_nodes,
)
from .libraries.cufft import Transforms
from .libraries.cusolver import MatrixFunctions
from .libraries.recorded import RecordedCall
from .nodes.arrays import ArrayNode, HostNode
from .stream_flags import waits, writes

# Where CuPy was built without NVTX its place is taken by an object that has no functions.
nvtx = found if hasattr(found := getattr(cupy.cuda, "nvtx", None), "RangePush") else None

_EARLY_CAPABILITY = 90  # from which on a kernel may begin before the one in front of it has ended


class CudaGraph:
    """A graph ready to be launched."""

    def __init__(
        self, engine: CudaEngine, made: int, nodes: Sequence[GraphNode], patient: Collection[int]
    ) -> None:
        self._engine, self._nodes, self._patient = engine, nodes, patient
        self._here, self._launch = engine.here(), driver.launch_graph(made, engine.stream)
        self.call = driver.call_of("cuGraphLaunch", made, engine.stream)
        self._end = weakref.finalize(self, _destroy, engine, made)

    def launch(self) -> None:
        with self._here:
            self._launch()

    def moved(self, move: Callable[[int], int]) -> CudaGraph | None:
        nodes = moved_nodes(self._nodes, move)
        return None if nodes is None else self._engine.graph(nodes, self._patient)


def _destroy(engine: CudaEngine, made: int) -> None:
    with engine.here():
        driver.destroy_instance(made)


class CudaTimer:
    """A time to be taken down."""

    def __init__(self, engine: CudaEngine, made: int) -> None:
        self.made = made
        self._end = weakref.finalize(self, _destroy_event, engine, made)


class CudaReusableEvent(CudaTimer):
    """A mark that is set again and again."""

    def __init__(self, engine: CudaEngine, made: int) -> None:
        super().__init__(engine, made)
        self.call = driver.call_of("cuEventSynchronize", made)
        self._wait = driver.wait_for_event(made)

    def wait(self) -> None:
        self._wait()


def _destroy_event(engine: CudaEngine, made: int) -> None:
    with engine.here():
        driver.destroy_event(made)


class CudaLane:
    """A stream of a device."""

    def __init__(self, device: int, stream: int, here: driver.CurrentContext) -> None:
        self._device, self.stream, self._here = device, stream, here
        self.calls = driver.StreamCalls(stream)

    def here(self) -> driver.CurrentContext:
        """With this device's context, and alone."""
        return self._here

    def mark(self, timed: bool = False) -> CudaEvent:
        return CudaEvent(self._device, self.stream, timed)

    def follow(self, mark: Any) -> None:  # a CudaEvent
        with self._here:
            runtime.streamWaitEvent(self.stream, mark.event.ptr)


class _Stream:
    """A stream as other packages take it, by CUDA's protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of CUDA's stream protocol, 0, and the handle of the stream."""
        return 0, self._handle


class CudaEngine(CudaLane):
    """`Engine` of CUDA device number `device`."""

    def __init__(self, device: int) -> None:
        with cupy.cuda.Device(device):
            runtime.free(0)  # makes the context
            context = driver.current_context()
            facts = runtime.getDeviceProperties(device)
            super().__init__(device, driver.new_stream(), driver.CurrentContext(context))
            self.enter = driver.call_of("cuCtxSetCurrent", context)
            self._side = driver.new_stream(apart=True)
        self.capability = facts["major"] * 10 + facts["minor"]
        self._name = facts["name"].decode()
        self.processors = int(facts["multiProcessorCount"])
        self.shared_bytes = int(facts["sharedMemPerBlockOptin"])
        compiler = ".".join(map(str, nvrtc.getVersion()))
        self.versions: tuple[str, ...] = (f"sm_{self.capability}", f"nvrtc {compiler}")
        self._wait = driver.wait_for(self.stream)
        self._sorting = threading.Lock()

    def compile(self, text: str, options: Sequence[str]) -> bytes:
        program = nvrtc.createProgram(text, "magmadnn.cu", (), ())
        suffix = "a" if self.capability >= _EARLY_CAPABILITY else ""
        try:
            nvrtc.compileProgram(program, (*options, f"-arch=sm_{self.capability}{suffix}"))
            image: bytes = nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise DeviceError(
                f"NVRTC cannot compile a kernel: {error}: {nvrtc.getProgramLog(program)}"
            ) from error
        finally:
            nvrtc.destroyProgram(program)
        return image

    def load(self, image: bytes, names: Sequence[str]) -> list[int]:
        with self.here():
            module = driver.load_module(image)
            return [driver.function_of(module, name) for name in names]

    def wait(self) -> None:
        with self._here:
            self._wait()

    def copy(self, to: int, source: int, nbytes: int) -> None:
        with self.here():
            driver.copy(to, source, nbytes, self.stream)

    def tell(self, places: Sequence[int], number: int) -> None:
        with self.here():
            driver.write_and_wait(self.stream, writes(places, number))

    def hear(self, places: Sequence[int], number: int) -> None:
        with self.here():
            driver.write_and_wait(self.stream, waits(places, number))

    def launch(self, node: KernelNode) -> None:
        with self.here():
            driver.allow_shared_bytes(node.function, node.shared_bytes)
            driver.launch_kernel(
                self.stream, node.function, node.grid, node.block, node.shared_bytes, node.arguments
            )

    def at_once(self, node: KernelNode, blocks: int) -> int:
        with self.here():
            driver.allow_shared_bytes(node.function, node.shared_bytes)
            return driver.clusters_at_once(node, blocks)

    def lane(self) -> CudaLane:
        with self.here():
            return CudaLane(self._device, driver.new_stream(apart=True), self._here)

    def fence(self) -> CudaReusableEvent:
        with self.here():
            return CudaReusableEvent(self, driver.new_event(timed=False))

    def fail(self, call: NativeCall, status: int) -> NoReturn:
        if isinstance(call.held, Called) and call.held.error is not None:
            raise call.held.error
        driver.fail(call.name, status)

    def argsort(self, count: int, draw: Callable[[int], KernelNode]) -> NDArray[np.int64]:
        # By one thread at a time on one stream, whose memory CuPy keeps for the next. Without the engine's
        # lock: steps are launched meanwhile, and `draw` may wait for a thread that compiles, which wants it.
        with self._sorting, cupy.cuda.Device(self._device), self._beside:
            keys = cupy.empty(count, np.uint64)
            node = draw(int(keys.data.ptr))
            driver.launch_kernel(
                self._beside.ptr, node.function, node.grid, node.block, node.shared_bytes,
                node.arguments,
            )  # fmt: skip
            found: NDArray[np.int64] = cupy.argsort(keys, kind="stable").get(stream=self._beside)
            return found

    @cached_property
    def _beside(self) -> Any:
        return cupy.cuda.Stream(non_blocking=True)

    def prepare(self) -> None:
        with cupy.cuda.Device(self._device):
            cupy.argsort(cupy.zeros(1, np.uint64), kind="stable")

    def event(self) -> CudaTimer:
        with self.here():
            return CudaTimer(self, driver.new_event())

    def seconds(self, first: CudaTimer, last: CudaTimer) -> float:
        with self.here():
            return 1e-3 * driver.milliseconds(first.made, last.made)

    @contextlib.contextmanager
    def marked(self, title: str) -> Iterator[None]:
        if nvtx is None:
            yield
            return
        nvtx.RangePush(title)
        try:
            yield
        finally:
            nvtx.RangePop()

    # --- graphs -----------------------------------------------------------------------------------

    def graph(self, nodes: Sequence[GraphNode], patient: Collection[int] = ()) -> CudaGraph:
        with self.here():
            nodes = [self._own_kernel(node) for node in nodes]
            graph = driver.new_graph()
            try:
                first = [bool(patient) and number not in patient for number in range(len(nodes))]
                made = [self._added(graph, *pair) for pair in zip(nodes, first, strict=True)]
                early = self._may_begin_early(nodes)
                edges = [
                    (made[k], made[number], early)
                    for number, node in enumerate(nodes)
                    for k in node.after
                ]
                driver.add_edges(graph, edges)
                return CudaGraph(self, driver.instantiated(graph, bool(patient)), nodes, patient)
            finally:
                driver.destroy_graph(graph)

    def _own_kernel(self, node: GraphNode) -> GraphNode:
        """A call among GPUs as the kernel that does it, where that is one of this package; else as given."""
        if not isinstance(node, AmongNode):
            return node
        what = node.count, node.dtype, node.stored
        node.gpus.prepare(node.kind, *what)
        own = node.gpus.own_kernel(node.kind, node.source, node.result, *what)
        return node if own is None else KernelNode(*own[:3], 0, own.arguments, node.after)

    def _may_begin_early(self, nodes: Sequence[GraphNode]) -> bool:
        """Whether kernels may begin while those before them still run: kernels of this package wait.

        Not where the library's take part, which do not: in a graph with an early edge anywhere they begin
        early too after a kernel that lets later ones start, though their own edge is none (seen with driver
        580.159, each time).
        """
        own = all(isinstance(node, KernelNode) for node in nodes)
        return own and self.capability >= _EARLY_CAPABILITY

    def _added(self, graph: int, node: GraphNode, first: bool) -> int:
        """A node in a graph; `first` if its kernels go before others."""
        if isinstance(node, KernelNode):
            driver.allow_shared_bytes(node.function, node.shared_bytes)
            made = driver.add_kernel(
                graph, node.function, node.grid, node.block, node.shared_bytes, node.arguments
            )
            if first:
                driver.let_first(made)
            return made
        if isinstance(node, EventNode):
            return driver.add_event(graph, node.event.made)
        child = self._captured(node)
        try:
            for kernel in driver.kernels_of(child) if first else ():
                driver.let_first(kernel)
            return driver.add_child(graph, child)
        finally:
            driver.destroy_graph(child)

    # --- libraries --------------------------------------------------------------------------------

    @cached_property
    def _products(self) -> Products:
        return self._products_on(self._side)

    @cached_property
    def _products_at_once(self) -> Products:
        return self._products_on(self.stream)

    @staticmethod
    def _products_on(stream: int) -> Products:
        cublas.destroy(cublas.create())  # CuPy loads the library with the first call
        return Products(ctypes.CDLL(f"libcublasLt.so.{nvrtc.getVersion()[0]}"), stream)

    @cached_property
    def library(self) -> str:
        with self.here():
            return f"{self._name}, cuBLASLt {self._products.version}"

    def algorithms(self, node: ProductNode | ConvolutionNode, most: int = 1) -> list[bytes]:
        with self.here():
            if isinstance(node, ProductNode):
                return self._products.algorithms(node, most)
            assert self._convolutions is not None
            return self._convolutions.algorithms(node, most)

    @cached_property
    def _functions(self) -> MatrixFunctions:
        """Functions of matrices, to be captured."""
        return MatrixFunctions(*self._matrix_libraries, self._side)

    @cached_property
    def _functions_at_once(self) -> MatrixFunctions:
        """The same, on the stream that all is launched on."""
        return MatrixFunctions(*self._matrix_libraries, self.stream, captured=self._graph_of)

    @cached_property
    def _matrix_libraries(self) -> tuple[ctypes.CDLL, ctypes.CDLL]:
        cublas.destroy(cublas.create())  # CuPy loads the libraries with the first calls
        version = nvrtc.getVersion()[0]
        try:
            from cupy.cuda import cusolver  # a large library, that few programs need

            cusolver.destroy(cusolver.create())
            solver = ctypes.CDLL(f"libcusolver.so.{version - 1}")  # 11 in CUDA 12, 12 in CUDA 13
        except (ImportError, OSError) as error:
            raise DeviceError(
                f"factors of matrices need cuSOLVER, which cannot be loaded: {error}; magmadnn doctor "
                "says what brings it, or compute on the processor"
            ) from error
        return ctypes.CDLL(f"libcublas.so.{version}"), solver

    @cached_property
    def _transforms(self) -> Transforms:
        return self._transforms_on(self._side)

    @cached_property
    def _transforms_at_once(self) -> Transforms:
        return self._transforms_on(self.stream)

    @staticmethod
    def _transforms_on(stream: int) -> Transforms:
        """cuFFT, which CuPy finds."""
        try:
            from cupy.cuda import cufft

            cufft.getVersion()
            library = ctypes.CDLL(f"libcufft.so.{nvrtc.getVersion()[0] - 1}")  # 11 in CUDA 12
        except (ImportError, OSError) as error:
            raise DeviceError(
                f"transforms need cuFFT, which cannot be loaded: {error}; magmadnn doctor says what "
                "brings it, or compute on the processor"
            ) from error
        return Transforms(library, stream)

    @cached_property
    def _convolutions(self) -> Convolutions | None:
        """cuDNN on this device; None where it is not installed, or not for this CUDA."""
        with self.here():
            cublas.destroy(cublas.create())  # which cuDNN needs; CuPy finds it
            library = find_cudnn(nvrtc.getVersion()[0])
            return None if library is None else Convolutions(library, self._side)

    @property
    def functions(self) -> frozenset[str]:
        return frozenset() if self._convolutions is None else FUSED_CONVOLUTIONS

    def workspace(self, node: MatrixNode | ConvolutionNode | FourierNode) -> int:
        with self.here():
            if isinstance(node, MatrixNode):
                return self._functions.workspace(node)
            if isinstance(node, FourierNode):
                return self._transforms.workspace(node)
            assert self._convolutions is not None
            return self._convolutions.workspace(node)

    def alone(self, node: MatrixNode | ArrayNode | HostNode) -> CalledAlone:
        def call() -> None:
            with self.here():
                if isinstance(node, HostNode):
                    node.run()
                    return
                if isinstance(node, MatrixNode):
                    self._functions_at_once.call(node)
                    return
                self.call_arrays(node)

        return CalledAlone(node.title, call)

    # --- with other memory each time: see `Recorder` ------------------------------------------------

    def replay(self, nodes: Sequence[ReplayNode]) -> CudaReplay:
        return CudaReplay(nodes, self, self.here())

    def product(self, node: ProductNode, held: contextlib.ExitStack) -> RecordedCall:
        return self._products_at_once.recorded(node, held)

    def matrices(self, node: MatrixNode) -> list[RecordedCall]:
        functions = self._functions_at_once
        if node.is_captured:
            return functions.recorded(node)
        return [RecordedCall(node.title, functools.partial(functions.call, node))]

    def transform(self, node: FourierNode) -> list[RecordedCall]:
        return self._transforms_at_once.recorded(node)

    def call_arrays(self, node: ArrayNode) -> None:
        with cupy.cuda.Stream.from_external(_Stream(self.stream)):
            node.run([seen_at(array) for array in node.arrays])

    def _captured(self, node: LibraryNode) -> int:
        """A call of a library as a graph of its own."""
        return self._taken_down(self._call_of(node))

    def _taken_down(self, call: Callable[[], object]) -> int:
        """What a call gives the stream for that, as a graph."""
        driver.begin_capture(self._side)
        try:
            call()
        finally:
            graph = driver.end_capture(self._side)
        return graph

    def _graph_of(self, give: Callable[[int], object]) -> CudaGraph:
        """What is given to a stream, to be launched."""
        graph = self._taken_down(functools.partial(give, self._side))
        try:
            return CudaGraph(self, driver.instantiated(graph), (), ())
        finally:
            driver.destroy_graph(graph)

    def _call_of(self, node: LibraryNode) -> Callable[[], None]:
        """What gives a node to the stream; libraries are loaded before anything is captured."""
        if isinstance(node, ProductNode):
            return functools.partial(self._products.multiply, node)
        if isinstance(node, MatrixNode):
            return functools.partial(self._functions.call, node)
        if isinstance(node, FourierNode):
            self._transforms.prepare(node)
            return functools.partial(self._transforms.call, node)
        if isinstance(node, AmongNode):
            node.gpus.prepare(node.kind, node.count, node.dtype, node.stored)
            what = node.kind, node.source, node.result, node.count, node.dtype, node.stored
            return functools.partial(node.gpus.call_on, self._side, *what)
        assert self._convolutions is not None
        return functools.partial(self._convolutions.call, node)
