"""Where batches come from: arrays in memory or mapped from files, or an iterable of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from magmadnn.data import batch_count, batches, order, prefetch
from magmadnn.data._structure import is_mapped
from magmadnn.errors import DataError, GraphError, ShapeError
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.tensor import Placeholder


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


class Source(Protocol):
    """Gives the batches of an epoch."""

    sample: Batch  # for shapes and dtypes of targets
    rows: int | None  # samples of an epoch, if known

    def count(self, batch_size: int) -> int | None:
        """Batches of an epoch, if known."""
        ...

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on."""
        ...


class ArraySource:
    """Batches of arrays, in an order that depends on seed and epoch only."""

    def __init__(
        self,
        inputs: Sequence[Array],
        targets: Sequence[Array],
        weights: Array | None,
        *,
        seed: int | None,
    ) -> None:
        self.arrays: Parts = (tuple(inputs), tuple(targets), () if weights is None else (weights,))
        self.seed = seed
        self.rows: int | None = len(inputs[0])
        self.sample = _batch(self.arrays)
        self._next: tuple[int, Future[NDArray[np.int64]]] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether no array is mapped from a file."""
        return not any(is_mapped(a) for part in self.arrays for a in part)

    def order(self, number: int) -> NDArray[np.int64]:
        """The order of the rows in an epoch. A thread begins with the next one's meanwhile."""
        rows, seed = self.rows or 0, self.seed
        if seed is None:
            return np.arange(rows)
        known, self._next = self._next, None
        now = known[1].result() if known and known[0] == number else order(rows, seed, number)
        self._next = (number + 1, ahead(order, rows, seed, number + 1))
        return now

    def count(self, batch_size: int) -> int | None:
        """Batches of an epoch."""
        return batch_count(self.rows or 0, batch_size)

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch; mapped files are read ahead by a thread."""
        found = batches(self.arrays, batch_size, seed=self.seed, epoch=number, start=start)
        return map(_batch, found if self.in_memory else prefetch(found))


class IterableSource:
    """Batches from an iterable, or from a function that makes one for each epoch.

    A thread prepares the next batch.
    """

    rows: int | None = None

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.source = source
        self._first: Iterator[Any] | None = iter(self._fresh())
        try:
            head = next(self._first)
        except StopIteration:
            raise DataError("fit: the iterable of batches is empty") from None
        self.sample = as_batch(head)
        self._first = _chain(head, self._first)

    def _fresh(self) -> Iterable[Any]:
        return self.source() if callable(self.source) else self.source

    def count(self, batch_size: int) -> int | None:
        """Batches of an epoch, if the iterable has a length."""
        return len(self.source) if isinstance(self.source, Sized) else None

    def epoch(self, number: int, batch_size: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch.

        Raises:
            DataError: if an iterator is used up; only a list, a dataset or a function starts again.
        """
        items = self._first if self._first is not None else iter(self._fresh())
        self._first = None
        found = False
        with prefetch(islice(items, start, None)) as ahead:
            for item in ahead:
                found = True
                yield as_batch(item)
        if not found and not start:
            raise DataError(
                f"fit: the iterator of batches is used up in epoch {number + 1}; hand over a function "
                "that makes one for each epoch"
            )


def ahead(compute: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """What a function gives, computed by a thread of its own that ends with it."""
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(compute(*arguments))
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return made


def _chain(head: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield head
    yield from rest


Parts = tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]


def _batch(parts: Parts) -> Batch:
    inputs, targets, weights = parts
    return Batch(list(inputs), list(targets), weights[0] if weights else None)


def as_batch(item: Any) -> Batch:
    """A batch from what an iterable gives: (x, y) or (x, y, weights).

    Raises:
        DataError: if it is something else.
    """
    if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
        raise DataError(
            f"fit: an iterable must give (x, y) or (x, y, weights), got {type(item).__name__}"
        )
    x, y, *weights = item
    batch = Batch(as_arrays(x), as_arrays(y), np.asarray(weights[0]) if weights else None)
    if {len(a) for a in [*batch.inputs, *batch.targets]} != {batch.rows} or not batch.rows:
        sizes = [len(a) for a in [*batch.inputs, *batch.targets]]
        raise DataError(f"fit: the arrays of a batch need one number of rows above 0, got {sizes}")
    return batch


def as_arrays(value: Any) -> list[Array]:
    """A list of arrays from one array, a Tensor, or a tuple or list of arrays."""
    if isinstance(value, Mapping):
        return [np.asarray(v) for v in value.values()]
    if isinstance(value, tuple) or (
        isinstance(value, list) and value and hasattr(value[0], "shape") and np.ndim(value[0]) > 0
    ):
        return [np.asarray(v) for v in value]
    return [value if isinstance(value, np.ndarray) else np.asarray(value)]


def inputs_for(inputs: Sequence[Placeholder], value: Any, what: str) -> list[Array]:
    """Arrays for a model's inputs, by order or by name, with their shapes checked.

    Raises:
        GraphError, ShapeError: if their number, names or shapes do not fit.
    """
    names = [p.name for p in inputs]
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise GraphError(f"{what}: the model's inputs are {names}, got {sorted(value)}")
        value = [value[name] for name in names]
        arrays = [np.asarray(v) for v in value]
    else:
        arrays = as_arrays(value)
    if len(arrays) != len(inputs):
        raise GraphError(f"{what}: the model has {len(inputs)} inputs, got {len(arrays)} arrays")
    for fed, array in zip(inputs, arrays, strict=True):
        expected = fed.shape[1:]
        fits = len(expected) == array.ndim - 1 and all(
            not isinstance(e, int) or e == got
            for e, got in zip(expected, array.shape[1:], strict=True)
        )
        if not fits:
            raise ShapeError(
                f"{what}: input {fed.name} expects samples of shape {shape_text(expected)}, got "
                f"{shape_text(array.shape[1:])} (x has shape {shape_text(array.shape)}); reshape x, "
                "or change Input"
            )
    return arrays
