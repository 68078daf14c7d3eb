"""What ops that are calls of a library of convolutions share: filters are [o, *size, c / groups]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.graph.computed_by import LibraryCall
from magmadnn.graph.dim import Shape, Size, product
from magmadnn.graph.node import Node
from magmadnn.graph.op import REQUIRED, Array, NoGradient, Op, OpKind
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.ops.arithmetic import cast

from . import _taps
from .windows import counts_of_windows

DTYPES = ("float32", "float64", "float16", "bfloat16")
ALIGNMENT = 16  # bytes, of the channels of a branch within a concatenation
HALVES = ("float16", "bfloat16")
SETTINGS = ("strides", "padding", "dilation", "groups")
WHY = "calls of libraries are made after gradients are"


def calling(library: LibraryCall, attributes: Sequence[str], **parts: Any) -> Op:
    """An op that is a call of a library, which adds up products, with the names of its attributes."""
    return Op(
        kind=OpKind.LIBRARY,
        vjp=NoGradient(why=WHY),
        attributes=dict.fromkeys(attributes, REQUIRED),
        contracts="add",
        library=library,
        **parts,
    )


def narrow(x: Node) -> Any:
    """Halves that a value was made of without a change; None where it was not."""
    if x.dtype.name in HALVES:
        return x
    if not isinstance(x.op, Op) or not x.inputs:
        return None
    if x.op.kind is OpKind.MOVEMENT:
        parts = [narrow(i) for i in x.inputs]
        if any(part is None or part.dtype != parts[0].dtype for part in parts):
            return None
        return x.op(parts if len(parts) > 1 else parts[0], **x.attributes)
    if len(x.inputs) != 1:
        return None
    is_cast = x.op is cast and x.dtype == np.float32
    return x.inputs[0] if is_cast and x.inputs[0].dtype.name in HALVES else None


def outputs_of(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    """The shape of a convolution of x [n, *places, c] with w [o, *size, c / groups]."""
    x, w = (spec.shape for spec in specs[:2])
    return (x[0], *counts_of_windows(x[1:-1], w[1:-1], attributes), w[0])


def last(w: Array) -> Array:
    """Filters with their number as the last axis."""
    return np.moveaxis(w, 0, -1)


def by_numpy(x: Array, w: Array, **settled: Any) -> Array:
    """The convolution."""
    return _taps.convolution(x, last(w), **settled)


def by_reference(x: Array, w: Array, **settled: Any) -> Array:
    """The same, written another way."""
    counts = counts_of_windows(x.shape[1:-1], w.shape[1:-1], settled)
    return _taps.reference(x, last(w), counts, **settled)


def operations_of(outputs: Shape, filters: Shape) -> Size:
    """A product and a sum for each output and element of a filter."""
    return product((2, *outputs, *filters[1:]))
