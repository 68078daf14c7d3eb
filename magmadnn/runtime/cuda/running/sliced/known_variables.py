"""Where variables lie that slices of a plan read and write, as it was at the last run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from magmadnn.graph.node import Node
from magmadnn.runtime.cuda.layout import Layout, comes_to
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.variables import tensor_of


class Known(NamedTuple):
    """A variable as it was at some time.

    Attributes:
        node: the variable.
        tensor: what it held.
        start: where the memory of that began on the device.
    """

    node: Node
    tensor: Any
    start: int


class KnownVariables:
    """Variables, and where they were when they were looked at.

    Args:
        sources: that are read,
        targets: and written.

    Attributes:
        spans: their memory on the device, of `sources` and then of `targets`; empty before the first look.
    """

    def __init__(self, sources: Sequence[Node], targets: Sequence[Node]) -> None:
        self._sources, self._nodes = len(sources), (*sources, *targets)
        self._known: list[Known] = []
        self.spans: tuple[Span, ...] = ()

    @property
    def written(self) -> list[int]:
        """Where those begin that are written."""
        return [start for start, _ in self.spans[self._sources :]]

    def are_as_known(self) -> bool:
        """Whether they are where they were; what the host wrote is brought there."""
        return bool(self._known) and all(
            tensor_of(k.node) is k.tensor and k.tensor.memory.device_pointer() == k.start
            for k in self._known
        )

    def come_to(self, device: int) -> bool:
        """Whether kernels can work on the variables' own memory."""
        if self._known and all(tensor_of(k.node) is k.tensor for k in self._known):
            return True
        return all(comes_to(tensor_of(node), device) for node in self._nodes)

    def look(self, layout: Layout) -> None:
        """Bring them to the device, and note where they are."""
        self.spans = tuple(map(layout.variable_span, self._nodes))
        tensors = {node: tensor_of(node) for node in self._nodes}
        self._known = [Known(n, t, t.memory.device_pointer()) for n, t in tensors.items()]

    def forget(self) -> None:
        """Hold nothing of what they hold; where they were stays known."""
        self._known = []
