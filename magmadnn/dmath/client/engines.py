"""How records reach workers: the workers may be in this process, or processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from magmadnn.dmath.arrays.team import Array
from magmadnn.dmath.worker import Record, Worker

Answer = tuple[Any, Array | None]


class Engine(Protocol):
    """A way to hand records to all workers, in order."""

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    def check(self) -> None:
        """Refuse a process that cannot use them."""
        ...

    def post(self, record: Record, flats: Sequence[Array] | None = None) -> None:
        """Hand a record, and an array for each worker, to all; does not wait for them."""
        ...

    def ask(self, record: Record) -> list[Answer]:
        """Hand a record to all and wait for their answers, by worker."""
        ...

    def close(self, wait: bool) -> None:
        """End; further calls are refused."""
        ...


class InProcess:
    """One worker, in this process: `md.workers(0)`, and the local and CUDA libraries."""

    size = 1

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def check(self) -> None:
        """Any process may, as it has a worker of its own."""

    def post(self, record: Record, flats: Sequence[Array] | None = None) -> None:
        """Carry the record out."""
        self.worker.run(record, None if flats is None else flats[0])

    def ask(self, record: Record) -> list[Answer]:
        """Carry the record out; its answer."""
        return [self.worker.run(record)]

    def close(self, wait: bool) -> None:
        """Forget all arrays."""
        self.worker.run({"op": "forget"})


class Recording:
    """Keeps records for workers that are run later, such as simulated ones.

    Attributes:
        records: what was posted or asked, with the arrays of each worker.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.records: list[tuple[Record, list[Array] | None]] = []

    def check(self) -> None:
        """Nothing to refuse."""

    def post(self, record: Record, flats: Sequence[Array] | None = None) -> None:
        """Keep a record."""
        self.records.append((record, None if flats is None else [f.copy() for f in flats]))

    def ask(self, record: Record) -> list[Answer]:
        """Keep a record; there are no answers yet."""
        self.post(record)
        return [(None, None)] * self.size

    def close(self, wait: bool) -> None:
        """Nothing to end."""
