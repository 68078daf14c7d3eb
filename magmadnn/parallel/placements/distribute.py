"""From a program for one worker to the program of one rank: collectives where placements do not fit.

Values are placed one after the other, inputs before users. What an op can do with operands of which ranks
have parts, the names of its axes say (`graph/placing/axes.py`): among the ways in which one of its operands
lies already, and the way of whole operands, that is taken for which the fewest elements travel. An op without
names is computed by the parts it is made of, where it is made of any, else by all ranks alike from whole
operands. So the result is always that of the program, in another order of sums. Small values of whole ones,
such as losses of logits that were brought together, are computed by all ranks alike too, as parts of them
would have to be brought together again. What was rounded to halves is sent so.

    from -> to              what is put there            elements that travel, of n on P ranks
    Replicate -> Shard      own_part                     0
    Shard -> Replicate      all_gather                   n (P - 1) / P
    Shard(a) -> Shard(b)    all_to_all                   n (P - 1) / P^2
    Partial -> Replicate    all_reduce                   2 n (P - 1) / P
    Partial -> Shard        reduce_scatter               n (P - 1) / P

Values may lie on some of the ranks (`on=`): an op is computed on the ranks on which one of its operands lies.
Between different ranks rows of parts are moved (`graph/placing/routes.py`), directly or by way of parts of
an axis, whichever sends less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.comm.communicator import Wire
from magmadnn.graph.dim import Dim, Shape, dims_of, product
from magmadnn.graph.node import (
    VARIABLE,
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
    Axes,
    On,
    Partial,
    Placement,
    Replicate,
    Shard,
    axes_of,
    local_shape,
    ranks_on,
    routed,
)
from magmadnn.graph.placing.placement import is_divisible
from magmadnn.graph.placing.routes import sent_rows
from magmadnn.graph.program import Program
from magmadnn.graph.spec import Spec
from magmadnn.ops.ranks.leading_axis import part_group
from magmadnn.ops.ranks.moves import moved, placed_on
from magmadnn.optim.memory_check import BATCH

from .fewer_calls import narrower, parts_first

WHOLE = Replicate()
_ROWS = 64  # of a batch, where amounts are compared
_ROUND = 4096  # elements whose sending takes as long as the latency of another call
_NEVER = 1e6  # how much dearer it is to bring a value together that shall stay in parts
_QUICK = frozenset((OpKind.POINTWISE, OpKind.MOVEMENT, OpKind.REDUCTION, OpKind.OTHER))
_SMALL = 4096  # elements for a row of a batch, up to which what is whole stays whole


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


def is_among(after: Placement, before: Placement, ranks: int) -> bool:
    """Whether ranks of `after` have all elements of what lies as in `before`."""
    get, have = ranks_on(after.on, ranks), ranks_on(before.on, ranks)
    return isinstance(before, Replicate) and set(get) <= set(have)


def travels(before: Placement, after: Placement, count: float, ranks: int) -> float:
    """Elements that a rank sends to place a value of `count` elements otherwise, at once."""
    if before == after or is_among(after, before, ranks):
        return 0.0
    if before.on is not None or after.on is not None:
        assert not isinstance(after, Partial)
        own = count / len(ranks_on(before.on, ranks)) if isinstance(before, Shard) else count
        return own * routed(before, after, ranks).sent
    share = count * (ranks - 1) / ranks
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
        within: the ranks that compute what is in a scope, as a layer's: forward, and its gradients.
        wire: what sums of products that have rows of the batch travel in, if their operands were rounded to
            it; None for as they are.

    Attributes:
        program: what each rank runs; where values lie on some of the ranks, what one would run that has a
            part of each (`one_rank.py`).
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
        wanted: Mapping[Node, Replicate | Shard] | None = None,
        stays: Sequence[Node] = (),
        within: Mapping[object, On] | None = None,
        wire: Wire | None = None,
    ) -> None:
        self._ranks, self._group, self._leaves, self._wire = ranks, group, leaves, wire
        self._wanted, self._within = wanted or {}, within or {}
        self._stays = set(stays)
        self._split_like = {
            node.shape: placement.axis
            for node, (placement, _) in leaves.items()
            if isinstance(placement, Shard) and node in self._stays
        }
        self._placed: dict[Node, dict[Placement, Node]] = {}
        # nodes that depend on no variables but scalars, such as counters of steps
        self._data: set[Node] = set()
        self.placements: dict[Node, Placement] = {}
        order = topological(program.roots)
        for node in order:
            self._place(node)
        outputs = [self._as(node, WHOLE) for node in program.outputs]
        updates = [self._updated(target, value) for target, value in program.updates]
        self.program = parts_first(Program(tuple(outputs), tuple(updates)))

    def sent(self, rows: int = _ROWS) -> list[Sent]:
        """The collectives that a rank takes part in, in the order of the program."""
        found, share = [], (self._ranks - 1) / self._ranks
        times = {"all_gather": 1.0, "all_reduce": 2.0, "reduce_scatter": 1.0}
        for node in self.program.nodes():
            op = node.op
            if op is moved:
                most = max(sent_rows(node.attributes["moves"]).values(), default=0)
                count = most * elements(node.attributes["piece"], rows)
                found.append(Sent(moved.name, node, count, node.dtype.itemsize))
            elif isinstance(op, Op) and op.kind is OpKind.COLLECTIVE and op.name != "own_part":
                whole = node if op.name == "all_gather" else node.inputs[0]
                count = elements(whole.shape, rows) * share * times.get(op.name, 1.0)
                found.append(Sent(op.name, node, count, node.dtype.itemsize))
        return found

    def _updated(self, target: Node, value: Node) -> tuple[Node, Node]:
        placement, own = self._leaves.get(target, (WHOLE, target))
        assert not isinstance(placement, Partial)  # variables are none
        return own, self._as(value, placement)

    # --- one node ---------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        """Compute a node in the cheapest way, from its operands as they lie."""
        if node in self._placed:
            return
        if not (node.op is VARIABLE and node.shape) and self._data.issuperset(node.inputs):
            self._data.add(node)
        with naming_scope(node), scoped(node.path):
            placement, made = self._computed(node)
        self.placements[node] = placement
        self._placed[node] = {placement: made}
        asked = self._wanted.get(node)
        if asked is not None:
            self._as(node, asked)
            self.placements[node] = asked

    def _computed(self, node: Node) -> tuple[Placement, Node]:
        if node in self._leaves:
            placement, own = self._leaves[node]
            local_shape(node.shape, placement, self._ranks)
            return placement, own
        if not node.inputs or not isinstance(node.op, Op):
            return WHOLE, self._whole(node)
        if any(i in self._stays for i in node.inputs) and node.op.kind is OpKind.MOVEMENT:
            self._stays.add(node)
        first, groups = self.placements[node.inputs[0]], self._groups(node)
        if all(self.placements[i] == first == Replicate(groups[0]) for i in node.inputs):
            return first, self._whole(node, groups[0])
        found = self._in_parts(node, node.op)
        if found is not None:
            return found
        made = self._decomposed(node, node.op)
        if made is not None:
            return made
        on = min(groups, key=lambda on: self._whole_cost(node, on))
        return Replicate(on), self._whole(node, on)

    def _whole(self, node: Node, on: On = None) -> Node:
        whole = Replicate(on)
        return self._again(node, [self._as(i, whole) for i in node.inputs], node.attributes)

    def _groups(self, node: Node) -> list[On]:
        """The sets of ranks on which operands lie; all ranks last, so that fewer compute at equal costs."""
        for entry in node.path if self._within else ():
            if entry in self._within:
                return [self._within[entry]]
        found = dict.fromkeys(self.placements[i].on for i in node.inputs)
        return sorted(found, key=lambda on: on is None)

    def _decomposed(self, node: Node, op: Op) -> tuple[Placement, Node] | None:
        """The same by the ops that it is made of."""
        decompose = op.by_library.get("ranks", op.decompose)
        made = None if decompose is None else decompose(*node.inputs, **node.attributes)
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
        names = self._names(node, axes)
        best: tuple[float, Any, On] | None = None
        for on in self._groups(node):
            for name in [*(names if on is None or len(on) > 1 else ()), None]:
                cost = self._cost(node, axes, name, on)
                if name is None and cost is not None and on is None and self._stays_whole(node):
                    cost -= _ROUND
                if cost is not None and (best is None or cost < best[0]):
                    best = cost, name, on
        if best is None:
            return None
        cost, name, on = best
        if name is None and cost > _ROUND and "ranks" in op.by_library:
            return None
        if name is None:
            return Replicate(on), self._whole(node, on)
        operands = [
            self._as(i, _placed_by(own, name, on))
            for i, own in zip(node.inputs, axes.operands, strict=True)
        ]
        result = _placed_by(axes.result, name, on) if name in axes.result else Partial(on)
        shape = local_shape(node.shape, result, self._ranks)
        made = self._again(node, operands, axes.attributes(node.attributes, name, shape))
        return result, made

    def _stays_whole(self, node: Node) -> bool:
        """Whether a value is small, and made of rows that are whole on all ranks, but for data."""
        rows = [i for i in node.inputs if [*dims_of(i.shape)] and i not in self._data]
        is_whole = bool(rows) and all(WHOLE in self._placed[i] for i in rows)
        return is_whole and self._is_small(node.shape)

    def _names(self, node: Node, axes: Axes) -> list[Any]:
        """The names of axes that may be split."""
        names: dict[Any, None] = {}
        for operand, own in zip(node.inputs, axes.operands, strict=True):
            placement = self.placements[operand]
            for known in self._placed[operand]:
                if isinstance(known, Shard) and known.on is None and own[known.axis] is not None:
                    names[own[known.axis]] = None
            axis = placement.axis if isinstance(placement, Shard) else None
            if isinstance(placement, Partial):  # a gradient, say, whose moments lie in parts
                axis = self._split_like.get(operand.shape)
                if axis is None and placement.on is not None and operand.shape:
                    axis = 0
            if axis is not None and own[axis] is not None:
                names[own[axis]] = None
        asked = self._wanted.get(node)
        if isinstance(asked, Shard) and axes.result[asked.axis] is not None:
            names[axes.result[asked.axis]] = None
        return list(names)

    def _cost(self, node: Node, axes: Axes, name: Any, on: On) -> float | None:
        """What travels if a name is split on ranks, None for none; None as the result where it cannot be."""
        if name is None:
            return self._whole_cost(node, on)
        total, ranks = 0.0, len(ranks_on(on, self._ranks))
        for operand, own in zip(node.inputs, axes.operands, strict=True):
            after = _placed_by(own, name, on)
            if isinstance(after, Shard) and not is_divisible(operand.shape[after.axis], ranks):
                return None
            total += self._cheapest(operand, after)
        if name in axes.result:
            axis = axes.result.index(name)
            if not is_divisible(node.shape[axis], ranks):
                return None
            return total + self._back(node, Shard(axis, on))
        if not axes.adds:
            return None
        total += self._way(Partial(on), Replicate(on), node.shape)[0]
        return total + self._back(node, Replicate(on))

    def _whole_cost(self, node: Node, on: On) -> float:
        total = sum((self._cheapest(i, Replicate(on)) for i in node.inputs), start=0.0)
        return total + self._back(node, Replicate(on))

    def _back(self, node: Node, result: Replicate | Shard) -> float:
        """What it costs to bring a result back to all ranks, where the largest operand lies on them all.

        Data does not count, as nothing brings it back: labels move to the ranks of the last layer.
        """
        if result.on is None:
            return 0.0
        sizes: dict[bool, float] = {}
        for operand in node.inputs:
            is_whole = self.placements[operand].on is None and operand not in self._data
            sizes[is_whole] = max(sizes.get(is_whole, 0.0), elements(operand.shape))
        if sizes.get(True, -1.0) < sizes.get(False, 0.0):
            return 0.0
        split = isinstance(result, Shard) and is_divisible(node.shape[result.axis], self._ranks)
        return self._way(result, replace(result, on=None) if split else WHOLE, node.shape)[0]

    def _cheapest(self, node: Node, after: Replicate | Shard) -> float:
        if isinstance(after, Replicate) and self._moves_whole(node, after):
            return 0.0
        known = self._placed[node]
        cost = min(self._way(before, after, node.shape)[0] for before in known)
        if after == WHOLE:
            cost = min(cost, self._again_cost(node))
        if node in self._stays and cost:
            leaves = all(before.on != after.on for before in known)
            if leaves or (isinstance(after, Replicate) and after not in known):
                return elements(node.shape) * _NEVER
        return cost

    def _way(
        self, before: Placement, after: Replicate | Shard, shape: Shape
    ) -> tuple[float, list[Replicate | Shard]]:
        """How many elements a rank sends to place a value otherwise, and by way of which placements."""
        count, ranks = elements(shape), self._ranks
        direct = travels(before, after, count, ranks), [after]
        if (before.on is None and after.on is None) or not direct[0]:
            return direct
        between = [
            Shard(axis, on)
            for on in dict.fromkeys((before.on, after.on))
            for axis in range(len(shape))
            if len(ranks_on(on, ranks)) > 1 and is_divisible(shape[axis], len(ranks_on(on, ranks)))
        ]
        found = [direct]
        for one in between:
            if one not in (before, after):
                cost = travels(before, one, count, ranks) + travels(one, after, count, ranks)
                found.append((cost + _ROUND, [one, after]))
        return min(found, key=lambda way: way[0])

    # --- placing otherwise ------------------------------------------------------------------------

    def _as(self, node: Node, after: Replicate | Shard) -> Node:
        """A node's value, placed so; each conversion is made once."""
        known = self._placed[node]
        if after not in known and isinstance(after, Replicate) and self._moves_whole(node, after):
            known[after] = self._whole(node, after.on)
        if (
            after not in known
            and after == WHOLE
            and self._again_cost(node) <= min(self._way(one, after, node.shape)[0] for one in known)
        ):
            known[after] = self._whole(node)
        if after not in known:
            last = min(known, key=lambda one: (self._way(one, after, node.shape)[0], str(one)))
            with scoped(node.path):
                for one in self._way(last, after, node.shape)[1]:
                    if one not in known:
                        known[one] = self._converted(known[last], last, one)
                    last = one
        return known[after]

    def _again_cost(self, node: Node) -> float:
        """What travels where a small value of data alone, as of labels, is computed again of whole data."""
        if node not in self._data or not node.inputs or not self._is_small(node.shape):
            return np.inf
        above = topological([node])
        if not _QUICK.issuperset(n.op.kind for n in above if isinstance(n.op, Op)):
            return np.inf
        return sum((self._cheapest(n, WHOLE) for n in above if not n.inputs), start=0.0)

    def _is_small(self, shape: Shape) -> bool:
        """Whether it has rows of the batch, of few elements each."""
        return bool([*dims_of(shape)]) and elements(shape, 1) / self._ranks <= _SMALL

    def _moves_whole(self, node: Node, whole: Replicate = WHOLE) -> bool:
        """Whether it only moves what all ranks have whole, which costs less than to bring parts together."""
        is_movement = isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT
        return is_movement and all(
            whole in self._placed[i] or WHOLE in self._placed[i] for i in node.inputs
        )

    def _converted(self, node: Node, before: Placement, after: Replicate | Shard) -> Node:
        given = {"group": self._group, "ranks": self._ranks}
        narrow = None if isinstance(before, Partial) else narrower(node)
        if narrow is not None:
            return record(ops.cast, [self._converted(narrow, before, after)], {"dtype": node.dtype})
        wire = self._wire if isinstance(before, Partial) and _multiplies(node, self._wire) else None
        if before.on is not None or after.on is not None:
            if not is_among(after, before, self._ranks):
                return placed_on(node, before, after, self._ranks, self._group)
            if isinstance(after, Replicate):
                return node
            on = ranks_on(after.on, self._ranks)
            given = {"group": part_group(on), "ranks": len(on)}
            return record(ops.own_part, [node], {**given, "axis": after.axis, "loss": "same"})
        if isinstance(after, Shard):
            if isinstance(before, Shard):
                given |= {"split_axis": after.axis, "concat_axis": before.axis}
                return record(ops.all_to_all, [node], given)
            if isinstance(before, Partial):
                both = {**given, "axis": after.axis, "wire": wire}
                return record(ops.reduce_scatter, [node], both)
            return record(ops.own_part, [node], {**given, "axis": after.axis, "loss": "same"})
        if isinstance(before, Shard):
            both = {**given, "axis": before.axis, "loss": "same", "wire": None}
            return record(ops.all_gather, [node], both)
        both = {**given, "op": "sum", "loss": "same", "wire": wire}
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


def _multiplies(node: Node, dtype: str | None) -> bool:
    """Whether it is a product, with rows of the batch, whose operands were rounded to a dtype."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.CONTRACTION:
        return False
    narrow = [narrower(i) for i in node.inputs]
    return bool([*dims_of(node.shape)]) and all(n is not None and n.dtype == dtype for n in narrow)


def _placed_by(names: Sequence[Any], name: Any, on: On) -> Replicate | Shard:
    return Shard(list(names).index(name), on) if name in names else Replicate(on)
