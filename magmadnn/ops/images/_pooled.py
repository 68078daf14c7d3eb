"""Convolutions of few channels whose results are pooled: neither these nor their gradients lie in memory.

Max pooling of a convolution with bias becomes a part of it, and so does its gradient of the convolution's
gradients, where a target has kernels for that (`few_pooled` among its functions). Pooling windows lie side by
side and share out all of the result, which nothing else reads. The numbers of places tell too where ReLU
leaves no gradient. The bias' gradient is the sum over pooling windows: each gives its gradient to one place.

Filters lie here as everywhere, [*size, c, o]. The gradient for filters is a sum over parts, each of some rows
of windows, which what reads it adds up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from magmadnn.graph.computed_by import RESULT, LibraryCall
from magmadnn.graph.dim import Shape, product
from magmadnn.graph.node import Node, scoped
from magmadnn.graph.op import Array, Draw, Op, Sample, promote
from magmadnn.graph.program import Program
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops._arguments import first_dtype
from magmadnn.ops.activations import _where_positive
from magmadnn.ops.along_axes.reductions import sum as sum_over
from magmadnn.ops.movement import reshape, transpose

from . import _taps
from ._library import calling
from .pooling import _arrays
from .windows import Counts, Pairs, counts_of_windows, windows_along

# What the kernels take (`compiler/cuda/library/few_channels/sizes.py`), which is above this.
MOST_INPUTS, MOST_OUTPUTS = 8, 16  # channels
MOST_WEIGHTS = 4096  # elements of all filters, which lie in shared memory
MOST_TAPS = 11  # of a row of a filter, which a thread takes at once
MOST_THREADS = 1024  # of a block
NOT_POSITIVE = 255  # the number of a window whose largest value is not above 0
_MOST_POOLED = 8  # places of a pooling window, of which a thread has all
_MOST_ELEMENTS = 1 << 22  # of an image
_PARTS = 96  # of sums for filters: more take longer to add than they save
_FLOATS = ("float32", "float64")
_PLAIN: dict[str, Any] = {"strides": (1, 1), "dilation": (1, 1), "groups": 1}


# --- what replaces what ---------------------------------------------------------------------------


def joined(whole: Node, program: Program) -> Mapping[Node, Node]:
    """What replaces max pooling of a convolution, and all that reads it backward; empty where it stays.

    Args:
        whole: the convolution with its bias, and ReLU if there is one.
        program: what it is a part of.
    """
    roots, readers = set(program.roots), program.readers
    values = [n for n in readers[whole] if _function(n) == "pooled"]
    if len(values) != 1 or whole in roots or not _fits(whole, values[0]):
        return {}
    (pooled,) = values
    numbers = [n for n in readers[whole] if n is not pooled]
    alike = (
        _function(n) == "pooled_numbers" and n.attributes == pooled.attributes for n in numbers
    )
    if not all(alike) or not roots.isdisjoint(numbers) or len(numbers) > 1:
        return {}
    x, w, bias = whole.inputs
    operands = x, _as_elsewhere(w), bias
    told = {name: whole.attributes[name] for name in ("padding", "positive")}
    told["size"] = pooled.attributes["size"]
    with scoped(whole.path):
        found = {pooled: convolution_pooled(*operands, **told)}
        for index in numbers:
            found[index] = convolution_pooled_numbers(*operands, **told)
            for spread in readers[index]:
                if spread in roots or not _is_gradient(spread, index, pooled, told["positive"]):
                    return {}
                for reader in readers[spread]:
                    made = _gradient(reader, spread, told, operands)
                    if made is None:
                        return {}
                    found[reader] = made
    return found


def _function(node: Node) -> str:
    library = node.op.library if isinstance(node.op, Op) else None
    return "" if library is None else library.function


def _fits(whole: Node, pooled: Node) -> bool:
    """Whether there are kernels for a convolution and what is pooled of it."""
    x, w = (i.shape for i in whole.inputs[:2])
    size, told = pooled.attributes["size"], whole.attributes
    if len(x) != 4 or whole.dtype.name not in _FLOATS or len({i.dtype for i in whole.inputs}) > 1:
        return False
    if not all(isinstance(n, int) for n in (*x[1:], *w, *whole.shape[1:])):
        return False
    plain = all(told[name] == value for name, value in _PLAIN.items())
    alone = pooled.attributes["strides"] == size and not any(map(any, pooled.attributes["padding"]))
    alone = alone and all(n % k == 0 for n, k in zip(whole.shape[1:-1], size, strict=True))
    few = x[-1] <= MOST_INPUTS and w[0] <= MOST_OUTPUTS and math.prod(w) <= MOST_WEIGHTS
    few = few and w[2] <= MOST_TAPS and math.prod(size) <= _MOST_POOLED
    # a block has all weights of some filters, each of its threads a row of taps
    few = few and w[1] * w[3] * w[0] <= MOST_THREADS
    return (
        plain and alone and few and max(map(math.prod, (x[1:], whole.shape[1:]))) <= _MOST_ELEMENTS
    )


def _is_gradient(spread: Node, index: Node, pooled: Node, positive: bool) -> bool:
    """Whether a reader of numbers spreads gradients by them, masked by ReLU if there is one."""
    if _function(spread) != "pooled_inputs" or spread.inputs[1] is not index:
        return False
    masked = len(spread.inputs) > 2
    return masked == positive and (not masked or spread.inputs[2] is pooled)


def _gradient(
    reader: Node, spread: Node, told: Mapping[str, Any], operands: tuple[Node, Node, Node]
) -> Node | None:
    """A reader of spread gradients by those of pooling windows; None where there is no such way."""
    g, index, *values = spread.inputs
    settings = {name: told[name] for name in ("padding", "size")}
    with scoped(reader.path):
        if _function(reader) == "dgrad" and reader.inputs[0] is spread:
            places = reader.attributes["places"]
            if not _is_same_call(reader, told) or places[1] % told["size"][1]:
                return None
            w = _as_elsewhere(reader.inputs[1])
            made: Any = convolution_pooled_inputs(g, index, w, places=places, **settings)
            return made if isinstance(made, Node) else None
        if _function(reader) == "wgrad" and reader.inputs[1] is spread:
            if (
                not _is_same_call(reader, told)
                or reader.inputs[0].shape[1:] != operands[0].shape[1:]
            ):
                return None
            settings |= {"filters": reader.attributes["size"], "parts": _PARTS}
            parts: Any = convolution_pooled_filters(reader.inputs[0], g, index, **settings)
            total: Any = sum_over(reshape(parts, (_PARTS, math.prod(parts.shape[1:]))), axis=0)
            made = transpose(reshape(total, parts.shape[1:]), (3, 0, 1, 2))
            return made if isinstance(made, Node) else None
        axes = reader.attributes.get("axis")
        if reader.op is sum_over and axes == tuple(range(spread.ndim - 1)):
            masked = _where_positive(g, values[0]) if values else g
            made = sum_over(masked, **reader.attributes)
            return made if made.shape == reader.shape else None
    return None


def _is_same_call(reader: Node, told: Mapping[str, Any]) -> bool:
    """Whether a gradient is that of the convolution, by its settings."""
    plain = all(reader.attributes[name] == value for name, value in _PLAIN.items())
    return plain and reader.attributes["padding"] == told["padding"]


def _as_elsewhere(w: Node) -> Any:
    """Filters with their number as the last axis again."""
    return transpose(w, (*range(1, w.ndim), 0))


# --- the ops --------------------------------------------------------------------------------------


def _whole_numpy(x: Array, w: Array, bias: Array, padding: Pairs, positive: bool) -> Array:
    """What is pooled, of small integers in wide ones."""
    if x.dtype.itemsize < 4:
        number = np.float32 if is_floating(x.dtype) else np.int64
        x, w, bias = (a.astype(number) for a in (x, w, bias))
    made = _taps.convolution(x, w, padding=padding, **_PLAIN) + bias
    return np.maximum(made, 0) if positive else made


def _whole_reference(x: Array, w: Array, bias: Array, padding: Pairs, positive: bool) -> Array:
    settled = {"padding": padding, **_PLAIN}
    counts = counts_of_windows(x.shape[1:-1], w.shape[:-2], settled)
    made: Array = _taps.reference(x, w, counts, **settled) + bias
    return np.where(made > 0, made, 0) if positive else made


def _geometry(size: Counts) -> dict[str, Any]:
    return {"size": size, "strides": size, "padding": ((0, 0),) * len(size)}


def _values_numpy(x: Array, w: Array, bias: Array, size: Counts, **settled: Any) -> Array:
    return _arrays.max_pooling(_whole_numpy(x, w, bias, **settled), **_geometry(size))


def _values_reference(x: Array, w: Array, bias: Array, size: Counts, **settled: Any) -> Array:
    whole = _whole_reference(x, w, bias, **settled)
    return _arrays.max_pooling_reference(whole, **_geometry(size))


def _numbers_numpy(x: Array, w: Array, bias: Array, size: Counts, **settled: Any) -> Array:
    whole = _whole_numpy(x, w, bias, **settled)
    found = _arrays.max_pooling_indices(whole, **_geometry(size))
    if not settled["positive"]:
        return found
    largest = _arrays.max_pooling(whole, **_geometry(size))
    return np.where(largest > 0, found, np.uint8(NOT_POSITIVE))


def _numbers_reference(x: Array, w: Array, bias: Array, size: Counts, **settled: Any) -> Array:
    whole = _whole_reference(x, w, bias, **settled)
    found: Array = _arrays.max_pooling_indices_reference(whole, **_geometry(size))
    largest = _arrays.max_pooling_reference(whole, **_geometry(size))
    return np.where((largest > 0) | (not settled["positive"]), found, NOT_POSITIVE)


def _places_of(g: Array, size: Counts) -> Counts:
    """How many places g's windows cover."""
    return tuple(n * k for n, k in zip(g.shape[1:-1], size, strict=True))


