"""Programs with loops, and the same without: a copy of the body for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magmadnn.graph.body import body_of, is_loop, is_result, with_bodies
from magmadnn.graph.node import Node, rebuild, scoped, with_inputs
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import zeros
from magmadnn.ops.indexing import getitem
from magmadnn.ops.movement import stack


def program_without_loops(program: Program) -> Program:
    """The program with the steps of loops, whose lengths are known, one after the other."""
    if not any(map(is_loop, program.nodes())):
        return program
    program = with_bodies(program, program_without_loops)
    wanted: dict[Node, list[int]] = {}
    for node in program.nodes():
        if is_result(node):
            wanted.setdefault(node.inputs[0], []).append(node.attributes["index"])
    new: dict[Node, Node] = {}
    results: dict[Node, Mapping[int, Node]] = {}
    for node in program.nodes():
        inputs = tuple(new[i] for i in node.inputs)
        new[node] = with_inputs(node, inputs)
        if is_loop(node):
            with scoped(node.path):
                results[node] = _unrolled(wanted[node], node, inputs)
        if is_result(node) and node.inputs[0] in results:
            new[node] = results[node.inputs[0]][node.attributes["index"]]
    return program.with_roots([new[root] for root in program.roots])


def _unrolled(numbers: Sequence[int], loop: Node, operands: Sequence[Node]) -> dict[int, Node]:
    """The results of these numbers, by one copy of the body for each step."""
    body, length, reverse = body_of(loop), loop.attributes["length"], loop.attributes["reverse"]
    count, taken = len(body.carried), len(body.carried) + len(body.sliced)
    carried, stacked, same = operands[:count], operands[count:taken], operands[taken:]
    kept: list[list[Node]] = [[] for _ in body.kept]
    for step in reversed(range(length)) if reverse else range(length):
        slices = [getitem(x, step) for x in stacked]
        new = dict(zip(body.inputs, (*carried, *slices, *same), strict=True))
        found = rebuild(body.program.outputs, new)
        for of_steps, value in zip(kept, [*found[count:], *carried], strict=True):
            of_steps.append(value)
        carried = found[:count]
    results = dict(enumerate(carried))
    for number in numbers:
        if number >= count:
            of_steps = kept[number - count][::-1] if reverse else kept[number - count]
            results[number] = stack(of_steps) if length else zeros(body.spec(number, length))
    return results
