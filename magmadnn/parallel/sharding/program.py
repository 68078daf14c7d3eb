"""The graph of a step of which each rank has pieces of the parameters.

Group by group of layers, parameters are gathered, all shards of this rank pass through them, and nobody needs
them any more; on the way back they are gathered again. Gradients of a group are added in the order of the
tree as far as this rank can, and each rank gets its row of the sums. The next gather begins where the
computing with the one before does, and a sum has as long as the next group takes::

    compute    forward 1 | forward 2 | back 2 | back 1 | update
    gathers    2 ........  .           1 ....
    sums                                        2 .....  1 ..

What comes before what is said by further operands of the calls (`piece_ops.py`), so it is part of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from magmadnn import ops
from magmadnn.comm import Communicator
from magmadnn.compiler.program.precision import precision as rounded
from magmadnn.graph import Node
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import (
    PLACEHOLDER,
    constant,
    rebuild,
    topological,
)
from magmadnn.graph.program import Program
from magmadnn.parallel.in_graph.whole_step import (
    ShardGraph,
    Sums,
    WholeStep,
    added,
    of_shard,
    rows_of_rank,
    updated,
)
from magmadnn.parallel.tree import TreeSum
from magmadnn.tensor import Operation

from .graph import Visits
from .piece_ops import gather_begin, gather_wait, share_begin, share_wait
from .pieces import Group

Blocks = Sequence[Sequence[Operation]]


@dataclass(frozen=True)
class _Call:
    """A call of all ranks: the node that begins it, and the one that waits for it."""

    begin: Node
    wait: Node


class PiecesProgram:
    """The programs of one rank, one for each number of rows.

    Args:
        graph: of a shard, and the update; `values` are statistics alone.
        gradients: of a shard, times its weight, by parameter.
        groups: pieces of the parameters.
        tree: over all shards.
        communicator: the ranks.
        precision: of products, whose operands are rounded before parameters are gathered: as long as it can
            be told which are parameters, that keep their digits for all else.

    Attributes:
        data: placeholders of a shard, which have a row for each sample.
        groups: as given.
        visited: the groups that are gathered in a step, in this order.
    """

    def __init__(
        self,
        graph: ShardGraph,
        gradients: Mapping[Node, Node],
        groups: Sequence[Group],
        tree: TreeSum,
        communicator: Communicator,
        precision: str,
    ) -> None:
        self._graph, self.groups, self._tree, self._comm = graph, groups, tree, communicator
        given = [graph.small, *graph.values, *gradients.values()]
        roots = rounded(Program.of(given, training=True), precision).outputs
        count = 1 + len(graph.values)
        self._ahead, self._back = roots[:count], roots[count:]
        self._parameters = list(gradients)
        self._start = Operation(constant(np.zeros(1, np.int64)))  # before the first call
        group_of = {p.whole: group.number for group in groups for p in group.pieces}
        self._visits = Visits(self._ahead, self._back, group_of, len(groups))
        self.visited = [groups[number] for number in self._visits.groups]
        self.data = [node for node in topological(roots) if node.op is PLACEHOLDER]

    def step(self, bounds: Sequence[int], is_on_gpu: bool) -> WholeStep:
        """The step of a batch.

        Args:
            bounds: where its shards begin, [shards + 1]; some may be empty, but not all.
            is_on_gpu: whether it runs on a GPU, where sums are of more bytes.
        """
        tree, leaves, first = self._tree, len(bounds) - 1, bounds[self._tree.first]
        there = tuple(s for s in range(leaves) if bounds[s + 1] > bounds[s])
        gathers, gathered = self._gathers()
        whole = rows_of_rank(self.data, bounds[tree.last] - first)
        needed: list[list[Node]] = [[] for _ in gathers]

        def leaf(shard: int) -> list[Operation]:
            rows = slice(bounds[shard] - first, bounds[shard + 1] - first)
            found, before = self._shard(of_shard(self._graph, whole, shard, rows), gathered)
            for nodes, more in zip(needed, before, strict=True):
                nodes += more
            return [Operation(node) for node in found]

        blocks = tree.own(leaf, there, added)
        if not blocks:  # this rank has no rows
            whole, nodes = {}, [*self._ahead, *self._back]
            blocks = [[_zeros(node) for node in nodes]]
        count, calls = len(self._ahead), sum(map(len, gathers))
        shares, instead = self._shares([one[count:] for one in blocks], leaves, there, calls)
        calls += sum(map(len, shares))
        sums = Sums(self._comm.size, leaves, is_on_gpu, there, calls, behind=False)
        head = sums.of([[one[0][1:3]] for one in blocks])[0]
        statistics = sums.of([one[1:count] for one in blocks])
        instead |= {self._graph.total: head[0].node, self._graph.rows: head[1].node}
        instead |= {n: s.node for n, s in zip(self._graph.sums, statistics, strict=True)}
        before = _order(gathers, shares, [begun.node for begun in sums.begun[:1]], needed)
        updates = updated(self._graph, instead, leaves)
        small = ops.stack([one[0] for one in blocks]).node
        output, *values = _behind([small, *(v for _, v in updates)], before)
        pairs = zip((target for target, _ in updates), values, strict=True)
        return WholeStep(whole, [output], list(pairs), sums.nbytes)

    # --- parts ------------------------------------------------------------------------------------

    def _gathers(self) -> tuple[list[list[_Call]], list[dict[Node, Node]]]:
        """The calls of each visit, and parameters as they are gathered for it."""
        calls: list[list[_Call]] = []
        values: list[dict[Node, Node]] = []
        for group in self.visited:
            calls.append([])
            values.append({})
            for dtype, each in group.each.items():
                row = group.row(dtype)
                rows = ops.reshape(row, (1, each))
                if self._comm.size > 1:
                    how = {"ranks": self._comm.size, "number": sum(map(len, calls))}
                    begun = gather_begin(row, [self._start], **how)
                    rows = gather_wait(row, [begun], **how)
                    calls[-1].append(_Call(begun.node, rows.node))
                values[-1] |= group.whole(dtype, rows)
        return calls, values

    def _shard(
        self, instead: Mapping[Node, Node], gathered: Sequence[Mapping[Node, Node]]
    ) -> tuple[list[Node], list[list[Node]]]:
        """What a shard gives, and what of it has to be there before each visit."""
        visits, count = self._visits, len(self._ahead)
        numbers = range(len(self.groups))
        ahead = {node: value for n in numbers for node, value in gathered[n].items()}
        back = {node: value for n in numbers for node, value in gathered[visits.back[n]].items()}
        made = rebuild([*self._ahead, *visits.forward], {**instead, **ahead})
        known = dict(zip(visits.forward, made[count:], strict=True))
        later = [n for nodes in visits.needed for n in nodes if n not in known]
        found = rebuild([*self._back, *later], {**instead, **known, **back})
        known |= dict(zip(later, found[len(self._back) :], strict=True))
        before = [[known[n] for n in nodes] for nodes in visits.needed]
        return [*made[:count], *found[: len(self._back)]], before

    def _shares(
        self, blocks: Blocks, leaves: int, there: tuple[int, ...], first: int
    ) -> tuple[list[list[_Call]], dict[Node, Node]]:
        """The calls that can begin in each visit, and what stands for gradients of this rank's pieces."""
        place = {parameter: k for k, parameter in enumerate(self._parameters)}
        calls: list[list[_Call]] = [[] for _ in self._visits.groups]
        found: dict[Node, Node] = {}
        ranks = self._comm.size
        for group in reversed(self.groups):
            for dtype, each in group.each.items():
                chosen = [place[parameter] for parameter in group.members(dtype)]
                rows = [group.rows(dtype, [one[k] for k in chosen]) for one in blocks]
                row = ops.reshape(rows[0], (ranks * each,))
                if ranks > 1:
                    many = ops.stack(rows)
                    how = {"ranks": ranks, "number": first + sum(map(len, calls))}
                    begun = share_begin(many, [self._start], leaves=leaves, there=there, **how)
                    row = share_wait(many, [begun], **how)
                    level = max(self._visits.level[self._back[k]] for k in chosen)
                    calls[level].append(_Call(begun.node, row.node))
                found |= group.gradients(dtype, row)
        return calls, found


