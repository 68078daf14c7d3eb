"""Starts a job, watches its ranks, and ends it as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from magmadnn.comm.job import RANKS
from magmadnn.comm.launching.importing import refuse_on_import
from magmadnn.comm.ledger import (
    BEGINNING,
    ENDED,
    FAILED,
    KILLED,
    RUNS,
    SLOT,
    STATE,
    VARIABLE,
    WAITS,
    Entry,
    Ledger,
)
from magmadnn.comm.shared_memory import remove_files
from magmadnn.errors import ArgumentError, CommunicationError

from .child import EXIT
from .wheels import find_starter

MOST_RANKS: Final = 1024
_RANGES: Final = ("MPIEXEC_PORT_RANGE", "MPIEXEC_PORTRANGE", "MPICH_PORT_RANGE")  # MPICH's
_CHILD: Final = Path(__file__).with_name("child.py")
_LOOK: Final = 0.05  # seconds between two looks at the ranks
_BEGIN: Final = 0.7  # seconds for MPI to begin on ranks that have called it
_SAVE: Final = 600.0  # seconds for ranks that were asked to end to finish a step and save
_LEAVE: Final = 10.0  # seconds for the others to end, after one has and rank 0 works no more
_SAY: Final = 1.0  # seconds until it is said what is waited for
_LAST: Final = {1: 1, 128 + signal.SIGTERM: 2}  # codes that follow from those of other ranks
_GRACE: Final = 0.3  # seconds for what ends by itself, after one rank has


def _is_passed_on(number: int) -> bool:
    """Whether a process that is started has this file: a daemon's is closed, or another took its number."""
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


