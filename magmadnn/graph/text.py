"""A graph as text that is the same for the same graph, so that tests and people can compare it."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.errors import GraphError

from .node import CONSTANT, Node, node_of, topological


def show(*outputs: Any) -> str:
    """The graphs of `outputs`, one line for each node, in the order of computation.

    A line has the node's number, the op with its operands and attributes, shape and dtype::

        %0 = variable X: float32[5, 3]
        %1 = variable W: float32[6, 5]
        %2 = matmul(%1, %0): float32[6, 3]
    """
    nodes = nodes_of(outputs)
    numbers: dict[Node, int] = {}
    lines = []
    scope = ""
    for node in topological(nodes):
        numbers[node] = len(numbers)
        if node.scope != scope and node.inputs:
            scope = node.scope
            lines.append(f"# {scope}" if scope else "#")
        lines.append(f"%{numbers[node]} = {describe(node, numbers)}: {node.spec}")
    lines.append("return " + ", ".join(f"%{numbers[n]}" for n in nodes))
    return "\n".join(lines)


def nodes_of(outputs: tuple[Any, ...]) -> list[Node]:
    """The nodes of handles.

    Raises:
        GraphError: for anything that has no graph.
    """
    nodes = [node_of(x) if hasattr(x, "node") or isinstance(x, Node) else None for x in outputs]
    for value, node in zip(outputs, nodes, strict=True):
        if node is None:
            raise GraphError(
                f"a graph belongs to an Operation, got {type(value).__name__}; "
                "compute with variables or placeholders to get one"
            )
    return [n for n in nodes if n is not None]


def describe(node: Node, numbers: dict[Node, int]) -> str:
    """A node without its Spec: `matmul(%1, %0)`."""
    if node.op is CONSTANT:
        return f"constant {constant_text(node.value)}"
    if not node.inputs and str(node.name):
        return f"{node.op.name} {node.name}"
    operands = [f"%{numbers[i]}" for i in node.inputs]
    attributes = [f"{key}={value}" for key, value in node.attributes.items()]
    return f"{node.op.name}({', '.join(operands + attributes)})"


def constant_text(value: np.ndarray[Any, Any]) -> str:
    """The value of a small constant, a summary of a large one."""
    if value.size == 1:
        return str(value.reshape(-1)[0])
    return f"of {value.size} values"
