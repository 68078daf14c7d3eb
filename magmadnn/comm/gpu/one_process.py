"""Ranks that are threads of one process, each with a GPU of its own: arrays are copied from GPU to GPU.

Rounds of messages (`magmadnn.comm.rounds`) are carried out by the threads themselves: whoever finds both
sides of a message begins its copy, on the receiver's stream and behind what the sender's stream had to do
until then; from there on the sender's stream waits for the copy. The host waits for the other side to make
its call, never for a GPU. Sums are made by CuPy in the order of ranks, with the bits of the host's.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from magmadnn.comm.arrays import as_bytes, described, gpu_of
from magmadnn.comm.communicator import Request
from magmadnn.comm.engine import Call, SameCalls
from magmadnn.comm.group import HostCommunicator
from magmadnn.comm.rounds import Round, Task
from magmadnn.comm.simulated import MOST_RANKS, named
from magmadnn.errors import ArgumentError, CommunicationError, DeviceError, MissingExtraError

Array = Any
Result = TypeVar("Result")
Key = tuple[object, ...]  # sender, receiver, group and channel of a message
_DEFAULT: Final = 4  # cudaMemcpyDefault: by the addresses


class _Ended(BaseException):
    """Unwinds a thread whose job another has ended."""


@dataclass(slots=True, eq=False)
class _Running:
    """A task under way, and the stream that it is on."""

    rank: int
    task: Task
    call: Call
    stream: Any
    missing: int = 0  # messages of its round
    ended: bool = False
    result: Any = None
    error: BaseException | None = None
    event: Any = None  # its end


@dataclass(slots=True, eq=False)
class _Rank:
    """What is known of a thread."""

    device: int
    side: Any  # the stream of calls that return at once
    waits: _Running | None = None
    last: Call | None = None
    ended: bool = False


@dataclass(slots=True)
class _Job:
    """All threads, and messages of which one side is there; it is changed by who holds `changed`."""

    cupy: Any
    ranks: list[_Rank]
    changed: threading.Condition = field(default_factory=threading.Condition)
    calls: SameCalls = field(default_factory=SameCalls)
    sent: dict[Key, deque[tuple[Array, Any, _Running]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    asked: dict[Key, deque[tuple[Array, _Running]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    stopped: CommunicationError | None = None
    over: bool = False

    @contextmanager
    def on(self, running: _Running) -> Iterator[None]:
        """The GPU and the stream of a task are the current ones."""
        with self.cupy.cuda.Device(self.ranks[running.rank].device), running.stream:
            yield

    def look(self) -> None:
        """Raise what ends this thread's work."""
        if self.over:
            raise _Ended
        if self.stopped is not None:
            raise CommunicationError(str(self.stopped))

    def start(self, running: _Running, size: int) -> None:
        """A rank makes a call, which goes on as far as messages are there."""
        with self.changed:
            self.look()
            self.ranks[running.rank].last = running.call
            self.calls.enter(running.rank, running.call, size)
            ready = [running]
            while ready:
                self._advance(ready.pop(), ready)
            self.changed.notify_all()

    def _advance(self, running: _Running, ready: list[_Running]) -> None:
        """Go on with a task until it waits for a message or has ended."""
        while not running.missing and not running.ended:
            try:
                with self.on(running):
                    step = next(running.task)
            except StopIteration as end:
                with self.on(running):
                    running.event = running.stream.record()
                running.ended, running.result = True, end.value
            except Exception as error:  # raised where the call is waited for
                running.ended, running.error = True, error
            else:
                self._begin(running, step, ready)

    def _begin(self, running: _Running, step: Round, ready: list[_Running]) -> None:
        group, channel, me = running.call.group, running.call.channel, running.rank
        sends = [(array, to) for array, to in step.sends if array.nbytes]
        receives = [(array, source) for array, source in step.receives if array.nbytes]
        running.missing = len(sends) + len(receives)  # all are counted before one is there
        event = None
        if sends:
            with self.on(running):
                event = running.stream.record()
        for array, to in sends:
            key = me, to, group, channel
            if self.asked[key]:
                self._copy(*self.asked[key].popleft(), array, event, running, ready)
            else:
                self.sent[key].append((array, event, running))
        for out, source in receives:
            key = source, me, group, channel
            if self.sent[key]:
                self._copy(out, running, *self.sent[key].popleft(), ready)
            else:
                self.asked[key].append((out, running))

    def _copy(
        self, out: Array, receiver: _Running, array: Array, event: Any, sender: _Running,
        ready: list[_Running],
    ) -> None:  # fmt: skip
        if (out.dtype, out.size) != (array.dtype, array.size):
            for one in (receiver, sender):
                one.ended = True
                one.error = CommunicationError(
                    f"rank {receiver.rank} in {receiver.call} got {described(array)} from rank "
                    f"{sender.rank}, expected {described(out)}: both must name the same shape and dtype"
                )
            return
        if gpu_of(out) is None:  # words that ranks exchange
            as_bytes(out)[...] = as_bytes(array)
        else:
            with self.on(receiver):
                stream = receiver.stream
                stream.wait_event(event)
                words = (int(out.data.ptr), int(array.data.ptr), int(out.nbytes), _DEFAULT)
                self.cupy.cuda.runtime.memcpyAsync(*words, stream.ptr)
                done = stream.record()
            sender.stream.wait_event(done)
        for one in (receiver, sender):
            one.missing -= 1
            if not one.missing and one not in ready:
                ready.append(one)

    def wait(self, running: _Running) -> Any:
        """Block until a task's copies have all begun; the current stream waits for them. Its result."""
        me = self.ranks[running.rank]
        with self.changed:
            me.waits = running
            try:
                while not running.ended:
                    self.look()
                    self.check()
                    if self.stopped is None:
                        self.changed.wait()
            finally:
                me.waits = None
            if running.error is not None:
                raise running.error
        self.cupy.cuda.get_current_stream().wait_event(running.event)
        return running.result

    def asks(self, running: _Running) -> None:
        """Raise if a task that has not ended never will, since all others wait or have ended."""
        me = self.ranks[running.rank]
        me.waits = running
        self.check()
        me.waits = None
        self.look()

    def check(self) -> None:
        """End all waiting if nobody can go on."""
        if any(not rank.ended and (rank.waits is None or rank.waits.ended) for rank in self.ranks):
            return
        lines = []
        for number, rank in enumerate(self.ranks):
            if rank.waits is not None:
                lines.append(f"rank {number} waits in {rank.waits.call}")
            else:
                last = f"its last call was {rank.last}" if rank.last else "it made no call"
                lines.append(f"rank {number} has ended; {last}")
        self.stopped = CommunicationError(f"no rank can go on: {'; '.join(lines)}")
        self.changed.notify_all()

    def leave(self, number: int, failed: bool) -> None:
        """A thread has ended."""
        with self.changed:
            self.ranks[number].ended = True
            self.over = self.over or failed
            if not self.over and any(rank.waits is not None for rank in self.ranks):
                self.check()
            self.changed.notify_all()


