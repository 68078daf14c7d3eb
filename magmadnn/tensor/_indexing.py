"""Indices of Tensors: what makes a view and what a copy, and what mistakes say."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, IndexOutOfRangeError, ShapeError
from magmadnn.graph.signature import shape_text


def settled_index(index: Any) -> tuple[bool, Any]:
    """Whether an index makes a view, and the index for NumPy.

    Integers, slices, None and `...` make views, also where no axis is left: NumPy would give a number
    then, but with `...` at the end it gives a view without axes.
    """
    items = [_settled(item) for item in (index if isinstance(index, tuple) else (index,))]
    if not all(item is None or isinstance(item, (int, slice, type(...))) for item in items):
        return False, tuple(items)
    if not any(item is ... for item in items):
        items.append(...)
    return True, tuple(items)


def _settled(item: Any) -> Any:
    """An integer as an int, a Tensor as an ndarray; a bool is a mask, no integer."""
    if item is None or item is ... or isinstance(item, slice):
        return item
    if isinstance(item, (bool, np.bool)):
        return np.asarray(item)
    if getattr(item, "ndim", 0) == 0 and hasattr(item, "__index__"):
        dtype = getattr(item, "dtype", None)
        if dtype is None or dtype.kind in "iu":
            return operator.index(item)
    return item.read() if hasattr(item, "read") else item


@contextmanager
def indexing(shape: tuple[int, ...]) -> Iterator[None]:
    """Words NumPy's complaints about an index."""
    try:
        yield
    except IndexError as error:
        raise IndexOutOfRangeError(f"Tensor of shape {shape_text(shape)}: {error}") from error


@contextmanager
def assigning(shape: tuple[int, ...], dtype: np.dtype[Any], value: object) -> Iterator[None]:
    """Words NumPy's complaints about an index, or about a value that is assigned."""
    try:
        with indexing(shape):
            yield
    except (TypeError, OverflowError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        where = f"Tensor of {dtype.name}{shape_text(shape)}: cannot assign"
        if "broadcast" in str(error):
            raise ShapeError(f"{where}: {error}") from error
        raise ArgumentError(f"{where} a {type(value).__name__}: {error}") from error