def _zeros(node: Node) -> Operation:
    return Operation(constant(np.zeros(bind_shape(node.shape, {}), node.dtype)))


def _order(
    gathers: Sequence[Sequence[_Call]], shares: Sequence[Sequence[_Call]], rest: Sequence[Node],
    needed: Sequence[Sequence[Node]],
) -> dict[Node, list[Node]]:  # fmt: skip
    """What has to come before nodes, beside what they compute with.

    Args:
        gathers: of each visit.
        shares: that can begin in each visit.
        rest: what begins the calls behind these.
        needed: what has to be there before each visit.
    """
    before: dict[Node, list[Node]] = {}
    begun: list[Node] = []
    summed: list[_Call] = []
    waits: list[Node] = []
    for visit, calls in enumerate(gathers):
        for call in calls:
            before[call.begin] = list(waits)
            before[call.wait] = list(needed[visit])
        waits = [call.wait for call in calls]
        begun += [call.begin for call in calls]
        if visit:
            summed += shares[visit - 1]
            begun += [call.begin for call in shares[visit - 1]]
    summed += shares[-1]
    begun += [*(call.begin for call in shares[-1]), *rest]
    for one, following in pairwise(begun):
        before.setdefault(following, []).append(one)
    for call, after in pairwise(summed):
        before.setdefault(call.wait, []).append(after.begin)
    for call, later in zip(summed, summed[2:], strict=False):  # two at a time hold gradients
        before[later.begin].append(call.wait)
    if summed:  # also where a rank has no rows, and no use for what was gathered
        before[summed[-1].wait] = list(waits)
    return before


def _behind(roots: Sequence[Node], before: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """The same graph, in which nodes have what comes before them as further operands."""
    new: dict[Node, Node] = {}
    for node in topological(roots, lambda n: (*n.inputs, *before.get(n, ()))):
        more = before.get(node, ())
        inputs = tuple(new[i] for i in (*node.inputs, *more))
        same = not more and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        new[node] = node if same else replace(node, inputs=inputs, origin=None)
    return [new[root] for root in roots]
