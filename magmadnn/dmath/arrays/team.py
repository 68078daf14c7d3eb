"""The workers as one of them sees them: the communicator, the library of arrays, what was counted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.dmath.arrays.tracing import MESSAGE, Trace, span

if TYPE_CHECKING:
    from magmadnn.comm.gpu.phases import Gemm

Array = Any
_NUMBERS = count()
MOST_BUFFERS: Final = 4  # for others to read, that are kept,
MOST_BUFFER_BYTES: Final = 1 << 28  # where more than the newest have room in so many bytes


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is float16 or bfloat16."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def accumulated(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums of products are kept in: float32 for halves, else the dtype itself."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


@dataclass
class Failed:
    """Why an array has no values: an operation that made it, or wrote to it, failed.

    Attributes:
        kind: of the error: its class.
        text: what it says.
        line: of the user's code.
        changed_nothing: whether the values from before a write are all there, on all workers: once the client
            has been told, they count.
    """

    kind: str
    text: str
    line: str
    changed_nothing: bool = False

    def json(self) -> dict[str, str]:
        """For the client."""
        return {"kind": self.kind, "text": self.text, "line": self.line}


@dataclass
class Data:
    """What an array and its views have in common.

    Attributes:
        version: goes up with each write, before its first element, so that copies that were kept can tell
            whether they are still right, and one that is refused whether it has changed anything.
        number: tells arrays apart.
        shared: blocks of each worker by number, as `Peers.share` gave them, by view and layout.
        places: where these lie, as a value.
        failed: why a write went wrong: what is there now are not the values that its user expects.
    """

    version: int = 0
    number: int = field(default_factory=lambda: next(_NUMBERS))
    shared: dict[Any, list[dict[int, Array]]] = field(default_factory=dict)
    places: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    failed: Failed | None = None


class Peers(Protocol):
    """Copies from the memory of other workers; `magmadnn.comm.gpu.PeerCopies` is one."""

    def share(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """The arrays that each worker gave, as arrays here."""
        ...

    def begin(self) -> None:
        """What arrays hold now is what others read."""
        ...

    def copy(self, out: Array, source: Array) -> None:
        """Begin to copy an array."""
        ...

    def mark(self) -> Any:
        """All copies so far."""
        ...

    def wait(self, mark: Any) -> None:
        """Go on with the copies of a mark done."""
        ...

    def follow(self) -> None:
        """Copies from here on come after what has been computed so far."""
        ...

    def end(self) -> None:
        """Arrays may be written to again."""
        ...

    def finish(self) -> None:
        """Wait on the host until all is done, but not for ever for workers that do not come."""
        ...

    def capture(self, phase: Callable[[Gemm], None]) -> Callable[[], None] | None:
        """What gives all of a phase to the GPU in one call, as often as it is called; None if it cannot."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes on this GPU beside the arrays."""
        ...


@dataclass
class Count:
    """What one worker did, for one line of the user's code or in all.

    Attributes:
        sent_bytes: elements' bytes that went to other workers.
        messages: how often this worker sent to another.
        planned_bytes: what the layouts said beforehand that it would send.
        host_to_device_bytes: that it copied from its host's memory to its GPU.
        device_to_host_bytes: that it copied back.
        device_allocations: how often the pool of its GPU's memory had to ask the driver for a block.
        seconds: time in operations.
        predicted_seconds: what the planner foretold of products.
        operations: how many.
        graphs_made: phases of products that were captured.
        graph_launches: how often these were launched.
        graph_failures: phases that could not be captured.
    """

    sent_bytes: int = 0
    messages: int = 0
    planned_bytes: int = 0
    host_to_device_bytes: int = 0
    device_to_host_bytes: int = 0
    device_allocations: int = 0
    seconds: float = 0.0
    predicted_seconds: float = 0.0
    operations: int = 0
    graphs_made: int = 0
    graph_launches: int = 0
    graph_failures: int = 0


@dataclass
class Shared:
    """Arrays that other workers read.

    Attributes:
        mine: this worker's.
        everyone: those of all workers, as arrays here.
        nbytes: of the worker that has most.
    """

    mine: list[Array]
    everyone: list[list[Array]]
    nbytes: int


