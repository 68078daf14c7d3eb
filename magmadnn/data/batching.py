"""Batches of arrays, in an order that depends on seed and epoch only.

The same structure of arrays goes in and comes out. Arrays may be memory maps of files larger than
memory: only the rows of the batch at hand are read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data._structure import Array, is_mapped, rebuild, row_count, take_rows
from magmadnn.errors import ArgumentError, DataError, DTypeError
from magmadnn.ops import philox

Arrays = TypeVar("Arrays")


def order(count: int, seed: int, epoch: int = 0, device: int | None = None) -> NDArray[np.int64]:
    """The order of `count` rows in an epoch: a permutation that depends on seed and epoch only.

    With `device`, the number of a GPU, that draws and sorts it; the result is the same.
    """
    if device is None:
        return philox.shuffled(count, seed, epoch)
    from magmadnn.runtime.cuda.data import arrays

    try:
        return arrays.permutation(count, seed, philox.stream_of("shuffle", epoch), device)
    except MemoryError:  # sorting needs room there that data may have taken
        return philox.shuffled(count, seed, epoch)


def orders(count: int, seed: int, first: int, epochs: int) -> NDArray[np.int64]:
    """The orders of some epochs that follow each other, [epochs, count]; see `order`."""
    streams = [philox.stream_of("shuffle", first + number) for number in range(epochs)]
    return philox.permutations(count, seed, streams)


def batch_count(rows: int, batch_size: int, *, drop_last: bool = False) -> int:
    """How many batches of batch_size `rows` rows make: the last, partial one counts unless dropped.

    >>> batch_count(10, 4), batch_count(10, 4, drop_last=True)
    (3, 2)
    """
    return rows // batch_size if drop_last else -(-rows // batch_size)


@checked_call
def batches(
    arrays: Arrays,
    batch_size: int,
    *,
    seed: int | None = None,
    shuffle: bool | None = None,
    epoch: int = 0,
    drop_last: bool = False,
    start: int = 0,
) -> Iterator[Arrays]:
    """Batches of `batch_size` rows; the last one may be smaller.

    Args:
        arrays: an array or a memory map, or tuples, lists and dicts of them (nested too), all
            with the same number of rows. Each batch has this structure.
        batch_size: rows of a batch, at least 1.
        seed: of the random order; without one, rows come as they stand.
        shuffle: None means: if there is a seed.
        epoch: number of the pass over the data; each has an order of its own.
        drop_last: leave out a last batch of fewer rows.
        start: batches to skip, to go on in mid-epoch. Those that follow are the same.

    Returns:
        An iterator. Without shuffling, batches of arrays in memory are views: do not write to them.

    Raises:
        ArgumentError: a size or a start out of range, or shuffling without a seed.
        ShapeError, DataError: unequal numbers of rows, or none.
    """
    rows = row_count(arrays, "arrays")
    size = _whole("batch_size", batch_size, 1)
    count = batch_count(rows, size, drop_last=drop_last)
    if not 0 <= _whole("start", start, 0) <= count:
        raise ArgumentError(f"start: expected a batch number 0..{count}, got {start}")
    if shuffle and seed is None:
        raise ArgumentError("shuffle=True needs a seed, which fixes the order: give seed=0, say")
    shuffled = seed is not None if shuffle is None else shuffle
    rows_in_order = order(rows, seed or 0, epoch) if shuffled else None
    return _gather(arrays, size, rows, range(start, count), rows_in_order)


def _gather(
    arrays: Arrays, size: int, rows: int, numbers: range, rows_in_order: NDArray[np.int64] | None
) -> Iterator[Arrays]:
    for number in numbers:
        low, high = number * size, min((number + 1) * size, rows)
        if rows_in_order is None:
            yield rebuild(arrays, partial(_slice, low=low, high=high))
        else:
            yield rebuild(arrays, partial(take_rows, rows=rows_in_order[low:high]))


def _slice(array: Array, *, low: int, high: int) -> Array:
    # A mapped file is read here, in the thread that prepares batches, not where they are used.
    return np.array(array[low:high]) if is_mapped(array) else array[low:high]


def _whole(name: str, value: int, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise DTypeError(f"{name}: expected a whole number, got {value!r}") from error
    if number < least:
        raise ArgumentError(f"{name}: must be at least {least}, got {number}")
    return number


@checked_call
def split_rows(
    rows: int, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of two parts, chosen at random by the seed and each in ascending order.

    The second part has `round(rows * fraction)` rows, at least one; the first has the rest.

    Raises:
        ArgumentError: the fraction is not between 0 and 1.
        DataError: fewer than 2 rows.
    """
    if not 0.0 < fraction < 1.0:
        raise ArgumentError(f"fraction of a split: must be between 0 and 1, got {fraction}")
    if rows < 2:
        raise DataError(f"a split needs at least 2 rows, got {rows}")
    part = min(max(round(rows * fraction), 1), rows - 1)
    shuffled = philox.permutation(rows, seed, philox.stream_of("split"))
    return np.sort(shuffled[part:]), np.sort(shuffled[:part])


@checked_call
def split(arrays: Arrays, fraction: float, seed: int) -> tuple[Arrays, Arrays]:
    """Two parts of the same structure; the second holds `fraction` of the rows, at random.

    Rows keep their order within a part. Both parts are copies in memory; for a file larger than
    memory, use the row numbers of `split_rows`.

    Args:
        arrays: an array, or a tuple, list or dict of arrays with the same number of rows.
        fraction: above 0 and below 1.
        seed: of the choice.
    """
    first, second = split_rows(row_count(arrays, "arrays"), fraction, seed)
    return (
        rebuild(arrays, partial(take_rows, rows=first)),
        rebuild(arrays, partial(take_rows, rows=second)),
    )
