"""Convolutions by functions of a library, such as cuDNN: for targets that have one.

The functions have cuDNN's names: fprop, dgrad (of inputs) and wgrad (of filters). Filters lie there as
[o, *size, c / groups]. Where both operands have the digits of half precision the library gets halves; it sums
in float32 and gives halves, as frameworks do in mixed precision. Images of few channels that are read with
strides are gathered first: see `_gathering.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.graph.dim import Shape, Size, product
from magmadnn.graph.library_call import LibraryCall
from magmadnn.graph.node import Node
from magmadnn.graph.op import REQUIRED, Array, Draw, NoGradient, Op, OpKind, Sample, promote
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.ops.arithmetic import cast
from magmadnn.ops.movement import transpose

from . import _taps
from ._gathering import gathering
from .windows import Counts, counts_of_windows

_DTYPES = ("float32", "float64", "float16", "bfloat16")
_HALVES = ("float16", "bfloat16")
_SETTINGS = ("strides", "padding", "dilation", "groups")
_MOST_AXES = 3  # of places
_WHY = "calls of libraries are made after gradients are"


# --- what other ops become ------------------------------------------------------------------------


def convolution(x: Any, w: Any, **settled: Any) -> Any:
    """A convolution; None where the library does not take the operands."""
    found = gathering(x.shape, w.shape[:-2], **settled)
    if found is not None:
        made = _called(convolution_whole, (found.of_image(x), found.of_filters(w)), **found.settled)
        if made is not None:
            return made
    return _called(convolution_whole, (x, w), **settled)


def inputs(g: Any, w: Any, **settled: Any) -> Any:
    """What its gradient for inputs is, likewise."""
    return _called(convolution_inputs_whole, (g, w), **settled)


def filters(x: Any, g: Any, **settled: Any) -> Any:
    """What its gradient for filters is, likewise."""
    size = settled["size"]
    found = gathering(x.shape, **settled)
    if found is not None:
        settings = {**found.settled, "size": found.size}
        made = _called(convolution_filters_whole, (found.of_image(x), g), **settings)
        if made is not None:
            return found.filters_of(made, size)
    return _called(convolution_filters_whole, (x, g), **settled)


def _called(op: Op, operands: tuple[Any, Any], **settled: Any) -> Any:
    dtype = np.result_type(*(x.dtype for x in operands))
    if dtype.name not in _DTYPES or len(settled["strides"]) > _MOST_AXES:
        return None
    narrow = [_narrow(x) for x in operands]
    if None not in narrow and narrow[0].dtype == narrow[1].dtype:
        one, other = narrow
    else:
        one, other = (cast(x, dtype.name) if x.dtype != dtype else x for x in operands)
    if op is convolution_filters_whole:
        made = _moved(op(one, other, **settled), first=False)
    else:
        made = op(one, _moved(other, first=True), **settled)
    return cast(made, dtype.name) if made.dtype != dtype else made


def _narrow(x: Node) -> Any:
    """Halves that a value was made of without a change; None where it was not."""
    if x.dtype.name in _HALVES:
        return x
    if not isinstance(x.op, Op) or len(x.inputs) != 1:
        return None
    if x.op.kind is OpKind.MOVEMENT:
        inner = _narrow(x.inputs[0])
        return None if inner is None else x.op(inner, **x.attributes)
    is_cast = x.op is cast and x.dtype == np.float32
    return x.inputs[0] if is_cast and x.inputs[0].dtype.name in _HALVES else None


def _moved(w: Any, *, first: bool) -> Any:
    """Filters with their number as the first axis, or again as the last."""
    axes = tuple(range(len(w.shape)))
    return transpose(w, (axes[-1], *axes[:-1]) if first else (*axes[1:], axes[0]))


# --- the ops --------------------------------------------------------------------------------------


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    x, w = (spec.shape for spec in specs)
    return (x[0], *counts_of_windows(x[1:-1], w[1:-1], attributes), w[0])


def _last(w: Array) -> Array:
    return np.moveaxis(w, 0, -1)


def _numpy(x: Array, w: Array, **settled: Any) -> Array:
    return _taps.convolution(x, _last(w), **settled)


def _inputs_numpy(g: Array, w: Array, **settled: Any) -> Array:
    return _taps.inputs(g, _last(w), **settled)


def _filters_numpy(x: Array, g: Array, **settled: Any) -> Array:
    return np.moveaxis(_taps.filters(x, g, **settled), -1, 0)


def _reference(x: Array, w: Array, **settled: Any) -> Array:
    counts = counts_of_windows(x.shape[1:-1], w.shape[1:-1], settled)
    return _taps.reference(x, _last(w), counts, **settled)


def _inputs_reference(g: Array, w: Array, places: Counts, **settled: Any) -> Array:
    return _taps.inputs_reference(g, _last(w), places, **settled)


def _filters_reference(x: Array, g: Array, size: Counts, **settled: Any) -> Array:
    return np.moveaxis(_taps.filters_reference(x, g, size, **settled), -1, 0)


_1D = {"strides": (2,), "padding": ((1, 0),), "dilation": (1,), "groups": 1}
_2D = {"strides": (1, 2), "padding": ((1, 1), (0, 2)), "dilation": (2, 1), "groups": 2}
_DEPTHWISE = {"strides": (2, 1), "padding": ((0, 1), (1, 1)), "dilation": (1, 1), "groups": 3}


def _samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(2, 6, 3), draw(4, 3, 3)), _1D)
    yield Sample((draw(2, 4, 7, 4), draw(6, 2, 3, 2)), _2D)
    yield Sample((draw(2, 5, 5, 3), draw(3, 3, 3, 1)), _DEPTHWISE)


def _inputs_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(2, 3, 4), draw(4, 3, 3)), {"places": (6,), **_1D})
    yield Sample((draw(2, 4, 4, 6), draw(6, 2, 3, 2)), {"places": (4, 7), **_2D})
    yield Sample((draw(2, 2, 5, 3), draw(3, 3, 3, 1)), {"places": (5, 5), **_DEPTHWISE})


def _filters_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(2, 6, 3), draw(2, 3, 4)), {"size": (3,), **_1D})
    yield Sample((draw(2, 4, 7, 4), draw(2, 4, 4, 6)), {"size": (2, 3), **_2D})
    yield Sample((draw(2, 5, 5, 3), draw(2, 2, 5, 3)), {"size": (3, 3), **_DEPTHWISE})


def _operations(outputs: Shape, filters: Shape) -> Size:
    """A product and a sum for each output and element of a filter."""
    return product((2, *outputs, *filters[1:]))


def _op(
    function: str,
    args: tuple[str, str],
    formula: str,
    operations: Callable[..., Size],
    more: str = "",
    **parts: Any,
) -> Op:
    """One of the three, by the name of the function; `more` is an attribute that it has besides."""
    attributes = (more, *_SETTINGS) if more else _SETTINGS
    return Op(
        args=args,
        formula=formula,
        kind=OpKind.LIBRARY,
        dtypes=promote,
        vjp=NoGradient(why=_WHY),
        attributes=dict.fromkeys(attributes, REQUIRED),
        contracts="add",
        library=LibraryCall(
            function, settings=_SETTINGS, dtypes=_DTYPES, whole=True, operations=operations
        ),
        **parts,
    )


convolution_whole = _op(
    "fprop",
    ("x", "w"),
    "the convolution of x [n, *places, c] with w [o, *size, c / groups]",
    lambda y, x, w: _operations(y, w),
    name="_convolution_whole",
    shapes=_shapes,
    numpy=_numpy,
    reference=_reference,
    samples=_samples,
)

convolution_inputs_whole = _op(
    "dgrad",
    ("g", "w"),
    "the transpose of the convolution with w [o, *size, c / groups], of outputs g",
    lambda x, g, w: _operations(g, w),
    "places",
    name="_convolution_inputs_whole",
    shapes=lambda words, specs, attributes: (
        specs[0].shape[0],
        *attributes["places"],
        specs[1].shape[-1] * attributes["groups"],
    ),
    numpy=_inputs_numpy,
    reference=_inputs_reference,
    samples=_inputs_samples,
)

convolution_filters_whole = _op(
    "wgrad",
    ("x", "g"),
    "for each filter, tap and input the sum over windows of x times g: [o, *size, c / groups]",
    lambda w, x, g: _operations(g, w),
    "size",
    name="_convolution_filters_whole",
    shapes=lambda words, specs, attributes: (
        specs[1].shape[-1],
        *attributes["size"],
        specs[0].shape[-1] // attributes["groups"],
    ),
    numpy=_filters_numpy,
    reference=_filters_reference,
    samples=_filters_samples,
)
