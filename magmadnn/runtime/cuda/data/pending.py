"""Slices on their way on a device: what each needs beside others, and its results once they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from magmadnn.backends.cuda.engine import Event
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.variables import tensor_of

from .block import Block
from .overlapped_upload import OverlappedUpload
from .staging import Staging
from .streamed_upload import StreamedUpload

# Variables of more bytes are copied for one slice at a time: the next begins when that has ended.
_COPIED_TWICE = 1 << 27


def slots_for(nbytes: int) -> int:
    """How many slices are on their way at once, where each has a copy of variables of so many bytes."""
    return 2 if nbytes <= _COPIED_TWICE else 1


class BufferSlot:
    """What one of two slices that follow each other has for itself.

    Attributes:
        number: 0 or 1.
        staging: memory that its small copies go through.
        before: what variables were before it, to go back to that.
    """

    def __init__(self, number: int, targets: Sequence[Node], device: int) -> None:
        self.number, self.staging = number, Staging(device)
        self.before = [Block(tensor_of(v).nbytes, device) for v in targets]


@dataclass(eq=False)
class PendingSlice:
    """A slice that was launched.

    Attributes:
        order, settings: of which rows, with which settings.
        side: what it has for itself.
        coming: rows that come meanwhile.
        outputs: of its batches, to be read behind the mark.
        faults: words that are not 0 where a row was asked for that is not there; likewise.
        mark: behind all of it.
        behind: the mark of the slice before it, which was on its way then; None where there was none.
        started: when it was launched, in seconds.
        is_dropped: whether all is as if it had never begun.
    """

    order: Array | OnDevice
    settings: Mapping[Node, Array]
    side: BufferSlot
    coming: OverlappedUpload | StreamedUpload
    outputs: list[Array]
    faults: list[Array]
    mark: Event
    behind: Event | None
    started: float
    is_dropped: bool = False

    @property
    def seconds(self) -> float | None:
        """What the device took for it, once it is found; None where no slice was on its way before it."""
        return None if self.behind is None else self.mark.seconds_since(self.behind)

    def found(self) -> list[Array] | None:
        """Wait, and give the outputs; None where something is wrong."""
        self.mark.wait()
        if any(word[0] for word in self.faults):
            return None
        good = all(np.isfinite(kept).all() for kept in self.outputs)
        return [kept.copy() for kept in self.outputs] if good else None