class _Request:
    """A call under way."""

    def __init__(self, job: _Job, running: _Running) -> None:
        self._job, self._running = job, running

    def wait(self) -> Any:
        """Let the current stream wait for the call; the host waits for the others to make theirs."""
        return self._job.wait(self._running)

    def done(self) -> bool:
        """Whether the call has been carried out."""
        running = self._running
        with self._job.changed:
            self._job.asks(running)
        return running.ended and (running.event is None or bool(running.event.done))


class _PeerEngine:
    """One thread of a group of them."""

    def __init__(self, job: _Job, number: int, group: str, members: list[int]) -> None:
        self._job, self._number, self._members = job, number, members
        self.group, self.device = group, job.ranks[number].device
        self.rank, self.size = members.index(number), len(members)

    def run(self, task: Task, call: Call) -> Any:
        """Carry out a task on the current stream."""
        stream = self._job.cupy.cuda.get_current_stream()
        running = _Running(self._number, self._in_job(task), call, stream)
        self._job.start(running, self.size)
        return self._job.wait(running)

    def start(self, task: Task, call: Call) -> Request:
        """Begin a task on the side, behind what the current stream has to do."""
        side = self._job.ranks[self._number].side
        side.wait_event(self._job.cupy.cuda.get_current_stream().record())
        running = _Running(self._number, self._in_job(task), call, side)
        self._job.start(running, self.size)
        return _Request(self._job, running)

    def _in_job(self, task: Task) -> Task:
        """The task with ranks of the job for those of the group."""
        of = self._members
        while True:
            try:
                step = next(task)
            except StopIteration as end:
                return end.value
            yield Round([(a, of[r]) for a, r in step.sends], [(a, of[r]) for a, r in step.receives])

    def split(self, name: str, members: list[int]) -> _PeerEngine | None:
        """The engine of some ranks; None on others."""
        if self.rank not in members:
            return None
        return _PeerEngine(self._job, self._number, name, [self._members[r] for r in members])

    def library_all_reduce(self, array: Array, op: str) -> None:
        """There is no library."""

    def synchronize(self) -> None:
        """Wait until the current stream and calls on the side are done."""
        self._job.cupy.cuda.get_current_stream().synchronize()
        self._job.ranks[self._number].side.synchronize()

    def close(self) -> None:
        """Nothing is held."""


