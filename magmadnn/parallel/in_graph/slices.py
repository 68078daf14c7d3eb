"""Many steps of several ranks in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.comm.communicator import Wire
from magmadnn.comm.gpu.meeting import gpus_of, meet
from magmadnn.comm.groups import bound
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.optim import StepSlices
from magmadnn.optim.inputs import Settings
from magmadnn.parallel.agreement import choose_alike
from magmadnn.parallel.tree import TreeSum
from magmadnn.runtime import Executable
from magmadnn.runtime.step_memory import StepMemory

from .tree_ops import GROUP
from .whole_step import OnWire, WholeStep
from .wire import wire_text

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.data.pending import PendingSlice


def on_wire(wire: Wire | None, communicator: Communicator, device: int | None) -> OnWire | None:
    """How gradients travel among the GPUs of ranks, which meet where they have not; None for as they are."""
    if wire is None or device is None or communicator.size == 1:
        return None
    meet(communicator, device)
    return OnWire(wire, gpus_of(communicator).can_add(wire, "float32"))


class SharedStep(Protocol):
    """What is asked of a step."""

    @property
    def ranks(self) -> tuple[Communicator, TreeSum]:
        """The ranks, and the tree that gradients are added by."""
        ...

    def outputs_of(self, small: Array) -> list[Array]:
        """The loss and the outputs of a batch, from the sums over its shards."""
        ...


class RanksSlices(StepSlices):
    """Runs slices of batches of which each rank computes its rows; see `StepSlices`.

    Attributes:
        executable: the program of a step.
        whole: its graph.
    """

    executable: Executable
    whole: WholeStep
    _comm: Communicator
    _tree: TreeSum
    _bounds: Sequence[int]

    @classmethod
    def of(
        cls,
        step: SharedStep,
        settings: Settings,
        whole: WholeStep,
        rows: Mapping[Node, Array],
        bounds: Sequence[int],
        way: Mapping[str, Any],
        executable: Executable | None = None,
    ) -> RanksSlices | None:
        """Slices over these arrays.

        Args:
            step: whose parameters are trained.
            settings: of the optimiser.
            whole: the graph of a step.
            rows: an array for each placeholder of a shard.
            bounds: where the shards of a batch begin.
            way: executor, precision and device.
            executable: of `whole`, where it is made already.

        Returns:
            None where a part of the step has to run in Python.
        """
        if executable is None:
            executable = Executable(whole.outputs, whole.updates, training=True, **way)
        data = {whole.data[node]: array for node, array in rows.items()}
        comm, tree = step.ranks
        own = bounds[tree.last] - bounds[tree.first]
        if executable.device is not None and comm.size > 1:
            meet(comm, executable.device)
        one: Any = step
        with bound({GROUP: comm}):
            found = cls.made(one, executable, settings, data, own, False)
            if executable.device is not None and comm.size > 1:
                choose_alike(comm, found)
        if not isinstance(found, RanksSlices):
            return None
        found.executable, found.whole = executable, whole
        found._comm, found._tree, found._bounds = comm, tree, bounds
        return found

    def run(self, order: Array, count: int, follows: bool = False) -> list[Array] | None:
        """Loss and outputs of the next batches, all ranks together; `order` is that of whole batches."""
        with bound({GROUP: self._comm}):
            return self._all(super().run(self._own(order, count), count, follows))

    def launch(self, order: Array, count: int) -> PendingSlice | None:
        """Begin with such batches on a device, all ranks together; see `StepSlices.launch`.

        Raises:
            OutOfMemoryError: if there is no room on this rank, since others have begun.
        """
        with bound({GROUP: self._comm}):
            found = super().launch(self._own(order, count), count)
        if found is None and self._comm.size > 1:
            raise OutOfMemoryError(
                f"fit: no room on rank {self._comm.rank} for what steps need while others are on their "
                "way: lower the batch size"
            )
        return found

    def finish(self, flight: PendingSlice) -> list[Array] | None:
        """What `run` gives."""
        with bound({GROUP: self._comm}):
            return self._all(super().finish(flight))

    def text(self, sizes: Mapping[str, int]) -> str:
        """The plan of a step, and what it sends."""
        leaves, is_on_gpu = len(self._bounds) - 1, self.executable.device is not None
        sent = wire_text(self.whole, self._comm, self._tree, leaves, is_on_gpu)
        with bound({GROUP: self._comm}):
            return f"{self.executable.text(sizes)}\n{sent}"

    def memory_of(self, rows: int) -> StepMemory | None:
        """What a step takes on this rank; None for batches of another size."""
        return self.executable.memory({}) if rows == self._bounds[-1] else None

    def _own(self, order: Array, count: int) -> Array:
        """This rank's rows of whole batches."""
        first, last = self._bounds[self._tree.first], self._bounds[self._tree.last]
        own = order.reshape(count, -1)[:, first:last]
        return np.ascontiguousarray(own).reshape(-1)

    def _all(self, found: list[Array] | None) -> list[Array] | None:
        """Loss and outputs of batches, from those of this rank's blocks, [batches, blocks, n]."""
        if found is None:
            return None
        (small,) = found
        bounds, tree, count, width = self._bounds, self._tree, len(small), small.shape[2]
        blocks = [small[:, k].reshape(-1) for k in range(small.shape[1])]
        leaves = range(len(bounds) - 1)
        total = tree.all_sum(blocks, np.empty(count * width), leaves).reshape(count, width)
        step: Any = self._step
        each = [step.outputs_of(row) for row in total]
        return [np.stack(values) for values in zip(*each, strict=True)]
