"""Values that are not kept for the gradient: it computes them again.

`recomputed(y, inputs, parameters)` is y. Its gradient goes through a copy of what y was computed by, which
begins when the gradient of y is there. So between the two only y and the inputs are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.errors import GraphError, ShapeError
from magmadnn.graph.dim import Shape
from magmadnn.graph.node import (
    PLACEHOLDER,
    VARIABLE,
    Node,
    constant,
    placeholder,
    record,
    topological,
    with_inputs,
)
from magmadnn.graph.op import REQUIRED, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords, shape_text
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.gradient import adjoints
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.indexing import getitem


def _behind(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    if specs[1].shape:
        raise ShapeError(f"after: done must be a scalar, got {shape_text(specs[1].shape)}")
    return specs[0].shape


# What is computed from its result comes behind `done`, though it does not depend on its value.
after = Op(
    name="_after",
    args=("x", "done"),
    formula="x, once done is known",
    kind=OpKind.POINTWISE,
    shapes=_behind,
    dtypes=first_dtype,
    numpy=lambda x, done: x,
    scalar=lambda x, done: x,
    vjp=lambda g, y, x, done: (g, None),
    reference=lambda x, done: np.copy(x),
    samples=lambda draw: [Sample((draw(3, 4), draw())), Sample((draw(), draw()))],
    integers=("done",),
)


def _vjp(
    g: Node, node: Node, y: Node, *operands: Node, inputs: int
) -> tuple[Node | list[Node] | None, ...]:
    """Gradients by a copy of the graph from the operands to y, behind g.

    An operand has one for each place where it is used, the last place first: so they are added up in the
    same order as without a copy.
    """
    nodes = _between(y, operands)
    if not nodes:
        return (g, *(None for _ in operands))
    copy = _Copy(nodes, operands)
    seed = placeholder("gradient", g.spec)
    done = _first(g)
    late = {x: after(x, done) for x in (*operands[:inputs], *copy.counters)}
    known = {seed: g, copy.of[y]: y} | {place: late.get(x, x) for place, x in copy.reads.items()}
    places = [place for x in operands for place in copy.places(x)]
    found = dict(zip(places, adjoints({copy.of[y]: seed}, places), strict=True))
    there = {place: part for place, part in found.items() if part is not None}
    parts = dict(zip(there, _over(list(there.values()), known), strict=True))
    return (None, *([parts[u] for u in copy.places(x) if u in parts] for x in operands))


class _Copy:
    """A graph once more, which reads placeholders in place of its operands.

    Attributes:
        of: the copy of each node that has one, else the node.
        reads: what is read in the place of each placeholder.
        counters: what draws of random numbers read.
    """

    def __init__(self, nodes: Sequence[Node], operands: Sequence[Node]) -> None:
        self.of: dict[Node, Node] = {}
        self.reads: dict[Node, Node] = {}
        self.counters: list[Node] = []
        self._uses: dict[Node, dict[tuple[int, int], Node]] = {x: {} for x in operands}
        inner = _inner(nodes)
        position = {n: k for k, n in enumerate(nodes)}
        for n in nodes:
            own = list[Node]()
            for number, i in enumerate(n.inputs):
                if i in self._uses:  # a block within has one place for all
                    key = (position[inner[n]], 0) if n in inner else (position[n], -number)
                    own.append(self._place(i, key))
                elif _is_random(n) and i not in self.of:  # else the numbers would be kept
                    self.counters.append(i)
                    own.append(self._stand_in(i))
                else:
                    own.append(self.of.get(i, i))
            self.of[n] = n
            if tuple(own) != n.inputs:
                self.of[n] = replace(n, inputs=tuple(own), origin=None)

    def places(self, x: Node) -> list[Node]:
        """Where an operand is read, the last place first."""
        return [place for _, place in sorted(self._uses[x].items(), key=lambda u: u[0])[::-1]]

    def _place(self, x: Node, key: tuple[int, int]) -> Node:
        if key not in self._uses[x]:
            self._uses[x][key] = self._stand_in(x)
        return self._uses[x][key]

    def _stand_in(self, x: Node) -> Node:
        made = placeholder(x.label, x.spec)
        self.reads[made] = x
        return made


def _inner(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Nodes of blocks within, each with the end of the outermost block that it is in."""
    found: dict[Node, Node] = {}
    for n in reversed(nodes):
        if n.op is checkpoint and n not in found:
            found |= dict.fromkeys(_between(n.inputs[0], n.inputs[1:]), n) | {n: n}
    return found


def _is_random(node: Node) -> bool:
    """Whether a node draws numbers."""
    return isinstance(node.op, Op) and node.op.kind is OpKind.RANDOM


def _between(y: Node, operands: Sequence[Node]) -> list[Node]:
    """What y is computed by, from the operands on; nothing where it is an operand or a leaf.

    Raises:
        GraphError: if it also depends on a variable or placeholder that is no operand.
    """
    ends = set(operands)
    if y in ends or not y.inputs:
        return []
    nodes = topological([y], lambda n: () if n in ends else n.inputs)
    for n in nodes:
        if n.op in (VARIABLE, PLACEHOLDER) and n not in ends and is_floating(n.dtype):
            raise GraphError(f"recomputed: depends on {n.label}, which is none of its operands")
    return [n for n in nodes if n not in ends and n.inputs]


def _first(g: Node) -> Node:
    """An element of g."""
    if 0 in g.shape:
        return constant(np.zeros((), g.dtype))
    return getitem(g, (0,) * g.ndim) if g.ndim else g


def _over(roots: Sequence[Node], known: Mapping[Node, Node]) -> list[Node]:
    """Graphs in which some nodes are replaced by others of their Specs."""
    new = dict(known)
    for n in topological(roots, lambda n: () if n in known else n.inputs):
        if n not in new:
            new[n] = with_inputs(n, tuple(new[i] for i in n.inputs))
    return [new[root] for root in roots]


checkpoint = Op(
    name="_checkpoint",
    args=("*xs",),
    formula="the first of xs, which is computed from the others, and again for its gradient",
    kind=OpKind.OTHER,
    shapes=lambda words, specs, attributes: specs[0].shape,
    dtypes=first_dtype,
    numpy=lambda *xs, inputs: xs[0],
    vjp=_vjp,
    reference=lambda *xs, inputs: np.copy(xs[0]),
    samples=lambda draw: [Sample((draw(3, 4), draw(5)), {"inputs": 1})],
    attributes={"inputs": REQUIRED},
    rewrites=(lambda node: node.inputs[0],),
)


def recomputed(y: Any, inputs: Sequence[Any], parameters: Sequence[Any]) -> Node:
    """Y, whose gradient computes anew what y is computed by.

    Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", arXiv:1604.06174 (2016),
    section 4.

    Args:
        y: what is computed.
        inputs: values that stay in memory until then.
        parameters: all floating-point variables that y depends on beside them.
    """
    nodes = [x.node for x in (y, *inputs, *parameters)]
    return record(checkpoint, nodes, {"inputs": len(inputs)})
