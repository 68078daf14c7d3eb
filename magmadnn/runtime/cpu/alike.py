"""Running plans that are alike others on the CPU: what ran a model that is gone runs the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.plan.native_plan import LaterPlan
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.agreement import ALONE, Agreement
from magmadnn.runtime.handed_on import Inherited
from magmadnn.runtime.variables import is_plain

from .native import NativeRunner

_MOST_BYTES = 4 << 20  # of what waits for the next model

Value = TypeVar("Value")


class WaitingRunner(NativeRunner):
    """Runs a plan whose variables change places with others; see `magmadnn.runtime.handed_on.Runner`."""

    def wait(self) -> bool:
        """See `Runner`."""
        self._last = None
        held = list(self._kept.values())
        if not all(one.can_wait for one in held) or sum(one.nbytes for one in held) > _MOST_BYTES:
            return False
        for one in held:
            one.forget()
        return True

    def go_on(self) -> None:
        """See `Runner`."""
        for one in self._kept.values():
            one.go_on()


class AlikeNative(NativeRunner):
    """Runs a plan that is alike others: runs and slices are those of a plan that models hand on.

    Args:
        plan: what is run.
    """

    def __init__(self, plan: LaterPlan) -> None:
        super().__init__(plan)
        self._later = plan

    @cached_property
    def _inherited(self) -> Inherited[WaitingRunner] | None:
        plan = self._later
        can = all(map(is_plain, plan.variables))
        return Inherited(plan, "cpu", WaitingRunner) if can else None

    @property
    def inner(self) -> NativeRunner:
        """What runs in its place."""
        return self if self._inherited is None else self._inherited.runner

    def inside(self, values: Mapping[Node, Value]) -> Mapping[Node, Value]:
        """Values of placeholders by the nodes that stand for these there."""
        return values if self._inherited is None else self._inherited.inside(values)

    def run(
        self,
        fed: Mapping[Node, Array],
        sizes: Mapping[str, int],
        guard: bool = False,
        workers: Agreement = ALONE,
    ) -> list[Array] | None:
        """See `NativeRunner`."""
        if self._inherited is None:
            return super().run(fed, sizes, guard, workers)
        return self._inherited.runner.run(self.inside(fed), sizes, guard, workers)

    def has_run(self, sizes: Mapping[str, int]) -> bool:
        """See `NativeRunner`."""
        held = self._inherited
        return super().has_run(sizes) or (
            held is not None and held.is_there and held.runner.has_run(sizes)
        )
