"""From a program for one worker to the program of one rank: collectives where placements do not fit.

Values are placed one after the other, inputs before users. What an op can do with operands of which ranks
have parts, the names of its axes say (`graph/placing/axes.py`): among the ways in which one of its operands
lies already, and the way of whole operands, that is taken for which the fewest elements travel. An op without
names is computed by the parts it is made of, where it is made of any, else by all ranks alike from whole
operands. So the result is always that of the program, in another order of sums.

    from -> to              what is put there            elements that travel, of n on P ranks
    Replicate -> Shard      own_part                     0
    Shard -> Replicate      all_gather                   n (P - 1) / P
    Shard(a) -> Shard(b)    all_to_all                   n (P - 1) / P^2
    Partial -> Replicate    all_reduce                   2 n (P - 1) / P
    Partial -> Shard        reduce_scatter               n (P - 1) / P
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from magmadnn import ops
from magmadnn.graph.dim import Dim, Shape, product
from magmadnn.graph.node import (
    Node,
    naming_scope,
    placeholder,
    rebuild,
    record,
    scoped,
    topological,
)
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.placing import (
    Partial,
    Placement,
    Replicate,
    Shard,
    axes_of,
    local_shape,
)
from magmadnn.graph.placing.placement import is_divisible
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec
from magmadnn.optim.memory_check import BATCH

WHOLE = Replicate()
TERM = Partial()
_ROWS = 64  # of a batch, where amounts are compared
_NEVER = 1e6  # how much dearer it is to bring a value together that shall stay in parts


@dataclass(frozen=True)
class Sent:
    """One collective of a distributed program.

    Attributes:
        op: its name.
        node: its node.
        elements: that a rank sends, for a batch of given size.
        itemsize: bytes of an element.
    """

    op: str
    node: Node
    elements: float
    itemsize: int


def elements(shape: Shape, rows: int = _ROWS) -> float:
    """How many elements a shape has, for so many rows of a batch."""
    size = product(shape)
    return float(size.bind(dict.fromkeys(size.symbols, rows)) if isinstance(size, Dim) else size)


def travels(before: Placement, after: Placement, count: float, ranks: int) -> float:
    """Elements that a rank sends to place a value of `count` elements otherwise."""
    share = count * (ranks - 1) / ranks
    if before == after or before == WHOLE:
        return 0.0
    if isinstance(before, Partial):
        return share if isinstance(after, Shard) else 2 * share
    return share / ranks if isinstance(after, Shard) else share


class Distribution:
    """The program of each rank, from one for a single worker.

    Args:
        program: of one phase, in its precision.
        leaves: variables and placeholders that are shared out: how they are placed, and the node, of the
            shape of a part, that stands for them on this rank. All others are whole on each rank.
        ranks: how many there are.
        group: of ranks, as collectives name it.
        wanted: nodes that shall be placed so, whatever else would be cheaper.
        stays: leaves whose parts are never brought together, as they may have no room.

    Attributes:
        program: what each rank runs.
        placements: how each node of the whole program is placed when it is computed.

    Raises:
        ShapeError: if ranks cannot have equal parts of a leaf.
    """

    def __init__(
        self,
        program: Program,
        leaves: Mapping[Node, tuple[Placement, Node]],
        ranks: int,
        *,
        group: str = "world",
        wanted: Mapping[Node, Placement] | None = None,
        stays: Sequence[Node] = (),
    ) -> None:
        self._ranks, self._group, self._leaves = ranks, group, leaves
        self._wanted = wanted or {}
        self._stays = set(stays)
        self._split_like = {
            node.shape: placement.axis
            for node, (placement, _) in leaves.items()
            if isinstance(placement, Shard) and node in self._stays
        }
        self._placed: dict[Node, dict[Placement, Node]] = {}
        self.placements: dict[Node, Placement] = {}
        order = topological(program.roots)
        for node in order:
            self._place(node)
        outputs = [self._as(node, WHOLE) for node in program.outputs]
        updates = [self._updated(target, value) for target, value in program.updates]
        self.program = Program(tuple(outputs), tuple(updates))

    def sent(self, rows: int = _ROWS) -> list[Sent]:
        """The collectives that a rank takes part in, in the order of the program."""
        found, share = [], (self._ranks - 1) / self._ranks
        times = {"all_gather": 1.0, "all_reduce": 2.0, "reduce_scatter": 1.0}
        for node in self.program.nodes():
            op = node.op
            if isinstance(op, Op) and op.kind is OpKind.COLLECTIVE and op.name != "own_part":
                whole = node if op.name == "all_gather" else node.inputs[0]
                count = elements(whole.shape, rows) * share * times.get(op.name, 1.0)
                found.append(Sent(op.name, node, count, node.dtype.itemsize))
        return found

    def _updated(self, target: Node, value: Node) -> tuple[Node, Node]:
        placement, own = self._leaves.get(target, (WHOLE, target))
        return own, self._as(value, placement)

    # --- one node ---------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        """Compute a node in the cheapest way, from its operands as they lie."""
        if node in self._placed:
            return
        with naming_scope(node), scoped(node.path):
            placement, made = self._computed(node)
        self.placements[node] = placement
        self._placed[node] = {placement: made}
        if node in self._wanted:
            self._as(node, self._wanted[node])
            self.placements[node] = self._wanted[node]

    def _computed(self, node: Node) -> tuple[Placement, Node]:
        if node in self._leaves:
            placement, own = self._leaves[node]
            local_shape(node.shape, placement, self._ranks)
            return placement, own
        if not node.inputs or not isinstance(node.op, Op):
            return WHOLE, self._whole(node)
        if all(self.placements[i] == WHOLE for i in node.inputs):
            return WHOLE, self._whole(node)
        if any(i in self._stays for i in node.inputs) and node.op.kind is OpKind.MOVEMENT:
            self._stays.add(node)
        found = self._in_parts(node, node.op)
        if found is not None:
            return found
        made = None if node.op.decompose is None else self._decomposed(node, node.op)
        return (WHOLE, self._whole(node)) if made is None else made

    def _whole(self, node: Node) -> Node:
        return self._again(node, [self._as(i, WHOLE) for i in node.inputs], node.attributes)

    def _decomposed(self, node: Node, op: Op) -> tuple[Placement, Node] | None:
        """The same by the ops that it is made of."""
        assert op.decompose is not None
        made = op.decompose(*node.inputs, **node.attributes)
        made = getattr(made, "node", made)
        if not isinstance(made, Node) or made is node or made.spec != node.spec:
            return None
        for inner in topological([made]):
            self._place(inner)
        placement = self.placements[made]
        return placement, self._placed[made][placement]

    def _in_parts(self, node: Node, op: Op) -> tuple[Placement, Node] | None:
        """By names of axes; None where the op has none that lie on ranks, or whole operands are cheaper."""
        axes = axes_of(op, [i.spec for i in node.inputs], node.attributes)
        if axes is None:
            return None
        names: dict[Any, None] = {}
        for operand, own in zip(node.inputs, axes.operands, strict=True):
            placement = self.placements[operand]
            axis = placement.axis if isinstance(placement, Shard) else None
            if isinstance(placement, Partial):  # a gradient, say, whose moments lie in parts
                axis = self._split_like.get(operand.shape)
            if axis is not None and own[axis] is not None:
                names[own[axis]] = None
        asked = self._wanted.get(node)
        if isinstance(asked, Shard) and axes.result[asked.axis] is not None:
            names[axes.result[asked.axis]] = None
        best: tuple[float, Any] | None = None
        for name in [*names, None]:
            cost = self._cost(node, axes, name)
            if cost is not None and (best is None or cost < best[0]):
                best = cost, name
        if best is None or best[1] is None:
            return None if op.decompose is not None and best is None else (WHOLE, self._whole(node))
        name = best[1]
        operands = [
            self._as(i, _placed_by(own, name))
            for i, own in zip(node.inputs, axes.operands, strict=True)
        ]
        result = _placed_by(axes.result, name) if name in axes.result else TERM
        shape = local_shape(node.shape, result, self._ranks)
        made = self._again(node, operands, axes.attributes(node.attributes, name, shape))
        return result, made

    def _cost(self, node: Node, axes: Any, name: Any) -> float | None:
        """What travels if a name is split, None for none; None as the result where it cannot be."""
        total = 0.0
        for operand, own in zip(node.inputs, axes.operands, strict=True):
            after = _placed_by(own, name)
            if isinstance(after, Shard) and not is_divisible(
                operand.shape[after.axis], self._ranks
            ):
                return None
            total += self._cheapest(operand, after)
        if name is None:
            return total
        if name in axes.result:
            axis = axes.result.index(name)
            return total if is_divisible(node.shape[axis], self._ranks) else None
        if not axes.adds:
            return None
        return total + travels(TERM, WHOLE, elements(node.shape), self._ranks)

    def _cheapest(self, node: Node, after: Placement) -> float:
        count = elements(node.shape)
        if after == WHOLE and self._moves_whole(node):
            return 0.0
        if node in self._stays and after == WHOLE and WHOLE not in self._placed[node]:
            return count * _NEVER
        return min(travels(before, after, count, self._ranks) for before in self._placed[node])

    # --- placing otherwise ------------------------------------------------------------------------

    def _as(self, node: Node, after: Placement) -> Node:
        """A node's value, placed so; each conversion is made once."""
        known = self._placed[node]
        if after not in known and after == WHOLE and self._moves_whole(node):
            known[after] = self._whole(node)
        if after not in known:
            count = elements(node.shape)
            before = min(known, key=lambda one: (travels(one, after, count, self._ranks), str(one)))
            with scoped(node.path):
                known[after] = self._converted(known[before], before, after)
        return known[after]

    def _moves_whole(self, node: Node) -> bool:
        """Whether it only moves what all ranks have whole, which costs less than to bring parts together."""
        is_movement = isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT
        return is_movement and all(WHOLE in self._placed[i] for i in node.inputs)

    def _converted(self, node: Node, before: Placement, after: Placement) -> Node:
        given = {"group": self._group, "ranks": self._ranks}
        if isinstance(after, Shard):
            if isinstance(before, Shard):
                given |= {"split_axis": after.axis, "concat_axis": before.axis}
                return record(ops.all_to_all, [node], given)
            if isinstance(before, Partial):
                both = {**given, "axis": after.axis, "wire": None}
                return record(ops.reduce_scatter, [node], both)
            return record(ops.own_part, [node], {**given, "axis": after.axis, "loss": "same"})
        if isinstance(before, Shard):
            both = {**given, "axis": before.axis, "loss": "same", "wire": None}
            return record(ops.all_gather, [node], both)
        both = {**given, "op": "sum", "loss": "same", "wire": None}
        return record(ops.all_reduce, [node], both)

    def _again(self, node: Node, inputs: Sequence[Node], attributes: Any) -> Node:
        """The same op on parts."""
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        if same and attributes is node.attributes:
            return node
        assert isinstance(node.op, Op)
        kept = MappingProxyType(dict(attributes))
        spec = node.op.infer([i.spec for i in inputs], kept)
        return replace(node, inputs=tuple(inputs), spec=spec, attributes=kept, origin=None)


def sharing_rows(
    program: Program, ranks: int
) -> tuple[Program, dict[Node, tuple[Placement, Node]]]:
    """The same program for batches of `ranks` times as many rows, and how ranks share these.

    Returns:
        The program, and its placeholders: split along rows, each with that of the given program, which is fed
        with a rank's rows.
    """
    fed = [n for n in program.placeholders if n.shape and str(n.shape[0]) == BATCH]
    whole = {n: placeholder(n.name, Spec((n.shape[0] * ranks, *n.shape[1:]), n.dtype)) for n in fed}
    larger = program.with_roots(rebuild(program.roots, whole))
    return larger, {whole[n]: (Shard(0), n) for n in fed}


def _placed_by(names: Sequence[Any], name: Any) -> Placement:
    return Shard(list(names).index(name)) if name is not None and name in names else WHOLE
