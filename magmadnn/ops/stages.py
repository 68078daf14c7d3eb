"""Large reductions to few numbers, made of two: the first has work for many threads and multiprocessors.

A reduction to one number is a walk along one long row, and one along an axis in the middle a walk down each
of a few matrices: a thread, or a block of a device, does each. So a large one is made in blocks first, whose
results are combined then. Sizes alone decide that, hence bits do not depend on threads or devices. They must
be known: a batch's are not, and what is reduced of it is as it was.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from magmadnn.graph.op import MANY_ELEMENTS, REGISTRY, OpKind

from .movement import reshape
from .slicing import slice_

LEAST = MANY_ELEMENTS  # below, one thread takes a quarter of a millisecond at most
BLOCKS = 256  # of rows, or of a long row; or as many as a divisor of their number allows
_FEWEST = 8  # blocks
_LONG = 64  # elements that are worth a walk of their own
_FEW = 32  # results: more of them are work for many threads
_COMBINED = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
_DTYPES = (np.float32, np.float64)


def in_two_stages(name: str, x: Any, axis: tuple[int, ...]) -> Any:
    """The results of a reduction, without the reduced axes, by two; None where one will do.

    Args:
        name: of the op.
        x: a node, [...].
        axis: reduced axes, in order.
    """
    shape = x.shape
    if x.dtype not in _DTYPES or not all(isinstance(n, int) for n in shape):
        return None
    long = [a for a, n in enumerate(shape) if n != 1]
    reduced = [a for a in axis if a in long]
    if not reduced or math.prod(shape) < LEAST:
        return None
    first, last = reduced[0], reduced[-1]
    if reduced != [a for a in long if first <= a <= last]:
        return None  # several groups: each is reduced by itself
    results = math.prod(shape[:first])
    if results >= _FEW:
        return None  # many rows or matrices
    if last < long[-1] and first == long[0]:
        return None  # rows of one matrix, which are made in blocks as it is
    for a in reduced:  # as it lies, so that what it is made of is computed as it is read
        inner = tuple(other for other in reduced if other > a)
        rows, each = math.prod(shape[first : a + 1]), math.prod(shape[other] for other in inner)
        if rows >= _FEWEST and each >= _LONG:
            made = REGISTRY[name](x, axis=inner, keepdims=True)
            outer = tuple(other for other in axis if other not in inner)
            return _without(REGISTRY[name](made, axis=outer, keepdims=True), axis)
    if getattr(x.op, "kind", None) is OpKind.POINTWISE:
        return None
    rows, columns = math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :])
    return _in_blocks(name, x, (results, rows, columns))


def _without(x: Any, axis: tuple[int, ...]) -> Any:
    """A result without reduced axes, which have one element."""
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in axis))


def _in_blocks(name: str, x: Any, sizes: tuple[int, int, int]) -> Any:
    """A reduction along the axis in the middle of [outer, rows, columns], by blocks of rows."""
    op, (outer, rows, columns) = REGISTRY[name], sizes
    whole = reshape(x, sizes)
    blocks = next((n for n in range(BLOCKS, _FEWEST - 1, -1) if rows % n == 0), 0)
    if blocks:
        return _blocks_of(op, whole, blocks)
    if outer > 1 or columns > 1:
        return None  # a part of each matrix would be copied
    each = rows // BLOCKS * BLOCKS
    row = reshape(x, (rows,))
    parts = [slice_(row, index=(("slice", *ends, 1),)) for ends in ((0, each), (each, rows))]
    most = _blocks_of(op, reshape(parts[0], (1, each, 1)), BLOCKS)
    rest = op(parts[1], axis=(0,), keepdims=True)
    return REGISTRY[_COMBINED[name]](most, rest)


def _blocks_of(op: Any, x: Any, blocks: int) -> Any:
    """[outer, rows, columns] to [outer * columns], by so many blocks of equal length."""
    outer, rows, columns = x.shape
    last = () if columns == 1 else (columns,)
    each = reshape(x, (outer * blocks, rows // blocks, *last))
    made = reshape(op(each, axis=(1,), keepdims=False), (outer, blocks, *last))
    return reshape(op(made, axis=(1,), keepdims=False), (outer * columns,))
