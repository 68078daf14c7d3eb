"""Movements: every element of the result is an element of an operand, or a constant.

Shapes change; values do not. Shapes may hold symbolic dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Shape, Size, divide, product
from magmadnn.graph.node import Node, record, with_inputs
from magmadnn.graph.op import REQUIRED, Array, Op, OpKind, Sample, promote
from magmadnn.graph.operators import public
from magmadnn.graph.placing.axes import Axes, broadcasting, reshaping
from magmadnn.graph.signature import (
    Attributes,
    OpWords,
    axes_text,
    axis_number,
    elementwise,
    shape_text,
)
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import last_axes, to_shape

from ._arguments import as_shape, first_dtype, ndim_of, shape_of, words_of
from ._pointwise import drop_unchanged
from .arithmetic import equal, where
from .slicing import Box, along, slice_


def _movement(**record: Any) -> Op:
    return Op(kind=OpKind.MOVEMENT, **{"dtypes": first_dtype, **record})


# --- reshape --------------------------------------------------------------------------------------


def _reshape_canonical(words: OpWords, specs: Sequence[Spec], shape: Any) -> dict[str, Any]:
    sizes = as_shape(words, shape, free=True)
    total = product(specs[0].shape)
    if sizes.count(-1) > 1:
        raise ShapeError(f"reshape: {shape_text(sizes)} may hold one -1 only")
    settled = sizes
    if -1 in sizes:
        with suppress(ShapeError):  # told below
            missing = divide(total, product([s for s in sizes if s != -1]))
            settled = tuple(missing if s == -1 else s for s in sizes)
    if -1 in settled or product(settled) != total:
        raise ShapeError(
            f"reshape: x {shape_text(specs[0].shape)} has {total} elements, "
            f"which do not fit into {shape_text(sizes)}"
        )
    return {"shape": settled}


def _reshape_once(node: Node) -> Node | None:
    """A reshape of a reshape is one reshape."""
    (inner,) = node.inputs
    return record(reshape, inner.inputs, node.attributes) if inner.op is reshape else None


def _reshape_masked(node: Node, y: Node) -> Node | None:
    """What is reshaped, where `y` in that shape is above 0."""
    (inner,) = node.inputs
    if not isinstance(inner.op, Op) or inner.op.masked is None:
        return None
    made = inner.op.masked(inner, reshape(y, inner.shape))
    return None if made is None else with_inputs(node, (made,))


reshape: Op = _movement(
    name="reshape",
    args=("x",),
    formula="x's elements in row-major order, in another shape; one size may be -1",
    shapes=lambda words, specs, attributes: attributes["shape"],
    numpy=lambda x, shape: x.reshape(shape),
    any_size=True,
    boxes=lambda result, x, shape: [(result.reshape(x.shape), (0, x))],
    axes=lambda specs, attributes: reshaping(specs[0].shape, attributes["shape"]),
    vjp=lambda g, y, x, shape: reshape(g, x.shape),
    reference=lambda x, shape: np.array(list(x.flat)).reshape(shape),
    samples=lambda draw: [
        Sample((draw(6, 5),), {"shape": (3, 10)}),
        Sample((draw(2, 3, 5),), {"shape": (-1, 5)}),
        Sample((draw(1),), {"shape": ()}),
    ],
    attributes={"shape": REQUIRED},
    canonical=_reshape_canonical,
    stacked=lambda call: call.again(call.operands, shape=(call.count, *call.attributes["shape"])),
    masked=_reshape_masked,
    rewrites=(drop_unchanged, _reshape_once),
)


@public
def flatten(x: Any) -> Any:
    """`x` [n, ...] -> [n, everything else].

    Raises:
        ShapeError: if x is a scalar.
    """
    shape = shape_of(x)
    if not shape:
        raise ShapeError("flatten: x is a scalar, expected 1 axis or more")
    return reshape(x, (shape[0], product(shape[1:])))


# --- axes -----------------------------------------------------------------------------------------


def _transpose_canonical(words: OpWords, specs: Sequence[Spec], axes: Any) -> dict[str, Any]:
    ndim = specs[0].ndim
    if axes is None:
        return {"axes": tuple(reversed(range(ndim)))}
    listed = axes if isinstance(axes, (list, tuple)) else (axes,)
    order = tuple(axis_number(words, a, ndim) for a in listed)
    if sorted(order) != list(range(ndim)):
        raise ShapeError(
            f"transpose: axes {shape_text(tuple(listed))} do not name each of {axes_text(ndim)} once"
        )
    return {"axes": order}


def _transpose_vjp(g: Any, y: Any, x: Any, axes: tuple[int, ...]) -> Any:
    return transpose(g, tuple(axes.index(i) for i in range(len(axes))))


def _transpose_unmoved(node: Node) -> Node | None:
    return node.inputs[0] if node.attributes["axes"] == tuple(range(node.ndim)) else None


def _transpose_once(node: Node) -> Node | None:
    """A transpose of a transpose is one transpose."""
    (inner,) = node.inputs
    if inner.op is not transpose:
        return None
    order = tuple(inner.attributes["axes"][a] for a in node.attributes["axes"])
    return record(transpose, inner.inputs, {"axes": order})


transpose: Op = _movement(
    name="transpose",
    args=("x",),
    formula="x with its axes in another order; all reversed where no order is given",
    shapes=lambda words, specs, attributes: tuple(specs[0].shape[a] for a in attributes["axes"]),
    numpy=lambda x, axes: x.transpose(axes),
    axes=lambda specs, attributes: Axes((tuple(range(specs[0].ndim)),), attributes["axes"]),
    any_size=True,
    vjp=_transpose_vjp,
    reference=lambda x, axes=None: np.moveaxis(
        x, range(x.ndim)[::-1] if axes is None else axes, range(x.ndim)
    ),
    samples=lambda draw: [
        Sample((draw(5, 7),)),
        Sample((draw(2, 3, 5),), {"axes": (1, 2, 0)}),
        Sample((draw(2, 3, 5),), {"axes": (0, -1, 1)}),
    ],
    attributes={"axes": None},
    canonical=_transpose_canonical,
    stacked=lambda call: call.again(
        call.operands, axes=(0, *(a + 1 for a in call.attributes["axes"]))
    ),
    rewrites=(_transpose_unmoved, _transpose_once),
)


@public
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """`x` with the axes `axis1` and `axis2` exchanged."""
    order = list(range(ndim_of(x)))
    a, b = (axis_number(words_of("swapaxes"), axis, len(order)) for axis in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return transpose(x, tuple(order))


@public
def moveaxis(x: Any, source: int, destination: int) -> Any:
    """`x` with the axis `source` at the place `destination` of the result, the others in their order."""
    ndim = ndim_of(x)
    a, b = (axis_number(words_of("moveaxis"), axis, ndim) for axis in (source, destination))
    order = [i for i in range(ndim) if i != a]
    order.insert(b, a)
    return transpose(x, tuple(order))


@public
def expand_dims(x: Any, axis: int = 0) -> Any:
    """`x` with a new axis of size 1 at `axis` of the result."""
    shape = list(shape_of(x))
    at = axis_number(words_of("expand_dims", "the result"), axis, len(shape) + 1)
    shape.insert(at, 1)
    return reshape(x, tuple(shape))


@public
def squeeze(x: Any, axis: Any = None) -> Any:
    """`x` without its axes of size 1, or without those that `axis` names.

    Raises:
        ShapeError: if a named axis is longer than 1.
    """
    shape = shape_of(x)
    if axis is None:
        axis = tuple(i for i, size in enumerate(shape) if size == 1)
    listed = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = {axis_number(words_of("squeeze"), a, len(shape)) for a in listed}
    for a in axes:
        if shape[a] != 1:
            raise ShapeError(
                f"squeeze: axis {a} of x {shape_text(shape)} is {shape[a]}, expected 1"
            )
    return reshape(x, tuple(size for i, size in enumerate(shape) if i not in axes))


# --- broadcasting ---------------------------------------------------------------------------------


def _broadcast_canonical(words: OpWords, specs: Sequence[Spec], shape: Any) -> dict[str, Any]:
    sizes = as_shape(words, shape)
    target = Spec(sizes, specs[0].dtype)
    both = elementwise(words_of("broadcast_to", "x", "shape"), [specs[0], target], {})
    if both != sizes:
        raise ShapeError(
            f"broadcast_to: x {shape_text(specs[0].shape)} does not broadcast to {shape_text(sizes)}"
        )
    return {"shape": sizes}


def _broadcast_once(node: Node) -> Node | None:
    """A broadcast of a broadcast is one broadcast."""
    (inner,) = node.inputs
    return record(broadcast_to, inner.inputs, node.attributes) if inner.op is broadcast_to else None


broadcast_to: Op = _movement(
    name="broadcast_to",
    args=("x",),
    formula="x repeated along new axes and axes of size 1, to a shape",
    shapes=lambda words, specs, attributes: attributes["shape"],
    numpy=lambda x, shape: np.broadcast_to(x, shape),
    axes=lambda specs, attributes: broadcasting([specs[0].shape], attributes["shape"], "shape"),
    any_size=True,
    vjp=lambda g, y, x, shape: g,  # the sweep sums over what was repeated
    reference=lambda x, shape: x * np.ones(shape),
    samples=lambda draw: [
        Sample((draw(5, 1),), {"shape": (3, 5, 7)}),
        Sample((draw(7),), {"shape": (2, 7)}),
    ],
    attributes={"shape": REQUIRED},
    canonical=_broadcast_canonical,
    stacked=to_shape,
    rewrites=(drop_unchanged, _broadcast_once),
)


@public
def expand(x: Any, shape: Any) -> Any:
    """The same as `broadcast_to`."""
    return broadcast_to(x, shape)


@public
def tile(x: Any, repeats: Any) -> Any:
    """`x` repeated `repeats[i]` times along axis i; one number for each axis.

    Raises:
        ShapeError: if there is not one number for each axis.
    """
    shape = shape_of(x)
    counts = as_shape(words_of("tile"), repeats)
    if len(counts) != len(shape):
        raise ShapeError(
            f"tile: x {shape_text(shape)} has {axes_text(len(shape))}, "
            f"got {len(counts)} repeats {shape_text(counts)}"
        )
    paired = [size for r, n in zip(counts, shape, strict=True) for size in (r, n)]
    single = [size for n in shape for size in (1, n)]
    copies = broadcast_to(reshape(x, tuple(single)), tuple(paired))
    return reshape(copies, tuple(r * n for r, n in zip(counts, shape, strict=True)))


# --- joining --------------------------------------------------------------------------------------


def _concat_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    axis = attributes["axis"]
    first = specs[0].shape
    total: Size = 0
    for number, spec in enumerate(specs):
        if spec.ndim != len(first):
            raise ShapeError(
                f"concat: all operands need {axes_text(len(first))}: {words.shapes(specs)}"
            )
        for a, size in enumerate(spec.shape):
            if a != axis and size != first[a]:
                raise ShapeError(
                    f"concat: axis {a} is {first[a]} in {words.operand(0)} but {size} in "
                    f"{words.operand(number)}; only axis {axis} may differ: {words.shapes(specs)}"
                )
        total = spec.shape[axis] + total
    return (*first[:axis], total, *first[axis + 1 :])


def _concat_vjp(g: Any, y: Any, *xs: Any, axis: int) -> tuple[Any, ...]:
    parts = []
    start: Size = 0
    for x in xs:
        stop = x.shape[axis] + start
        parts.append(slice_(g, index=along(x.ndim, axis, ("slice", start, stop, 1))))
        start = stop
    return tuple(parts)


def _concat_boxes(result: Array, *xs: Array, axis: int) -> Iterator[Box]:
    start = 0
    for number, x in enumerate(xs):
        stop = start + x.shape[axis]
        yield result[(slice(None),) * axis + (slice(start, stop),)], (number, x)
        start = stop


def _concat_alone(node: Node) -> Node | None:
    """A list of one stays as it is."""
    return drop_unchanged(node) if len(node.inputs) == 1 else None


def _concat_reference(*xs: Array, axis: int = 0) -> Array:
    out = np.empty(
        [
            sum(x.shape[a] for x in xs) if a == axis % xs[0].ndim else n
            for a, n in enumerate(xs[0].shape)
        ]
    )
    start = 0
    for x in xs:
        np.moveaxis(out, axis, 0)[start : start + x.shape[axis]] = np.moveaxis(x, axis, 0)
        start += x.shape[axis]
    return out


def _concat_nodes(*xs: Any, axis: int) -> Any:
    """The same in a pointwise op, for a few single numbers."""
    if len(xs) > _MOST_SINGLES or any(x.shape != (1,) for x in xs):
        return None
    place, result = np.arange(len(xs)), xs[-1]
    for number, x in reversed(list(enumerate(xs[:-1]))):
        result = where(equal(place, number), x, result)
    return result


_MOST_SINGLES = 8  # numbers that are worth choosing among, instead of copying each


def _concat_axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
    """All but that along which they are joined."""
    names = tuple(None if a == attributes["axis"] else a for a in range(specs[0].ndim))
    return Axes((names,) * len(specs), names)


concat: Op = _movement(
    name="concat",
    args=("*xs",),
    formula="the list xs, one after the other along an axis",
    shapes=_concat_shapes,
    dtypes=promote,
    numpy=lambda *xs, axis: np.concatenate(xs, axis=axis),
    vjp=_concat_vjp,
    boxes=_concat_boxes,
    axes=_concat_axes,
    reference=_concat_reference,
    samples=lambda draw: [
        Sample((draw(2, 5), draw(3, 5), draw(1, 5))),
        Sample((draw(2, 5), draw(2, 3)), {"axis": -1}),
        Sample((draw(5),)),
        Sample((draw(1), draw(1), draw(1))),
    ],
    attributes={"axis": 0},
    canonical=lambda words, specs, axis: {"axis": axis_number(words, axis, specs[0].ndim)},
    stacked=lambda call: record(
        concat,
        [call.whole(k) for k in range(len(call.operands))],
        {"axis": call.attributes["axis"] + 1},
    ),
    rewrites=(_concat_alone,),
    decompose=_concat_nodes,
    any_size=True,
)


@public
def stack(xs: Sequence[Any], axis: int = 0) -> Any:
    """The list xs, which all have one shape, along a new axis: `axis` of the result.

    Raises:
        ArgumentError: if xs is no list, or empty.
        ShapeError: if the shapes differ, naming two.
    """
    if not isinstance(xs, (list, tuple)) or not xs:
        raise ArgumentError("stack: xs must be a list of one or more")
    first, *others = (shape_of(x) for x in xs)
    for number, shape in enumerate(others, 1):
        if shape != first:
            raise ShapeError(
                f"stack: xs[0] is {shape_text(first)} but xs[{number}] {shape_text(shape)}; "
                "make them equal"
            )
    at = axis_number(words_of("stack", "the result"), axis, len(first) + 1)
    return concat([expand_dims(x, at) for x in xs], axis=at)


copy = Op(
    name="_copy",
    args=("x",),
    formula="x, in memory of its own",
    kind=OpKind.MOVEMENT,
    shapes=lambda words, specs, attributes: specs[0].shape,
    dtypes=lambda words, dtypes, attributes: dtypes[0],
    numpy=np.copy,
    vjp=lambda g, y, x: g,
    reference=np.copy,
    samples=lambda draw: [Sample((draw(3, 4),)), Sample((draw(),))],
    boxes=lambda result, x: [(result, (0, x))],
    stacked=last_axes,
)
