"""Launches with other memory each time, on a stream of a CUDA device: calls that are recorded once.

What functions of the driver and of libraries are given stays as it is from launch to launch but for addresses
that take the places of stand-ins. So a launch is as many calls as there are, and little else. Functions of
libraries take the host longer than what they launch takes the driver: where the same addresses come again and
again, as in a loop whose results are freed, what they launch is kept as a graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from ctypes import c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from magmadnn.errors import DeviceError, OutOfMemoryError

from . import _driver as driver
from .engine import (
    ArrayNode,
    CopyNode,
    FourierNode,
    Graph,
    GraphNode,
    KernelNode,
    MatrixNode,
    ProductNode,
    ReplayNode,
)
from .libraries.recorded import RecordedCall
from .nodes.stand_ins import parted, with_addresses

_LAUNCH, _COPY, _LAUNCH_GRAPH = "cuLaunchKernel", "cuMemcpyAsync", "cuGraphLaunch"
# Launches with the same addresses before their graph is made, graphs that are kept, and addresses whose
# launches are counted. A product of 512 rows takes the host 10.3 us by cuBLASLt, and 2.4 as a graph (H200).
_OFTEN, _MOST_GRAPHS, _MOST_COUNTED = 4, 4, 16


class Recorder(Protocol):
    """Records calls of libraries, which are loaded when they are wanted.

    Attributes:
        stream: what calls are given to.
    """

    stream: int

    def product(self, node: ProductNode, held: ExitStack) -> RecordedCall:
        """The call of a product, to be made until `held` is closed."""
        ...

    def matrices(self, node: MatrixNode) -> list[RecordedCall]:
        """The calls of a function of matrices; one that looks at values is one call, of other functions."""
        ...

    def transform(self, node: FourierNode) -> list[RecordedCall]:
        """The calls of a transform."""
        ...

    def call_arrays(self, node: ArrayNode) -> None:
        """Call a function of arrays now."""
        ...

    def graph(self, nodes: Sequence[GraphNode]) -> Graph:
        """A graph of nodes whose addresses are those of memory, not stand-ins."""
        ...


class _Kept(NamedTuple):
    """Launches with the same addresses.

    Attributes:
        calls: in order.
        graphs: that they launch.
    """

    calls: list[RecordedCall]
    graphs: list[Graph]


def _by_libraries(nodes: Sequence[ReplayNode]) -> bool:
    """Whether libraries do some of it, and all can be part of graphs but for copies."""
    fit = all(
        node.is_captured if isinstance(node, MatrixNode) else not isinstance(node, ArrayNode)
        for node in nodes
    )
    return fit and any(not isinstance(node, KernelNode | CopyNode) for node in nodes)


class CudaReplay:
    """`Replay` on one stream.

    Args:
        nodes: in order.
        recorder: of the device.
        here: with the device's context, and alone.
    """

    def __init__(self, nodes: Sequence[ReplayNode], recorder: Recorder, here: Any) -> None:
        self._recorder, self._here = recorder, here
        # what is set to an address: of memory by its number, so many bytes behind its first
        self._patches: list[tuple[Any, int, int]] = []
        self._places: Sequence[int] = ()
        self._held: list[object] = []  # arguments of kernels
        self._nodes, self._is_kept = nodes, _by_libraries(nodes)
        self._kept: dict[tuple[int, ...], _Kept] = {}  # by the addresses of places
        self._counts: dict[tuple[int, ...], int] = {}
        self._often = _OFTEN
        held = ExitStack()
        weakref.finalize(self, held.close)
        with here:
            self._calls = [call for node in nodes for call in self._recorded(node, held)]
        for call in self._calls:
            self._patch([a for a in call.arguments if isinstance(a, c_void_p | c_uint64)])

    def launch(self, places: Sequence[int]) -> None:
        with self._here.lock:
            self._here.use()
            self._places, calls = places, self._calls
            if self._is_kept and (kept := self._graphs_of(tuple(places))) is not None:
                calls = kept.calls
            else:
                for argument, number, behind in self._patches:
                    argument.value = places[number] + behind
            for name, function, arguments in calls:
                if status := function(*arguments):
                    if name in (_LAUNCH, _COPY, _LAUNCH_GRAPH):
                        driver.fail(name, status)
                    raise DeviceError(f"the device failed: {name} gives status {status}")

    def _graphs_of(self, places: tuple[int, ...]) -> _Kept | None:
        """Launches of graphs for addresses that came often; None for others."""
        if (kept := self._kept.get(places)) is not None:
            return kept
        if len(self._counts) >= _MOST_COUNTED:
            self._counts.clear()
        count = self._counts[places] = self._counts.get(places, 0) + 1
        if count <= self._often:
            return None
        self._counts.clear()
        if len(self._kept) >= _MOST_GRAPHS:  # more addresses in turns than graphs: seldom a new one
            del self._kept[next(iter(self._kept))]
            self._often *= 2
        try:
            made = self._as_graphs(places)
        except (DeviceError, OutOfMemoryError):  # the calls themselves do as well
            self._is_kept = False
            return None
        self._kept[places] = made
        return made

    def _as_graphs(self, places: tuple[int, ...]) -> _Kept:
        """Copies as they are, and graphs of what is between them."""
        made, between = _Kept([], []), list[GraphNode]()

        def end() -> None:
            if between:
                made.graphs.append(graph := self._recorder.graph(between))
                arguments = tuple(map(c_void_p, graph.call.words[1:]))
                function = driver.function(_LAUNCH_GRAPH)
                made.calls.append(RecordedCall(_LAUNCH_GRAPH, function, arguments))
                between.clear()

        for node in self._nodes:
            found = with_addresses(node, places)
            if isinstance(found, CopyNode):
                end()
                made.calls.append(self._copy(found))
                continue
            assert isinstance(found, KernelNode | ProductNode | MatrixNode | FourierNode)
            between.append(replace(found, after=(len(between) - 1,) if between else ()))
        end()
        return made

    def _patch(self, arguments: Sequence[Any]) -> None:
        for argument in arguments:
            if (found := parted(argument.value or 0)) is not None:
                self._patches.append((argument, *found))

    def _recorded(self, node: ReplayNode, held: ExitStack) -> list[RecordedCall]:
        if isinstance(node, KernelNode):
            return [self._kernel(node)]
        if isinstance(node, CopyNode):
            return [self._copy(node)]
        if isinstance(node, ProductNode):
            return [self._recorder.product(node, held)]
        if isinstance(node, MatrixNode):
            return self._recorder.matrices(node)
        if isinstance(node, FourierNode):
            return self._recorder.transform(node)
        me = weakref.ref(self)

        def call() -> None:
            replay = me()
            assert replay is not None  # who is launching now
            replay._recorder.call_arrays(with_addresses(node, replay._places))

        return [RecordedCall(node.title, call)]

    def _copy(self, node: CopyNode) -> RecordedCall:
        told = c_uint64(node.to), c_uint64(node.source), c_size_t(node.nbytes)
        arguments = (*told, c_void_p(self._recorder.stream))
        return RecordedCall(_COPY, driver.function(_COPY), arguments)

    def _kernel(self, node: KernelNode) -> RecordedCall:
        driver.allow_shared_bytes(node.function, node.shared_bytes)
        values, places = driver.packed(node.arguments)
        self._held.append(values)
        self._patch([c_uint64.from_buffer(values, 8 * k) for k in range(len(node.arguments))])
        arguments = (
            c_void_p(node.function), *map(c_uint, node.grid), *map(c_uint, node.block),
            c_uint(node.shared_bytes), c_void_p(self._recorder.stream), places, None,
        )  # fmt: skip
        return RecordedCall(_LAUNCH, driver.function(_LAUNCH), arguments)
