"""Running plans that are alike others on a device: what ran a model that is gone runs the next one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from magmadnn.backends.cuda import device_memory
from magmadnn.compiler.plan.native_plan import LaterPlan, NativePlan
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.agreement import ALONE, Agreement
from magmadnn.runtime.cuda.schedule import small
from magmadnn.runtime.handed_on import Inherited

from .runner import CudaRunner, Value
from .sliced.kept_slices import slices_that_wait

_MOST_BYTES = 16 << 20  # on the device, of what waits for the next model


class WaitingRunner(CudaRunner):
    """Runs a plan whose variables change places with others; see `magmadnn.runtime.handed_on.Runner`."""

    def wait(self) -> bool:
        """See `Runner`."""
        slices = slices_that_wait(self)
        if slices is None or not all(one.can_wait for one in self.instances):
            return False
        if self.nbytes + sum(one.data.nbytes for one in slices) > _MOST_BYTES:
            return False
        for slice_ in slices:
            slice_.forget()
        for instance in self.instances:
            instance.forget()
        return True

    def go_on(self) -> None:
        """See `Runner`; each run looks where variables lie."""


def _made(device: int, tensor_float: bool, plan: NativePlan) -> WaitingRunner:
    return WaitingRunner(plan, device, tensor_float)


class AlikeRunner(CudaRunner):
    """Runs a plan that is alike others: runs and slices are those of a plan that models hand on.

    Args:
        plan: what is run.
        device: number of the device.
        tensor_float: whether products of float32 may be computed in TF32.
    """

    def __init__(self, plan: LaterPlan, device: int, tensor_float: bool) -> None:
        super().__init__(plan, device, tensor_float)
        limits = small.MOST_OPERATIONS, small.MOST_FED
        how = device, tensor_float, device_memory(device), limits
        self._inherited = Inherited(plan, how, partial(_made, device, tensor_float))

    @property
    def inner(self) -> CudaRunner:
        """What runs in its place."""
        return self._inherited.runner

    def inside(self, values: Mapping[Node, Value]) -> Mapping[Node, Value]:
        """Values of placeholders by the nodes that stand for these there."""
        return self._inherited.inside(values)

    def run(
        self,
        fed: Mapping[Node, Array],
        sizes: Mapping[str, int],
        guard: bool = False,
        workers: Agreement = ALONE,
    ) -> list[Array] | None:
        """See `CudaRunner`."""
        return self.inner.run(self.inside(fed), sizes, guard, workers)

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """See `CudaRunner`."""
        self.inner.prepare(sizes)

    @property
    def nbytes(self) -> int:
        """See `CudaRunner`."""
        return super().nbytes + (self.inner.nbytes if self._inherited.is_there else 0)

    def give_back(self) -> None:
        """See `CudaRunner`."""
        super().give_back()
        if self._inherited.is_there:
            self.inner.give_back()

    def has_run(self, sizes: Mapping[str, int]) -> bool:
        """See `CudaRunner`."""
        return super().has_run(sizes) or (self._inherited.is_there and self.inner.has_run(sizes))
