"""Up to 64 ranks in one process, one at a time, with clocks, links that take time, and failures.

Each rank is a thread, but only one runs at any moment: it goes on until it has to wait, and then the ready
rank whose clock is least takes over, ties in an order drawn from the seed. So a run with the same seed
repeats every step, and ranks that can never go on are found at once. Clocks count what messages take and what
`advance` adds; arithmetic takes no time.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from magmadnn.errors import ArgumentError, CommunicationError, MagmaDNNError, quoted

from .arrays import as_bytes, described
from .communicator import Request
from .engine import Call, SameCalls
from .group import HostCommunicator
from .network import Delay, Drop, Fault, Kill, Network
from .rounds import Round, Task

Result = TypeVar("Result")

MOST_RANKS: Final = 64
_POLLS = 1000  # of `done` in vain while no other rank can run


class _Ended(BaseException):
    """Unwinds a rank that was killed, or one that is not needed any more."""


@dataclass(slots=True, eq=False)
class _Running:
    """A task under way."""

    rank: int
    task: Task
    call: Call
    clock: float
    missing: int = 0
    ended: bool = False
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Rank:
    """What the world knows of one rank."""

    clock: float = 0.0
    leaving: float = 0.0  # when its port is free to send
    calls: int = 0
    polls: int = 0
    state: str = "ready"  # or waiting, ended, killed
    waits: _Running | None = None
    last: Call | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class _World:
    """All ranks, their messages and whose turn it is. Only the rank whose turn it is touches it."""

    def __init__(
        self, size: int, network: Network, faults: Sequence[Fault] = (), seed: int = 0
    ) -> None:
        if network.groups and len(network.groups) != size:
            raise ArgumentError(
                f"simulate: the network has groups of {len(network.groups)} ranks, and there are {size}"
            )
        self.network, self.faults = network, faults
        self.ranks = [_Rank() for _ in range(size)]
        self._order = random.Random(seed)
        # By sender, receiver, group and channel: messages not asked for yet, and receives not answered yet.
        self._messages: dict[tuple[object, ...], deque[tuple[Any, float]]] = defaultdict(deque)
        self._receives: dict[tuple[object, ...], deque[tuple[Any, _Running]]] = defaultdict(deque)
        self._sent: dict[tuple[int, int], int] = defaultdict(int)
        self._free: dict[tuple[int, int], float] = defaultdict(float)  # when a link of groups is
        self._dropped: list[str] = []
        self._calls = SameCalls()
        self.bytes_sent = 0
        self.stopped: CommunicationError | None = None
        self.over = False

    # --- turns -------------------------------------------------------------------------------

    def next_rank(self) -> _Rank | None:
        """The rank whose turn it is, or None if none can go on."""
        ready = [rank for rank in self.ranks if rank.state == "ready"]
        if not ready:
            return None
        first = min(rank.clock for rank in ready)
        return self._order.choice([rank for rank in ready if rank.clock == first])

    def yield_turn(self, me: _Rank) -> None:
        """Let others run until it is this rank's turn again."""
        following = self.next_rank()
        if following is None:
            self._stop(CommunicationError(self._deadlock()))
            following = self.next_rank()
        if following is not me:
            assert following is not None
            following.go.release()
            me.go.acquire()
        if self.over:
            raise _Ended
        if self.stopped is not None:
            raise CommunicationError(str(self.stopped))

    def leave(self, me: _Rank, state: str) -> None:
        """The rank has ended: whose turn is it now?"""
        me.state = state
        if all(rank.state in ("ended", "killed") for rank in self.ranks):
            return
        if self.next_rank() is None:
            self._stop(CommunicationError(self._deadlock()))
        following = self.next_rank()
        assert following is not None
        following.go.release()

    def _stop(self, error: CommunicationError) -> None:
        """Nobody can go on: all ranks that wait get the error."""
        self.stopped = error
        for rank in self.ranks:
            if rank.state == "waiting":
                rank.state = "ready"

    def _deadlock(self) -> str:
        lines = []
        for number, rank in enumerate(self.ranks):
            if rank.state == "waiting" and rank.waits is not None:
                lines.append(f"rank {number} waits in {rank.waits.call}")
            elif rank.state in ("ended", "killed"):
                last = f"its last call was {rank.last}" if rank.last else "it made no call"
                lines.append(
                    f"rank {number} was killed; {last}"
                    if rank.state == "killed"
                    else f"rank {number} has ended; {last}"
                )
        lost = "".join(f"; {one}" for one in self._dropped)
        return f"no rank can go on: {'; '.join(lines)}{lost}"

    # --- calls -------------------------------------------------------------------------------

    def enter(self, number: int, call: Call, size: int) -> None:
        """A rank makes a call: compared with what the others called.

        Raises:
            CommunicationError: if ranks call different things.
        """
        me = self.ranks[number]
        if self.over:
            raise _Ended
        if self.stopped is not None:
            raise CommunicationError(str(self.stopped))
        me.calls += 1
        me.last = call
        if any(isinstance(f, Kill) and (f.rank, f.call) == (number, me.calls) for f in self.faults):
            me.state = "killed"
            raise _Ended
        self._calls.enter(number, call, size)

    def advance(self, running: _Running) -> None:
        """Go on with a task until it waits for a message or has ended."""
        while not running.missing and not running.ended:
            try:
                step = next(running.task)
            except StopIteration as end:
                running.ended, running.result = True, end.value
            except MagmaDNNError as error:
                running.ended, running.error = True, error
            else:
                self._begin(running, step)
        rank = self.ranks[running.rank]
        if running.ended and rank.waits is running and rank.state == "waiting":
            rank.state = "ready"
            rank.clock = max(rank.clock, running.clock)

    def _begin(self, running: _Running, step: Round) -> None:
        # All receives are counted before any is answered.
        call, me = running.call, running.rank
        receives = [(array, source) for array, source in step.receives if array.nbytes]
        running.missing += len(receives)
        start = running.clock
        for array, to in step.sends:
            if array.nbytes:
                self._send(array, me, to, call, start)
        for array, source in receives:
            key = (source, me, call.group, call.channel)
            if self._messages[key]:
                self._deliver(key, array, running, *self._messages[key].popleft())
            else:
                self._receives[key].append((array, running))

    def _send(self, array: Any, me: int, to: int, call: Call, start: float) -> None:
        self.bytes_sent += array.nbytes
        took = array.nbytes / self.network.bandwidth
        sender, groups = self.ranks[me], self.network.groups
        sender.leaving = max(sender.leaving, start) + took
        if groups and groups[me] != groups[to]:
            link = groups[me], groups[to]
            self._free[link] = max(self._free[link], start) + array.nbytes / self.network.between
            sender.leaving = max(sender.leaving, self._free[link])
        self._sent[me, to] += 1
        extra = 0.0
        for fault in self.faults:
            if isinstance(fault, Drop | Delay) and (fault.source, fault.to, fault.message) == (
                *(me, to),
                self._sent[me, to],
            ):
                if isinstance(fault, Drop):
                    self._dropped.append(
                        f"message {fault.message} of rank {me} to rank {to} was lost"
                    )
                    return
                extra += fault.seconds
        arrival = sender.leaving + self.network.latency + extra
        key = (me, to, call.group, call.channel)
        if self._receives[key]:
            array_of, running = self._receives[key].popleft()
            self._deliver(key, array_of, running, array, arrival)
            if not running.missing:
                self.advance(running)
        else:
            self._messages[key].append((array.copy(), arrival))

    def _deliver(
        self, key: tuple[object, ...], out: Any, running: _Running, message: Any, arrival: float
    ) -> None:
        running.missing -= 1
        running.clock = max(running.clock, arrival)
        is_part = bool(
            running.call.number
        )  # of what all ranks call; else shapes are compared, as by MPI
        wanted, come = ((a.dtype, a.size if is_part else a.shape) for a in (out, message))
        if wanted != come:
            running.ended = True
            running.error = CommunicationError(
                f"rank {key[1]} in {running.call} got {described(message)} from rank {key[0]}, expected "
                f"{described(out)}: both must name the same shape and dtype"
            )
            return
        as_bytes(out)[...] = as_bytes(message)


