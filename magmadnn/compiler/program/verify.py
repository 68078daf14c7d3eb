"""What is legal after every pass; run between passes by the tests."""

from __future__ import annotations

from magmadnn.errors import GraphError
from magmadnn.graph.node import PHASE, UPDATE, VARIABLE, Node
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program


def verify(*, before: Program, after: Program, name: str) -> None:
    """Check a pass's result; nodes that `before` has too are its own, and were looked at with it.

    Raises:
        GraphError: naming the pass, if roots changed their Spec, updates their variables, a node's Spec
            is not what its op infers, a phase is left, or an update does not fit its variable.
    """
    if len(before.outputs) != len(after.outputs) or _targets(before) != _targets(after):
        raise GraphError(f"pass {name} changed which outputs or updates there are")
    for old, new in zip(before.roots, after.roots, strict=True):
        if old.spec != new.spec:
            raise GraphError(f"pass {name} turned {old!r} into {new!r}")
    known = frozenset() if after is before else frozenset(before.nodes())
    for node in after.nodes():
        _verify_node(node, name, node in known)
    for target, value in after.updates:
        if target.op is not VARIABLE or target.spec != value.spec:
            raise GraphError(f"pass {name}: {value!r} cannot update {target!r}")


def _targets(program: Program) -> list[Node]:
    return [target for target, _ in program.updates]


def _verify_node(node: Node, name: str, known: bool) -> None:
    if node.op in (PHASE, UPDATE):
        raise GraphError(f"pass {name}: {node!r} belongs to no single phase")
    if isinstance(node.op, Op) and not known:
        spec = node.op.infer([i.spec for i in node.inputs], node.attributes)
        if spec != node.spec:
            raise GraphError(f"pass {name}: {node!r} should be {spec}")
