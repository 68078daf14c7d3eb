"""Launches with other memory each time, on a stream of a CUDA device: calls that are recorded once.

What functions of the driver and of libraries are given stays as it is from launch to launch but for addresses
that take the places of stand-ins. So a launch is as many calls as there are, and little else.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from ctypes import c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Protocol

from magmadnn.errors import DeviceError

from . import _driver as driver
from .engine import (
    ArrayNode,
    CopyNode,
    FourierNode,
    KernelNode,
    MatrixNode,
    ProductNode,
    ReplayNode,
)
from .libraries.recorded import RecordedCall
from .nodes.stand_ins import parted, with_addresses

_LAUNCH, _COPY = "cuLaunchKernel", "cuMemcpyAsync"


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
        held = ExitStack()
        weakref.finalize(self, held.close)
        with here:
            self._calls = [call for node in nodes for call in self._recorded(node, held)]
        for call in self._calls:
            self._patch([a for a in call.arguments if isinstance(a, c_void_p | c_uint64)])

    def launch(self, places: Sequence[int]) -> None:
        with self._here.lock:
            self._here.use()
            self._places = places
            for argument, number, behind in self._patches:
                argument.value = places[number] + behind
            for name, function, arguments in self._calls:
                if status := function(*arguments):
                    if name in (_LAUNCH, _COPY):
                        driver.fail(name, status)
                    raise DeviceError(f"the device failed: {name} gives status {status}")

    def _patch(self, arguments: Sequence[Any]) -> None:
        for argument in arguments:
            if (found := parted(argument.value or 0)) is not None:
                self._patches.append((argument, *found))

    def _recorded(self, node: ReplayNode, held: ExitStack) -> list[RecordedCall]:
        if isinstance(node, KernelNode):
            return [self._kernel(node)]
        if isinstance(node, CopyNode):
            told = c_uint64(node.to), c_uint64(node.source), c_size_t(node.nbytes)
            arguments = (*told, c_void_p(self._recorder.stream))
            return [RecordedCall(_COPY, driver.function(_COPY), arguments)]
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
