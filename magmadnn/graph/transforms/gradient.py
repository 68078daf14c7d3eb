"""Gradients as more graph: one reverse sweep over the ops' `vjp`.

What every rule would repeat is done here once: undoing broadcasts, adding up what several users of a
value send back, returning to the operand's dtype, and leaving out what nobody asked for. Before that,
formulas are brought into forms that keep their digits, by the ops' rules `Op.stable`; that is a pass of the
compiler too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from magmadnn.errors import DTypeError, GraphError, ShapeError
from magmadnn.graph.node import Node, constant, resolve_phase, scoped, topological, with_inputs
from magmadnn.graph.op import NoGradient, Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.signature import shape_text
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import is_complex, is_floating


def stabilise(program: Program) -> Program:
    """Apply the ops' rules `Op.stable`: log(softmax(x)) becomes log_softmax(x), and the like."""
    new = stabilised(program.roots)
    return program.with_roots([new[root] for root in program.roots])


def stabilised(roots: Sequence[Node], kept: Iterable[Node] = ()) -> dict[Node, Node]:
    """What each node that `roots` need becomes; most stay what they are.

    Args:
        roots: what is computed.
        kept: nodes that must stay part of what depends on them, since a gradient with respect to them is
            wanted.
    """
    inner = {node for node in kept if node.inputs}
    new: dict[Node, Node] = {}
    for node in topological(roots):
        inputs = tuple(new[i] for i in node.inputs)
        new[node] = _stable(with_inputs(node, inputs), {new[k] for k in inner if k in new})
    return new


def _stable(node: Node, kept: Collection[Node]) -> Node:
    """The node after the rules of its op, and of what it became; each keeps shape and dtype."""
    while isinstance(node.op, Op):
        for rule in node.op.stable:
            with scoped(node.path):
                result: Node | None = rule(node)
            if result is not None and result.spec == node.spec and _depends(result, node, kept):
                node = result
                break
        else:
            break
    return node


def _depends(result: Node, node: Node, kept: Collection[Node]) -> bool:
    """Whether `result` needs all of `kept` that `node` needs."""
    if not kept:
        return True
    return not (set(topological([node])) & set(kept)) - set(topological([result]))


# --- the sweep ------------------------------------------------------------------------------------


class PartOp(Protocol):
    """An op, called with nodes."""

    def __call__(self, *operands: Any, **attributes: Any) -> Node:
        """The result, a node."""
        ...


@dataclass(frozen=True)
class Parts:
    """The ops that the sweep itself, stacks and passes need; `ops` gives them."""

    add: PartOp
    negative: PartOp
    multiply: PartOp
    sum: PartOp  # (x, axis, keepdims)
    reshape: PartOp
    broadcast_to: PartOp
    cast: PartOp
    copy: PartOp  # memory of its own
    real: PartOp
    conj: PartOp
    stack: Callable[[Sequence[Node]], Node]  # along a new first axis
    getitem: Callable[[Node, int], Node]


_WIDE = (np.dtype(np.float32), np.dtype(np.float64))
_parts: list[Parts] = []


def use(parts: Parts) -> None:
    """Tell the sweep which ops to build gradients with."""
    _parts[:] = [parts]


def parts() -> Parts:
    """The ops that were given."""
    return _parts[0]


def gradient(
    y: Node, xs: Sequence[Node], seed: Node | None = None, *, training: bool = False
) -> list[Node]:
    """D sum(seed * y) / dx for each x, as graphs without phases.

    Args:
        y: a scalar, or of any shape where `seed` is given.
        xs: variables, placeholders or anything else that y is computed from; one that y does not
            depend on gets zeros.
        seed: weights of y's elements; 1 where it is left out.
        training: the phase that is differentiated (dropout, batch statistics).

    Raises:
        GraphError: if y is not a scalar and there is no seed, or an op on the way has no gradient.
        ShapeError: if seed has another shape than y.
        DTypeError: if y or an x is not floating-point.
    """
    _check(y, xs, seed)
    if seed is None:
        seed = constant(np.ones((), y.dtype))
    (y, seed, *targets), _ = resolve_phase([y, seed, *xs], training)
    # what is differentiated keeps its digits: the gradient of log(softmax(x)) divides by no number near 0
    stable = stabilised([y], targets)
    y, targets = stable[y], [stable.get(target, target) for target in targets]
    seed = seed if seed.dtype == y.dtype else _parts[0].cast(seed, y.dtype)
    found = adjoints({y: seed}, targets)
    return [zeros(x.spec) if g is None else g for x, g in zip(targets, found, strict=True)]


def adjoints(seeds: Mapping[Node, Node], targets: Sequence[Node]) -> list[Node | None]:
    """D sum(seed * y, of all y in `seeds`) / dx for each target; None where no y depends on it.

    Raises:
        GraphError: if an op on the way has no gradient.
    """
    found = _sweep(seeds, set(targets))
    return [found.get(x) for x in targets]


def _check(y: Node, xs: Sequence[Node], seed: Node | None) -> None:
    if seed is None and y.shape != ():
        raise GraphError(
            f"grad: {y.label} has shape {shape_text(y.shape)}, expected a scalar; "
            "sum it, or give weights for its elements as seed"
        )
    if seed is not None and seed.shape != y.shape:
        raise ShapeError(
            f"grad: seed has shape {shape_text(seed.shape)}, expected {shape_text(y.shape)} as y has"
        )
    if not is_floating(y.dtype):
        raise DTypeError(f"grad: {y.label} is {y.dtype.name}, expected a floating-point value")
    for x in xs:
        if not _is_differentiable(x):
            raise DTypeError(
                f"grad: {x.label} is {x.dtype.name}, expected a floating-point value; "
                "there is no gradient with respect to it"
            )


