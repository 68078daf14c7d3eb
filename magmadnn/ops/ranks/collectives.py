"""Collectives: ops whose result depends on the values of all ranks of a group.

All ranks run the same graph, each on its own values. A graph names its group, `group="world"`, and says for
how many ranks it was made; which communicator that is, a run says (`md.comm.bound`). Shapes are those of
one rank.

Gradients need to know what is differentiated. With `loss="sum"` that is the sum of the losses of all ranks:
each computes its own. With `loss="same"` it is one loss, which all ranks compute alike from values that
collectives made equal, and which counts once. Writing g for what a rank sends back, and [r] for its part::

    op                     loss="sum"                loss="same"
    all_reduce sum         all_reduce(g)             g
    all_reduce mean        all_reduce(g) / ranks     g / ranks
    all_gather             reduce_scatter(g)         own_part(g)
    reduce_scatter         all_gather(g)             all_gather(g)
    own_part               g at [r], else 0          all_gather(g)
    broadcast              reduce_to(g)              g at the root, else 0
    reduce_to              broadcast(g)              broadcast(g)
    all_to_all             all_to_all(g), the axes exchanged, for both
    summed_gradient        -                         all_reduce(g)

Each is the adjoint: <g, op(x)> = <gradient, x>, summed over ranks. For "same" those are the pairs of
M. Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3. Sums are in the order of ranks, so they have
the same bits on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from magmadnn.graph.dim import Shape
from magmadnn.graph.op import REQUIRED, Array, Draw, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords, axis_number, is_integer
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.arithmetic import cast, equal, multiply, where

if TYPE_CHECKING:
    from magmadnn.comm import Communicator

_LOSSES = ("sum", "same")
_REDUCTIONS = ("sum", "mean", "max", "min")
_WIRES = ("float16", "bfloat16")


def _communicator(call: str, group: str, ranks: int) -> Communicator:
    from magmadnn.comm.groups import group_named

    return group_named(group, ranks, call)


def _one_of(words: OpWords, what: str, name: object, names: Sequence[str]) -> str:
    if name not in names:
        raise UnknownNameError.of(f"{words.name}: {what}", str(name), names)
    return str(name)


def _settled(words: OpWords, specs: Sequence[Spec], **given: Any) -> dict[str, Any]:
    """The attributes that all collectives have some of."""
    group, ranks = given["group"], given["ranks"]
    if not isinstance(group, str) or not group:
        raise ArgumentError(
            f"{words.name}: group must be the name of a group of ranks, got {group!r}"
        )
    if not is_integer(ranks) or ranks < 1:
        raise ArgumentError(
            f"{words.name}: ranks must be a whole number of at least 1, got {ranks!r}"
        )
    settled = {**given, "ranks": int(ranks)}
    if "loss" in given:
        _one_of(words, "loss", given["loss"], _LOSSES)
    if given.get("wire") is not None:
        _one_of(words, "wire", given["wire"], _WIRES)
    if "root" in given:
        root = given["root"]
        if not is_integer(root) or not 0 <= root < ranks:
            raise ArgumentError(
                f"{words.name}: root must be a rank from 0 to {ranks - 1}, got {root!r}"
            )
        settled["root"] = int(root)
    for name in ("axis", "split_axis", "concat_axis"):
        if name in given:
            settled[name] = axis_number(words, given[name], specs[0].ndim)
    if "op" in given:
        op = _one_of(words, "op", given["op"], _REDUCTIONS)
        dtype = specs[0].dtype
        if dtype == np.bool and op in ("sum", "mean"):
            raise DTypeError(
                f"{words.name}: op {op!r} of bool is not defined: cast x, or use 'max'"
            )
        if op == "mean" and not is_floating(dtype):
            raise DTypeError(
                f"{words.name}: op 'mean' of {dtype.name} is not defined: cast x to float32"
            )
    return settled


def _divided(words: OpWords, specs: Sequence[Spec], axis: int, ranks: int) -> Shape:
    """The operand's shape with a rank's share of an axis."""
    shape = specs[0].shape
    if shape[axis] % ranks != 0:
        raise ShapeError(
            f"{words.name}: axis {axis} has {shape[axis]} rows, no multiple of ranks={ranks}: pad it to one"
        )
    return (*shape[:axis], shape[axis] // ranks, *shape[axis + 1 :])


def _same_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return specs[0].shape


def _gathered_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    axis, shape = attributes["axis"], specs[0].shape
    return (*shape[:axis], shape[axis] * attributes["ranks"], *shape[axis + 1 :])


def _part_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return _divided(words, specs, attributes["axis"], attributes["ranks"])


def _exchanged_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    split, joined, ranks = (attributes[k] for k in ("split_axis", "concat_axis", "ranks"))
    shape = list(_divided(words, specs, split, ranks))
    shape[joined] = shape[joined] * ranks
    return tuple(shape)


def _rows_first(x: Array, axis: int) -> Array:
    """The array with an axis in front, in memory of its own row by row."""
    return np.ascontiguousarray(np.moveaxis(x, axis, 0))


# --- sums -----------------------------------------------------------------------------------------


def _all_reduce_numpy(x: Array, group: str, ranks: int, op: str, loss: str, wire: Any) -> Array:
    comm = _communicator("all_reduce", group, ranks)
    kind: Any = "sum" if op == "mean" else op
    total: Array = comm.all_reduce(np.ascontiguousarray(x).reshape(x.shape), op=kind, wire=wire)
    return (total / total.dtype.type(ranks)).astype(total.dtype) if op == "mean" else total


def _all_reduce_vjp(
    g: Any, y: Any, x: Any, group: str, ranks: int, op: str, loss: str, wire: Any
) -> Any:
    back = g if loss == "same" else all_reduce(g, group, ranks, wire=wire)
    if op == "mean":
        return multiply(back, 1.0 / ranks)
    if op == "sum":
        return back
    chosen = equal(x, y)  # several ranks may have the largest: they share
    count = all_reduce(cast(chosen, g.dtype), group, ranks)
    return where(chosen, back / count, 0)


all_reduce: Op = Op(
    name="all_reduce",
    args=("x",),
    formula="the sum, mean, max or min of x over all ranks, element by element, on each of them",
    kind=OpKind.COLLECTIVE,
    shapes=_same_shape,
    dtypes=first_dtype,
    numpy=_all_reduce_numpy,
    vjp=_all_reduce_vjp,
    reference=lambda x, **_: x,
    samples=lambda draw: [Sample((draw(3, 5),), {"ranks": 1})],
    attributes={"group": "world", "ranks": REQUIRED, "op": "sum", "loss": "sum", "wire": None},
    canonical=_settled,
    notes="wire='bfloat16' or 'float16' sends elements in 16 bits; see `md.comm`.",
)


def _reduce_to_numpy(x: Array, group: str, ranks: int, root: int) -> Array:
    comm = _communicator("reduce_to", group, ranks)
    rows = np.ascontiguousarray(x).reshape(-1)
    counts = [rows.size if rank == root else 0 for rank in range(ranks)]
    total = comm.reduce_scatter(rows, counts=counts)
    return total.reshape(x.shape) if comm.rank == root else np.zeros_like(x)


def _only_numpy(x: Array, group: str, ranks: int, root: int) -> Array:
    is_root = _communicator("_only", group, ranks).rank == root
    return x.copy() if is_root else np.zeros_like(x)


def _at_one(name: str, formula: str, numpy: Any, vjp: Any, more: dict[str, Any]) -> Op:
    """An op of a root."""
    return Op(
        name=name,
        args=("x",),
        formula=formula,
        kind=OpKind.COLLECTIVE,
        shapes=_same_shape,
        dtypes=first_dtype,
        numpy=numpy,
        vjp=vjp,
        reference=lambda x, **_: x,
        samples=lambda draw: [Sample((draw(3, 5),), {"ranks": 1})],
        attributes={"group": "world", "ranks": REQUIRED, "root": 0, **more},
        canonical=_settled,
    )


_only: Op = _at_one(
    "_only",
    "x on the rank `root`, zeros on all others",
    _only_numpy,
    lambda g, y, x, group, ranks, root: _only(g, group, ranks, root),
    {},
)

reduce_to: Op = _at_one(
    "reduce_to",
    "the sum of x over all ranks, on the rank `root`; zeros on all others",
    _reduce_to_numpy,
    lambda g, y, x, group, ranks, root: broadcast(g, group, ranks, root),
    {},
)


def _broadcast_numpy(x: Array, group: str, ranks: int, root: int, loss: str) -> Array:
    comm = _communicator("broadcast", group, ranks)
    return np.asarray(comm.broadcast(np.array(x, order="C"), root=root))


def _broadcast_vjp(g: Any, y: Any, x: Any, group: str, ranks: int, root: int, loss: str) -> Any:
    back = reduce_to if loss == "sum" else _only
    return back(g, group, ranks, root)


broadcast: Op = _at_one(
    "broadcast",
    "x of the rank `root`, on all ranks",
    _broadcast_numpy,
    _broadcast_vjp,
    {"loss": "sum"},
)

# --- shares ---------------------------------------------------------------------------------------


def _of_shares(name: str, formula: str, shapes: Any, numpy: Any, vjp: Any, more: Any) -> Op:
    """An op along an axis, of which each rank has a share before it or behind it."""
    return Op(
        name=name,
        args=("x",),
        formula=formula,
        kind=OpKind.COLLECTIVE,
        shapes=shapes,
        dtypes=first_dtype,
        numpy=numpy,
        vjp=vjp,
        reference=lambda x, **_: x,
        samples=_samples,
        attributes={"group": "world", "ranks": REQUIRED, **more},
        canonical=_settled,
    )


def _samples(draw: Draw) -> list[Sample]:
    return [Sample((draw(3, 5),), {"ranks": 1})]


def _all_gather_numpy(x: Array, group: str, ranks: int, axis: int, loss: str, wire: Any) -> Array:
    rows = _rows_first(x, axis)
    whole = _communicator("all_gather", group, ranks).all_gather(rows, wire=wire)
    return np.moveaxis(whole, 0, axis)


def _all_gather_vjp(
    g: Any, y: Any, x: Any, group: str, ranks: int, axis: int, loss: str, wire: Any
) -> Any:
    if loss == "sum":
        return reduce_scatter(g, group, ranks, axis, wire)
    return own_part(g, group, ranks, axis, "same")


all_gather: Op = _of_shares(
    "all_gather",
    "x of all ranks, one after the other along an axis, on each of them",
    _gathered_shape,
    _all_gather_numpy,
    _all_gather_vjp,
    {"axis": 0, "loss": "sum", "wire": None},
)


def _reduce_scatter_numpy(x: Array, group: str, ranks: int, axis: int, wire: Any) -> Array:
    rows = _rows_first(x, axis)
    share = _communicator("reduce_scatter", group, ranks).reduce_scatter(rows, wire=wire)
    return np.moveaxis(share, 0, axis)


reduce_scatter: Op = _of_shares(
    "reduce_scatter",
    "the sum of x over all ranks; each rank has its share of an axis",
    _part_shape,
    _reduce_scatter_numpy,
    lambda g, y, x, group, ranks, axis, wire: all_gather(g, group, ranks, axis, wire=wire),
    {"axis": 0, "wire": None},
)


def _own_part_numpy(x: Array, group: str, ranks: int, axis: int, loss: str) -> Array:
    rank, share = _communicator("own_part", group, ranks).rank, x.shape[axis] // ranks
    rows = np.moveaxis(x, axis, 0)[rank * share : (rank + 1) * share]
    return np.moveaxis(rows, 0, axis).copy()


def _own_part_vjp(g: Any, y: Any, x: Any, group: str, ranks: int, axis: int, loss: str) -> Any:
    if loss == "same":
        return all_gather(g, group, ranks, axis, "same")
    return _placed_part(g, group, ranks, axis)


own_part: Op = _of_shares(
    "own_part",
    "this rank's share of an axis of x, which all ranks have alike; nothing is sent",
    _part_shape,
    _own_part_numpy,
    _own_part_vjp,
    {"axis": 0, "loss": "sum"},
)


def _placed_part_numpy(x: Array, group: str, ranks: int, axis: int) -> Array:
    rank, rows = _communicator("_placed_part", group, ranks).rank, np.moveaxis(x, axis, 0)
    whole = np.zeros((ranks * len(rows), *rows.shape[1:]), x.dtype)
    whole[rank * len(rows) : (rank + 1) * len(rows)] = rows
    return np.moveaxis(whole, 0, axis)


_placed_part: Op = _of_shares(
    "_placed_part",
    "x as this rank's share of an axis, zeros as those of others; nothing is sent",
    _gathered_shape,
    _placed_part_numpy,
    lambda g, y, x, group, ranks, axis: own_part(g, group, ranks, axis),
    {"axis": 0},
)


def _all_to_all_numpy(x: Array, group: str, ranks: int, split_axis: int, concat_axis: int) -> Array:
    parts = [np.ascontiguousarray(part) for part in np.split(x, ranks, axis=split_axis)]
    out = [np.empty_like(part) for part in parts]
    _communicator("all_to_all", group, ranks).all_to_all(parts, out)
    return np.concatenate(out, axis=concat_axis)


all_to_all: Op = _of_shares(
    "all_to_all",
    "x cut along split_axis, a part for each rank; what came from all, in order along concat_axis",
    _exchanged_shape,
    _all_to_all_numpy,
    lambda g, y, x, group, ranks, split_axis, concat_axis: all_to_all(
        g, group, ranks, concat_axis, split_axis
    ),
    {"split_axis": 0, "concat_axis": 0},
)

# --- the gradient alone ---------------------------------------------------------------------------


summed_gradient: Op = Op(
    name="summed_gradient",
    args=("x",),
    formula="x, which all ranks have alike and use for parts of one loss: its gradient is their sum",
    kind=OpKind.MOVEMENT,
    shapes=_same_shape,
    dtypes=first_dtype,
    numpy=lambda x, **_: x.view(),
    vjp=lambda g, y, x, group, ranks, wire: all_reduce(g, group, ranks, "sum", "same", wire),
    reference=lambda x, **_: x,
    samples=_samples,
    attributes={"group": "world", "ranks": REQUIRED, "wire": None},
    canonical=_settled,
    rewrites=(lambda node: node.inputs[0],),
)