def _spread(g: Array, index: Array, size: Counts) -> Array:
    return _arrays.max_pooling_inputs(g, index, _places_of(g, size), **_geometry(size))


def _spread_reference(g: Array, index: Array, size: Counts) -> Array:
    places = _places_of(g, size)
    found: Array = _arrays.max_pooling_inputs_reference(g, index, places, **_geometry(size))
    return found


def _inputs_numpy(
    g: Array, index: Array, w: Array, places: Counts, padding: Pairs, size: Counts
) -> Array:
    return _taps.inputs(_spread(g, index, size), w, places, padding=padding, **_PLAIN)


def _inputs_reference(
    g: Array, index: Array, w: Array, places: Counts, padding: Pairs, size: Counts
) -> Array:
    whole = _spread_reference(g, index, size)
    return _taps.inputs_reference(whole, w, places, padding=padding, **_PLAIN)


def _filters_numpy(
    x: Array, g: Array, index: Array, filters: Counts, parts: int, padding: Pairs, size: Counts
) -> Array:
    whole = _spread(g, index, size)
    each = [
        _taps.filters(x, own, filters, padding=padding, **_PLAIN) for own in _by_rows(whole, parts)
    ]
    return np.stack(each)


def _filters_reference(
    x: Array, g: Array, index: Array, filters: Counts, parts: int, padding: Pairs, size: Counts
) -> Array:
    whole = _spread_reference(g, index, size)
    return np.stack(
        [
            _taps.filters_reference(x, own, filters, padding=padding, **_PLAIN)
            for own in _by_rows(whole, parts)
        ]
    )


