"""Batches that follow each other, as slices take them: out of arrays in memory or out of a ring; as feeds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._structure import is_mapped, read_rows, take_rows, write_rows
from magmadnn.data.ring import Ready, Ring
from magmadnn.errors import DataError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory.on_demand import OnDemand
from magmadnn.memory.room import Room
from magmadnn.optim import StepSlices
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.cpu.row_copies import RowCopies
from magmadnn.training.objective.objective import Objective

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.data.pending import PendingSlice

PARTS = 2  # of a ring, that are read into one after the other
_LONGEST = StepSlices.longest
_RING_BYTES = 32 << 20  # of a ring, unless two batches need more
_COPY_BYTES = 16 << 20  # that are copied before anything is done with them


@dataclass(frozen=True)
class Batch:
    """One batch: an array for each input and output, and the samples' weights.

    Attributes:
        whole_rows: samples of the batch of which this is one rank's part; None where it is whole.
        whole_weight: sum of their weights.
    """

    inputs: list[Array]
    targets: list[Array]
    weights: Array | None = None
    whole_rows: int | None = None
    whole_weight: float = 0.0

    @property
    def rows(self) -> int:
        """Number of samples."""
        return len(self.inputs[0])

    @property
    def all_rows(self) -> int:
        """Number of samples, those on other ranks too."""
        return self.rows if self.whole_rows is None else self.whole_rows

    @property
    def weight(self) -> float:
        """Sum of the samples' weights, those on other ranks too."""
        if self.whole_rows is not None:
            return self.whole_weight
        return float(self.rows) if self.weights is None else mass_of(self.weights)


@dataclass(frozen=True)
class Chunk:
    """Batches that follow each other.

    Attributes:
        count: how many.
        rows: rows of the source's data for slices, if the batches are whole.
        each: gives them one by one.
    """

    count: int
    rows: Array | None
    each: Callable[[], Iterator[Batch]]


ChunkIterator = Callable[[int], Chunk | None]  # up to so many batches; None at the end of the epoch


class PendingChunk:
    """Batches that follow each other, from when they are taken until they are done.

    On a GPU they may begin before those in front have ended.

    Attributes:
        piece: the batches.
        started: when they were taken, in seconds.
    """

    def __init__(self, slices: StepSlices, piece: Chunk) -> None:
        self.piece, self.started = piece, time.perf_counter()
        self._slices = slices
        self._flight: PendingSlice | None = None

    def launch(self) -> bool:
        """Begin, where what is in front need not be done for that; whether it has begun.

        On all ranks or on none: what one alone had begun would wait on its GPU for the others.
        """
        if self.piece.rows is not None and not self._is_on_its_way:
            can = self._slices.can_launch()
            if agreement().all(can, "a chunk can begin while another is on its way"):
                self._flight = self._slices.launch(self.piece.rows, self.piece.count)
        return self._is_on_its_way

    @property
    def seconds(self) -> float:
        """What a device took at least, once they are found; 0 where the host saw begin and end."""
        seconds = self._flight.seconds if self._flight is not None and self._is_on_its_way else None
        return 0.0 if seconds is None else seconds

    @property
    def _is_on_its_way(self) -> bool:
        return self._flight is not None and not self._flight.is_dropped

    def found(self, follows: bool) -> list[Array] | None:
        """Loss and outputs of each batch; None where they have to run one by one, and nothing was changed.

        `follows`: nobody else has written anything since the slice before.
        """
        if self.piece.rows is None:
            return None
        if self._flight is not None and not self._flight.is_dropped:
            return self._slices.finish(self._flight)
        return self._slices.run(self.piece.rows, self.piece.count, follows)