class PeerCommunicator(HostCommunicator):
    """A rank that is a thread with a GPU; see `Communicator` for its calls, and `on_gpus`, which makes it.

    Arrays are CuPy's, on the rank's GPU. Results of blocking calls are there for the current stream, not for
    the host. Sums have the bits of those of the host: in the order of ranks, whatever the size.
    """

    _engine: _PeerEngine

    def barrier(self) -> None:
        """Wait until all ranks are here and their streams have come so far."""
        self._engine.synchronize()
        super().barrier()

    @classmethod
    def _of(cls, engine: Any) -> HostCommunicator:
        return PeerCommunicator(engine)


def on_gpus(
    devices: Sequence[int], function: Callable[..., Result], *arguments: Any
) -> list[Result]:
    """Run `function(communicator, *arguments)` on a thread for each of some GPUs of this machine.

    The thread's GPU is CuPy's current one. Returns what they returned, by rank.

    Args:
        devices: numbers of GPUs, one a rank.
        function: what each rank does; it gets a `PeerCommunicator`.
        arguments: given to each rank.

    Raises:
        MissingExtraError: if CuPy is missing.
        ArgumentError: for no devices, or more than 64.
        DeviceError: if there is no such GPU, or two ranks would use one.
        CommunicationError: if ranks make different calls, or wait for ever; it names their lines.
        BaseException: the first error of any rank, with a note that names the rank.
    """
    try:
        import cupy
    except ImportError as error:
        raise MissingExtraError.of("CuPy", "communication among GPUs", "cuda13") from error
    devices = [int(device) for device in devices]
    _check_devices(devices, int(cupy.cuda.runtime.getDeviceCount()))
    size = len(devices)
    _reach_each_other(cupy, devices)
    sides = []
    for device in devices:
        with cupy.cuda.Device(device):
            sides.append(cupy.cuda.Stream(non_blocking=True, priority=-1))
    job = _Job(cupy, [_Rank(d, side) for d, side in zip(devices, sides, strict=True)])
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def body(number: int) -> None:
        failed = False
        try:
            with cupy.cuda.Device(devices[number]):
                engine = _PeerEngine(job, number, "world", list(range(size)))
                results[number] = function(PeerCommunicator(engine), *arguments)
                engine.synchronize()  # what others copy from here may go once all have ended
        except _Ended:
            pass
        except BaseException as error:  # given to the caller below
            errors.append((number, error))
            failed = True
        job.leave(number, failed)

    threads = [
        threading.Thread(target=body, args=(number,), name=f"rank {number}", daemon=True)
        for number in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        number, first = errors[0]
        raise named(first, number, size)
    return results


def _check_devices(devices: list[int], count: int) -> None:
    if not 1 <= len(devices) <= MOST_RANKS:
        raise ArgumentError(f"on_gpus: devices must be 1 to {MOST_RANKS}, got {len(devices)}")
    for rank, device in enumerate(devices):
        if not 0 <= device < count:
            raise DeviceError(
                f"on_gpus: there is no GPU {device}: this machine has {count}, counted from 0"
            )
        if devices.index(device) != rank:
            raise DeviceError(
                f"on_gpus: ranks {devices.index(device)} and {rank} would both use GPU {device}: give each "
                "its own"
            )


def _reach_each_other(cupy: Any, devices: Sequence[int]) -> None:
    """Let GPUs copy from each other's memory; where they cannot, CUDA copies by way of the host."""
    runtime = cupy.cuda.runtime
    for device in devices:
        with cupy.cuda.Device(device):
            for other in devices:
                if other != device and runtime.deviceCanAccessPeer(device, other):
                    with suppress(runtime.CUDARuntimeError):  # they do already
                        runtime.deviceEnablePeerAccess(other)