class _SimulatedRequest:
    """A call under way."""

    def __init__(self, world: _World, running: _Running) -> None:
        self._world, self._running = world, running

    def wait(self) -> Any:
        """Block until the call has ended; its result."""
        world, running = self._world, self._running
        me = world.ranks[running.rank]
        if not running.ended:
            me.state, me.waits = "waiting", running
            world.yield_turn(me)
            me.waits = None
        if running.error is not None:
            raise running.error
        me.clock = max(me.clock, running.clock)
        return running.result

    def done(self) -> bool:
        """Whether `wait` would return at once; if not, other ranks run first."""
        world, running = self._world, self._running
        me = world.ranks[running.rank]
        if running.ended and running.clock <= me.clock:
            me.polls = 0
            return True
        me.polls += 1
        if running.ended:  # asking takes time too: as long as it takes to arrive
            me.clock = running.clock
            return False
        if me.polls > _POLLS and all(r is me or r.state != "ready" for r in world.ranks):
            self.wait()
        later = [r.clock for r in world.ranks if r is not me and r.state == "ready"]
        me.clock = max(me.clock, min(later, default=me.clock))
        world.yield_turn(me)
        return False


class _SimulatedEngine:
    """One rank of a group of the world."""

    def __init__(self, world: _World, number: int, group: str, members: list[int]) -> None:
        self.world, self._number, self._members = world, number, members
        self.group = group
        self.rank, self.size = members.index(number), len(members)

    def start(self, task: Task, call: Call) -> Request:
        world = self.world
        world.enter(self._number, call, self.size)
        me = world.ranks[self._number]
        running = _Running(self._number, self._in_world(task), call, me.clock)
        world.advance(running)
        return _SimulatedRequest(world, running)

    def run(self, task: Task, call: Call) -> Any:
        return self.start(task, call).wait()

    def _in_world(self, task: Task) -> Task:
        """The task with ranks of the world for those of the group."""
        if self._members == list(range(len(self.world.ranks))):
            return (yield from task)
        of = self._members
        result: list[Any] = []
        for step in task_rounds(task, result):
            yield Round([(a, of[r]) for a, r in step.sends], [(a, of[r]) for a, r in step.receives])
        return result[0]

    def split(self, name: str, members: list[int]) -> _SimulatedEngine | None:
        if self.rank not in members:
            return None
        numbers = [self._members[rank] for rank in members]
        return _SimulatedEngine(self.world, self._number, name, numbers)

    def library_all_reduce(self, array: Any, op: str) -> None:
        return None

    def close(self) -> None:
        pass


