"""Batches that follow each other, as slices take them: out of arrays in memory, or out of a ring."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._structure import is_mapped, read_rows, take_rows
from magmadnn.data.ring import Ready, Ring
from magmadnn.errors import DataError
from magmadnn.graph.op import Array
from magmadnn.memory.room import Room
from magmadnn.optim import StepSlices

_LONGEST = StepSlices.longest
_RING_BYTES = 32 << 20  # of a ring, unless two batches need more


@dataclass(frozen=True)
class Batch:
    """One batch: an array for each input and output, and the samples' weights."""

    inputs: list[Array]
    targets: list[Array]
    weights: Array | None = None

    @property
    def rows(self) -> int:
        """Number of samples."""
        return len(self.inputs[0])


@dataclass(frozen=True)
class Piece:
    """Batches that follow each other.

    Attributes:
        count: how many.
        rows: rows of the source's data for slices, if the batches are whole.
        each: gives them one by one.
    """

    count: int
    rows: Array | None
    each: Callable[[], Iterator[Batch]]


Take = Callable[[int], Piece | None]  # up to so many batches; None at the end of the epoch


class InMemory:
    """Takes batches of arrays in memory."""

    def __init__(
        self, arrays: Parts, order: NDArray[np.int64], batch_size: int, start: int
    ) -> None:
        self._arrays, self._order, self._size, self._next = arrays, order, batch_size, start

    def __call__(self, most: int) -> Piece | None:
        """Up to `most` batches; None at the end."""
        size, left = self._size, len(self._order) - self._next * self._size
        if left <= 0:
            return None
        count = max(1, min(most, left // size))
        rows = self._order[self._next * size : (self._next + count) * size]
        self._next += count
        whole = rows if len(rows) == count * size else None
        return Piece(count, whole, partial(each_of, self._arrays, rows, size))


class Reader:
    """Reads rows of mapped files into a ring, half of it at a time and in the order of the file."""

    def __init__(
        self,
        arrays: Parts,
        order: NDArray[np.int64],
        ring: Ring,
        epoch: int,
        start: int,
        threads: int = 1,
    ) -> None:
        self._arrays, self._order, self._ring = arrays, order, ring
        self._epoch, self._start, self._threads = epoch, start, threads
        self._mapped = any(map(is_mapped, flat(arrays)))

    def fill(self) -> None:
        """All batches from the first on; a last, partial one is passed on.

        Raises:
            DataError: if a file cannot be read, naming rows and batches.
        """
        with ThreadPoolExecutor(self._threads, "magmadnn-rows") as pool:
            self._fill(pool)

    def _fill(self, pool: ThreadPoolExecutor) -> None:
        ring, size, half = self._ring, self._ring.rows, self._ring.places // 2
        whole = len(self._order) // size
        for first in range(self._start, whole, half):
            count = min(half, whole - first)
            # The rows of a batch lie anywhere in its half, so a half is written when all of it is free.
            place = ring.wait_for_room(half)
            if place is None:
                return
            self._read(pool, first, count, place * size)
            ring.add(count)
        rest = self._order[max(whole, self._start) * size :]
        if len(rest):
            ring.pass_on(batch_of(rows_of(self._arrays, rest)))

    def _read(self, pool: ThreadPoolExecutor, first: int, count: int, at: int) -> None:
        """Batches into places from row `at` of the ring on; each thread reads a part of the rows."""
        ring, size = self._ring, self._ring.rows
        rows = self._order[first * size : (first + count) * size]
        if self._mapped:  # in the order of the file
            ascending = np.argsort(rows, kind="stable")
            ring.order[at + ascending] = np.arange(at, at + len(rows))
            rows = rows[ascending]
        else:
            ring.order[at : at + len(rows)] = np.arange(at, at + len(rows))
        step = -(-len(rows) // self._threads)
        parts = [
            pool.submit(self._read_part, rows[k : k + step], at + k)
            for k in range(0, len(rows), step)
        ]
        try:
            for part in parts:
                part.result()
        except Exception as error:
            raise DataError(
                f"fit: rows {rows.min()} to {rows.max()} cannot be read, which batches {first + 1} to "
                f"{first + count} of epoch {self._epoch + 1} need: {error}"
            ) from error

    def _read_part(self, rows: NDArray[np.int64], at: int) -> None:
        for array, goal in zip(flat(self._arrays), self._ring.arrays, strict=True):
            read_rows(array, rows, goal[at : at + len(rows)])
        self._ring.tell(at, at + len(rows))


def fill(ring: Ring, found: Generator[Batch]) -> None:
    """Put batches of an iterable into a ring; pass on those that are not like its places."""
    with closing(found):
        for batch in found:
            arrays = flat(parts_of(batch))
            alike = len(arrays) == len(ring.arrays) and all(
                a.shape == (ring.rows, *place.shape[1:]) and a.dtype == place.dtype
                for a, place in zip(arrays, ring.arrays, strict=False)
            )
            if not alike:
                if not ring.pass_on(batch):
                    return
                continue
            place = ring.wait_for_room(1)
            if place is None:
                return
            for array, goal in zip(arrays, ring.arrays, strict=True):
                goal[place * ring.rows : (place + 1) * ring.rows] = array
            ring.tell(place * ring.rows, (place + 1) * ring.rows)
            ring.add(1)


def taken(ring: Ring, like: Parts, most: int) -> Piece | None:
    """What is ready in a ring."""
    found = ring.take(most)
    if isinstance(found, Ready):
        first, last = found.first * ring.rows, (found.first + found.count) * ring.rows
        rows = ring.order[first:last]
        parts = parts_like(like, ring.arrays)
        return Piece(found.count, rows, partial(each_of, parts, rows, ring.rows))
    return None if found is None else Piece(1, None, lambda: iter([found]))


def half_of_ring(arrays: Sequence[Array], batch_size: int, batches: int, room: Room | None) -> int:
    """Batches of half a ring for these arrays, on the host and in the room on a device."""
    nbytes = _RING_BYTES if room is None else room.ring_bytes
    batch = sum(batch_size * a[:1].nbytes for a in arrays)
    return max(1, min(nbytes // max(1, 2 * batch), -(-batches // 2), _LONGEST // 2))


def told(items: Iterator[Any], epoch: int, start: int) -> Iterator[Any]:
    """The same items; an error says which batch it was."""
    for number in itertools.count(start + 1):
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception as error:
            error.add_note(f"fit: in batch {number} of epoch {epoch + 1}")
            raise
        yield item


# --- arrays of a batch ---


Parts = tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]


def batch_of(parts: Parts) -> Batch:
    """The batch that is made of these arrays."""
    inputs, targets, weights = parts
    return Batch(list(inputs), list(targets), weights[0] if weights else None)


def parts_of(batch: Batch) -> Parts:
    """The arrays of a batch."""
    weights = () if batch.weights is None else (batch.weights,)
    return tuple(batch.inputs), tuple(batch.targets), weights


def flat(parts: Parts) -> list[Array]:
    """All arrays in order."""
    return [array for part in parts for array in part]


def parts_like(parts: Parts, arrays: Sequence[Array]) -> Parts:
    """The arrays, arranged like `parts`."""
    rest = iter(arrays)
    inputs, targets, weights = (tuple(islice(rest, len(part))) for part in parts)
    return inputs, targets, weights


def rows_of(parts: Parts, rows: NDArray[np.int64]) -> Parts:
    """Copies of these rows."""
    return parts_like(parts, [take_rows(array, rows) for array in flat(parts)])


def each_of(parts: Parts, rows: NDArray[np.int64], batch_size: int) -> Iterator[Batch]:
    """Batches of these rows, one by one."""
    for k in range(0, len(rows), batch_size):
        yield batch_of(rows_of(parts, rows[k : k + batch_size]))