class Job:
    """Processes that were started together and end together.

    Args:
        ranks: how many.
        program: script and arguments, or "-m", module and arguments.
        environment: variables beside those of this process.
        may_lose: ranks without which the job goes on; some only with Open MPI, whose ULFM is used then.
        options: given to subprocess.Popen.
    """

    def __init__(
        self,
        ranks: int,
        program: Sequence[str],
        environment: Mapping[str, str] | None = None,
        may_lose: Collection[int] = (),
        **options: Any,
    ) -> None:
        if not 1 <= ranks <= MOST_RANKS:
            raise ArgumentError(f"a job has 1 to {MOST_RANKS} ranks, got {ranks}")
        starter = find_starter(ulfm=bool(may_lose))
        check_ports()
        self._may_lose = may_lose
        self._folder = tempfile.TemporaryDirectory(prefix="magmadnn-job-")
        path = Path(self._folder.name, "ledger")
        Ledger.create(path, ranks)
        self.ledger = Ledger(path, -1, ranks)
        self.ranks = ranks
        self._gone: dict[int, float] = {}
        self._since = 0.0  # that ranks wait for one that will not come, in seconds
        threads = str(max(1, usable_cores() // ranks))
        given = dict(os.environ)
        for name in ("OMP_NUM_THREADS", "MAGMADNN_NUM_THREADS"):
            given.setdefault(name, threads)
        given |= (
            starter.environment()
            | {VARIABLE: str(path), RANKS: str(ranks)}
            | dict(environment or {})
        )
        child = [sys.executable, str(_CHILD), str(SLOT), str(STATE), *program]
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if name not in options and not _is_passed_on(number):
                options[name] = subprocess.DEVNULL  # mpiexec does not start without it
        self.process = subprocess.Popen(
            [*starter.command(ranks), *child],
            env=given,
            start_new_session=True,  # so that Ctrl-C comes here only, and all can be ended as one group
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            **options,
        )

    def trouble(self) -> str | None:
        """Which rank has ended before its time, and how; None if none has."""
        entries = [entry for entry in self.ledger.entries() if entry is not None]
        for entry in entries:
            if entry.state == FAILED or (
                entry.state == KILLED and entry.rank not in self._may_lose
            ):
                how = "failed" if entry.state == FAILED else "was killed"
                return f"rank {entry.rank} {how}; {entry.last()}"
        for entry in entries:
            if entry.state == ENDED or entry.rank in self._may_lose or _alive(entry.process):
                continue
            # What watches the rank may be about to write how it ended.
            if time.monotonic() - self._gone.setdefault(entry.rank, time.monotonic()) > _GRACE:
                return f"rank {entry.rank} has ended; {entry.last()}"
        return self._alone(entries)

    def _alone(self, entries: Sequence[Entry]) -> str | None:
        """Who waits in vain for all ranks to begin MPI, as one has ended without it; None if nobody does."""
        ended = [e for e in entries if e.state == ENDED and e.call is None]
        waits = [e for e in entries if e.state == WAITS and e.call and e.call.group == BEGINNING]
        if not (ended and waits):
            self._since = 0.0
            return None
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since < _BEGIN:
            return None
        assert waits[0].call is not None
        return (
            f"rank {waits[0].rank} at {waits[0].call.site} waits for all ranks to begin, and rank "
            f"{ended[0].rank} has ended without a call: all ranks run the same script, with the same fits"
        )

    def wait(self) -> int:
        """Wait for the end; the job's exit code. What a rank's end means for the others is done at once."""
        said = ""
        while True:
            ended = self.process.poll() is not None
            found = self.trouble()
            if found is not None:
                said = found
                break
            if ended:
                break
            time.sleep(_LOOK)
        if said:
            self._wait_for_end(_GRACE)
        own = self._own_code()
        self.end()
        code = self.process.returncode
        if said:
            print(f"magmadnn: {said}: the job has ended", file=sys.stderr, flush=True)
            return own or (code if code > 0 else 1)
        return 128 - code if code < 0 else code and (own or code)

    def _own_code(self) -> int:
        """The code that a rank has ended with by itself; 0 if none has told.

        Rather not the 1 of errors, nor that of SIGTERM: mpiexec ends ranks by it when another has failed.
        """
        codes = list[int]()
        for rank in range(self.ranks):
            with contextlib.suppress(OSError, ValueError):
                codes.append(int((Path(self._folder.name) / f"{EXIT}{rank}").read_text()))
        return min(codes, key=lambda code: _LAST.get(code, 0), default=0)

    def _wait_for_end(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def ask(self) -> None:
        """Tell the ranks to end, and wait for those that finish a step and save before; not for ever."""
        entries = [entry for entry in self.ledger.entries() if entry is not None]
        ranks = {e.rank: e.process for e in entries if _is_of_job(e.process, self._folder.name)}
        for process in ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        begun, said = time.monotonic(), False
        idle, since = -1, begun
        while (now := time.monotonic()) < begun + _SAVE and self.process.poll() is None:
            alive = {rank for rank, process in ranks.items() if _alive(process)}
            if not alive:
                return
            seen = self._idle(alive, len(ranks))
            if seen is None or seen != idle:
                idle, since = -1 if seen is None else seen, now
            elif now > since + _LEAVE:
                return
            if not said and now - begun > _SAY:
                said = True
                text = "magmadnn: the ranks finish a step and save; Ctrl-C again ends them at once"
                print(text, file=sys.stderr, flush=True)
            time.sleep(_LOOK)

    def _idle(self, alive: Collection[int], ranks: int) -> int | None:
        """A number that stays while rank 0 does nothing, or waits in one call, and another rank has ended.

        None as long as all are there, or rank 0 runs its script: it may save after the others have ended.
        """
        if len(alive) == ranks:
            return None
        first = self.ledger.read(0)
        if first is None or 0 not in alive:
            return 0
        return None if first.state == RUNS else first.steps

    def end(self) -> None:
        """Leave no process and no shared memory behind."""
        processes = [e.process for e in self.ledger.entries() if e is not None]
        for kind, seconds in ((signal.SIGTERM, 0.5), (signal.SIGKILL, 5.0)):
            left = [one for one in processes if _alive(one) and _is_of_job(one, self._folder.name)]
            if not left and self.process.poll() is not None:
                break
            for one in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, kind)
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, kind)
            self._wait_for_end(seconds)
            until = time.monotonic() + seconds
            while any(map(_alive, left)) and time.monotonic() < until:
                time.sleep(0.01)
        remove_files(Path(self._folder.name))
        self._folder.cleanup()


def run_job(ranks: int, program: Sequence[str]) -> int:
    """Run a program on some ranks; the exit code of the job.

    Raises:
        MissingExtraError: if there is no MPI.
        ArgumentError: for a wrong number of ranks; on a worker, while it imports a module.
    """
    refuse_on_import()
    job = Job(ranks, program)
    try:
        return job.wait()
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C, or what a handler of SIGTERM raises
            job.ask()
        raise
    finally:
        job.end()


def check_ports() -> None:
    """Look whether a range of ports that MPICH is given by the environment has one that is free.

    Raises:
        ArgumentError: if it is no range.
        CommunicationError: if all of its ports are in use.
    """
    for name in _RANGES:
        text = os.environ.get(name, "")
        if not text:
            continue
        low, _, high = text.partition(":")
        if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) < 1 << 16):
            raise ArgumentError(
                f"{name} must be a range of ports such as 20000:20100, got {text!r}; leave it unset for any"
            )
        if not any(_is_free(port) for port in range(int(low), int(high) + 1)):
            raise CommunicationError(
                f"{name}={text}: every port of this range is in use; give another range, or leave it unset "
                "for any that is free"
            )


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


def usable_cores() -> int:
    """Cores that this process may use; 1 where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _alive(process: int) -> bool:
    """Whether a process runs; one that has ended and is not yet collected does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return not Path("/proc/self").exists()


def _is_of_job(process: int, folder: str) -> bool:
    """Whether a process still is the rank that it was: numbers are used again."""
    try:
        return folder.encode() in Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
