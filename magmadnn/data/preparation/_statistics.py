"""Mean and standard deviation of rows, read block by block; values that are no numbers are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.validation import first_not_finite, place, row_blocks
from magmadnn.errors import DataError, quoted
from magmadnn.memory.on_demand import OnDemand, choose_rows

Floats = NDArray[np.float64]


def check_block(
    name: str,
    block: NDArray[Any],
    numbers: Sequence[int] | NDArray[np.int64],
    nan_allowed: bool,
) -> None:
    """Refuse NaN (unless allowed) and infinity in a block of rows with these numbers.

    Raises:
        DataError: naming row and column.
    """
    where = first_not_finite(block, nan_allowed=nan_allowed)
    if where is not None:
        row, *rest = where
        raise DataError(
            f"{name}: {place((int(numbers[row]), *rest))} is {float(block[where])}, "
            "expected finite numbers: repair or leave out the row"
        )


def statistics(
    name: str,
    x: NDArray[Any],
    nan_allowed: bool,
    names: Sequence[str] = (),
    rows: NDArray[np.int64] | None = None,
) -> tuple[Floats, Floats]:
    """Mean and standard deviation for each index of the last axis, in one pass over the rows.

    Blocks are merged with Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979, eq. (2.1): no difference of large sums is taken. What is constant gets
    the standard deviation 0.

    Args:
        name: how messages call the array.
        x: the rows.
        nan_allowed: whether NaN is a missing value, which does not count.
        names: of the columns.
        rows: those that count, ascending; None: all.

    Raises:
        DataError: NaN or infinity, or a column without a known value.
    """
    last = x.shape[-1]
    count, mean, squares = np.zeros(last), np.zeros(last), np.zeros(last)
    low, high = np.full(last, np.inf), np.full(last, -np.inf)
    for numbers, block in _blocks(x, rows):
        check_block(name, block, numbers, nan_allowed)
        values = np.asarray(block, np.float64)
        known = ~np.isnan(values)
        n = _reduce(np.add, known.astype(np.float64), last)
        block_mean = _reduce(np.add, np.where(known, values, 0.0), last) / np.maximum(n, 1.0)
        deviation = np.where(known, values - block_mean, 0.0)
        total = np.maximum(count + n, 1.0)
        delta = block_mean - mean
        squares += _reduce(np.add, deviation * deviation, last) + delta * delta * count * n / total
        mean, count = mean + delta * n / total, count + n
        low = np.fmin(low, _reduce(np.fmin, values, last))
        high = np.fmax(high, _reduce(np.fmax, values, last))
    if (unknown := count == 0).any():
        column = int(np.argmax(unknown))
        label = quoted(names[column]) if names else str(column)
        raise DataError(f"{name}: column {label} has no known value in the training rows")
    # By their range: the mean of equal numbers is rounded, so their std need not be exactly 0.
    return mean, np.where(high > low, np.sqrt(squares / count), 0.0)


def _blocks(
    x: NDArray[Any], rows: NDArray[np.int64] | None
) -> Iterator[tuple[Sequence[int] | NDArray[np.int64], NDArray[Any]]]:
    """Blocks of rows, with their numbers."""
    if isinstance(x, OnDemand) and rows is not None:
        for low, block in row_blocks(choose_rows(x, rows)):
            yield rows[low : low + len(block)], block
        return
    if rows is None:
        for low, block in row_blocks(x):
            yield range(low, low + len(block)), block
        return
    step = max(1, (1 << 18) // max(1, x[:1].size))
    for low in range(0, len(rows), step):
        part = rows[low : low + step]
        yield part, x[part]


def _reduce(function: np.ufunc, values: Floats, last: int) -> Floats:
    """Reduces to the last axis; over the rows first, so that the inner loop is long."""
    rows = function.reduce(values.reshape(len(values), -1), axis=0)
    result: Floats = function.reduce(rows.reshape(-1, last), axis=0)
    return result
