"""A training step for many batches in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.sliced.legs import LONGEST
from magmadnn.runtime.cpu.sliced.slices import BoundSlices, slices_of

from .inputs import Settings

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.data.pending import PendingSlice
    from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices

    from .step import Step


class StepSlices:
    """Runs slices of batches; parameters, slots and the count are then as after so many single steps.

    Attributes:
        longest: batches of a slice, at most.
    """

    longest = LONGEST

    def __init__(
        self,
        step: Step,
        settings: Settings,
        slices: BoundSlices | CudaSlices,
        data: Mapping[Node, Array],
        inside: Callable[[Mapping[Node, Array]], Mapping[Node, Array]] = lambda values: values,
    ) -> None:
        self._step, self._settings, self._slices, self._data = step, settings, slices, data
        self._inside = inside  # the same by the nodes that slices know

    @classmethod
    def made(
        cls,
        step: Step,
        executable: Executable,
        settings: Settings,
        data: Mapping[Node, Array],
        batch_size: int,
        streams: bool,
        ring_bytes: int | None = None,
    ) -> StepSlices | None:
        """Slices over these arrays; None where a part of the step has to run in Python."""
        values = list(settings.nodes)
        values += [] if step.accumulation is None else step.accumulation.nodes
        sizes = sizes_in_batches(step, executable, data, batch_size)
        if executable.device is not None:
            from magmadnn.runtime.cuda.running.sliced.kept_slices import (
                slices_of as slices_on_device,
            )

            runner = executable.cuda
            made = slices_on_device(runner, data, values, sizes, batch_size, streams, ring_bytes)
            return None if made is None else cls(step, settings, made, data, runner.inside)
        native = executable.native
        slices = slices_of(native, data, values, sizes, batch_size)
        return None if slices is None else cls(step, settings, slices, data, native.inside)

    def choose(self) -> None:
        """Choose now which algorithms a device's libraries take, in place of when steps run."""
        if not isinstance(self._slices, BoundSlices):
            self._slices.choose()

    def changed(self, first: int, last: int) -> None:
        """Tell that rows `first` to `last` of the data have other values now; none of them is being used.

        They stay as they are until this thread has called `settle`.
        """
        if not isinstance(self._slices, BoundSlices):  # those read where the data lies
            self._slices.data.renew(self._inside(self._data), first, last)

    def settle(self) -> None:
        """Return once all that this thread has told of is where it is needed."""
        if not isinstance(self._slices, BoundSlices):
            self._slices.data.renewed()

    def run(self, order: Array, count: int, follows: bool = False) -> list[Array] | None:
        """Loss and outputs of the next `count` batches of these rows, [count, ...] each.

        None where one is NaN or infinite: nothing is changed then. `follows`: nobody else has written
        parameters, slots or data since the slice before.
        """
        if isinstance(self._slices, BoundSlices):
            return self._slices.run(order, self._inside(self._values(count)), follows)
        return self._slices.run(order, self._inside(self._values(count)))

    @property
    def launches_ahead(self) -> bool:
        """Whether batches may begin while those before are on their way, on all ranks alike: on devices."""
        return not isinstance(self._slices, BoundSlices)

    def can_launch(self) -> bool:
        """Whether batches can begin on a device while those before are on their way, for which room is made.

        Not where settings are not fixed, since they depend on the count of steps, where there is no room, or
        too many are on their way, and not on the processor.
        """
        fixed = self._settings.fixed and self._step.accumulation is None
        if isinstance(self._slices, BoundSlices) or not fixed or not self._slices.can_launch:
            return False
        try:
            self._slices.free_side()
        except OutOfMemoryError:
            return False
        return True

    def launch(self, order: Array, count: int) -> PendingSlice | None:
        """Begin with such batches on a device, where `can_launch`; None if there is no room after all.

        `finish` then gives what `run` would.
        """
        assert not isinstance(self._slices, BoundSlices)
        try:
            return self._slices.launch(order, self._inside(self._values(count)))
        except OutOfMemoryError:
            return None

    def finish(self, flight: PendingSlice) -> list[Array] | None:
        """What `run` gives; flights end in their order, and where this is None, no other is left."""
        assert not isinstance(self._slices, BoundSlices)
        return self._slices.finish(flight)

    def abandon(self) -> None:
        """Nobody waits for slices any more; those behind the first that is on its way go back."""
        if not isinstance(self._slices, BoundSlices):
            self._slices.abandon()

    def _values(self, count: int) -> dict[Node, Array]:
        """The settings of the next `count` batches."""
        groups = self._step.accumulation
        flags = {} if groups is None else groups.feeds(count)
        if self._settings.fixed:
            return {n: np.full(count, v) for n, v in self._settings.feeds(0).items()} | flags
        first = self._step.count
        before = range(count) if groups is None else groups.updates_before(count).tolist()
        each = [self._settings.feeds(first + k) for k in before]
        return {node: np.array([one[node] for one in each]) for node in each[0]} | flags


def sizes_in_batches(
    step: Step,
    executable: Executable,
    rows: Mapping[Node, Array],
    batch_size: int,
) -> dict[str, int]:
    """The sizes of symbolic dimensions in batches of such rows."""
    key = (batch_size, *((node, array.shape[1:], array.dtype) for node, array in rows.items()))
    sizes = step.sizes.get(key)
    if sizes is None:
        sample = {node: array[:batch_size] for node, array in rows.items()}
        scalars = {node: np.array(value) for node, value in step.scalars().items()}
        sizes = executable.sizes({**sample, **scalars})
        if all(array.dtype == node.dtype for node, array in rows.items()):
            step.sizes[key] = sizes  # else values were looked at too
    return sizes
