"""Parts of `Op.rewrites` and `Op.stable`: rules that replace a node by another of the same value.

A rule gets a node of its op and gives the new node, or None. Those of `rewrites` give a simpler one, bit for
bit; the pass `simplify` applies them. Those of `stable` give one that keeps more digits; the pass `stabilise`
applies them, and so does the gradient before it differentiates. They stand for what users write by hand;
layers and losses are built of the stable forms from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.graph.node import CONSTANT, Node, topological
from magmadnn.graph.op import REGISTRY, Op
from magmadnn.memory.dtypes import is_floating

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


def _is(node: Node, name: str) -> bool:
    """Whether a node is of the op of that name."""
    return isinstance(node.op, Op) and node.op is REGISTRY.get(name)


def _ops() -> Any:
    """All ops: these rules name some that are defined after those whose rules they are."""
    return import_module(__package__)


def _is_one(node: Node) -> bool:
    return node.op is CONSTANT and bool(node.value.size) and bool(np.all(node.value == 1))


def _beside_one(node: Node) -> Node | None:
    """The other operand of `x + 1` or `1 + x`, where it has the result's shape."""
    if not _is(node, "add"):
        return None
    left, right = node.inputs
    other = left if _is_one(right) else right if _is_one(left) else None
    return other if other is not None and other.spec == node.spec else None


def log_of(node: Node) -> Node | None:
    """log of softmax, sigmoid, exp, 1 + x and a sum of exponentials, without a number near 0 or infinity."""
    (x,), ops = node.inputs, _ops()
    found: Node | None = None
    if _is(x, "softmax"):
        found = ops.log_softmax(x.inputs[0], **x.attributes)
    elif _is(x, "sigmoid"):
        found = -1.0 * ops.softplus(-1.0 * x.inputs[0])
    elif _is(x, "exp"):
        found = x.inputs[0]
    elif _is(x, "subtract") and _is_one(x.inputs[0]) and _is(x.inputs[1], "sigmoid"):
        found = -1.0 * ops.softplus(x.inputs[1].inputs[0])
    elif (other := _beside_one(x)) is not None:
        found = ops.softplus(other.inputs[0]) if _is(other, "exp") else ops.log1p(other)
    elif _is(x, "sum") and _is(x.inputs[0], "exp") and _has_elements(x):
        inner = x.inputs[0].inputs[0]
        if not _is_centred(inner):
            found = ops.logsumexp(inner, **x.attributes)
    return found


def log1p_of(node: Node) -> Node | None:
    """log1p(exp(x)) is softplus(x), also where exp(x) is infinite."""
    (x,) = node.inputs
    found: Node | None = _ops().softplus(x.inputs[0]) if _is(x, "exp") else None
    return found


def difference_of(node: Node) -> Node | None:
    """exp(x) - 1 is expm1(x), where the two are nearly equal."""
    left, right = node.inputs
    found: Node | None = None
    if _is_one(right) and _is(left, "exp"):
        found = _ops().expm1(left.inputs[0])
    return found


def share_of(node: Node) -> Node | None:
    """exp(x) / sum(exp(x)) along an axis is softmax(x), also where exp(x) is infinite."""
    part, whole = node.inputs
    if not (_is(part, "exp") and _is(whole, "sum") and whole.inputs[0] is part):
        return None
    axes = whole.attributes["axis"]
    if len(axes) != 1 or not whole.attributes["keepdims"] or _is_centred(part.inputs[0]):
        return None
    found: Node = _ops().softmax(part.inputs[0], axis=axes[0])
    return found


def _has_elements(total: Node) -> bool:
    """Whether a reduction surely has something to choose a largest from."""
    sizes = [total.inputs[0].shape[axis] for axis in total.attributes["axis"]]
    return all(isinstance(size, int) and size > 0 for size in sizes)


def _is_centred(x: Node) -> bool:
    """Whether the largest was taken out already: `x - max(x)`."""
    if not _is(x, "subtract"):
        return False
    inner, taken = x.inputs
    return any(_is(n, "max") and n.inputs[0] is inner for n in topological([taken]))
