"""Large reductions over several axes to few numbers, made of two: over the inner axes first.

So what is reduced is computed as it is read, also where an operand is broadcast along the outer axes: as one
long row it would be stored. Sizes alone decide that; they must be known. The compiler cuts what is left, and
what has a size that is not known, into blocks for threads (`compiler/lower/row_blocks.py`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from magmadnn.graph.op import MANY_ELEMENTS, REGISTRY
from magmadnn.ops.movement import reshape

LEAST = MANY_ELEMENTS  # below, one thread takes a quarter of a millisecond at most
_FEWEST = 8  # rows
_LONG = 64  # elements that are worth a walk of their own
_FEW = 32  # results: more of them are work for many threads
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
    return None


def _without(x: Any, axis: tuple[int, ...]) -> Any:
    """A result without reduced axes, which have one element."""
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in axis))
