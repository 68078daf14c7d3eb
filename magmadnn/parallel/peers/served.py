"""Steps of a server and workers, whose parameters and gradients go from GPU to GPU where they can."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.comm.communicator import Json
from magmadnn.graph import Node
from magmadnn.graph.op import Array
from magmadnn.parallel.step import ParallelStep
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import ALONE, agreeing

from .parameters import PeerParameters, can_be_given
from .vectors import reading


class PeerServed(ParallelStep):
    """One step of a rank of a server and its workers; see `ParallelStep`.

    Attributes:
        is_worker_too: whether the server computes gradients as well.
    """

    is_worker_too = False
    _peers: PeerParameters | None = None
    _has_tried, _why_not = False, ""

    def offers(self) -> Json:
        """Whether this rank's GPU has buffers of others, can have them, or neither."""
        if self._peers is not None:
            return "has"
        if self._device is None or self._has_tried or self._comm.size == 1:
            return "none"
        if not can_be_given(self._held(), self._device):
            return "none"
        computes = self._comm.rank > 0 or self.is_worker_too
        return "can" if not computes or self._executable.cuda.stays_on_device else "none"

    def meet(self, offers: Sequence[Json]) -> None:
        """Let GPUs copy from each other where all can, as all ranks know."""
        if all(offer == "has" for offer in offers):
            return
        self._peers, self._has_tried = None, True
        if self._device is None or any(offer != "can" for offer in offers):
            return
        lengths, held = self._shared.buckets.lengths, self._held()
        found = PeerParameters.among(
            self._comm, self._device, held, lengths, self._small_length, self.is_worker_too
        )
        if isinstance(found, str):
            self._why_not = f": {found}"
            return
        self._peers = found
        if self._comm.rank == 0:
            count, buckets = [(self._count + 0).node], self._shared.buckets
            graph = reading(found.sums, count, self._graph.updates, buckets)
            self._updating_there = Executable(*graph, training=True, **self._compiling)

    @property
    def peer_bytes(self) -> int | None:
        """Bytes that this rank has copied from GPU to GPU; None where they pass through the hosts."""
        return None if self._peers is None else self._peers.copied

    def text(self, sizes: Mapping[str, int]) -> str:
        """The plan of a gradient, and how parameters travel."""
        by = f"through the hosts{self._why_not}" if self._peers is None else "from GPU to GPU"
        return f"{super().text(sizes)}\n# parameters and gradients travel {by}"

    def _sums_of(self, feeds: Mapping[Node, Any]) -> list[Array]:
        if self._peers is None:
            return super()._sums_of(feeds)
        return [self._peers.computed(self._executable, feeds)]

    def _apply_there(
        self, small: Array, scalars: Mapping[Node, Any], guard: bool, give: Callable[[], None]
    ) -> None:
        """Update from the gradients that were fetched, and begin to give what that makes.

        Raises:
            NumericError: with `guard`, if that has NaN or infinity; nothing is updated then.
        """
        shared, program = self._shared, self._updating_there
        fed = {shared.total: small[1], shared.rows: small[2], **scalars}
        own = {n: np.asarray(fed[n], n.dtype) for n in program.program.placeholders}
        laid_out = program.cuda.instance({})
        if guard and laid_out.can_update and laid_out.update(own, give):
            return
        with agreeing(ALONE):
            program.run(own, guard=guard)  # which says what is NaN or infinite
        give()


def nothing() -> None:
    """No worker waits for parameters."""
