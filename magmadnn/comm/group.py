"""The communicator of host memory: calls are checked, named, and carried out in rounds by an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, DataError, ShapeError, UnknownNameError

from . import rounds
from .arrays import (
    Array,
    bounds_of,
    cast,
    described,
    dtype_of,
    empty,
    flat_for,
    overlap,
    receiving,
    reduction,
    sendable,
    wire_dtype,
)
from .communicator import Json, Reduction, Request, Wire
from .engine import Call, Engine
from .rounds import Round, Task
from .sites import call_site

_CHANNELS = 1 << 14  # of collectives at a time, far more than can be under way
_MOST_TAGS = 1 << 14
_FEW_BYTES = 4096  # below which one round to everyone is quicker than two
_FEW_RANKS = 16


class HostCommunicator:
    """A group of ranks whose arrays are NumPy's; see `Communicator` for its calls.

    Sums are ((s0 + s1) + s2) + ... in the order of ranks, element by element: their bits do not depend on how
    long an array is or how arrays are joined. Elements of 16 bits are summed in float32 and rounded once.
    With `wire`, elements are rounded when they leave, and the sum when it is sent back. `algorithm` of
    `all_reduce` names another order (see `rounds.py`); "library" is the engine's own.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sendable = partial(sendable, gpu=getattr(engine, "device", None))
        self._count = 0
        self._closed = False
        self._algorithm: Callable[[int], str] | None = None

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return self._engine.rank

    @property
    def size(self) -> int:
        """Number of workers."""
        return self._engine.size

    @property
    def clock(self) -> float | None:
        """Seconds on the clock of simulated ranks; None for real ones."""
        return None

    def use(self, choice: Callable[[int], str] | None) -> None:
        """Let `choice(bytes)` name the algorithm of `all_reduce`, on all ranks; None: rank order."""
        self._algorithm = choice

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: rank {self.rank} of {self.size}>"

    # --- collectives -------------------------------------------------------------------------

    def all_reduce(
        self,
        source: Array,
        out: Array | None = None,
        *,
        op: Reduction = "sum",
        wire: Wire | None = None,
        algorithm: str | None = None,
    ) -> Array:
        """Reduce over ranks; see `Communicator.all_reduce`."""
        return self._run(*self._all_reduce(source, out, op, wire, algorithm))

    def start_all_reduce(
        self,
        source: Array,
        out: Array | None = None,
        *,
        op: Reduction = "sum",
        wire: Wire | None = None,
        algorithm: str | None = None,
    ) -> Request:
        """`all_reduce` that returns at once."""
        return self._start(*self._all_reduce(source, out, op, wire, algorithm))

    def _all_reduce(
        self, source: Array, out: Array | None, op: str, wire: str | None, algorithm: str | None
    ) -> tuple[str, Task]:
        self._sendable(source, "all_reduce", "source")
        combine = reduction(op, source, "all_reduce")
        travelling = wire_dtype(wire, source.dtype, "all_reduce")
        result = receiving(out, source.shape, source, "all_reduce")
        name = algorithm or self._algorithm_for(source.nbytes)
        what = f"all_reduce {described(source)} {op}"
        if name not in rounds.ALL_REDUCE and name != "library":
            raise UnknownNameError.of(
                "all_reduce: algorithm", name, [*rounds.ALL_REDUCE, "library"]
            )

        def task() -> Task:
            if self.size == 1:
                result[...] = cast(cast(source, travelling), source.dtype)
                return result
            total = None
            if name == "library" and travelling == source.dtype:
                total = self._engine.library_all_reduce(source.reshape(-1), op)
            if total is None:
                reduce: Callable[..., Task] = rounds.ALL_REDUCE.get(name, rounds.direct)
                flat = source.reshape(-1)
                total = yield from reduce(self.rank, self.size, flat, combine, travelling)
            result.reshape(-1)[...] = total
            return result

        return what + _wired(wire) + (f" by {algorithm}" if algorithm else ""), task()

    def _algorithm_for(self, nbytes: int) -> str:
        if self._algorithm is not None:
            return self._algorithm(nbytes)
        return "everyone" if nbytes <= _FEW_BYTES and self.size <= _FEW_RANKS else "direct"

    def reduce_scatter(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Array:
        """Reduce over ranks; rank r keeps its rows; see `Communicator.reduce_scatter`."""
        return self._run(*self._reduce_scatter(source, out, counts, op, wire))

    def start_reduce_scatter(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Request:
        """`reduce_scatter` that returns at once."""
        return self._start(*self._reduce_scatter(source, out, counts, op, wire))

    def _reduce_scatter(
        self,
        source: Array,
        out: Array | None,
        counts: Sequence[int] | None,
        op: str,
        wire: str | None,
    ) -> tuple[str, Task]:
        call = "reduce_scatter"
        _with_rows(self._sendable(source, call, "source"), call)
        combine = reduction(op, source, call)
        travelling = wire_dtype(wire, source.dtype, call)
        bounds = bounds_of(counts, len(source), self.size, call)
        here = bounds[self.rank + 1] - bounds[self.rank]
        result = receiving(out, (here, *source.shape[1:]), source, call)
        flat_bounds = [bound * _row(source) for bound in bounds]

        def task() -> Task:
            share = yield from rounds.direct_scatter(
                self.rank, self.size, source.reshape(-1), flat_bounds, combine, travelling
            )
            result.reshape(-1)[...] = cast(share, source.dtype)
            return result

        counted = "" if counts is None else f" counts {[int(count) for count in counts]}"
        return f"{call} {described(source)} {op}{counted}{_wired(wire)}", task()

    def all_gather(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        wire: Wire | None = None,
    ) -> Array:
        """Rows of all ranks, one after the other; see `Communicator.all_gather`."""
        return self._run(*self._all_gather(source, out, counts, wire))

    def start_all_gather(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        wire: Wire | None = None,
    ) -> Request:
        """`all_gather` that returns at once."""
        return self._start(*self._all_gather(source, out, counts, wire))

    def _all_gather(
        self, source: Array, out: Array | None, counts: Sequence[int] | None, wire: str | None
    ) -> tuple[str, Task]:
        call = "all_gather"
        _with_rows(self._sendable(source, call, "source"), call)
        travelling = wire_dtype(wire, source.dtype, call)
        rows = [len(source)] * self.size if counts is None else [int(count) for count in counts]
        bounds = bounds_of(rows, sum(rows), self.size, call)
        if rows[self.rank] != len(source):
            raise ShapeError(
                f"{call}: counts gives rank {self.rank} {rows[self.rank]} rows, source has {len(source)}"
            )
        result = receiving(out, (bounds[-1], *source.shape[1:]), source, call)
        flat_bounds = [bound * _row(source) for bound in bounds]

        def task() -> Task:
            flat = result.reshape(-1)
            passing = flat_for(flat, travelling)
            mine = slice(flat_bounds[self.rank], flat_bounds[self.rank + 1])
            passing[mine] = cast(source.reshape(-1), travelling)
            yield from rounds.gather_shares(self.rank, self.size, passing, flat_bounds)
            if passing is not flat:
                flat[...] = cast(passing, source.dtype)
            return result

        shape = f"{source.dtype.name} {source.shape}"
        if counts is not None:
            shape = f"{source.dtype.name} rows of {source.shape[1:]} counts {rows}"
        return f"{call} {shape}{_wired(wire)}", task()

    def broadcast(self, array: Array, *, root: int = 0, wire: Wire | None = None) -> Array:
        """Fill `array` of every rank with that of `root`; see `Communicator.broadcast`."""
        return self._run(*self._broadcast(array, root, wire))

    def start_broadcast(self, array: Array, *, root: int = 0, wire: Wire | None = None) -> Request:
        """`broadcast` that returns at once."""
        return self._start(*self._broadcast(array, root, wire))

    def _broadcast(self, array: Array, root: int, wire: str | None) -> tuple[str, Task]:
        call = "broadcast"
        self._sendable(array, call)
        self._check_rank(root, call, "root")
        receiving(array, array.shape, array, call)
        travelling = wire_dtype(wire, array.dtype, call)

        def task() -> Task:
            flat = array.reshape(-1)
            passing = cast(flat, travelling)
            yield from rounds.broadcast(self.rank, self.size, passing, root)
            if passing is not flat:
                flat[...] = cast(passing, array.dtype)
            return array

        return f"{call} {described(array)} from rank {root}{_wired(wire)}", task()

    def all_to_all(
        self,
        parts: Sequence[Array],
        out: Sequence[Array] | None = None,
        *,
        wire: Wire | None = None,
    ) -> list[Array]:
        """Send `parts[r]` to each rank r; see `Communicator.all_to_all`."""
        result: list[Array] = self._run(*self._all_to_all(parts, out, wire))
        return result

    def start_all_to_all(
        self,
        parts: Sequence[Array],
        out: Sequence[Array] | None = None,
        *,
        wire: Wire | None = None,
    ) -> Request:
        """`all_to_all` that returns at once."""
        return self._start(*self._all_to_all(parts, out, wire))

    def _all_to_all(
        self, parts: Sequence[Array], out: Sequence[Array] | None, wire: str | None
    ) -> tuple[str, Task]:
        call, size, rank = "all_to_all", self.size, self.rank
        for what, arrays in (("parts", parts), ("out", parts if out is None else out)):
            if len(arrays) != size:
                raise ShapeError(
                    f"{call}: {what} needs {size} arrays, one a rank, got {len(arrays)}"
                )
            for array in arrays:
                self._sendable(array, call, what)
        sent = [cast(part, wire_dtype(wire, part.dtype, call)) for part in parts]

        def task() -> Task:
            if out is None:
                heads = [json.dumps([str(p.dtype.name), *p.shape]).encode() for p in parts]
                arriving = yield from rounds.swap_bytes(rank, size, heads)
                results = [
                    empty(shape, dtype_of(name), parts[rank])
                    for name, *shape in map(json.loads, arriving)
                ]
            else:
                results = list(out)
            passing = [flat_for(r, wire_dtype(wire, r.dtype, call)) for r in results]
            yield Round(
                [(sent[r].reshape(-1), r) for r in rounds.others(rank, size)],
                [(passing[r], r) for r in rounds.others(rank, size)],
            )
            if results[rank].shape != parts[rank].shape:
                raise ShapeError(
                    f"{call}: out[{rank}] has shape {results[rank].shape}, parts[{rank}] {parts[rank].shape}"
                )
            passing[rank] = sent[rank].reshape(-1)
            for result, passed in zip(results, passing, strict=True):
                is_there = passed is result or passed.base is result
                if not is_there and result is not parts[rank]:
                    result.reshape(-1)[...] = cast(passed, result.dtype)
            return results

        return f"{call}{' into out' if out is not None else ''}{_wired(wire)}", task()

    def shift(
        self, array: Array, out: Array | None = None, *, by: int = 1, wire: Wire | None = None
    ) -> Array:
        """Ring shift; see `Communicator.shift`."""
        return self._run(*self._shift(array, out, by, wire))

    def start_shift(
        self, array: Array, out: Array | None = None, *, by: int = 1, wire: Wire | None = None
    ) -> Request:
        """`shift` that returns at once."""
        return self._start(*self._shift(array, out, by, wire))

    def _shift(
        self, array: Array, out: Array | None, by: int, wire: str | None
    ) -> tuple[str, Task]:
        call = "shift"
        self._sendable(array, call)
        shape = array.shape if out is None else out.shape
        result = receiving(out, shape, array, call)
        if overlap(array, result):
            raise ArgumentError(f"{call}: out shares memory with array: give another array")
        travelling = wire_dtype(wire, array.dtype, call)

        def task() -> Task:
            to, source = (self.rank + by) % self.size, (self.rank - by) % self.size
            leaving = cast(array.reshape(-1), travelling)
            flat = result.reshape(-1)
            arriving = flat_for(flat, travelling)
            if to == self.rank:
                if result.shape != array.shape:
                    raise ShapeError(f"{call}: out has shape {result.shape}, array {array.shape}")
                arriving[...] = leaving
            else:
                yield Round([(leaving, to)], [(arriving, source)])
            if arriving is not flat:
                flat[...] = cast(arriving, array.dtype)
            return result

        shown = described(array) if out is None else array.dtype.name
        return f"{call} {shown} by {by}{_wired(wire)}", task()

    def exchange(self, value: Json) -> list[Json]:
        """Small values of all ranks, by rank; see `Communicator.exchange`."""
        try:
            words = json.dumps(value).encode()
        except (TypeError, ValueError) as error:
            raise DataError(f"exchange: a value cannot be written as JSON: {error}") from None
        task = rounds.gather_values(self.rank, self.size, words)
        return [json.loads(one) for one in self._run("exchange of values", task)]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        token = np.zeros(self.size, np.uint8)
        self._run(
            "barrier", rounds.gather_shares(self.rank, self.size, token, range(self.size + 1))
        )

    def split(self, color: int | None, key: int = 0) -> HostCommunicator | None:
        """New groups of the ranks of equal `color`; see `Communicator.split`."""
        words = json.dumps([color, key]).encode()
        task = rounds.gather_values(self.rank, self.size, words)
        found = [json.loads(one) for one in self._run("split", task)]
        colors = sorted({color for color, _ in found if color is not None})
        mine = None
        for one in colors:  # each rank takes part in each, in the same order
            members = [r for r in range(self.size) if found[r][0] == one]
            members.sort(key=lambda r: (found[r][1], r))
            name = f"{self._engine.group}/{self._count}.{one}"
            engine = self._engine.split(name, members)
            if engine is not None:
                mine = type(self)._of(engine)
        return mine

    @classmethod
    def _of(cls, engine: Engine) -> HostCommunicator:
        return HostCommunicator(engine)

    # --- messages between two ranks ----------------------------------------------------------

    def send(self, array: Array, to: int, *, tag: int = 0) -> None:
        """Send to one rank. Returns when `array` may be changed."""
        self._engine.run(*self._send(array, to, tag))

    def recv(self, out: Array, source: int, *, tag: int = 0) -> Array:
        """Receive from one rank into `out`; shape and dtype are those that were sent."""
        return self._engine.run(*self._recv(out, source, tag))

    def start_send(self, array: Array, to: int, *, tag: int = 0) -> Request:
        """`send` that returns at once."""
        return self._engine.start(*self._send(array, to, tag))

    def start_recv(self, out: Array, source: int, *, tag: int = 0) -> Request:
        """`recv` that returns at once."""
        return self._engine.start(*self._recv(out, source, tag))

    def _send(self, array: Array, to: int, tag: int) -> tuple[Task, Call]:
        self._check_pair(self._sendable(array, "send"), to, "send", "to", tag)

        def task() -> Task:
            yield Round([(array, to)])

        what = f"send {described(array)} to rank {to} with tag {tag}"
        return task(), self._pair(what, to, tag)

    def _recv(self, out: Array, source: int, tag: int) -> tuple[Task, Call]:
        self._check_pair(self._sendable(out, "recv", "out"), source, "recv", "source", tag)
        receiving(out, out.shape, out, "recv")

        def task() -> Task:
            yield Round(receives=[(out, source)])
            return out

        what = f"recv {described(out)} from rank {source} with tag {tag}"
        return task(), self._pair(what, source, tag)

    def _pair(self, what: str, other: int, tag: int) -> Call:
        return Call(self._engine.group, 0, what, call_site(), _CHANNELS + tag, (other,))

    def _check_pair(self, array: Array, other: int, call: str, what: str, tag: int) -> None:
        self._check_open(call)
        self._check_rank(other, call, what)
        if not 0 <= tag < _MOST_TAGS:
            raise ArgumentError(f"{call}: tag must be from 0 to {_MOST_TAGS - 1}, got {tag}")

    def _check_rank(self, rank: int, call: str, what: str) -> None:
        if not 0 <= rank < self.size:
            raise ArgumentError(
                f"{call}: {what} must be a rank from 0 to {self.size - 1}, got {rank}"
            )

    # --- how calls are made ------------------------------------------------------------------

    def _call(self, what: str) -> Call:
        self._check_open(what.split(" ")[0])
        self._count += 1
        number = self._count
        return Call(self._engine.group, number, what, call_site(), number % _CHANNELS)

    def _run(self, what: str, task: Task) -> Any:
        return self._engine.run(task, self._call(what))

    def _start(self, what: str, task: Task) -> Request:
        return self._engine.start(task, self._call(what))

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ArgumentError(f"{call}: this communicator is closed: make a new one")

    def close(self) -> None:
        """Free what the group holds. A closed communicator refuses every call."""
        if not self._closed:
            self._closed = True
            self._engine.close()


def _with_rows(array: Array, call: str) -> None:
    if array.ndim == 0:
        raise ShapeError(
            f"{call}: source is a scalar, which has no rows: give an array of 1 axis or more"
        )


def _row(array: Array) -> int:
    """Elements of one row."""
    return int(np.prod(array.shape[1:], dtype=np.int64))


def _wired(wire: str | None) -> str:
    return f" as {wire}" if wire else ""
