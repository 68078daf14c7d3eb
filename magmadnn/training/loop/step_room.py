"""What steps of a training take, and whether they may and can."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from magmadnn.graph.op import Array
from magmadnn.optim.memory_check import refuse_beyond
from magmadnn.runtime.step_memory import StepMemory

from .pieces import Batch, feeds_for

if TYPE_CHECKING:
    from .fit import Fit


class StepRoom:
    """The memory of the steps of a training, which has it.

    Args:
        limit: bytes that a step may take; None for what is free.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._fitting: set[int] = set()  # sizes of batches whose steps have room

    def look(self, fit: Fit) -> None:
        """Refuse batches of a size that is new, if a step with them has no room.

        A last batch that is smaller is planned here too, so that no step of the epoch waits for that.

        Raises:
            OutOfMemoryError: naming the largest size that has.
        """
        size, rows = _largest(fit), fit.source.rows
        if size not in self._fitting:
            feeds = _one_row(fit)
            self.look_at_limit(fit)
            fit.step.check_memory("fit", feeds, size)
            if rows is not None and rows % size:
                fit.step.prepare(feeds, rows % size)
            self._fitting.add(size)

    def look_at_limit(self, fit: Fit) -> None:
        """Refuse batches whose steps take more than they may.

        Raises:
            OutOfMemoryError: naming bytes, and the largest size that may be.
        """
        if self._limit is not None:
            refuse_beyond(self._limit, "fit", partial(memory_of, fit), _largest(fit))


def memory_of(fit: Fit, batch_size: int) -> StepMemory | None:
    """What a step of so many rows takes; None where NumPy runs it."""
    return fit.step.memory_of(_one_row(fit), batch_size)


def _largest(fit: Fit) -> int:
    """Rows of the largest batches of this epoch."""
    if fit.source.rows is None:
        return fit.source.sample.rows
    return min(fit.current_batch_size, fit.source.rows)


def _one_row(fit: Fit) -> dict[Any, Array]:
    """What a step of one row is fed."""
    sample = fit.source.sample
    weights = None if sample.weights is None else sample.weights[:1]
    one = Batch([a[:1] for a in sample.inputs], [a[:1] for a in sample.targets], weights)
    return feeds_for(fit.objective, one)
