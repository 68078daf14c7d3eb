"""What steps of a training take, and whether they may and can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magmadnn.graph.op import Array
from magmadnn.optim.memory_check import refuse_beyond
from magmadnn.runtime.step_memory import StepMemory

from .pieces import Batch
from .totals import feeds_for

if TYPE_CHECKING:
    from .fit import Fit


class StepRoom:
    """The memory of the steps of a training.

    Args:
        fit: the training.
        limit: bytes that a step may take; None for what is free.
    """

    def __init__(self, fit: Fit, limit: int | None = None) -> None:
        self._fit, self._limit = fit, limit
        self._fitting: set[int] = set()  # sizes of batches whose steps have room

    def look(self) -> None:
        """Refuse batches of a size that is new, if a step with them has no room.

        A last batch that is smaller is planned here too, so that no step of the epoch waits for that.

        Raises:
            OutOfMemoryError: naming the largest size that has.
        """
        fit, size, rows = self._fit, self._size, self._fit.source.rows
        if size not in self._fitting:
            feeds = self._one_row()
            self.look_at_limit()
            fit.step.check_memory("fit", feeds, size)
            if rows is not None and rows % size:
                fit.step.prepare(feeds, rows % size)
            self._fitting.add(size)

    def look_at_limit(self) -> None:
        """Refuse batches whose steps take more than they may.

        Raises:
            OutOfMemoryError: naming bytes, and the largest size that may be.
        """
        if self._limit is not None:
            refuse_beyond(self._limit, "fit", self.memory, self._size)

    def memory(self, batch_size: int) -> StepMemory | None:
        """What a step of so many rows takes; None where NumPy runs it."""
        return self._fit.step.memory_of(self._one_row(), batch_size)

    @property
    def _size(self) -> int:
        """Rows of the largest batches of this epoch."""
        source = self._fit.source
        if source.rows is None:
            return source.sample.rows
        return min(self._fit.current_batch_size, source.rows)

    def _one_row(self) -> dict[Any, Array]:
        """What a step of one row is fed."""
        sample = self._fit.source.sample
        weights = None if sample.weights is None else sample.weights[:1]
        one = Batch([a[:1] for a in sample.inputs], [a[:1] for a in sample.targets], weights)
        return feeds_for(self._fit.objective, one)