def task_rounds(task: Task, result: list[Any]) -> Any:
    """The rounds of a task; its result is appended to `result`."""
    result.append((yield from task))


class SerialCommunicator(HostCommunicator):
    """A group of one: collectives copy, and messages to rank 0 come back."""

    def __init__(self) -> None:
        world = _World(1, Network())
        super().__init__(_SimulatedEngine(world, 0, "serial", [0]))


class SimulatedCommunicator(HostCommunicator):
    """One rank of a simulated group, with its clock."""

    _engine: _SimulatedEngine

    @property
    def clock(self) -> float:
        """Seconds that have passed on this rank."""
        return self._mine().clock

    def advance(self, seconds: float) -> None:
        """Let time pass on this rank, as if it computed."""
        if not seconds >= 0:
            raise ArgumentError(f"advance: seconds must be at least 0, got {seconds}")
        self._mine().clock += seconds

    @property
    def bytes_sent(self) -> int:
        """Bytes that all ranks together have sent until now."""
        return self._engine.world.bytes_sent

    def wait_any(self, requests: Sequence[Request]) -> int:
        """The number of the request that ends first, on the ranks' clocks; it has ended then."""
        world, me = self._engine.world, self._mine()
        runs = [request._running for request in requests if isinstance(request, _SimulatedRequest)]
        while True:
            ended = [run.clock for run in runs if run.ended]
            others = [r.clock for r in world.ranks if r is not me and r.state == "ready"]
            if ended and (not others or min(ended) <= min(others)):
                me.clock = max(me.clock, min(ended))
                return next(
                    k for k, run in enumerate(runs) if run.ended and run.clock == min(ended)
                )
            if not others:
                requests[0].wait()  # which says that nobody can go on
            me.clock = max(me.clock, min(others))
            world.yield_turn(me)

    def _mine(self) -> _Rank:
        return self._engine.world.ranks[self._engine._number]

    @classmethod
    def _of(cls, engine: Any) -> HostCommunicator:
        return SimulatedCommunicator(engine)


def simulate(
    size: int,
    function: Callable[..., Result],
    *arguments: Any,
    seed: int = 0,
    network: Network | None = None,
    faults: Sequence[Fault] = (),
) -> list[Result]:
    """Run `function(communicator, *arguments)` on each of `size` simulated ranks.

    Returns what they returned, by rank; None for one that was killed.

    Args:
        size: number of ranks, 1 to 64.
        function: what each rank does; it gets a `SimulatedCommunicator`.
        arguments: given to each rank.
        seed: which of several ready ranks runs first.
        network: what messages cost; None: nothing.
        faults: messages that are lost or late, ranks that die.

    Raises:
        CommunicationError: if ranks make different calls, or wait for ever; it names their lines.
        ArgumentError: for a wrong size.
        BaseException: the first error of any rank, with a note that names the rank.

    >>> import numpy as np
    >>> simulate(3, lambda comm: float(comm.all_reduce(np.array(comm.rank + 1.0))))
    [6.0, 6.0, 6.0]
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_RANKS:
        raise ArgumentError(f"simulate: size must be from 1 to {MOST_RANKS}, got {quoted(size)}")
    world = _World(size, network or Network(), faults, seed)
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def body(number: int) -> None:
        me = world.ranks[number]
        me.go.acquire()
        state = "ended"
        try:
            if not world.over:
                engine = _SimulatedEngine(world, number, "world", list(range(size)))
                results[number] = function(SimulatedCommunicator(engine), *arguments)
        except _Ended:
            state = "killed"
        except BaseException as error:  # given to the caller below
            errors.append((number, error))
            world.over = True
            for rank in world.ranks:
                if rank.state == "waiting":
                    rank.state = "ready"
        world.leave(me, state)

    threads = [
        threading.Thread(target=body, args=(number,), name=f"rank {number}", daemon=True)
        for number in range(size)
    ]
    for thread in threads:
        thread.start()
    first = world.next_rank()
    assert first is not None
    first.go.release()
    for thread in threads:
        thread.join()
    if errors:
        number, error = errors[0]
        raise named(error, number, size)
    return results


def named(error: BaseException, rank: int, size: int) -> BaseException:
    """The error with the rank that raised it in its message."""
    if (
        isinstance(error, MagmaDNNError)
        and len(error.args) == 1
        and not isinstance(error, CommunicationError)
    ):
        error.args = (f"rank {rank} of {size}: {error.args[0]}",)
    else:
        error.add_note(f"on rank {rank} of {size}")
    return error


__all__ = [
    *("SerialCommunicator", "SimulatedCommunicator", "simulate"),
]
