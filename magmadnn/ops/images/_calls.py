"""Convolutions by functions of a library, such as cuDNN: for targets that have one.

The functions have cuDNN's names: fprop, dgrad (of inputs) and wgrad (of filters). Filters lie there as
[o, *size, c / groups]. Where both operands have the digits of half precision the library gets halves; it sums
in float32 and gives halves, as frameworks do in mixed precision. Images of few channels that are read with
strides are gathered first: see `_gathering.py`. What follows a convolution may become part of its call: see
`_epilogues.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from magmadnn.graph.computed_by import RESULT, LibraryCall
from magmadnn.graph.dim import Size
from magmadnn.graph.op import Array, Draw, Op, Sample, promote
from magmadnn.ops.arithmetic import cast
from magmadnn.ops.movement import transpose
from magmadnn.ops.slicing import unslice

from . import _taps
from ._epilogues import absorbed
from ._gathering import gathering
from ._library import (
    ALIGNMENT,
    DTYPES,
    SETTINGS,
    by_numpy,
    by_reference,
    calling,
    last,
    narrow,
    operations_of,
    outputs_of,
)
from .windows import Counts

_MOST_AXES = 3  # of places


# --- what other ops become ------------------------------------------------------------------------


def convolution(x: Any, w: Any, *, tensor_float: bool = False, **settled: Any) -> Any:
    """A convolution; None where the library does not take the operands."""
    found = gathering(x, w.shape[:-2], tensor_float=tensor_float, **settled)
    if found is not None:
        operands = found.of_image(x), found.of_filters(w)
        made = _called(convolution_whole, operands, **found.settled)
        if made is not None:
            return made
    return _called(convolution_whole, (x, w), **settled)


def inputs(g: Any, w: Any, **settled: Any) -> Any:
    """What its gradient for inputs is, likewise.

    Filters of one place leave out all places between strides. The gradient is computed at the others, and
    zeros are put between them: what adds it to another reads it by index.
    """
    strides, places = settled["strides"], settled["places"]
    counts = tuple(g.shape[1:-1])
    is_apart = (
        max(strides) > 1 and set(w.shape[:-2]) == {1} and not any(map(any, settled["padding"]))
    )
    if not is_apart or any(
        not isinstance(m, int) or m * s != n
        for m, s, n in zip(counts, strides, places, strict=True)
    ):
        return _called(convolution_inputs_whole, (g, w), **settled)
    ones = (1,) * len(strides)
    own = {**settled, "places": counts, "strides": ones, "dilation": ones}
    return _called(
        convolution_inputs_whole, (g, w), partial(_spread, strides=strides, places=places), **own
    )


def _spread(x: Any, strides: Counts, places: Counts) -> Any:
    """An image with places `strides` apart, and zeros between them."""
    whole = ("slice", None, None, 1)
    index = (whole, *(("slice", 0, n, s) for n, s in zip(places, strides, strict=True)), whole)
    return unslice(x, index=index, shape=(x.shape[0], *places, x.shape[-1]))


def filters(x: Any, g: Any, *, tensor_float: bool = False, **settled: Any) -> Any:
    """What its gradient for filters is, likewise."""
    size = settled["size"]
    found = gathering(x, tensor_float=tensor_float, **settled)
    if found is not None:
        settings = {**found.settled, "size": found.size}
        made = _called(convolution_filters_whole, (found.of_image(x), g), **settings)
        if made is not None:
            return found.filters_of(made, size, x.shape[-1])
    return _called(convolution_filters_whole, (x, g), **settled)


def _called(
    op: Op,
    operands: tuple[Any, Any],
    then: Callable[[Any], Any] | None = None,
    **settled: Any,
) -> Any:
    """A call; `then` is what is done to what the library gives."""
    found = operands_for(*operands, settled)
    if found is None:
        return None
    one, other = found
    dtype = np.result_type(*(x.dtype for x in operands))
    if op is convolution_filters_whole:
        made = _moved(op(one, other, **settled), first=False)
    else:
        made = op(one, _moved(other, first=True), **settled)
    made = made if then is None else then(made)
    return cast(made, dtype.name) if made.dtype != dtype else made


def operands_for(one: Any, other: Any, settled: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Operands in the dtype that the library gets; None where it does not take them."""
    dtype = np.result_type(one.dtype, other.dtype)
    if dtype.name not in DTYPES or len(settled["strides"]) > _MOST_AXES:
        return None
    halves = [narrow(x) for x in (one, other)]
    if None not in halves and halves[0].dtype == halves[1].dtype:
        return halves[0], halves[1]
    one, other = (cast(x, dtype.name) if x.dtype != dtype else x for x in (one, other))
    return one, other


def _moved(w: Any, *, first: bool) -> Any:
    """Filters with their number as the first axis, or again as the last."""
    axes = tuple(range(len(w.shape)))
    return transpose(w, (axes[-1], *axes[:-1]) if first else (*axes[1:], axes[0]))


# --- the ops --------------------------------------------------------------------------------------


def _inputs_numpy(g: Array, w: Array, **settled: Any) -> Array:
    return _taps.inputs(g, last(w), **settled)


def _filters_numpy(x: Array, g: Array, **settled: Any) -> Array:
    return np.moveaxis(_taps.filters(x, g, **settled), -1, 0)


def _inputs_reference(g: Array, w: Array, places: Counts, **settled: Any) -> Array:
    return _taps.inputs_reference(g, last(w), places, **settled)


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


def _op(
    function: str,
    args: tuple[str, str],
    formula: str,
    operations: Callable[..., Size],
    strided: tuple[int, ...],
    more: str = "",
    **parts: Any,
) -> Op:
    """One of the three, by the name of the function; `more` is an attribute that it has besides.

    Images among its operands, and its result if that is one, may be the channels of one branch of a network
    within a concatenation of several: `strided`.
    """
    attributes = (more, *SETTINGS) if more else SETTINGS
    library = LibraryCall(
        function,
        settings=SETTINGS,
        dtypes=DTYPES,
        whole=True,
        strided=strided,
        alignment=ALIGNMENT,
        operations=operations,
    )
    return calling(library, attributes, args=args, formula=formula, dtypes=promote, **parts)


convolution_whole = _op(
    "fprop",
    ("x", "w"),
    "the convolution of x [n, *places, c] with w [o, *size, c / groups]",
    lambda y, x, w: operations_of(y, w),
    (0, RESULT),
    name="_convolution_whole",
    shapes=outputs_of,
    numpy=by_numpy,
    reference=by_reference,
    samples=_samples,
    absorbs={"fprop_fused": absorbed},
)

convolution_inputs_whole = _op(
    "dgrad",
    ("g", "w"),
    "the transpose of the convolution with w [o, *size, c / groups], of outputs g",
    lambda x, g, w: operations_of(g, w),
    (0, RESULT),
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
    lambda w, x, g: operations_of(g, w),
    (0, 1),
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
