"""Launches with other memory each time, on a stream of a CUDA device: calls that are taken down once.

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
    MovingNode,
    ProductNode,
)
from .libraries.taken import Taken
from .nodes.elsewhere import moved, parted

_LAUNCH, _COPY = "cuLaunchKernel", "cuMemcpyAsync"


class Takers(Protocol):
    """Takes down calls of libraries, which are loaded when they are wanted.

    Attributes:
        stream: what calls are given to.
    """

    stream: int

    def product(self, node: ProductNode, held: ExitStack) -> Taken:
        """The call of a product, to be made until `held` is closed."""
        ...

    def matrices(self, node: MatrixNode) -> list[Taken]:
        """The calls of a function of matrices; one that looks at values is one call, of other functions."""
        ...

    def transform(self, node: FourierNode) -> list[Taken]:
        """The calls of a transform."""
        ...

    def call_arrays(self, node: ArrayNode) -> None:
        """Call a function of arrays now."""
        ...


class CudaMoving:
    """`Moving` on one stream.

    Args:
        nodes: in order.
        takers: of the device.
        here: with the device's context, and alone.
    """

    def __init__(self, nodes: Sequence[MovingNode], takers: Takers, here: Any) -> None:
        self._takers, self._here = takers, here
        # what is set to an address: of memory by its number, so many bytes behind its first
        self._patches: list[tuple[Any, int, int]] = []
        self._places: Sequence[int] = ()
        self._held: list[object] = []  # arguments of kernels
        held = ExitStack()
        weakref.finalize(self, held.close)
        with here:
            self._calls = [call for node in nodes for call in self._taken(node, held)]
        for call in self._calls:
            self._patch([a for a in call.arguments if isinstance(a, c_void_p | c_uint64)])

    def launch(self, places: Sequence[int]) -> None:
        with self._here:
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

    def _taken(self, node: MovingNode, held: ExitStack) -> list[Taken]:
        if isinstance(node, KernelNode):
            return [self._kernel(node)]
        if isinstance(node, CopyNode):
            told = c_uint64(node.to), c_uint64(node.source), c_size_t(node.nbytes)
            return [Taken(_COPY, driver.function(_COPY), (*told, c_void_p(self._takers.stream)))]
        if isinstance(node, ProductNode):
            return [self._takers.product(node, held)]
        if isinstance(node, MatrixNode):
            return self._takers.matrices(node)
        if isinstance(node, FourierNode):
            return self._takers.transform(node)
        me = weakref.ref(self)

        def call() -> None:
            moving = me()
            assert moving is not None  # who is launching now
            moving._takers.call_arrays(moved(node, moving._places))

        return [Taken(node.title, call)]

    def _kernel(self, node: KernelNode) -> Taken:
        driver.allow_shared_bytes(node.function, node.shared_bytes)
        values, places = driver.packed(node.arguments)
        self._held.append(values)
        self._patch([c_uint64.from_buffer(values, 8 * k) for k in range(len(node.arguments))])
        arguments = (
            c_void_p(node.function), *map(c_uint, node.grid), *map(c_uint, node.block),
            c_uint(node.shared_bytes), c_void_p(self._takers.stream), places, None,
        )  # fmt: skip
        return Taken(_LAUNCH, driver.function(_LAUNCH), arguments)