class InMemory:
    """Takes batches of arrays in memory.

    Args:
        arrays: inputs, targets and weights of all rows.
        order: of the rows.
        batch_size: rows of a batch.
        start: the first batch that is taken.
        behind: called once, when batches are asked for after the first have been sent.

    Attributes:
        order: as given.
    """

    def __init__(
        self,
        arrays: BatchArrays,
        order: NDArray[np.int64],
        batch_size: int,
        start: int,
        behind: Callable[[], object] | None = None,
    ) -> None:
        self._arrays, self.order, self._size, self._next = arrays, order, batch_size, start
        self._first, self._behind = start, behind

    def __call__(self, most: int) -> Chunk | None:
        """Up to `most` batches; None at the end."""
        if self._behind is not None and self._next > self._first:
            self._behind()
            self._behind = None
        size, left = self._size, len(self.order) - self._next * self._size
        if left <= 0:
            return None
        count = max(1, min(most, left // size))
        rows = self.order[self._next * size : (self._next + count) * size]
        self._next += count
        whole = rows if len(rows) == count * size else None
        return Chunk(count, whole, partial(each_of, self._arrays, rows, size))


class Reader:
    """Reads rows of arrays into a ring, some of its places at a time.

    Rows that are bytes as the ring has them are copied by native threads, others by NumPy.

    Args:
        arrays: where rows are read from.
        ring: for batches of them.
        count: batches that are read at a time; so many places follow each other.
        threads: that copy.
    """

    def __init__(self, arrays: BatchArrays, ring: Ring, count: int, threads: int = 1) -> None:
        self._arrays, self._ring, self._count = arrays, ring, count
        self._mapped = any(map(is_mapped, flat(arrays)))
        pairs = list(zip(flat(arrays), ring.arrays, strict=True))
        made = [isinstance(array, OnDemand) for array, _ in pairs]
        plain = [(a.view(np.ndarray), g) for (a, g), m in zip(pairs, made, strict=True) if not m]
        native = [pair for pair in plain if RowCopies.can(*pair)]
        self._others = [pair for pair in plain if not RowCopies.can(*pair)]
        self._others += [pair for pair, m in zip(pairs, made, strict=True) if m]
        batch = sum(goal[: ring.rows].nbytes for _, goal in native)
        rows = ring.rows * max(min(count, _COPY_BYTES // max(batch, 1)), 1)
        self._copies = RowCopies(native, rows, threads)

    def fill(self, order: NDArray[np.int64], epoch: int, start: int) -> None:
        """All batches of an epoch from `start` on; a last, partial one is passed on.

        Raises:
            DataError: if a file cannot be read, naming rows and batches.
        """
        ring, size = self._ring, self._ring.rows
        whole = len(order) // size
        for first in range(start, whole, self._count):
            count = min(self._count, whole - first)
            # Rows of a file are read in its order, and those of a batch lie anywhere among them then, so all
            # places are free before one is written.
            place = ring.wait_for_room(self._count)
            if place is None:
                return
            rows = order[first * size : (first + count) * size]
            try:
                self._read(rows, place * size)
            except Exception as error:
                raise DataError(
                    f"fit: rows {rows.min()} to {rows.max()} cannot be read, which batches {first + 1} to "
                    f"{first + count} of epoch {epoch + 1} need: {error}"
                ) from error
            ring.add(count)
        rest = order[max(whole, start) * size :]
        if len(rest):
            ring.pass_on(batch_of(rows_of(self._arrays, rest)))

    def _read(self, rows: NDArray[np.int64], at: int) -> None:
        """Rows into those of the ring from `at` on."""
        ring, places = self._ring, np.arange(at, at + len(rows))
        if self._mapped:  # in the order of the file
            ascending = np.argsort(rows, kind="stable")
            ring.order[at + ascending] = places
            rows = rows[ascending]
        else:
            ring.order[at : at + len(rows)] = places
        for array, goal in self._others:
            read_rows(array, rows, goal[at : at + len(rows)])
        self._copies.run(rows, at, ring.tell)


def fill(ring: Ring, found: Generator[Batch]) -> None:
    """Put batches of an iterable into a ring; pass on those that are not like its places."""
    held: dict[int, Batch] = {}  # by place: a device copies them in its own time
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
                write_rows(goal, place * ring.rows, array)
            held[place] = batch
            ring.tell(place * ring.rows, (place + 1) * ring.rows)
            ring.add(1)
            ring.give_out()  # the next one may take its time


class FromRing:
    """Takes batches that are ready in a ring.

    Args:
        ring: where they are.
        like: how its arrays are arranged.
        growing: whether more and more are waited for, up to half of the ring: a slice has costs of its own.
    """

    def __init__(self, ring: Ring, like: BatchArrays, growing: bool) -> None:
        self._ring, self._parts = ring, parts_like(like, ring.arrays)
        self._growing, self._least = growing, 1

    def __call__(self, most: int) -> Chunk | None:
        """Up to `most` batches; None at the end."""
        ring = self._ring
        found = ring.take(most, self._least)
        if not isinstance(found, Ready):
            return None if found is None else Chunk(1, None, lambda: iter([found]))
        if self._growing:
            self._least = max(min(2 * found.count, ring.places // 2), 1)
        rows = ring.order[found.first * ring.rows : (found.first + found.count) * ring.rows]
        return Chunk(found.count, rows, partial(each_of, self._parts, rows, ring.rows))


def part_of_ring(arrays: Sequence[Array], batch_size: int, batches: int, room: Room | None) -> int:
    """Batches of one of the parts of a ring for these arrays, on the host and in the room on a device."""
    nbytes = _RING_BYTES if room is None else room.ring_bytes
    batch = sum(batch_size * a[:1].nbytes for a in arrays)
    return max(1, min(nbytes // max(1, PARTS * batch), -(-batches // PARTS), _LONGEST // PARTS))


def told(items: Iterator[Any], epoch: int, start: int) -> Iterator[Any]:
    """The same items; an error says which batch it was."""
    for number in itertools.count(start):
        with numbered(number, epoch):
            item = next(items, None)
        if item is None:
            return
        yield item


@contextmanager
def numbered(batch: int, epoch: int) -> Iterator[None]:
    """An error says in which batch it came about; both count from 0."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in batch {batch + 1} of epoch {epoch + 1}")
        raise


# --- arrays of a batch ---


BatchArrays = tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]


def mass_of(weights: Array) -> float:
    """The sum of weights, added up in float64 whatever their dtype."""
    return float(weights.astype(np.float64).sum())


def batch_of(parts: BatchArrays) -> Batch:
    """The batch that is made of these arrays."""
    inputs, targets, weights = parts
    return Batch(list(inputs), list(targets), weights[0] if weights else None)


def parts_of(batch: Batch) -> BatchArrays:
    """The arrays of a batch."""
    weights = () if batch.weights is None else (batch.weights,)
    return tuple(batch.inputs), tuple(batch.targets), weights


def flat(parts: BatchArrays) -> list[Array]:
    """All arrays in order."""
    return [array for part in parts for array in part]


def parts_like(parts: BatchArrays, arrays: Sequence[Array]) -> BatchArrays:
    """The arrays, arranged like `parts`."""
    rest = iter(arrays)
    inputs, targets, weights = (tuple(islice(rest, len(part))) for part in parts)
    return inputs, targets, weights


def rows_of(parts: BatchArrays, rows: NDArray[np.int64]) -> BatchArrays:
    """Copies of these rows."""
    return parts_like(parts, [take_rows(array, rows) for array in flat(parts)])


def each_of(parts: BatchArrays, rows: NDArray[np.int64], batch_size: int) -> Iterator[Batch]:
    """Batches of these rows, one by one."""
    for k in range(0, len(rows), batch_size):
        yield batch_of(rows_of(parts, rows[k : k + batch_size]))


def feeds_for(objective: Objective, batch: Batch) -> dict[Node, Array]:
    """The feeds of one batch."""
    feeds = {p.node: a for p, a in zip(objective.inputs, batch.inputs, strict=True)}
    feeds |= {p.node: a for p, a in zip(objective.targets, batch.targets, strict=True)}
    if objective.weights is not None:
        of_each = (len(objective.targets),) if len(objective.weights.shape) > 1 else ()
        sizes = (batch.rows, *of_each)
        found = np.ones(sizes, np.float32) if batch.weights is None else batch.weights
        if found.ndim != len(sizes):
            raise DataError(
                "this batch has weights of one kind, the first had others: give weights of all outputs "
                "together with each batch, or of each output by its name"
            )
        feeds[objective.weights.node] = found
    elif batch.weights is not None:
        raise DataError("this batch has weights, the first had none; give weights with each batch")
    return feeds


def data_for(objective: Objective, arrays: BatchArrays) -> dict[Node, Array]:
    """The arrays that rows of batches are taken from, by placeholder."""
    inputs, targets, weights = arrays
    data = {p.node: a for p, a in zip(objective.inputs, inputs, strict=True)}
    data |= {p.node: a for p, a in zip(objective.targets, targets, strict=True)}
    if objective.weights is not None:
        data[objective.weights.node] = weights[0]
    return data
