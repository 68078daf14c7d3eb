"""Messages by MPI, through mpi4py: any library it finds, waiting without spinning, mistakes found early.

Only point-to-point messages are used, so the order of sums is ours (`rounds.py`), not the library's. A tag
holds the call's number and a digest of what is called, so that calls that differ never match; the rank that
waits then looks into the ledger. A rank that waits tests some times, or for some milliseconds where each rank
has cores to spare, then sleeps between tests, longer and longer up to a millisecond: MPICH itself would spin,
and ranks may outnumber cores.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from magmadnn.errors import CommunicationError, MissingExtraError

from .arrays import as_bytes
from .communicator import Request
from .engine import Call
from .ledger import Ledger
from .rounds import Task
from .shared_memory import note_files

_TESTS: Final = 200  # before the first sleep
_SPARE: Final = 4  # cores for each rank from which on a rank goes on testing,
# for so many seconds: a sleep ends some 0.06 ms late, or half of its own length.
_TESTING: Final = 2e-3
# Seconds since a rank has tested a call itself, up to which the thread leaves it alone.
_POLLED: Final = 10e-3
_FIRST_SLEEP: Final = 20e-6  # seconds
_LONGEST_SLEEP: Final = 1e-3
_FIRST_LOOK: Final = 0.03  # seconds of waiting until the ledger is read
_NEXT_LOOK: Final = 0.1
_NOTICE: Final = 10.0  # seconds of waiting until a line says for whom,
_STOPPED_NOTICE: Final = 1.0  # and until it does where the system has stopped that process


def load_mpi() -> Any:
    """The module mpi4py.MPI, which calls MPI_Init.

    Raises:
        MissingExtraError: if mpi4py or a library of MPI is not there.
    """
    begun = "mpi4py.MPI" in sys.modules
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MissingExtraError.of("mpi4py", "communication by MPI", "mpi") from error
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        missing = MissingExtraError.of("a library of MPI", f"mpi4py ({reason})", "mpi")
        raise missing from error
    if not begun:
        note_files()
    return MPI


@dataclass(slots=True, eq=False)
class _Running:
    """A task under way."""

    engine: MpiEngine
    task: Task
    call: Call
    requests: list[Any] = field(default_factory=list)
    ended: bool = False
    result: Any = None
    error: BaseException | None = None


class _Progress:
    """Goes on with calls that returned at once, on a thread that exists once there are any."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._work = threading.Condition(self.lock)
        self.running: list[_Running] = []
        self.polled = 0.0  # when a call was last tested by who wants it
        self._thread: threading.Thread | None = None

    def add(self, running: _Running) -> None:
        with self.lock:
            self.running.append(running)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="magmadnn MPI", daemon=True)
                self._thread.start()
            self._work.notify()

    def advance(self) -> None:
        """A step of all; the lock is held."""
        for running in self.running:
            running.engine.advance(running)
        self.running = [running for running in self.running if not running.ended]

    def _run(self) -> None:
        sleep = _FIRST_SLEEP
        while True:
            with self.lock:
                is_polled = time.monotonic() - self.polled < _POLLED
                while not self.running and not is_polled:
                    self._work.wait()
                    sleep = _FIRST_SLEEP
                    is_polled = time.monotonic() - self.polled < _POLLED
                before = len(self.running)
                self.advance()
                sleep = (
                    _FIRST_SLEEP if len(self.running) < before else min(2 * sleep, _LONGEST_SLEEP)
                )
            time.sleep(_LONGEST_SLEEP if is_polled else sleep)


_progress = _Progress()


class _MpiRequest:
    """A call under way."""

    def __init__(self, running: _Running) -> None:
        self._running = running

    def wait(self) -> Any:
        """Block until the call has ended; its result."""
        running = self._running
        return running.engine.wait(running)

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        with _progress.lock:
            if not self._running.ended:
                _progress.polled = time.monotonic()
                _progress.advance()
        return self._running.ended


