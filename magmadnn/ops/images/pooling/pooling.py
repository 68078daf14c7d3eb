"""Pooling of channels-last images: the largest value or the mean of each window, channel by channel.

With x `[n, *places, c]` and y `[n, *windows, c]`:

    max_pooling             y[n, p, c] = the largest x[n, p * stride + t - pad, c] over places t of a window
    max_pooling_indices     the number of the first such t, row by row
    average_pooling         the sum over t, divided by the number of places

The gradient of the largest goes to the first of them, that of the mean to all. Once the numbers are known
all is linear: `_max_pooling_chosen` reads the places that they number, `_max_pooling_inputs` is its
transpose, `_average_pooling_inputs` that of the mean, so gradients of any order are these. What lies in the
padding counts as less than anything, and is no part of a mean unless asked for.

`_arrays.py` computes them by NumPy, `_nodes.py` says what is compiled, `_calls.py`
which of them have kernels of their own on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Shape
from magmadnn.graph.op import REQUIRED, Draw, NoGradient, Op, OpKind, Sample, promote_floating
from magmadnn.graph.placing.axes import Axes
from magmadnn.graph.signature import Attributes, OpWords, shape_text
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.activations import _where_positive
from magmadnn.ops.images.windows import check_image, counts_of, pads_of, windows_along
from magmadnn.ops.movement import reshape

from . import _arrays, _calls, _nodes

# --- settings -------------------------------------------------------------------------------------


def _settled(
    words: OpWords, specs: Sequence[Spec], size: Any, strides: Any, padding: Any
) -> dict[str, Any]:
    axes = check_image(words, specs[0])
    places = specs[0].shape[1:-1]
    window = counts_of(words, "size", size, axes)
    steps = window if strides is None else counts_of(words, "strides", strides, axes)
    pads = pads_of(words, padding, places, window, steps)
    for axis, (n, k, pair) in enumerate(zip(places, window, pads, strict=True), 1):
        if max(pair) >= k:
            raise ArgumentError(
                f"{words.name}: padding must be smaller than the window, or some windows hold no place of x: "
                f"axis {axis} has windows of {k} and padding {pair}"
            )
        if n == 0:
            raise ShapeError(
                f"{words.name}: axis {axis} of x {shape_text(specs[0].shape)} is empty, so its windows "
                "hold no place of x"
            )
    return {"size": window, "strides": steps, "padding": pads}


def _average_settled(
    words: OpWords, specs: Sequence[Spec], count_padding: Any, **geometry: Any
) -> dict[str, Any]:
    settled = _settled(words, specs, **geometry)
    if not isinstance(count_padding, bool):
        raise ArgumentError(f"{words.name}: count_padding must be a bool, got {count_padding!r}")
    counted = count_padding or not any(map(any, settled["padding"]))
    return {**settled, "count_padding": counted}


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    n, *places, c = specs[0].shape
    settled: Any = attributes
    counts = windows_along(places, settled["padding"], settled["size"], settled["strides"])
    return (n, *counts, c)


def _places_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    places: Any = attributes["places"]
    return (specs[0].shape[0], *places, specs[0].shape[-1])


def _index_dtype(words: OpWords, dtypes: Any, attributes: Attributes) -> np.dtype[Any]:
    size: Any = attributes["size"]
    return _arrays.index_dtype(size)


def _stacked(call: StackedCall) -> Any:
    """The images of all models one after the other."""
    whole = [call.whole(k) for k in range(len(call.operands))]
    found = call.again([reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])) for x in whole])
    return reshape(found, (*whole[0].shape[:2], *found.shape[1:]))


# --- gradients ------------------------------------------------------------------------------------


def _max_vjp(g: Any, y: Any, x: Any, **settled: Any) -> Any:
    index = max_pooling_indices(x, **settled)
    return max_pooling_inputs(g, index, places=x.shape[1:-1], **settled)


def _inputs_vjp(u: Any, y: Any, g: Any, index: Any, places: Any, **settled: Any) -> Any:
    return max_pooling_chosen(u, index, **settled), None


def _chosen_vjp(g: Any, y: Any, x: Any, index: Any, **settled: Any) -> Any:
    return max_pooling_inputs(g, index, places=x.shape[1:-1], **settled), None


def _is_same(one: Any, y: Any) -> bool:
    """Whether both are one value, or the same reshape of one."""
    if one is y or one.op is not reshape or y.op is not reshape:
        return one is y
    return one.shape == y.shape and one.inputs[0] is y.inputs[0]


def _inputs_masked(node: Any, y: Any) -> Any:
    """The gradient where what was pooled is above 0: where the largest of the window is, which is less."""
    g, index = node.inputs
    if index.op is not max_pooling_indices or not _is_same(index.inputs[0], y):
        return None
    largest = max_pooling(y, **index.attributes)
    return node.op(_where_positive(g, largest), index, **node.attributes)


def _average_vjp(g: Any, y: Any, x: Any, **settled: Any) -> Any:
    return average_pooling_inputs(g, places=x.shape[1:-1], **settled)


# --- the ops --------------------------------------------------------------------------------------


def _reference(name: str, computed: Callable[..., Any]) -> Any:
    """The reference of an op by `computed`, with its attributes settled as a call settles them."""

    def reference(x: Any, **attributes: Any) -> Any:
        op = _OPS[name]
        settled = op.settle([Spec(x.shape, x.dtype)], {**op.attributes, **attributes})
        return computed(x, **settled)

    return reference


def _samples(draw: Draw) -> Iterable[Sample]:
    def apart(*shape: int) -> Any:
        return draw(*shape, low=-36.0, high=36.0)

    yield Sample((apart(2, 7, 3),), {"size": 2})
    yield Sample((apart(2, 6, 4, 3),), {"size": 2})
    yield Sample((apart(2, 5, 6, 2),), {"size": 3, "strides": 2, "padding": "same"})
    yield Sample(
        (apart(1, 7, 6, 2),), {"size": (3, 2), "strides": (2, 3), "padding": ((1, 2), (1, 0))}
    )
    yield Sample((apart(2, 5, 2),), {"size": 1, "strides": 2})
    yield Sample((apart(1, 3, 4, 5, 2),), {"size": (2, 3, 2), "strides": (1, 2, 2), "padding": 1})


def _average_samples(draw: Draw) -> Iterable[Sample]:
    yield from _samples(draw)
    yield Sample((draw(2, 5, 4, 2),), {"size": (3, 2), "padding": 1, "count_padding": True})
    yield Sample((draw(2, 6, 2),), {"size": 4, "strides": 2})


_2D = {"size": (3, 2), "strides": (2, 2), "padding": ((1, 1), (0, 1))}
_APART = {"size": (2,), "strides": (3,), "padding": ((1, 0),)}
_GEOMETRY = dict.fromkeys(("size", "strides", "padding"), REQUIRED)
_NOTES = (
    "Channels last. Strides are the size unless given. `padding` is "
    '"valid", "same" (as TensorFlow defines it), '
    "or places before and after each axis: a number, one for each axis, or pairs; less than the size. "
)


def _split_axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
    """Samples and channels can be shared out among ranks."""
    names = ("n", *(None,) * (specs[0].ndim - 2), "c")
    return Axes((names,) * len(specs), names)


def _otherwise(
    nodes: Any, name: str = "", call: Any = None, *, most_axes: int = 1
) -> dict[str, Any]:
    """What an op becomes on targets for which pads are found by indices, or that have a kernel for it.

    Args:
        nodes: makes it of other ops.
        name: of the kernel.
        call: of it.
        most_axes: along how many axes of windows that share few places a GPU is faster by indices too.
    """

    def of_few_axes(x: Any, *rest: Any, strides: tuple[int, ...], **told: Any) -> Any:
        if len(strides) > most_axes or min(strides) < 2:
            return None
        return nodes(x, *rest, strides=strides, indexed=True, **told)

    found = {} if call is None else {name: call}
    by_indices = functools.partial(nodes, indexed=True)
    return {**found, "indexed pads": by_indices, "indexed pads of few axes": of_few_axes}


max_pooling: Op = Op(
    name="max_pooling",
    args=("x",),
    formula="the largest value of each window: x [n, *places, c] -> [n, *windows, c]",
    kind=OpKind.OTHER,
    shapes=_shapes,
    dtypes=first_dtype,
    numpy=_arrays.max_pooling,
    vjp=_max_vjp,
    reference=_reference("max_pooling", _arrays.max_pooling_reference),
    samples=_samples,
    attributes={"size": REQUIRED, "strides": None, "padding": "valid"},
    canonical=lambda words, specs, **given: _settled(words, specs, **given),
    stacked=_stacked,
    axes=_split_axes,
    decompose=_nodes.max_pooling,
    by_library=_otherwise(_nodes.max_pooling, "pooled", _calls.largest),
    in_halves=True,
    notes=_NOTES
    + "NaN in a window makes its result NaN. The gradient goes to the first of the largest "
    "values, row by row, or to the first NaN.",
)

max_pooling_indices: Op = Op(
    name="max_pooling_indices",
    args=("x",),
    formula="number of the first largest value in each window: x [n, *places, c] -> [n, *windows, c]",
    kind=OpKind.OTHER,
    shapes=_shapes,
    dtypes=_index_dtype,
    numpy=_arrays.max_pooling_indices,
    vjp=NoGradient(why="it counts places"),
    reference=_reference("max_pooling_indices", _arrays.max_pooling_indices_reference),
    samples=_samples,
    attributes={"size": REQUIRED, "strides": None, "padding": "valid"},
    canonical=lambda words, specs, **given: _settled(words, specs, **given),
    stacked=_stacked,
    axes=_split_axes,
    decompose=_nodes.max_pooling_indices,
    by_library=_otherwise(_nodes.max_pooling_indices, "pooled_numbers", _calls.indices),
    in_halves=True,
    notes=_NOTES
    + "Places of a window are numbered from 0, row by row, those in the padding too. uint8 for "
    "windows of up to 255 places, else int32.",
)

max_pooling_inputs: Op = Op(
    name="_max_pooling_inputs",
    args=("g", "index"),
    formula="each g at the place of its window that index numbers, summed over windows",
    kind=OpKind.OTHER,
    shapes=_places_shapes,
    dtypes=first_dtype,
    numpy=_arrays.max_pooling_inputs,
    vjp=_inputs_vjp,
    reference=_arrays.max_pooling_inputs_reference,
    samples=lambda draw: [
        Sample((draw(2, 3, 2, 3), draw.integers(2, 3, 2, 3, low=2, high=4)), {"places": (5, 4), **_2D}),
        Sample((draw(2, 2, 3), draw.integers(2, 2, 3, low=1, high=2)), {"places": (5,), **_APART}),
        Sample((draw(2, 3, 2, 3), draw.integers(2, 3, 2, 3, low=0, high=4)), {
            "places": (6, 5), "size": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0)),
        }),
        Sample((draw(2, 5, 3), draw.integers(2, 5, 3, low=1, high=2)), {
            "places": (5,), "size": (3,), "strides": (1,), "padding": ((1, 1),),
        }),
    ],
    attributes={"places": REQUIRED, **_GEOMETRY},
    integers=("index",),
    stacked=_stacked,
    axes=_split_axes,
    decompose=_nodes.max_pooling_inputs,
    by_library=_otherwise(
        _nodes.max_pooling_inputs, "pooled_inputs", _calls.inputs
    ),
    masked=_inputs_masked,
    in_halves=True,
)  # fmt: skip

max_pooling_chosen: Op = Op(
    name="_max_pooling_chosen",
    args=("x", "index"),
    formula="x at the place of each window that index numbers; 0 in the padding",
    kind=OpKind.OTHER,
    shapes=_shapes,
    dtypes=first_dtype,
    numpy=_arrays.max_pooling_chosen,
    vjp=_chosen_vjp,
    reference=_arrays.max_pooling_chosen_reference,
    samples=lambda draw: [
        Sample((draw(2, 5, 4, 3), draw.integers(2, 3, 2, 3, low=0, high=6)), _2D),
        Sample((draw(2, 5, 3), draw.integers(2, 2, 3, low=0, high=2)), _APART),
    ],
    attributes=_GEOMETRY,
    integers=("index",),
    stacked=_stacked,
    axes=_split_axes,
    decompose=_nodes.max_pooling_chosen,
    by_library=_otherwise(_nodes.max_pooling_chosen),
)

average_pooling: Op = Op(
    name="average_pooling",
    args=("x",),
    formula="the mean of each window: x [n, *places, c] -> [n, *windows, c]",
    kind=OpKind.OTHER,
    shapes=_shapes,
    dtypes=promote_floating,
    numpy=_arrays.average_pooling,
    vjp=_average_vjp,
    reference=_reference("average_pooling", _arrays.average_pooling_reference),
    samples=_average_samples,
    attributes={"size": REQUIRED, "strides": None, "padding": "valid", "count_padding": False},
    canonical=lambda words, specs, **given: _average_settled(words, specs, **given),
    stacked=_stacked,
    axes=_split_axes,
    decompose=_nodes.average_pooling,
    by_library=_otherwise(_nodes.average_pooling, most_axes=2),
    notes=_NOTES
    + "`count_padding` counts the padding as zeros that are part of the mean (as PyTorch does "
    "unless told otherwise); without it only places of x count, as in TensorFlow.",
)

average_pooling_inputs: Op = Op(
    name="_average_pooling_inputs",
    args=("g",),
    formula="the transpose of average_pooling: what the means add to each place of x, for their gradient g",
    kind=OpKind.OTHER,
    shapes=_places_shapes,
    dtypes=promote_floating,
    numpy=_arrays.average_pooling_inputs,
    vjp=lambda u, y, g, places, **settled: average_pooling(u, **settled),
    reference=_arrays.average_pooling_inputs_reference,
    samples=lambda draw: [
        Sample((draw(2, 3, 2, 3),), {"places": (5, 4), **_2D, "count_padding": False}),
        Sample((draw(2, 2, 3),), {"places": (5,), **_APART, "count_padding": True}),
        Sample((draw(2, 3, 2, 3),), {
            "places": (7, 4), "size": (2, 2), "strides": (2, 2), "padding": ((0, 0), (0, 0)),
            "count_padding": True,
        }),
        Sample((draw(2, 2, 3),), {
            "places": (6,), "size": (4,), "strides": (2,), "padding": ((0, 0),), "count_padding": True,
        }),
    ],
    attributes={"places": REQUIRED, **_GEOMETRY, "count_padding": REQUIRED},
    stacked=_stacked,
    axes=_split_axes,
    decompose=_nodes.average_pooling_inputs,
    by_library=_otherwise(_nodes.average_pooling_inputs),
)  # fmt: skip

_OPS = {op.name: op for op in (max_pooling, max_pooling_indices, average_pooling)}