@dataclass
class Team:
    """A worker's view of the group that it belongs to.

    Attributes:
        comm: the communicator.
        xp: NumPy, or CuPy on workers with a GPU.
        lines: counts for each line of the user's code.
        kept: parts received earlier that may serve again; see `magmadnn.dmath.arrays.kept`.
        multiply: the local product of two matrices.
        line: of the user's code that is being carried out.
        groups: communicators of some of the workers.
        peers: copies from the other workers' memory, where this machine's GPUs can read it.
        buffers: what `shared_buffers` made last.
        programs: compiled for this worker's GPU; see `magmadnn.dmath.functions.images`.
        watched: counts calls for memory of a GPU while it is entered; entered once at a time.
        order: of all workers around a ring, so that it crosses few far links; empty for that of their
            numbers.
        trace: of what it does, while one is made.
        replays: graphs of products; see `magmadnn.dmath.arrays.replaying`.
        gemm: cuBLAS's gemmEx without its handle, while one is captured.
        narrowed: copies of operands in the dtype in which they are multiplied, those of the last products.
    """

    comm: Communicator
    xp: Any = np
    lines: dict[str, Count] = field(default_factory=dict)
    kept: Any = None
    multiply: Callable[[Array, Array], Array] | None = None
    line: str = ""
    groups: dict[tuple[int, ...], Communicator | None] = field(default_factory=dict)
    peers: Peers | None = None
    buffers: dict[Any, Shared] = field(default_factory=dict)
    programs: dict[Any, Any] = field(default_factory=dict)
    watched: AbstractContextManager[Any] = field(default_factory=nullcontext)
    order: tuple[int, ...] = ()
    trace: Trace | None = None
    replays: Any = None
    gemm: Gemm | None = None
    narrowed: dict[Any, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Number of this worker."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of workers."""
        return self.comm.size

    @property
    def count(self) -> Count:
        """Where the present line's counts go."""
        return self.lines.setdefault(self.line, Count())

    @property
    def ring(self) -> tuple[int, ...]:
        """All workers in the order of a ring."""
        return self.order or tuple(range(self.size))

    def around(self, members: Sequence[int]) -> tuple[int, ...]:
        """Some workers in the order of a ring."""
        return tuple(worker for worker in self.ring if worker in members)

    def group(self, members: tuple[int, ...]) -> Communicator | None:
        """The communicator of some workers, in this order, made once; None on the others. Collective over
        all.
        """
        if members == tuple(range(self.size)):
            return self.comm
        if members not in self.groups:
            mine = self.rank in members
            place = members.index(self.rank) if mine else 0
            self.groups[members] = self.comm.split(0 if mine else None, place)
        return self.groups[members]

    @contextmanager
    def at(self, line: str) -> Iterator[Count]:
        """Count what happens inside for this line of the user's code."""
        before, self.line = self.line, line
        start = perf_counter()
        try:
            with self.watched:
                yield self.count
        finally:
            self.count.seconds += perf_counter() - start
            self.count.operations += 1
            self.line = before

    def total(self) -> Count:
        """The sum over all lines."""
        total = Count()
        for one in self.lines.values():
            for name, value in vars(one).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    def shared_buffers(
        self, key: Hashable, nbytes: int, make: Callable[[], list[Array]]
    ) -> tuple[list[Array], list[list[Array]]]:
        """Arrays for others to read, and those of all workers: the last few are kept for the next calls.

        Collective. Nobody reads them any more where a phase of copies has ended.

        Args:
            key: what they are for.
            nbytes: of them on the worker that has most, as all workers know.
            make: makes this worker's.
        """
        assert self.peers is not None
        found = self.buffers.pop(key, None)
        if found is None:
            while self.buffers and (
                len(self.buffers) >= MOST_BUFFERS
                or nbytes + sum(one.nbytes for one in self.buffers.values()) > MOST_BUFFER_BYTES
            ):
                del self.buffers[next(iter(self.buffers))]
            mine = make()
            found = Shared(mine, self.peers.share(mine), nbytes)
        self.buffers[key] = found
        return found.mine, found.everyone

    @property
    def buffer_bytes(self) -> int:
        """Bytes that this worker keeps beside arrays, so that operations to come find them made."""
        arrays = [one for shared in self.buffers.values() for one in shared.mine]
        arrays += [block for x in self.narrowed.values() for block in x.blocks.values()]
        beside = 0 if self.peers is None else self.peers.nbytes
        return sum(int(one.nbytes) for one in arrays) + beside

    def on_device(self, values: Array) -> Array:
        """NumPy's array as one of this worker's library: a copy on its GPU, counted, or the array itself."""
        if self.xp is np:
            return values
        self.count.host_to_device_bytes += values.nbytes
        return self.xp.asarray(values)

    def on_host(self, array: Array) -> Array:
        """An array or number of this worker's library as NumPy's: a copy from its GPU, counted, or itself."""
        if self.xp is np:
            return np.asarray(array)
        self.count.device_to_host_bytes += array.nbytes
        return array.get()

    def finish(self) -> None:
        """Wait until what was begun on this worker's GPU is done; arrays of NumPy are done at once.

        Raises:
            CommunicationError: if another worker does not come to where copies are made.
        """
        if self.peers is not None:
            self.peers.finish()
        elif self.xp is not np:
            self.xp.cuda.get_current_stream().synchronize()

    def exchange_parts(self, parts: list[Array], out: list[Array]) -> list[Array]:
        """`all_to_all` of flat arrays of any dtype, counted; `out` has the sizes that come."""
        counted = self.count
        for to, part in enumerate(parts):
            if to != self.rank and part.size:
                counted.sent_bytes += part.nbytes
                counted.messages += 1
        with span(self, MESSAGE, f"{sum(one.nbytes for one in out)} bytes from others"):
            return self.comm.all_to_all(parts, out)