def _sweep(seeds: Mapping[Node, Node], targets: set[Node]) -> Mapping[Node, Node]:
    """The adjoints of all nodes between `targets` and those of `seeds`."""
    order = topological(list(seeds))
    needed: set[Node] = set()
    for node in order:
        if node in targets or any(i in needed for i in node.inputs):
            needed.add(node)
    found = {y: seed for y, seed in seeds.items() if y in needed}
    of_results: dict[Node, dict[int, Node]] = {}  # of nodes with several results, by their numbers
    for node in reversed(order):
        if not any(i in needed for i in node.inputs):
            continue
        with scoped((*node.path, "gradient")):
            if node in found and isinstance(node.op, Op) and node.op.kind is OpKind.RESULT:
                results = of_results.setdefault(node.inputs[0], {})
                _add(results, node.attributes["index"], found[node])
            elif node in found or node in of_results:
                g = of_results[node] if node in of_results else found[node]
                for operand, part in _parts_for(node, g, needed):
                    _add(found, operand, part)
    return found


Key = TypeVar("Key")


def _add(found: dict[Key, Node], key: Key, part: Node) -> None:
    found[key] = _parts[0].add(found[key], part) if key in found else part


def _parts_for(node: Node, g: Any, needed: set[Node]) -> list[tuple[Node, Node]]:
    """What `node` sends back to each operand that needs it."""
    op = node.op
    wanted = [i in needed and _is_differentiable(i) for i in node.inputs]
    if not isinstance(op, Op) or not any(wanted):
        return []
    if isinstance(op.vjp, NoGradient):
        raise GraphError(f"grad: {op.name} has no gradient: {op.vjp.why}")
    turned = is_complex(
        node.dtype
    )  # then `vjp` multiplies by derivatives, of which conjugates are wanted
    sent = op.vjp(_parts[0].conj(g) if turned else g, node, *node.inputs, **node.attributes)
    sent = sent if isinstance(sent, tuple) else (sent,)
    if len(sent) != len(node.inputs):
        raise GraphError(
            f"grad: the vjp of {op.name} gives {len(sent)} gradients for {len(node.inputs)} operands; "
            "give one for each, None where there is none"
        )
    return [
        (operand, _fit(_parts[0].conj(one) if turned and is_complex(one.dtype) else one, operand))
        for operand, part, want in zip(node.inputs, sent, wanted, strict=True)
        if want and part is not None
        for one in (part if isinstance(part, list) else [part])
    ]


def _fit(part: Node, operand: Node) -> Node:
    """`part` summed over the axes along which `operand` was broadcast, in its dtype."""
    extra = part.ndim - operand.ndim
    stretched = tuple(
        axis
        for axis, size in enumerate(part.shape)
        if axis < extra or (operand.shape[axis - extra] == 1 and size != 1)
    )
    inner = any(axis >= extra for axis in stretched)
    if stretched:
        part = _summed(part, stretched, inner)
    if inner and extra > 0:
        part = _parts[0].reshape(part, part.shape[extra:])
    if is_complex(part.dtype) and not is_complex(operand.dtype):
        part = _parts[0].real(part)
    if part.shape != operand.shape:
        part = _parts[0].broadcast_to(part, operand.shape)
    return part if part.dtype == operand.dtype else _parts[0].cast(part, operand.dtype)


def _summed(part: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """`part` summed over axes, and what is the same along them multiplied afterwards.

    So the gradient of a mean in `(x - mean) * scale` is `-scale * sum(g)`, of which `sum(g)` is often
    known: it is that of a shift. Halves, whose sums may be too large without a factor, are summed as they
    are; so may those of float32 be, of gradients near 1e38, which trainings do not have.
    """

    def sum_over(x: Node) -> Node:
        return _parts[0].sum(x, axis=axes, keepdims=keepdims)

    if part.dtype not in _WIDE:
        return sum_over(part)
    ops: Parts = _parts[0]
    if part.op is ops.negative:
        total: Node = ops.negative(_summed(part.inputs[0], axes, keepdims))
        return total
    if part.op is ops.multiply:
        for factor, other in (part.inputs, part.inputs[::-1]):
            if other.shape == part.shape and _is_constant_along(factor, axes, part.ndim):
                kept = factor if keepdims else _without(factor, axes, part.ndim)
                scaled: Node = ops.multiply(_summed(other, axes, keepdims), kept)
                return scaled
    return sum_over(part)


def _is_constant_along(factor: Node, axes: tuple[int, ...], ndim: int) -> bool:
    """Whether a factor of an array with `ndim` axes varies, but not along any of `axes`."""
    shape = (1,) * (ndim - factor.ndim) + factor.shape
    return any(size != 1 for size in shape) and all(shape[axis] == 1 for axis in axes)


def _without(factor: Node, axes: tuple[int, ...], ndim: int) -> Node:
    """A factor in the shape of a sum over `axes`, along which its size is 1."""
    shape = (1,) * (ndim - factor.ndim) + factor.shape
    return _parts[0].reshape(factor, [n for axis, n in enumerate(shape) if axis not in axes])


def _is_differentiable(x: Node) -> bool:
    return is_floating(x.dtype) or is_complex(x.dtype)


def zeros(spec: Spec) -> Node:
    """Zeros of a shape and dtype, as a graph."""
    return _parts[0].broadcast_to(constant(np.zeros((), spec.dtype)), spec.shape)
