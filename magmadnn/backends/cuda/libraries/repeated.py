"""Many short calls that come again with the same memory: a graph of them takes the host one call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from magmadnn.errors import DeviceError, OutOfMemoryError

from .handles import Handles

_KEPT = 8  # graphs, and calls that came once


class Launched(Protocol):
    """A graph."""

    def launch(self) -> None:
        """Begin to run it, on the stream of the libraries."""
        ...


Give = Callable[[int], object]  # gives calls to a stream
Captured = Callable[
    [Give], Launched
]  # a graph of what is given to a stream apart, which runs nothing


class Repeated:
    """Calls of cuBLAS and copies, as graphs from the second time on.

    Args:
        handles: of the libraries.
        captured: makes graphs; None where there are none.
    """

    def __init__(self, handles: Handles, captured: Captured | None) -> None:
        self._handles, self._captured = handles, captured
        self._graphs: OrderedDict[Hashable, Launched | None] = OrderedDict()

    def run(self, key: Hashable, give: Give) -> None:
        """Begin what `give` gives to a stream, which is the same for equal keys, memory included."""
        if self._captured is None:
            give(self._handles.stream)
            return
        is_new = key not in self._graphs
        graph = self._graphs.pop(key, None)
        if graph is None and not is_new:
            graph = self._made(self._captured, give)
        if graph is None:
            give(self._handles.stream)
        else:
            graph.launch()
        self._graphs[key] = graph
        if len(self._graphs) > _KEPT:
            self._graphs.popitem(last=False)

    def _made(self, captured: Captured, give: Give) -> Launched | None:
        """A graph; None where the device makes none, or has no memory for it: the calls do as well."""
        try:
            return captured(lambda stream: self._give(give, stream))
        except (DeviceError, OutOfMemoryError):
            self._captured = None
            return None

    def _give(self, give: Give, stream: int) -> None:
        with self._handles.elsewhere(stream):
            give(stream)
