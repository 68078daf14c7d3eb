"""Collectives as GPUs have them: along a leading axis of ranks, over elements in one piece of memory.

`with_leading_axis` writes the collectives of a graph so. Writing S for a shape, P for ranks, and for an axis
of n elements [.., P, n / P, ..] for the same axis cut in two::

    all_reduce sum        sum(x)
    all_reduce mean       sum(x) / P
    all_gather            gather(x), [P, S], whose first axis goes to [.., P, n, ..], joined to [.., P n, ..]
    reduce_scatter        scatter of [P, .., n / P, ..]
    the same on a wire    of x rounded to halves, stored in the dtype of x
    all_to_all            exchange of [P, .., n / P, ..], whose first axis goes before concat_axis
    own_part              element `rank` of the axis P; nothing is sent
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.graph.dim import Shape
from magmadnn.graph.node import Node, naming_scope, record, scoped, topological
from magmadnn.graph.op import REQUIRED, Array, NoGradient, Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.ops.arithmetic import cast, multiply
from magmadnn.ops.indexing import getitem
from magmadnn.ops.movement import reshape, transpose

from .collectives import all_gather, all_reduce, all_to_all, own_part, reduce_scatter

_SOME = "ranks "  # begins the name of a group of some of the ranks


def _shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    shape, kind = specs[0].shape, attributes["kind"]
    if kind == "gather":
        return (attributes["ranks"], *shape)
    return shape[1:] if kind == "scatter" else shape


def _dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> np.dtype[Any]:
    return np.dtype(attributes["dtype"] or dtypes[0])


def _numpy(x: Array, *before: Array, group: str, ranks: int, kind: str, dtype: str | None) -> Array:
    from magmadnn.comm.groups import group_named

    x = x if dtype is None else x.astype(dtype)
    comm, rows = group_named(group, ranks, kind), np.ascontiguousarray(x).reshape(x.shape)
    if kind == "gather":
        return np.asarray(comm.all_gather(rows[None]))
    if kind == "scatter":
        return np.asarray(comm.reduce_scatter(rows)[0])
    if kind == "exchange":
        out = np.empty_like(rows)
        comm.all_to_all(list(rows), list(out))
        return out
    return np.asarray(comm.all_reduce(rows))


def _on_device(group: str, ranks: int, kind: str, dtype: str | None) -> Any:
    from magmadnn.comm.gpu.meeting import gpus_of
    from magmadnn.comm.groups import group_named

    return gpus_of(group_named(group, ranks, kind)), kind


among_ranks: Op = Op(
    name="_among_ranks",
    args=("x", "*before"),
    formula="a call of all ranks: the sum of x; along a leading axis of ranks a gather, scatter or exchange;"
    " sums are stored as dtype; what else is given has to be there before",
    kind=OpKind.COLLECTIVE,
    shapes=_shape,
    dtypes=_dtype,
    numpy=_numpy,
    vjp=NoGradient("it is put into programs that have their gradients"),
    reference=lambda x, **_: x,
    samples=lambda draw: [],
    attributes={"group": REQUIRED, "ranks": REQUIRED, "kind": REQUIRED, "dtype": None},
    on_device=_on_device,
)


def with_leading_axis(program: Program, rank: int) -> Program:
    """The program of one rank with its collectives as GPUs have them.

    Collectives of other kinds, and those that are no sums with halves on the wire, stay as they are: the host
    does them.

    Args:
        program: of a rank.
        rank: its number in the group.
    """
    new: dict[Node, Node] = {}
    for node in topological(program.roots):
        inputs = tuple(new[i] for i in node.inputs)
        form = _FORMS.get(node.op.name) if isinstance(node.op, Op) else None
        if form is not None and node.attributes["ranks"] == 1:
            new[node] = inputs[0]
            continue
        if form is not None and (node.attributes.get("wire") is None or form in (_sum, _scatter)):
            given = {k: v for k, v in node.attributes.items() if k != "loss"}
            if form not in (_sum, _scatter):
                given.pop("wire", None)
            with naming_scope(node), scoped(node.path):
                made = form(inputs[0], rank=place_in(given["group"], rank), **given)
            if made is not None:
                new[node] = made
                continue
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        new[node] = node if same else replace(node, inputs=inputs, origin=None)
    return program.with_roots([new[root] for root in program.roots])


def part_group(on: Sequence[int]) -> str:
    """The name of a group of ranks of which `own_part` takes a part."""
    return _SOME + ",".join(map(str, on))


def place_in(group: str, rank: int) -> int:
    """The place of a rank in a group: 0 for one that is not of it, whose part nobody reads."""
    if not group.startswith(_SOME):
        return rank
    on = [int(one) for one in group.removeprefix(_SOME).split(",")]
    return on.index(rank) if rank in on else 0


def _among(x: Any, group: str, ranks: int, kind: str, wire: str | None = None) -> Node:
    given = {"group": group, "ranks": ranks, "kind": kind, "dtype": None}
    if wire is None or x.dtype == np.dtype(wire):
        return record(among_ranks, [x], given)
    return record(among_ranks, [cast(x, wire)], {**given, "dtype": x.dtype.name})


def _sum(x: Any, rank: int, group: str, ranks: int, op: str, wire: str | None) -> Any:
    if op not in ("sum", "mean"):
        return None
    total = _among(x, group, ranks, "sum", wire)
    return total if op == "sum" else multiply(total, 1.0 / ranks)


def _gather(x: Any, rank: int, group: str, ranks: int, axis: int) -> Any:
    return joined(_among(x, group, ranks, "gather"), axis)


def _scatter(x: Any, rank: int, group: str, ranks: int, axis: int, wire: str | None) -> Any:
    return _among(apart(x, axis, ranks), group, ranks, "scatter", wire)


def _exchange(x: Any, rank: int, group: str, ranks: int, split_axis: int, concat_axis: int) -> Any:
    rows = apart(x, split_axis, ranks)
    return joined(_among(rows, group, ranks, "exchange"), concat_axis)


def _part(x: Any, rank: int, group: str, ranks: int, axis: int) -> Any:
    return getitem(_cut(x, axis, ranks), (slice(None),) * axis + (rank,))


def _cut(x: Any, axis: int, ranks: int) -> Any:
    """[.., n, ..] as [.., ranks, n / ranks, ..]."""
    shape = x.shape
    return reshape(x, (*shape[:axis], ranks, shape[axis] // ranks, *shape[axis + 1 :]))


def apart(x: Any, axis: int, ranks: int) -> Any:
    """The value [.., n, ..] as [ranks, .., n / ranks, ..]."""
    order = (axis, *(k for k in range(len(x.shape) + 1) if k != axis))
    return transpose(_cut(x, axis, ranks), order)


def joined(x: Any, axis: int) -> Any:
    """The value [ranks, .., n, ..] as [.., ranks n, ..]."""
    ranks, *shape = x.shape
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(x.shape)))
    return reshape(transpose(x, order), (*shape[:axis], ranks * shape[axis], *shape[axis + 1 :]))


_FORMS: dict[str, Callable[..., Any]] = {
    all_reduce.name: _sum,
    all_gather.name: _gather,
    reduce_scatter.name: _scatter,
    all_to_all.name: _exchange,
    own_part.name: _part,
}