class MpiEngine:
    """One rank of a group of MPI processes.

    Args:
        comm: mpi4py's communicator, which is duplicated: messages of others do not meet ours.
        group: its name.
        members: ranks of the job, by rank of the group.
        ledger: None where ranks do not share a machine.
    """

    def __init__(self, comm: Any, group: str, members: list[int], ledger: Ledger | None) -> None:
        self._mpi = load_mpi()
        self._collectives, self._pairs = comm.Dup(), comm.Dup()
        self.group, self._members, self._ledger = group, members, ledger
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        most = self._collectives.Get_attr(self._mpi.TAG_UB) or 32767
        self._testing = _testing_seconds(ledger)
        self._digests = max(1, min(1 << 13, (most + 1) >> 14))

    # --- tasks -------------------------------------------------------------------------------

    def run(self, task: Task, call: Call) -> Any:
        """Carry out a task to its end."""
        running = _Running(self, task, call)
        if self._ledger is not None:
            self._ledger.enter(call, beside=bool(_progress.running))
        return self.wait(running)

    def start(self, task: Task, call: Call) -> Request:
        """Begin a task that goes on beside what its rank does."""
        running = _Running(self, task, call)
        if self._ledger is not None:
            self._ledger.enter(call, beside=True)
            self._ledger.leave()
        with _progress.lock:
            self.advance(running)
            if not running.ended:
                _progress.add(running)
        return _MpiRequest(running)

    def wait(self, running: _Running) -> Any:
        """Block until a task has ended."""
        tests, sleep, began, look = 0, _FIRST_SLEEP, 0.0, _FIRST_LOOK
        noticed = noticed_stopped = False
        try:
            while True:
                with _progress.lock:
                    if running not in _progress.running:
                        self.advance(running)
                    if _progress.running:
                        _progress.advance()
                if running.ended:
                    break
                tests += 1
                if tests < _TESTS:
                    os.sched_yield() if tests > 20 and hasattr(os, "sched_yield") else None
                    continue
                began = began or time.monotonic()
                if self._testing and time.monotonic() - began < self._testing:
                    os.sched_yield() if hasattr(os, "sched_yield") else None
                    continue
                time.sleep(sleep)
                sleep = min(2 * sleep, _LONGEST_SLEEP)
                waited = time.monotonic() - began
                if waited > look:
                    look = waited + _NEXT_LOOK
                    self._look(running.call, waited)
                    if waited > _STOPPED_NOTICE and not noticed_stopped:
                        noticed_stopped = self._notice_stopped(running.call, waited)
                    if waited > _NOTICE and not noticed:
                        noticed = True
                        self._notice(running.call)
        finally:
            if self._ledger is not None:
                self._ledger.leave()
        if running.error is not None:
            raise running.error
        return running.result

    def advance(self, running: _Running) -> None:
        """Go on with a task as far as messages allow; the lock is held."""
        while not running.ended:
            if running.requests:
                try:
                    if not self._mpi.Request.Testall(running.requests):
                        return
                except self._mpi.Exception as error:
                    running.error = CommunicationError(f"{running.call}: MPI says {error}")
                    running.ended = True
                    return
                running.requests = []
                if self._ledger is not None:
                    self._ledger.step()
            try:
                step = next(running.task)
            except StopIteration as end:
                running.ended, running.result = True, end.value
            except Exception as error:  # raised where the call is waited for
                running.ended, running.error = True, error
            else:
                call = running.call
                comm = self._collectives if call.number else self._pairs
                tag = call.channel % (1 << 14) + (self._digest(call) << 14)
                requests = running.requests
                for array, source in step.receives:
                    if array.nbytes:
                        requests.append(comm.Irecv([as_bytes(array), self._mpi.BYTE], source, tag))
                for array, to in step.sends:
                    if array.nbytes:
                        requests.append(comm.Isend([as_bytes(array), self._mpi.BYTE], to, tag))

    def _digest(self, call: Call) -> int:
        """Of what both sides of a message say alike."""
        what = call.what
        if not call.number:  # send float32 (3,) to rank 1 ...: dtype and shape
            what = what[5 : what.rindex(")")]
        return zlib.crc32(what.encode()) % self._digests

    # --- waiting -----------------------------------------------------------------------------

    def _look(self, call: Call, waited: float) -> None:
        """Raise if the call can never end."""
        trouble = (
            self._ledger.trouble(call, self._members, waited) if self._ledger is not None else None
        )
        if trouble is None:
            trouble = self._stray(call)
        if trouble is not None:
            raise CommunicationError(trouble)

    def _stray(self, call: Call) -> str | None:
        """A message of the same call that says something else, from a rank on another machine."""
        comm, status = (self._collectives if call.number else self._pairs), self._mpi.Status()
        with _progress.lock:
            waiting = comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)
        if not waiting:
            return None
        tag, source = status.Get_tag(), status.Get_source()
        if tag % (1 << 14) != call.channel % (1 << 14) or tag >> 14 == self._digest(call):
            return None
        if call.peers and source not in call.peers:
            return None
        here = f"rank {self.rank} of {self.group} waits in {call}"
        return f"calls differ: {here}; rank {source} sent for another call"

    def _notice(self, call: Call) -> None:
        """Say for whom this rank has waited long."""
        if self._ledger is None:
            return
        for entry in self._ledger.entries():
            if entry is not None and entry.rank in self._members and entry.state != b"w":
                print(
                    f"magmadnn: rank {self._ledger.rank} has waited {_NOTICE:.0f} s in {call} for rank "
                    f"{entry.rank}, which is still at work; {entry.last()}",
                    file=sys.stderr,
                    flush=True,
                )

    def _notice_stopped(self, call: Call, waited: float) -> bool:
        """Say which ranks cannot go on, as the system has stopped their processes; whether there are any."""
        if self._ledger is None:
            return False
        stopped = self._ledger.stopped(self._members)
        for entry in stopped:
            print(
                f"magmadnn: rank {self._ledger.rank} has waited {waited:.0f} s in {call}, and rank "
                f"{entry.rank} is stopped (SIGSTOP, Ctrl-Z, a debugger): kill -CONT {entry.process} lets it "
                f"go on; {entry.last()}",
                file=sys.stderr,
                flush=True,
            )
        return bool(stopped)

    # --- groups ------------------------------------------------------------------------------

    def split(self, name: str, members: list[int]) -> MpiEngine | None:
        """The engine of some ranks; None on others."""
        if self.rank not in members:
            return None
        within = self._collectives.Get_group()
        part = within.Incl(members)
        comm = self._collectives.Create_group(part)
        numbers = [self._members[rank] for rank in members]
        engine = MpiEngine(comm, name, numbers, self._ledger)
        comm.Free()
        return engine

    def library_all_reduce(self, array: Any, op: str) -> Any | None:
        """MPI's own all-reduce of elements that it knows."""
        if array.dtype.name in ("float16", "bfloat16") or array.dtype.kind not in "iuf":
            return None
        ops = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PROD"}
        total = array.copy()
        request = self._collectives.Iallreduce(array, total, getattr(self._mpi, ops[op]))
        tests, sleep = 0, _FIRST_SLEEP
        while not request.Test():
            tests += 1
            if tests > _TESTS:
                time.sleep(sleep)
                sleep = min(2 * sleep, _LONGEST_SLEEP)
        return total

    def close(self) -> None:
        """Free the duplicates; collective, as in MPI."""
        self._collectives.Free()
        self._pairs.Free()


def _testing_seconds(ledger: Ledger | None) -> float:
    """How long a rank goes on testing: not at all where others of its machine may want the core."""
    if ledger is None or not hasattr(os, "sched_getaffinity"):
        return 0.0
    return _TESTING if len(os.sched_getaffinity(0)) >= _SPARE * ledger.size else 0.0
