"""The plan of a loop: that of one step, made once by the same passes, whatever the number of steps.

What is carried are variables of the step's program, and what it carries on are their new values: so a sum
over steps is written straight over itself, as an optimiser's update is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magmadnn.graph.body import Body, body_of
from magmadnn.graph.node import VARIABLE, Node, rebuild, topological
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import parts

from .native_plan import LoopPlan, NativePlan


def loop_plan(
    loop: Node, results: Iterable[Node], planned: Callable[[Program], NativePlan]
) -> LoopPlan:
    """The plan of a loop.

    Args:
        loop: its node.
        results: those of its results that are stored.
        planned: makes the plan of a step.
    """
    body, wanted = body_of(loop), sorted(r.attributes["index"] for r in results)
    first = len(body.carried)
    last = first + len(body.outputs) + len(body.saved)
    kept = tuple(k for k in wanted if first <= k < last)
    before = {k: k - last for k in wanted if k >= last}
    outputs = [body.kept[k - first] for k in kept]
    live = _live(body, {*before.values(), *(k for k in wanted if k < first)}, outputs)
    carried = {k: _variable(body.carried[k]) for k in live}
    new = {body.carried[k]: node for k, node in carried.items()}
    roots = rebuild([*outputs, *(body.new[k] for k in live)], new)
    targets = list(carried.values())
    pairs = zip(targets, roots[len(outputs) :], strict=True)
    updates = tuple((target, value) for target, value in pairs if value is not target)
    step = _stored(Program(tuple(roots[: len(outputs)]), updates), planned)
    return LoopPlan(
        body,
        loop.attributes["length"],
        loop.attributes["reverse"],
        dict(zip(body.inputs, loop.inputs, strict=True)),
        step,
        carried,
        kept,
        before,
    )


def _live(body: Body, wanted: set[int], outputs: list[Node]) -> list[int]:
    """The carried values on which something depends that is wanted."""
    while True:
        used = set(topological([*outputs, *(body.new[k] for k in sorted(wanted))]))
        more = {k for k, node in enumerate(body.carried) if node in used} | wanted
        if more == wanted:
            return sorted(wanted)
        wanted = more


def _variable(node: Node) -> Node:
    """A variable for a carried value; where it lies is known when the loop is laid out in memory."""
    return Node(VARIABLE, (), node.spec, name=node.name, path=node.path)


def _stored(program: Program, planned: Callable[[Program], NativePlan]) -> NativePlan:
    """The plan of a step in which outputs and new values lie in memory of their own."""
    plan = planned(program)
    held = [n in plan.in_place or plan.is_stored(n) for n in plan.program.roots]
    if all(held):
        return plan
    copy = parts().copy
    roots = [n if own else copy(n) for n, own in zip(program.roots, held, strict=True)]
    return planned(program.with_roots(roots))
