"""Many steps in one call of a training of which each rank has parts of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from magmadnn.comm import Communicator, bound
from magmadnn.graph.op import Array
from magmadnn.optim import StepSlices
from magmadnn.optim.inputs import Settings
from magmadnn.parallel.agreement import choose_alike
from magmadnn.parallel.way import even_rows
from magmadnn.runtime import Executable


class StepOfParts(Protocol):
    """What is asked of a step."""

    @property
    def communicator(self) -> Communicator:
        """The ranks."""
        ...

    def take_parts(self) -> None:
        """Go on from this rank's parts of whole values, where those are newer."""
        ...


class PlacedSlices(StepSlices):
    """Runs slices of batches; losses and outputs are those of whole batches on every rank."""

    _own_rows: int

    @classmethod
    def of(
        cls,
        step: StepOfParts,
        executable: Executable,
        settings: Settings,
        data: Mapping[Any, Array],
        rows: int,
    ) -> PlacedSlices | None:
        """Slices over these arrays.

        Args:
            step: whose parameters are trained.
            executable: the program of this rank for a batch.
            settings: of the optimiser.
            data: an array for each placeholder.
            rows: of a batch, that this rank is fed with.

        Returns:
            None where a part of the step has to run in Python.
        """
        one: Any = step
        with bound(step.communicator):
            found = cls.made(one, executable, settings, data, rows, False)
            if executable.device is not None and step.communicator.size > 1:
                choose_alike(step.communicator, found)
        if not isinstance(found, PlacedSlices):
            return None
        found._own_rows = rows
        return found

    def run(self, order: Array, count: int, follows: bool = False) -> list[Array] | None:
        """Loss and outputs of the next batches, all ranks together; `order` is that of whole batches.

        None where one rank found NaN or infinity, on all of them: nothing is changed then.
        """
        step: Any = self._step
        step.take_parts()
        with bound(step.communicator):
            return super().run(self._own(order, count), count, follows)

    @property
    def launches_ahead(self) -> bool:
        """False: parts may be brought together before the next batches."""
        return False

    def _own(self, order: Array, count: int) -> Array:
        """This rank's rows of whole batches."""
        step: Any = self._step
        batches = order.reshape(count, -1)
        if batches.shape[1] == self._own_rows:
            return order
        own = batches[:, even_rows(step.communicator, batches.shape[1])]
        return np.ascontiguousarray(own).reshape(-1)
