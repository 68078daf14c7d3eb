"""Parts of `Op.rewrites`: rules that replace a node by a simpler one of equal value, bit for bit.

The pass `simplify` applies them. A rule gets a node of its op and gives the new node, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from magmadnn.graph.node import CONSTANT, Node
from magmadnn.graph.spec import is_floating

Rewrite = Callable[[Node], Node | None]


def same(node: Node, operand: Node) -> Node | None:
    """`operand` in place of `node`, where it has its shape and dtype."""
    return operand if operand.spec == node.spec else None


def drop_unchanged(node: Node) -> Node | None:
    """The operand, where its Spec says that the op changed nothing (a cast to the same dtype)."""
    return same(node, node.inputs[0])


def drop_round_trip(node: Node) -> Node | None:
    """What a value was before it was widened, where it is rounded again to halves."""
    (inner,) = node.inputs
    halves = node.dtype.itemsize == 2 and is_floating(node.dtype)
    if not halves or inner.op is not node.op or not is_floating(inner.dtype):
        return None
    return same(node, inner.inputs[0])


def drop_pair(node: Node) -> Node | None:
    """f(f(x)) is x, for an op that undoes itself."""
    (inner,) = node.inputs
    return same(node, inner.inputs[0]) if inner.op is node.op else None


def drop_neutral(value: Any, *, right_only: bool = False) -> Rewrite:
    """The rule that f(x, value) is x, and f(value, x) too unless `right_only`.

    `value` is given with its sign: x + 0.0 is not x where x is -0.0, but x + -0.0 is.
    """

    def rule(node: Node) -> Node | None:
        left, right = node.inputs
        if holds_only(right, value):
            return same(node, left)
        if not right_only and holds_only(left, value):
            return same(node, right)
        return None

    return rule


def holds_only(node: Node, value: Any) -> bool:
    """Whether a node is a constant whose elements all have the bits of `value` in its dtype."""
    if node.op is not CONSTANT or not node.value.size:
        return False
    if node.dtype.kind == "c":
        return False
    bits = np.dtype(f"u{node.dtype.itemsize}")
    expected = np.asarray(value).astype(node.dtype).view(bits)
    found = node.value.view(bits)
    return bool(found.flat[0] == expected and (found == expected).all())
