"""A Plan: the list of steps that a program became, over numbered slots.

Today every step is a call of the op's NumPy function, in an order that depends on the graph only; a slot
is free for another value after its last use. The plan prints as stable text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from magmadnn.graph.body import body_of, is_loop
from magmadnn.graph.dim import dims_of
from magmadnn.graph.node import CONSTANT, Node
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from magmadnn.graph.text import constant_text


@dataclass(frozen=True)
class Step:
    """One call.

    Attributes:
        node: what is computed; its scope tells the layer.
        op: the op that computes it.
        inputs: slots of the operands.
        output: slot of the result.
        frees: slots that nothing reads after this step.
        symbolic: names of attributes that hold dimensions known only when the plan runs.
        body: the plan of a loop's body; None for all else.
    """

    node: Node
    op: Op
    inputs: tuple[int, ...]
    output: int
    frees: tuple[int, ...]
    symbolic: tuple[str, ...]
    body: Plan | None = None

    def __str__(self) -> str:
        operands = [f"s{i}" for i in self.inputs]
        attributes = [f"{k}={v}" for k, v in self.node.attributes.items()]
        where = f"  # {self.node.scope}" if self.node.scope else ""
        call = f"{self.op.name}({', '.join(operands + attributes)})"
        text = f"s{self.output} = numpy {call}: {self.node.spec}{where}"
        inside = [] if self.body is None else str(self.body).splitlines()
        return "\n".join([text, *(f"    {line}" for line in inside)])


@dataclass(frozen=True)
class Plan:
    """A compiled program.

    Attributes:
        program: what was compiled, after all passes.
        slots: how many values there are room for.
        leaves: (slot, node) of placeholders, variables, constants and sizes.
        steps: calls in running order.
        outputs: slots of the program's outputs.
        updates: (variable, slot of its new value).
    """

    program: Program
    slots: int
    leaves: tuple[tuple[int, Node], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    updates: tuple[tuple[Node, int], ...]

    def __str__(self) -> str:
        lines = [f"s{slot} = {_leaf_text(node)}: {node.spec}" for slot, node in self.leaves]
        lines += [str(step) for step in self.steps]
        lines += [f"{node.name} := s{slot}" for node, slot in self.updates]
        lines.append("return " + ", ".join(f"s{slot}" for slot in self.outputs))
        return "\n".join([*lines, f"# {len(self.steps)} steps, {self.slots} slots"])


def _leaf_text(node: Node) -> str:
    if node.op is CONSTANT:
        return f"constant {constant_text(node.value)}"
    return f"{node.op.name} {str(node.name) or node.attributes.get('dim', '')}".rstrip()


def plan_of(program: Program, planned: Callable[[Program], Plan] | None = None) -> Plan:
    """Steps in topological order; a slot is used again after its last reader.

    Args:
        program: after all passes.
        planned: makes the plan of a loop's body; otherwise there are no passes over it.
    """
    nodes = program.nodes()
    leaves = [node for node in nodes if not isinstance(node.op, Op)]
    slots = {node: number for number, node in enumerate(leaves)}
    steps, count = _steps(nodes, slots, {*program.roots}, planned or plan_of)
    return Plan(
        program,
        count,
        tuple((slots[node], node) for node in leaves),
        tuple(steps),
        tuple(slots[n] for n in program.outputs),
        tuple((target, slots[value]) for target, value in program.updates),
    )


def _steps(
    nodes: Sequence[Node],
    slots: dict[Node, int],
    kept: Set[Node],
    planned: Callable[[Program], Plan],
) -> tuple[list[Step], int]:
    """The calls, and how many slots there are; notes in `slots` where each value goes."""
    last_use = {i: n for n in nodes for i in n.inputs}
    steps: list[Step] = []
    free: list[int] = []
    count = len(slots)
    for node in nodes:
        if not isinstance(node.op, Op):
            continue
        ends = {i for i in node.inputs if last_use[i] is node and i not in kept}
        frees = tuple(sorted(slots[i] for i in ends if isinstance(i.op, Op)))
        slots[node] = free.pop() if free else count
        count = max(count, slots[node] + 1)
        inputs = tuple(slots[i] for i in node.inputs)
        symbolic = tuple(k for k, value in node.attributes.items() if any(dims_of(value)))
        body = planned(body_of(node).program) if is_loop(node) else None
        steps.append(Step(node, node.op, inputs, slots[node], frees, symbolic, body))
        free.extend(frees)
    return steps, count
