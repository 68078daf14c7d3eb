"""A value of which some ranks have parts, brought to other ranks: one collective, and movements around it.

`placed_on` makes the nodes. What goes where says `magmadnn/graph/placing/routes.py`. Nodes before the
collective are computed where the value lies, those behind it where it shall lie;
`magmadnn/parallel/placements/one_rank.py` says what is left of them on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.graph.dim import Shape
from magmadnn.graph.node import Node, record
from magmadnn.graph.op import REQUIRED, Array, NoGradient, Op, OpKind
from magmadnn.graph.placing import Placement, Replicate, Shard, routed
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.along_axes.reductions import sum as summed
from magmadnn.ops.movement import reshape

from .leading_axis import apart, joined

if TYPE_CHECKING:
    from magmadnn.comm.gpu.moving import Moves


def _shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return (attributes["rows"], *attributes["piece"]) if attributes["lands"] else (1,)


def _numpy(
    x: Array, *before: Array, group: str, ranks: int, moves: Moves, rows: int, piece: Any,
    lands: bool,
) -> Array:  # fmt: skip
    from magmadnn.comm.groups import group_named

    comm, given = group_named(group, ranks, "moved"), np.ascontiguousarray(x)
    result = np.empty((rows, *piece), x.dtype) if lands else np.zeros(1, x.dtype)
    nothing = np.empty(0, x.dtype)
    parts, places = [nothing] * ranks, [nothing] * ranks
    for source, first, end, target, at in moves:
        if source == comm.rank:
            parts[target] = given[first:end]
        if target == comm.rank:
            places[source] = result[at : at + end - first]
    comm.all_to_all(parts, places)
    return result


def _on_device(group: str, ranks: int, moves: Any, rows: int, piece: Any, lands: bool) -> Any:
    from magmadnn.comm.gpu.meeting import gpus_of
    from magmadnn.comm.gpu.moving import Moving
    from magmadnn.comm.groups import group_named

    return Moving(gpus_of(group_named(group, ranks, "moved")), moves), "move"


moved: Op = Op(
    name="_moved",
    args=("x", "*before"),
    formula="rows of x go from rank to rank as `moves` says; what else is given has to be there before",
    kind=OpKind.COLLECTIVE,
    shapes=_shape,
    dtypes=first_dtype,
    numpy=_numpy,
    vjp=NoGradient("it is put into programs that have their gradients"),
    reference=lambda x, **_: x,
    samples=lambda draw: [],
    attributes=dict.fromkeys(("group", "ranks", "moves", "rows", "piece", "lands"), REQUIRED),
    on_device=_on_device,
)


def placed_on(
    x: Node, before: Placement, after: Replicate | Shard, ranks: int, group: str = "world"
) -> Node:
    """The part of a rank that gets a value, from the parts of those that have it.

    Args:
        x: the part of a rank that has one.
        before: where the value lies.
        after: where it shall lie.
        ranks: how many there are in all.
        group: all of them, as collectives name it.
    """
    way = routed(before, after, ranks)
    rows: Any = reshape(x, (1, *x.shape)) if way.cut is None else apart(x, way.cut, way.pieces)
    given = {"group": group, "ranks": ranks, "moves": way.moves, "rows": way.rows}
    got = record(moved, [rows], {**given, "piece": rows.shape[1:], "lands": True})
    found: Any = got
    if way.adds:
        found = summed(got, 0)
    elif way.join is not None:
        found = joined(got, way.join)
    else:
        found = reshape(got, got.shape[1:])
    made: Node = getattr(found, "node", found)
    return made
