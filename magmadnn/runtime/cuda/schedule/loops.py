"""Loops on a device: the launches of one step after those of the other, with the addresses of each.

The body was planned once. Its kernels are the same in all steps, and read slices and write outputs where
these lie, so a step more is only more launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from magmadnn.backends.cuda.engine import HostNode
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.plan.native_plan import LoopPlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.graph.node import Node
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.step_layout import StepLayout

from .copies import copied_bytes
from .launch import Item

if TYPE_CHECKING:
    from .launches import Items


class LoopSteps:
    """The steps of a loop over laid-out memory.

    Args:
        loop: its plan.
        work: the step of the outer plan that it is.
        outer: where its operands and results lie.
        items: makes the launches of a step.
        chip: what emitters know of the device.
    """

    def __init__(
        self,
        loop: LoopPlan,
        work: Work,
        outer: Layout,
        items: Callable[[Layout], Items],
        chip: Chip,
    ) -> None:
        results = {node.attributes["index"]: node for node in work.needed}
        self._loop, self._chip = loop, chip
        self._layout = StepLayout(loop, outer, results)
        self._items = items(self._layout)

    def items(self) -> Iterator[Item]:
        """Launches, and calls where a step has some, in order."""
        layout, loop = self._layout, self._loop
        for number, variable in loop.carried.items():
            source = layout.given(loop.body.carried[number])
            yield from self._copy(variable, source, layout.variable(variable))
        for step in range(layout.steps):
            layout.at(step)
            yield from self._before()
            for work in loop.step.work:
                for item in self._items.of(work):
                    yield _at(layout, step, item) if isinstance(item.what, HostNode) else item
            yield from self._after()

    def _before(self) -> Iterator[Item]:
        """Keep what is carried into the step, as far as it is wanted."""
        for index, number in self._loop.before.items():
            variable = self._loop.carried[number]
            yield from self._keep(variable, self._layout.variable(variable), index)

    def _after(self) -> Iterator[Item]:
        """Keep outputs, and carry on what was not written in place."""
        layout, step = self._layout, self._loop.step
        for node, index in zip(step.program.outputs, self._loop.kept, strict=True):
            if layout.placed.get(node) != index:
                yield from self._keep(node, layout.address(node), index)
        for target, value in step.program.updates:
            if value not in step.in_place:
                yield from self._copy(target, layout.address(value), layout.variable(target))

    def _keep(self, node: Node, source: int, index: int) -> list[Item]:
        return self._copy(
            node, source, self._layout.stacked(index, self._layout.frames[node].nbytes)
        )

    def _copy(self, node: Node, source: int, to: int) -> list[Item]:
        return copied_bytes(self._layout.frames[node].nbytes, source, to, self._chip)


def _at(layout: StepLayout, step: int, item: Item) -> Item:
    """A call of the host that is made later, when addresses may be those of another step."""
    assert isinstance(item.what, HostNode)
    call = item.what.run

    def run() -> None:
        layout.at(step)
        call()

    return replace(item, what=replace(item.what, run=run))