def _by_rows(whole: Array, parts: int) -> list[Array]:
    """Copies of gradients, each with some rows of windows, one after the other, and 0 for the others."""
    n, rows = whole.shape[:2]
    each = -(-n * rows // parts)
    owner = np.arange(n * rows) // max(each, 1)
    owner = owner.reshape(n, rows, 1, 1)
    return [np.where(owner == part, whole, np.zeros((), whole.dtype)) for part in range(parts)]


def _values_shape(words: OpWords, specs: Any, attributes: Attributes) -> Shape:
    x, w = specs[0].shape, specs[1].shape
    settled: Any = {**attributes, **_PLAIN}
    windows = counts_of_windows(x[1:-1], w[:-2], settled)
    size: Any = attributes["size"]
    pooled = windows_along(windows, ((0, 0),) * len(size), size, size)
    return (x[0], *pooled, w[-1])


def _inputs_shape(words: OpWords, specs: Any, attributes: Attributes) -> Shape:
    places: Any = attributes["places"]
    return (specs[0].shape[0], *places, specs[2].shape[-2])


def _filters_shape(words: OpWords, specs: Any, attributes: Attributes) -> Shape:
    settled: Any = attributes
    return (settled["parts"], *settled["filters"], specs[0].shape[-1], specs[1].shape[-1])


_SETTINGS = {"padding": ((1, 1), (0, 2)), "size": (2, 2)}


def _samples(draw: Draw) -> list[Sample]:
    def of(positive: bool) -> Sample:
        operands = draw(2, 4, 6, 3), draw(3, 3, 3, 4), draw(4)
        return Sample(operands, {**_SETTINGS, "positive": positive})

    return [of(True), of(False)]


def _inputs_samples(draw: Draw) -> list[Sample]:
    index = draw.integers(2, 2, 3, 4, low=0, high=4)
    settings = {"places": (4, 6), **_SETTINGS}
    return [Sample((draw(2, 2, 3, 4), index, draw(3, 3, 3, 4)), settings)]


def _filters_samples(draw: Draw) -> list[Sample]:
    index = draw.integers(2, 2, 3, 4, low=0, high=4)
    settings = {"filters": (3, 3), "parts": 3, **_SETTINGS}
    return [Sample((draw(2, 4, 6, 3), draw(2, 2, 3, 4), index), settings)]


def _op(function: str, more: tuple[str, ...], one_byte: tuple[int, ...], **parts: Any) -> Op:
    settings = (*more, "padding", "size")
    library = LibraryCall(
        function,
        settings=settings,
        dtypes=_FLOATS,
        whole=True,
        one_byte=one_byte,
        **_counted(function),
    )
    return calling(library, settings, **parts)


def _counted(function: str) -> dict[str, Any]:
    """How many operations there are."""
    if function in ("few_pooled", "few_numbers"):
        return {"operations": lambda y, x, w, b: product((2, x[0], *x[1:-1], *w))}
    if function == "few_inputs":
        return {"operations": lambda x, g, index, w: product((2, *x[:-1], *w))}
    return {"operations": lambda y, x, g, index: product((2, *x[:-1], *y[1:]))}


convolution_pooled = _op(
    "few_pooled",
    ("positive",),
    (),
    name="_convolution_pooled",
    args=("x", "w", "bias"),
    formula="the largest of each window of the convolution of x [n, *places, c] with w [*size, c, o], plus "
    "bias [o]; at least 0 if positive",
    shapes=_values_shape,
    dtypes=promote,
    numpy=_values_numpy,
    reference=_values_reference,
    samples=_samples,
)

convolution_pooled_numbers = _op(
    "few_numbers",
    ("positive",),
    (RESULT,),
    name="_convolution_pooled_numbers",
    args=("x", "w", "bias"),
    formula="the number of the place of each of these; 255 where it is not above 0, if positive",
    shapes=_values_shape,
    dtypes=lambda words, dtypes, attributes: np.dtype(np.uint8),
    numpy=_numbers_numpy,
    reference=_numbers_reference,
    samples=_samples,
)

convolution_pooled_inputs = _op(
    "few_inputs",
    ("places",),
    (1,),
    name="_convolution_pooled_inputs",
    args=("g", "index", "w"),
    formula="the transpose of the convolution with w [*size, c, o], of each g at the place of its window "
    "that index numbers",
    shapes=_inputs_shape,
    dtypes=first_dtype,
    numpy=_inputs_numpy,
    reference=_inputs_reference,
    samples=_inputs_samples,
    integers=("index",),
)

convolution_pooled_filters = _op(
    "few_filters",
    ("filters", "parts"),
    (2,),
    name="_convolution_pooled_filters",
    args=("x", "g", "index"),
    formula="for each tap, input and filter the sum over windows of x times each g at the place of its "
    "window that index numbers: parts [parts, *size, c, o], of some rows of windows each",
    shapes=_filters_shape,
    dtypes=first_dtype,
    numpy=_filters_numpy,
    reference=_filters_reference,
    samples=_filters_samples,
    integers=("index",),
)
