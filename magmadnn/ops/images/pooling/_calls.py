"""Pooling of pictures by kernels of a target, which read each value once or twice and store no pad.

The kernels are called `pooled`, `pooled_numbers` and `pooled_inputs`. They take two axes of places, of known
sizes. In half precision sums of gradients are made in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from magmadnn.graph.computed_by import RESULT, LibraryCall
from magmadnn.graph.dim import Shape, product
from magmadnn.graph.op import REQUIRED, Array, Draw, NoGradient, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.activations import _where_positive
from magmadnn.ops.arithmetic import cast
from magmadnn.ops.images._library import DTYPES, WHY, narrow
from magmadnn.ops.images.windows import windows_along

from . import _arrays

_AXES = 4  # images, two of places, channels
_MOST_PLACES = 255  # of a window, for numbers of one byte
_MOST_ELEMENTS = 65535 * 256  # of one image: a launch has at most so many blocks of such threads
_NUMBERS = np.dtype(np.uint8)  # of places of a window
_2D = {"size": (3, 2), "strides": (2, 1), "padding": ((1, 1), (0, 1))}


# --- what other ops become ------------------------------------------------------------------------


def largest(x: Any, **geometry: Any) -> Any:
    """The largest of each window; None where the kernel does not take it."""
    if not _takes(x, x.shape[1:-1], geometry):
        return None
    halves = narrow(x)
    made = largest_whole(x if halves is None else halves, **geometry)
    return made if made.dtype == x.dtype else cast(made, x.dtype.name)


def indices(x: Any, **geometry: Any) -> Any:
    """The number of the first of the largest, likewise."""
    if not _takes(x, x.shape[1:-1], geometry):
        return None
    halves = narrow(x)
    return indices_whole(x if halves is None else halves, **geometry)


def inputs(g: Any, index: Any, places: Any, **geometry: Any) -> Any:
    """Each g at the place that its window chose, likewise."""
    if not _takes(g, places, geometry) or index.dtype != _NUMBERS:
        return None
    op, given = inputs_whole, [g]
    if g.op is _where_positive and len({i.dtype for i in g.inputs}) == 1:
        op, given = positive_inputs_whole, list(g.inputs)
    halves = [narrow(one) for one in given]
    if all(h is not None and h.dtype == halves[0].dtype for h in halves):
        given = halves
    made = op(given[0], index, *given[1:], places=places, **geometry)
    return made if made.dtype == g.dtype else cast(made, g.dtype.name)


def _takes(x: Any, places: Any, geometry: Any) -> bool:
    """Whether there are kernels for images of such places."""
    sizes = (*places, x.shape[-1])
    known = all(isinstance(n, int) for n in sizes)
    fits = len(x.shape) == _AXES and known and math.prod(geometry["size"]) <= _MOST_PLACES
    return fits and math.prod(sizes) <= _MOST_ELEMENTS and x.dtype.name in DTYPES


# --- the ops --------------------------------------------------------------------------------------


def _shapes(words: OpWords, specs: Any, attributes: Attributes) -> Shape:
    n, *places, c = specs[0].shape
    settled: Any = attributes
    counts = windows_along(places, settled["padding"], settled["size"], settled["strides"])
    return (n, *counts, c)


def _places_shapes(words: OpWords, specs: Any, attributes: Attributes) -> Shape:
    places: Any = attributes["places"]
    return (specs[0].shape[0], *places, specs[0].shape[-1])


def _samples(draw: Draw) -> list[Sample]:
    return [Sample((draw(2, 5, 4, 3, low=-36.0, high=36.0),), _2D)]


def _inputs_samples(draw: Draw) -> list[Sample]:
    index = draw.integers(2, 3, 4, 3, low=2, high=4)
    return [Sample((draw(2, 3, 4, 3), index), {"places": (5, 4), **_2D})]


def _positive_samples(draw: Draw) -> list[Sample]:
    (one,) = _inputs_samples(draw)
    return [Sample((*one.operands, draw(2, 3, 4, 3)), one.attributes)]


def _inputs_numpy(g: Array, index: Array, places: Any, **geometry: Any) -> Array:
    made = _arrays.max_pooling_inputs(g, index, places=places, **geometry)
    return made.astype(g.dtype)


def _positive_numpy(g: Array, index: Array, y: Array, places: Any, **geometry: Any) -> Array:
    kept = np.where(y > 0, g, np.zeros((), g.dtype))
    return _inputs_numpy(kept, index, places=places, **geometry)


def _positive_reference(g: Array, index: Array, y: Array, places: Any, **geometry: Any) -> Array:
    found: Array = _arrays.max_pooling_inputs_reference(g * (y > 0), index, places, **geometry)
    return found


def _call(function: str, *settings: str, one_byte: tuple[int, ...] = ()) -> LibraryCall:
    return LibraryCall(
        function,
        settings=("size", "strides", "padding", *settings),
        dtypes=DTYPES,
        whole=True,
        one_byte=one_byte,
        operations=lambda y, *operands: product(y),
    )


_GEOMETRY = dict.fromkeys(("size", "strides", "padding"), REQUIRED)

largest_whole = Op(
    name="_max_pooling_whole",
    args=("x",),
    formula="max_pooling of pictures",
    kind=OpKind.LIBRARY,
    shapes=_shapes,
    dtypes=first_dtype,
    numpy=_arrays.max_pooling,
    vjp=NoGradient(why=WHY),
    reference=_arrays.max_pooling_reference,
    samples=_samples,
    attributes=_GEOMETRY,
    library=_call("pooled"),
)

indices_whole = Op(
    name="_max_pooling_indices_whole",
    args=("x",),
    formula="max_pooling_indices of pictures",
    kind=OpKind.LIBRARY,
    shapes=_shapes,
    dtypes=lambda words, dtypes, attributes: _NUMBERS,
    numpy=_arrays.max_pooling_indices,
    vjp=NoGradient(why="it counts places"),
    reference=_arrays.max_pooling_indices_reference,
    samples=_samples,
    attributes=_GEOMETRY,
    library=_call("pooled_numbers", one_byte=(RESULT,)),
)

inputs_whole = Op(
    name="_max_pooling_inputs_whole",
    args=("g", "index"),
    formula="each g at the place of its window that index numbers, summed over windows, of pictures",
    kind=OpKind.LIBRARY,
    shapes=_places_shapes,
    dtypes=first_dtype,
    numpy=_inputs_numpy,
    vjp=NoGradient(why=WHY),
    reference=_arrays.max_pooling_inputs_reference,
    samples=_inputs_samples,
    attributes={"places": REQUIRED, **_GEOMETRY},
    integers=("index",),
    library=_call("pooled_inputs", one_byte=(1,)),
)

positive_inputs_whole = Op(
    name="_max_pooling_positive_inputs_whole",
    args=("g", "index", "y"),
    formula="the same of those g where y, the largest of the window, is above 0",
    kind=OpKind.LIBRARY,
    shapes=_places_shapes,
    dtypes=first_dtype,
    numpy=_positive_numpy,
    vjp=NoGradient(why=WHY),
    reference=_positive_reference,
    samples=_positive_samples,
    attributes={"places": REQUIRED, **_GEOMETRY},
    integers=("index",),
    library=_call("pooled_inputs", one_byte=(1,)),
)
