"""A launch, and the memory that it touches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from magmadnn.backends.cuda.engine import ArrayNode, HostNode, LibraryNode, MatrixNode
from magmadnn.compiler.cuda.text.variant import Launch

from .hazards import Span

Touched = tuple[tuple[Span, ...], tuple[Span, ...]]


@dataclass(frozen=True)
class Item:
    """A launch.

    Attributes:
        what: of a kernel; or a call of the device's library, of one that has NumPy's functions, of the host.
        reads: spans of memory that it reads,
        writes: and that it writes.
    """

    what: Launch | LibraryNode | ArrayNode | HostNode
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]

    @property
    def launch(self) -> Launch:
        """The launch of a kernel, which it is."""
        assert isinstance(self.what, Launch)
        return self.what


def touched_by(items: Iterable[Item]) -> Touched:
    """All that some launches read, and all that they write."""
    some = list(items)
    return (
        tuple(span for item in some for span in item.reads),
        tuple(span for item in some for span in item.writes),
    )


def can_be_in_graph(item: Item) -> bool:
    """Whether a graph can hold a launch; else it is cut there."""
    if isinstance(item.what, MatrixNode):
        return item.what.is_captured
    return not isinstance(item.what, ArrayNode | HostNode)
