"""Rows that are given: checked, and read block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError, DataError, DTypeError, ShapeError
from magmadnn.graph.signature import is_integer, shape_text
from magmadnn.memory.dtypes import refuse_masked
from magmadnn.tensor import Tensor

Array = NDArray[Any]
Floats = NDArray[np.float64]
_BLOCK_BYTES = 16 << 20  # of a block
_SQUARED = {"f": 1e15, "d": 1e145}  # from which on sums of squares of many rows may overflow
# Below which squares have no digits left: of float32 those of differences too, which are eps times as large.
_VANISHING = {"f": 1e-10, "d": 1e-145}
_LOOKED_AT = (
    64  # first rows, which mostly say that a column does not vanish: a maximum down columns is slow
)


def rows_of(name: str, x: Any, columns: int | None = None) -> Array:
    """Rows as an array; a memory map stays one.

    Raises:
        ShapeError: if it has not two axes, or not so many columns as in training.
        DTypeError: if it holds no real numbers.
        DataError: if there are no rows or columns, or elements are masked.
    """
    try:
        array = x.numpy() if isinstance(x, Tensor) else np.asanyarray(x)
    except ValueError:
        raise ShapeError(f"{name}: rows of X differ in length") from None
    refuse_masked(f"{name}: X", array)
    if array.ndim != 2:
        raise ShapeError(
            f"{name}: X has the shape {shape_text(array.shape)}, expected [rows, columns]"
        )
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{name}: X is {array.dtype.name}, expected real numbers")
    if not array.size:
        raise DataError(
            f"{name}: X has the shape {shape_text(array.shape)}, expected rows and columns"
        )
    if columns is not None and array.shape[1] != columns:
        raise ShapeError(
            f"{name}: X has {array.shape[1]} columns, expected {columns} as in training"
        )
    return array


def blocks(name: str, x: Array) -> Iterator[tuple[slice, Floats]]:
    """Blocks of rows in float64, and where they stand.

    Raises:
        DataError: if a number is NaN, infinite or so large that its square overflows, naming row and column.
    """
    return _blocks(name, x, np.dtype(np.float64))


def narrow_blocks(name: str, x: Array) -> Iterator[Array]:
    """The same in float32 for rows of float32 whose products stay in its range, in float64 for others."""
    wanted = np.dtype(np.float32 if x.dtype == np.float32 else np.float64)
    for _, block in _blocks(name, x, wanted):
        yield block if wanted == np.float64 or _has_squares(block) else block.astype(np.float64)


def _has_squares(block: Array) -> bool:
    """Whether squares of numbers of each column of float32, and of their differences, are in its range."""
    if max(block.max(), -block.min()) > _SQUARED["f"]:
        return False
    few = np.abs(block[:_LOOKED_AT]).max(0) < _VANISHING["f"]
    if not few.any():
        return True
    sizes = np.abs(block[:, few]).max(0)
    return not ((sizes > 0) & (sizes < _VANISHING["f"])).any()


def all_rows(name: str, x: Any, columns: int | None = None) -> Floats:
    """Rows in float64, all of them, looked at as `rows_of` and `blocks` do."""
    found = [block for _, block in blocks(name, rows_of(name, x, columns))]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _blocks(name: str, x: Array, dtype: np.dtype[Any]) -> Iterator[tuple[slice, Array]]:
    rows = max(_BLOCK_BYTES // (dtype.itemsize * x.shape[1]), 1)
    for low in range(0, len(x), rows):
        block = np.asarray(x[low : low + rows], dtype)
        largest = _SQUARED["d"] if dtype == np.float64 else np.inf
        if not (block.max() < largest and block.min() > -largest):  # also false for NaN
            _refuse(name, block, low, largest)
        yield slice(low, low + len(block)), block


def _refuse(name: str, block: Array, low: int, largest: float) -> None:
    row, column = np.argwhere(~(np.abs(block) < largest))[0]
    value = block[row, column]
    way_out = "its square overflows: scale such columns" if np.isfinite(value) else ""
    raise DataError(
        f"{name}: X holds {value} in row {low + row}, column {column}; "
        f"{way_out or 'fill or drop such rows'}"
    )


def refuse_vanishing(name: str, size: float, of: str = "X") -> None:
    """Look whether squares of numbers keep their digits, by the largest of them.

    Raises:
        DataError: if they do not: all would count as equal.
    """
    if 0 < size < _VANISHING["d"]:
        raise DataError(
            f"{name}: {of} differs by {float(size):.3g} at most, whose square vanishes: scale it"
        )


class Moments:
    """Number, mean and scatter of rows, added up block by block in float64.

    Products within a block of float32 are made in float32, of rows less about their mean: their roundings
    are those of the rows themselves.

    As in Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983, equation 2.1.
    """

    def __init__(self, columns: int) -> None:
        self.count = 0
        self.mean: Floats = np.zeros(columns)
        self.scatter: Floats = np.zeros((columns, columns))

    def add(self, block: Array) -> None:
        """Add the rows of a block [rows, columns] to the sums."""
        count = self.count + len(block)
        each = np.full(len(block), 1 / len(block), block.dtype)
        about = each @ block
        inner = block - about
        off = np.asarray(each @ inner, np.float64)  # the mean is about + off
        mean = about + off
        apart = mean - self.mean
        self.scatter += inner.T @ inner
        self.scatter -= np.outer(off, off * len(block))
        self.scatter += np.outer(apart, apart * (self.count * len(block) / count))
        self.mean = self.mean + apart * (len(block) / count)
        self.count = count


def counted(name: str, argument: str, value: Any, most: int | None = None) -> int:
    """An argument that is an integer of at least 1.

    Raises:
        ArgumentError: otherwise, or if it is above `most`.
    """
    if not is_integer(value) or value < 1 or (most is not None and value > most):
        limit = "at least 1" if most is None else f"from 1 to {most}"
        raise ArgumentError(f"{name}: {argument} must be an integer {limit}, got {value!r}")
    return int(value)


def counted_from_0(name: str, argument: str, value: Any) -> int:
    """An argument that is an integer of at least 0.

    Raises:
        ArgumentError: otherwise.
    """
    if not is_integer(value) or value < 0:
        raise ArgumentError(f"{name}: {argument} must be an integer of at least 0, got {value!r}")
    return int(value)


def needs_fit(name: str, fitted: Any) -> Any:
    """What `fit` found.

    Raises:
        ArgumentError: if it was not called.
    """
    if fitted is None:
        raise ArgumentError(f"{name}: is not fitted yet; call fit first")
    return fitted


def flipped(rows: Floats) -> Floats:
    """1 or -1 for each row, so that its largest element becomes positive."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)[:, 0]
    return np.where(largest < 0, -1.0, 1.0)
