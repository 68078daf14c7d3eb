"""Copies on other workers that follow their original."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Array, Failed
from magmadnn.dmath.layouts.layout import Layout


@dataclass
class Replica:
    """A copy on other workers, which is made again when the array has changed; or a view of one.

    Attributes:
        source: the array; of a view of a replica that view of the array.
        layout: of the copy.
        copy: as it was at the version `version` of the array; None before the first use, and of views.
        failed: why the client may not write to it or to a view of it, until that is told.
        viewed: of a view: the replica that it is a view of.
        view: of a view: what makes it from that one's parts.
    """

    source: Parts
    layout: Layout
    copy: Parts | None = None
    version: int = -1
    failed: Failed | None = None
    viewed: Replica | None = None
    view: Callable[[Parts], Parts] | None = None

    @property
    def whole(self) -> Replica:
        """The replica that this is a view of; itself."""
        return self if self.viewed is None else self.viewed.whole

    def fresh(self) -> Parts:
        """The copy, as the array is now."""
        if self.viewed is not None and self.view is not None:
            return self.view(self.viewed.fresh())
        if self.copy is None or self.version != self.source.data.version:
            self.copy = remap(self.source, self.layout)
            self.version = self.source.data.version
        return self.copy

    def seen(self, view: Callable[[Parts], Parts], parts: Parts) -> Replica:
        """A view of this replica, which follows the original too.

        Args:
            view: what makes it from the parts of this one.
            parts: what that made of the copy.
        """
        return Replica(view(self.source), parts.layout, viewed=self, view=view)


def copied(x: Parts | Replica, layout: Layout) -> Replica:
    """A replica of an array; of a replica: another one of its original."""
    return Replica(x.source if isinstance(x, Replica) else x, layout)


def held_bytes(arrays: list[Any]) -> int:
    """Bytes of arrays and replicas on this worker: memory that several of them show is counted once."""
    found: dict[int, int] = {}
    for x in arrays:
        parts = x.whole.copy if isinstance(x, Replica) else x
        for block in parts.blocks.values() if isinstance(parts, Parts) else ():
            whole = _whole(block)
            found[id(whole)] = int(whole.nbytes)
    return sum(found.values())


def _whole(block: Array) -> Array:
    """The array whose memory a block is a part of."""
    while isinstance(block.base, type(block)):
        block = block.base
    return block
