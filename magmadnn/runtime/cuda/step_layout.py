"""Where the values of a step of a loop lie on a device; what is of no step lies where the operands do."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from magmadnn.compiler.plan.native_plan import LoopPlan
from magmadnn.graph.dim import bind_value
from magmadnn.graph.node import Node

from .layout import Layout


class StepLayout(Layout):
    """Addresses of all values in one step of a loop, which is to be said by `at`.

    Slices are read where they lie, and outputs written to their places among those of all steps, as far as
    the step computes them into memory of their own.

    Args:
        loop: the plan of the loop.
        outer: where its operands and results lie.
        results: nodes of the results that are stored, by number.

    Attributes:
        steps: how many there are.
        placed: outputs that the step itself writes to their places.
    """

    def __init__(self, loop: LoopPlan, outer: Layout, results: Mapping[int, Node]) -> None:
        self.steps: int = bind_value(loop.length, outer.sizes)
        self._loop, self._outer, self._results, self._row = loop, outer, results, 0
        self._sliced, self._captured = set(loop.body.sliced), set(loop.body.captured)
        self._numbers = {variable: number for number, variable in loop.carried.items()}
        self._own: dict[Node, int] = {}  # addresses of carried values that nobody wants in the end
        self.placed = _placed(loop)
        super().__init__(loop.step, outer.sizes, outer.device)
        self.faults = outer.faults

    def at(self, step: int) -> None:
        """From now on addresses are those of this step."""
        self._row = self.steps - 1 - step if self._loop.reverse else step

    def stacked(self, number: int, nbytes: int) -> int:
        """The address of this step's part, of `nbytes`, of a result."""
        return self._outer.base_address(self._results[number]) + self._row * nbytes

    def given(self, node: Node) -> int:
        """The address of what the loop is given for a placeholder of the body."""
        return self._outer.address(self._loop.operands[node])

    def _variable_of(self, node: Node) -> Node | None:
        if node in self._numbers or node in self._sliced or node in self._captured:
            return node
        return node if node in self.placed else self.plan.in_place.get(node)

    def variable(self, node: Node) -> int:
        """The address of what is of no step, or lies with that of other steps."""
        if node in self._captured:
            return self.given(node)
        nbytes = self.frames[node].nbytes
        if node in self._sliced:
            return self.given(node) + self._row * nbytes
        if node in self.placed:
            return self.stacked(self.placed[node], nbytes)
        number = self._numbers[node]
        if number in self._results:
            return self._outer.base_address(self._results[number])
        if node not in self._own:
            self._own[node] = self.reserved(max(nbytes, 1))
        return self._own[node]


def _placed(loop: LoopPlan) -> dict[Node, int]:
    """Outputs that a step computes into memory of their own, each with a number of the result."""
    plan = loop.step
    stored: Collection[Node] = {node for work in plan.work for node in work.needed}
    found: dict[Node, int] = {}
    for node, number in zip(plan.program.outputs, loop.kept, strict=True):
        if node in stored and node not in plan.in_place:
            found.setdefault(node, number)
    return found
