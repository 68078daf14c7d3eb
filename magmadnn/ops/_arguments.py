"""What the functions of ops ask of their arguments, and small parts of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.errors import DTypeError, ShapeError
from magmadnn.graph.dim import Dim, Shape
from magmadnn.graph.signature import Attributes, OpWords, is_integer
from magmadnn.memory.dtypes import as_dtype


def shape_of(x: Any) -> tuple[Any, ...]:
    """The shape of a handle, an array, a list or a number, without computing or copying it."""
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def ndim_of(x: Any) -> int:
    """The number of axes."""
    return len(shape_of(x))


def dtype_of(x: Any) -> np.dtype[Any]:
    """The element type."""
    return as_dtype(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype)


def first_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> np.dtype[Any]:
    """The dtype rule of ops that move elements of their first operand."""
    dtype: np.dtype[Any] = dtypes[0]
    return dtype


def words_of(name: str, *args: str) -> OpWords:
    """What errors say of a function that is no op of its own."""
    return OpWords(name, args or ("x",), "")


def dtype_attribute(words: OpWords, dtype: object) -> np.dtype[Any]:
    """An attribute that names a dtype.

    Raises:
        DTypeError: if there is no such dtype.
    """
    try:
        return as_dtype(dtype)
    except DTypeError as error:
        raise DTypeError(f"{words.name}: {error}") from error


def as_shape(words: OpWords, shape: Any, *, free: bool = False) -> Shape:
    """A shape from a tuple, a list or one size.

    Args:
        words: of the op that is called.
        shape: integers and symbolic dimensions.
        free: whether a size may be -1, to be found out.

    Raises:
        ShapeError: for anything but sizes.
    """
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    for size in sizes:
        if isinstance(size, Dim):
            continue
        if not is_integer(size):
            raise ShapeError(f"{words.name}: a shape holds integers, got {size!r} in {shape!r}")
        if size < (-1 if free else 0):
            raise ShapeError(f"{words.name}: sizes must not be negative, got {shape!r}")
    return tuple(s if isinstance(s, Dim) else int(s) for s in sizes)
