"""Several programs of one structure as one program: each of its values has an axis of models in front.

Structure is the ops, what they are applied to, and shapes. Values may differ: variables, constants (a rate of
dropout), attributes (a seed). A value that is one and the same for all programs keeps its
shape. How an op takes the axis, its record says (`Op.stacked`); an op that does not say becomes a node for
each model, and what these give is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.errors import GraphError
from magmadnn.graph.body import is_loop
from magmadnn.graph.node import CONSTANT, Node, constant, record, scoped, with_inputs
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from magmadnn.graph.signature import Attributes

from .gradient import parts

Leaf = Callable[[tuple[Node, ...]], Node]  # the leaf in place of one leaf of each program


@dataclass(frozen=True)
class StackedCall:
    """What `Op.stacked` gets: an op on operands that may have an axis of models in front.

    Attributes:
        op: the op.
        count: how many models.
        operands: the nodes.
        is_stacked: which of them have the axis; at least one.
        attributes: settled, the same for all models, as they are without the axis.
    """

    op: Op
    count: int
    operands: tuple[Node, ...]
    is_stacked: tuple[bool, ...]
    attributes: Attributes

    def ndim(self, number: int) -> int:
        """Axes of an operand, without that of the models."""
        return self.operands[number].ndim - self.is_stacked[number]

    def aligned(self, number: int, ndim: int) -> Node:
        """An operand that has `ndim` axes behind that of the models, those that are new of size 1.

        One without an axis of models stays as it is: it broadcasts.
        """
        x = self.operands[number]
        if not self.is_stacked[number] or x.ndim == ndim + 1:
            return x
        missing = (1,) * (ndim + 1 - x.ndim)
        return parts().reshape(x, (self.count, *missing, *x.shape[1:]))

    def whole(self, number: int) -> Node:
        """An operand with the axis, repeated along it where it has none."""
        x = self.operands[number]
        if self.is_stacked[number]:
            return x
        return parts().broadcast_to(x, (self.count, *x.shape))

    def again(self, operands: Sequence[Node], **changed: Any) -> Node:
        """The op on other operands, with some attributes changed."""
        return record(self.op, operands, {**self.attributes, **changed})


# --- rules for records -----------------------------------------------------------------------------


def elementwise(call: StackedCall) -> Any:
    """Operands broadcast; those with fewer axes get axes of size 1 behind that of the models."""
    ndim = max(map(call.ndim, range(len(call.operands))))
    return call.again([call.aligned(k, ndim) for k in range(len(call.operands))])


def last_axes(call: StackedCall) -> Any:
    """One operand, of which only the last axes matter: leading ones may be any."""
    return call.again(call.operands)


def along_axis(call: StackedCall) -> Any:
    """One operand, and an attribute `axis` that counts one more: a number, or several."""
    axis: Any = call.attributes["axis"]
    moved = tuple(a + 1 for a in axis) if isinstance(axis, tuple) else axis + 1
    return call.again(call.operands, axis=moved)


def to_shape(call: StackedCall) -> Any:
    """One operand, and an attribute `shape`, which all of the result has."""
    shape: Any = call.attributes["shape"]
    return call.again([call.aligned(0, len(shape))], shape=(call.count, *shape))


# --- programs -------------------------------------------------------------------------------------


def structure_of(program: Program) -> Hashable:
    """Equal for programs that `stacked_program` can make one of."""
    numbers = {node: i for i, node in enumerate(program.nodes())}
    nodes = tuple(
        (
            node.op if isinstance(node.op, Op) else node.op.name,
            tuple(numbers[i] for i in node.inputs),
            node.spec,
            tuple(node.attributes),
        )
        for node in numbers
    )
    updates = tuple((numbers.get(t, t.spec), numbers[v]) for t, v in program.updates)
    return nodes, tuple(numbers[n] for n in program.outputs), updates


def stacked_program(programs: Sequence[Program], leaf: Leaf) -> Program:
    """One program that computes what all of them do: outputs [models, ...], in the order of `programs`.

    Args:
        programs: of one structure.
        leaf: gives the variable or placeholder, or what is made of it, that stands for one of each program,
            with an axis of models in front; called once for each.

    Raises:
        GraphError: if structures differ.
    """
    others = [program for program in programs if program is not programs[0]]
    first = structure_of(programs[0]) if others else None
    if any(structure_of(program) != first for program in others):
        raise GraphError("stack: the programs differ in more than values; group them first")
    count = len(programs)
    known: dict[Node, _Value] = {}  # by the first program's nodes
    for nodes in zip(*(program.nodes() for program in programs), strict=True):
        with scoped(nodes[0].path):
            known[nodes[0]] = _value(nodes, known, count, leaf)
    outputs = tuple(_whole(known[node], count) for node in programs[0].outputs)
    updates = []
    for pairs in zip(*(program.updates for program in programs), strict=True):
        targets, values = tuple(t for t, _ in pairs), known[pairs[0][1]]
        if targets[0] not in known:
            known[targets[0]] = _Value(stacked=leaf(targets))
        updates.append((_whole(known[targets[0]], count), _whole(values, count)))
    return Program(outputs, tuple(updates))


class _Value:
    """A value of all models: one for all of them, one with an axis of models, or one node for each."""

    def __init__(
        self,
        *,
        shared: Node | None = None,
        stacked: Node | None = None,
        each: tuple[Node, ...] = (),
    ) -> None:
        self.shared, self._stacked, self._each = shared, stacked, each

    def stacked(self) -> Node:
        """With the axis of models in front; not for one that is shared."""
        if self._stacked is None:
            self._stacked = parts().stack(list(self._each))
        return self._stacked

    def of(self, model: int, count: int) -> Node:
        """That of one model."""
        if self.shared is not None:
            return self.shared
        if not self._each:
            assert self._stacked is not None
            self._each = tuple(parts().getitem(self._stacked, k) for k in range(count))
        return self._each[model]


def _whole(value: _Value, count: int) -> Node:
    """A value with the axis of models, in memory of its own where it is the same for all."""
    if value.shared is None:
        return value.stacked()
    return parts().copy(parts().broadcast_to(value.shared, (count, *value.shared.shape)))


def _value(nodes: tuple[Node, ...], known: Mapping[Node, _Value], count: int, leaf: Leaf) -> _Value:
    """The value in place of one node of each program."""
    node, op = nodes[0], nodes[0].op
    if op is CONSTANT:
        return _constant(nodes)
    if not isinstance(op, Op):
        if node.attributes:  # a size
            return _Value(shared=node)
        return _Value(stacked=leaf(nodes))
    operands = [known[i] for i in node.inputs]
    alike = all(dict(n.attributes) == dict(node.attributes) for n in nodes[1:])
    if alike and not is_loop(node) and all(x.shared is not None for x in operands):
        return _Value(shared=with_inputs(node, tuple(x.of(0, count) for x in operands)))
    if not alike or op.stacked is None:
        return _Value(
            each=tuple(
                with_inputs(own, tuple(x.of(k, count) for x in operands))
                for k, own in enumerate(nodes)
            )
        )
    return _Value(stacked=op.stacked(_call(op, operands, count, node.attributes)))


def _constant(nodes: tuple[Node, ...]) -> _Value:
    values = [node.value for node in nodes]
    if len({(v.tobytes(), v.dtype.name) for v in values}) == 1:
        return _Value(shared=nodes[0])
    return _Value(stacked=constant(np.stack(values)))


def _call(
    op: Op, operands: Sequence[_Value], count: int, attributes: Mapping[str, Any]
) -> StackedCall:
    """The op on nodes; values that are nodes for each model are put together."""
    return StackedCall(
        op,
        count,
        tuple(x.stacked() if x.shared is None else x.shared for x in operands),
        tuple(x.shared is None for x in operands),
        dict(attributes),
    )
