"""What ran a small model that is gone runs the next one that is built alike: memory, tasks, kernels, graphs.

Plans that are alike differ in their leaves only. So such a plan runs as one over other leaves, which stand
for those of the model at hand; when that model is gone, they stand for those of another one. Then nothing is
laid out, chosen or made again: what runs is given the addresses of the new variables.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.plan.native_plan import LaterPlan, NativePlan
from magmadnn.compiler.regions.draft import named
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.graph.op import Array
from magmadnn.memory.pool import WHEN_SHORT

from .variables import tensor_of

_MOST = 8  # that wait


class Runner(Protocol):
    """What runs a plan, and can go on with other variables."""

    def wait(self) -> bool:
        """Hold no memory of variables any more; False where other ones cannot take their place."""
        ...

    def go_on(self) -> None:
        """Find out where the variables lie that the plan has now."""
        ...


Running = TypeVar("Running", bound=Runner)
Value = TypeVar("Value")


class _Nothing:
    """What a variable holds that stands for none."""

    memory = None


_NOTHING = _Nothing()


class StandIn:
    """What a variable holds that stands for another one."""

    def __init__(self) -> None:
        self.node: Node | None = None

    @property
    def tensor(self) -> Any:
        """What the other one holds."""
        return _NOTHING if self.node is None else tensor_of(self.node)

    def read(self) -> Array:
        """Its value on the host; not to be changed."""
        assert self.node is not None
        found: Array = self.node.value.read()
        return found

    def write(self, value: Array) -> None:
        """Set its value."""
        assert self.node is not None
        self.node.value.write(value)


class Held(Generic[Running]):
    """A plan over leaves that stand for those of a model, and what runs it.

    Args:
        key: equal for those that can take each other's place.
        plan: the model's.
        make: gives what runs a plan.

    Attributes:
        runner: what runs it.
        names: the leaves by those of the model.
    """

    def __init__(
        self, key: Hashable, plan: LaterPlan, make: Callable[[NativePlan], Running]
    ) -> None:
        self.key = key
        self._leaves = tuple(
            Node(n.op, (), n.spec, n.attributes, str(n.name), value, named(n))
            for n in plan.own
            for value in [StandIn() if n.op is VARIABLE else None]
        )
        self.names: Mapping[Node, Node] = {}
        self._stand_for(plan.own)
        self.runner = make(plan.with_leaves(self.names))

    def _stand_for(self, leaves: Sequence[Node]) -> None:
        self.names = dict(zip(leaves, self._leaves, strict=True))
        for node, own in self.names.items():
            if own.op is VARIABLE:
                own.value.node = node

    def go_on(self, leaves: Sequence[Node]) -> None:
        """Stand for these from now on."""
        self._stand_for(leaves)
        self.runner.go_on()

    @staticmethod
    def hand_on(held: Held[Any]) -> None:
        """Keep what ran a model that is gone; in whatever thread that turns out."""
        if not held.runner.wait():
            return
        held.names = {}
        for own in held._leaves:
            if own.op is VARIABLE:
                own.value.node = None
        _waiting.append(held)


_waiting: deque[Held[Any]] = deque(maxlen=_MOST)  # whose methods need no lock
WHEN_SHORT.append(_waiting.clear)


def _waiting_for(key: Hashable) -> Held[Any] | None:
    """What another model left, which nobody else gets; None where there is nothing."""
    for held in list(_waiting):
        if held.key == key:
            try:
                _waiting.remove(held)
            except ValueError:
                continue  # another thread has it
            return held
    return None


class Inherited(Generic[Running]):
    """What runs a plan: what a model that is gone has left, or else made for this one, and left by it.

    Args:
        plan: the model's.
        how: what that depends on beside the plan.
        make: gives what runs a plan.
    """

    def __init__(
        self, plan: LaterPlan, how: Hashable, make: Callable[[NativePlan], Running]
    ) -> None:
        self._plan, self._key, self._make = plan, (plan.alike, how), make

    @cached_property
    def _held(self) -> Held[Running]:
        return self._taken(_waiting_for(self._key) or Held(self._key, self._plan, self._make))

    def _taken(self, held: Held[Running]) -> Held[Running]:
        if not held.names:
            held.go_on(self._plan.own)
        assert self._plan.alike is not None
        if self._plan.alike.has_others:  # most come once
            weakref.finalize(self, Held.hand_on, held).atexit = False
        return held

    @property
    def runner(self) -> Running:
        """What runs it."""
        return self._held.runner

    def inside(self, values: Mapping[Node, Value]) -> dict[Node, Value]:
        """Values of placeholders by the nodes that stand for these there."""
        names = self._held.names
        return {names.get(node, node): value for node, value in values.items()}

    @property
    def is_there(self) -> bool:
        """Whether there is something that runs it already."""
        if "_held" not in self.__dict__:
            held = _waiting_for(self._key)
            if held is None:
                return False
            self.__dict__["_held"] = self._taken(held)
        return True
