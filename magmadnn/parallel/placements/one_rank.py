"""What one rank runs of a program in which some values lie on some of the ranks.

A node is computed on the ranks that have all that it reads. Ranks run different programs then, but the same
collectives: those that bring values to other ranks are calls of all, in which a rank may have nothing to
send or to get. Each has what the one before it gives as a further operand, so that their order, which is
that of the whole program, is the same on all ranks, and none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.graph.dim import dims_of
from magmadnn.graph.node import Node, constant, record, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.ops.ranks.leading_axis import with_leading_axis
from magmadnn.ops.ranks.moves import moved

Held = Mapping[Node, tuple[int, ...]]


def of_rank(program: Program, held: Held, rank: int, ranks: int, group: str = "world") -> Program:
    """The program of one rank.

    Args:
        program: as a rank would run it that has a part of everything.
        held: the ranks that have a leaf; all have those that are not there.
        rank: of which the program is asked.
        ranks: how many there are in all.
        group: all of them, as collectives name it.

    Returns:
        outputs on this rank, and updates of variables that it has.
    """
    whole = with_leading_axis(program, rank)
    everyone = frozenset(range(ranks))
    there: dict[Node, frozenset[int]] = {}
    new: dict[Node, Node] = {}
    fed = [n for n in whole.placeholders if [*dims_of(n.shape)]]  # so all ranks know their sizes
    before: list[Node] = []
    for node in whole.nodes():
        has = held.get(node)
        places = everyone if has is None else frozenset(has)
        there[node] = places.intersection(*(there[i] for i in node.inputs))
        if isinstance(node.op, Op) and node.op.kind is OpKind.COLLECTIVE:
            x, attributes = node.inputs[0], node.attributes
            if node.op is moved:
                sources, targets = ({move[k] for move in attributes["moves"]} for k in (0, 3))
                assert sources <= there[x]
                there[node] = frozenset(targets)
                own = new[x] if rank in sources else constant(np.zeros(1, node.dtype))
                attributes = MappingProxyType({**attributes, "lands": rank in targets})
            else:
                assert there[x] == everyone
                own = new[x]
            new[node] = _behind(node, own, before or fed, attributes)
            before = [new[node]]
        elif rank in there[node]:
            new[node] = with_inputs(node, tuple(new[i] for i in node.inputs))
    first, *others = (new[output] for output in whole.outputs)
    if before:
        first = _once_done(first, before[0], ranks, group)
    updates = [(to, new[v]) for to, v in whole.updates if rank in held.get(to, everyone)]
    return Program((first, *others), tuple(updates))


def _behind(node: Node, own: Node, before: list[Node], attributes: Any) -> Node:
    """A collective of what this rank has, once others are there."""
    assert isinstance(node.op, Op)
    inputs = (own, *before)
    spec = node.op.infer([i.spec for i in inputs], attributes)
    return replace(node, inputs=inputs, spec=spec, attributes=attributes, origin=None)


def _once_done(value: Node, last: Node, ranks: int, group: str) -> Node:
    """A value, once the last collective is done."""
    row: Any = ops.reshape(value, (1, *value.shape))
    row = getattr(row, "node", row)
    moves = tuple((rank, 0, 1, rank, 0) for rank in range(ranks))
    given = {"group": group, "ranks": ranks, "moves": moves, "rows": 1, "piece": value.shape}
    found = record(moved, [row, last], {**given, "lands": True})
    made: Any = ops.reshape(found, value.shape)
    node: Node = getattr(made, "node", made)
    return node
