"""The client's side of workers: starting them, calling them, and what happens when one fails."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from magmadnn.calls import ADDED
from magmadnn.comm import SerialCommunicator
from magmadnn.comm.job import ranks_of_job
from magmadnn.comm.launching.importing import refuse_on_import
from magmadnn.comm.launching.launcher import usable_cores
from magmadnn.comm.sites import call_site, told_site
from magmadnn.errors import (
    ArgumentError,
    CommunicationError,
    MagmaDNNError,
    UnknownAttributeError,
    error_like,
)

from .handlers import Answer, Worker, find_handler
from .ranks import join
from .records import packed, receive, send, sendable_array
from .serving import described
from .starting import Processes, Staff

MOST: Final = 256
_OTHERS: Final = 0.3  # seconds that the other workers have after one has failed


class Pending:
    """A call under way."""

    def __init__(self, workers: Workers, name: str, site: str) -> None:
        self._workers, self._what = workers, f"{name} at {site}"
        self.answers: list[Answer] | None = None
        self.error: Exception | None = None

    def wait(self) -> list[Answer]:
        """Block until all workers have answered; the answers, by number of the worker.

        Raises:
            MagmaDNNError: what a worker raised, with its number and line.
        """
        self._workers._finish(self)
        if self.error is not None:
            raise self.error
        assert self.answers is not None
        return self.answers


ENTERED: Final[list[Workers]] = []  # of `with md.workers(...)` that this is in, the innermost last


def entered() -> Workers | None:
    """The workers of the innermost `with md.workers(...)` that this is in; None outside of one."""
    return ENTERED[-1] if ENTERED else None


class Workers:
    """Processes that carry out calls together.

    From plain Python they are started by this process, which stays outside of their group, and end with it,
    whatever happens to it. Under mpiexec, Slurm or `magmadnn launch` they are the job's own ranks: rank 0 is
    the client and runs the script, every other rank is a worker (rank r is worker r - 1) from here on, until
    rank 0 ends, and exits then. What stands before `md.workers()` is run by all ranks. A worker that is lost
    ends such a job.

    It is a context, and closes at its end. A process that is forked from this one, as multiprocessing's are
    on Linux, cannot use them, and leaves them alone.

    Args:
        count: of processes; 0 for one worker in this process, which shares its memory; None for one on each
            core, or all ranks of the job but the first.

    Raises:
        MissingExtraError: if there is no MPI and several are wanted.
        ArgumentError: for a wrong count, or one that is not that of the job's ranks; on a worker, while it
            imports a module.
        CommunicationError: if workers do not come.
    """

    def __init__(self, count: int | None = None) -> None:
        refuse_on_import()
        ranks = ranks_of_job()
        if count is None:
            count = ranks - 1 if ranks > 1 else min(usable_cores(), MOST)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
            raise ArgumentError(
                f"workers: count must be an integer from 0 to {MOST}, got {count!r}"
            )
        self._in_job = ranks > 1 and count > 0
        if self._in_job and count != ranks - 1:
            raise ArgumentError(
                f"workers: this job has {ranks} ranks, of which the first is the client and {ranks - 1} "
                f"work, not {count}: start {count + 1} ranks, or write md.workers()"
            )
        self.count = count
        self._staff: Staff | None = None
        self._pending: deque[Pending] = deque()
        self._local: Worker | None = None
        self._ended = ""
        self._one_at_a_time = threading.RLock()
        self._process = os.getpid()  # whose connections and workers these are
        atexit.register(self.close)
        self.restart()

    @property
    def size(self) -> int:
        """Ranks that carry out a call: 1 for a worker in this process."""
        return max(1, self.count)

    def __repr__(self) -> str:
        return f"<Workers: {self.count or 'in this process'}{', ended' if self._ended else ''}>"

    def __enter__(self) -> Workers:
        ENTERED.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        ENTERED.remove(self)
        self.close()

    def check_process(self) -> None:
        """Refuse a process that was forked from the one that has the connections to the workers.

        Raises:
            CommunicationError: it is another process. Two that wrote to one connection would get each
                other's answers.
        """
        if self._is_elsewhere():
            raise CommunicationError(
                f"workers: they belong to process {self._process}, from which this one was forked: start "
                "others here with md.workers(), or start this process by multiprocessing's spawn"
            )

    def check_alive(self) -> None:
        """Refuse workers that have ended.

        Raises:
            CommunicationError: they have; says why.
        """
        if self._ended:
            raise CommunicationError(f"workers: {self._ended}: call restart() or make new ones")

    def _is_elsewhere(self) -> bool:
        return self._local is None and os.getpid() != self._process

    # --- what folders above add --------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """What folders above add to workers: `array`, `random`, `counters` and the rest of
        `md.dmath.Session`.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return getattr(self._added(), name)
        except AttributeError:
            raise UnknownAttributeError(
                f"workers have no attribute {name!r}: see md.dmath.Session for what arrays on them can do"
            ) from None

    def _added(self) -> Any:
        """What folders above add, made when it is asked for first."""
        if "_above" not in self.__dict__:  # another thread may ask meanwhile: one of them is kept
            self.__dict__.setdefault("_above", ADDED["Workers"](self))
        return self._above

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._added())})

    def _let_go(self, wait: bool) -> None:
        """Arrays that workers held are lost: whoever still has a handle is told so."""
        if (above := self.__dict__.pop("_above", None)) is not None:
            above.close(wait)

    # --- calls -------------------------------------------------------------------------------

    def call(self, name: str, arguments: Any = None, arrays: Sequence[Any] = ()) -> list[Answer]:
        """Call a handler on all workers with the same arguments and arrays, and wait for their answers.

        Raises:
            MagmaDNNError: what a worker raised, with its number and line.
        """
        return self.start(name, arguments, arrays).wait()

    def start(self, name: str, arguments: Any = None, arrays: Sequence[Any] = ()) -> Pending:
        """`call` that returns at once; calls are carried out in order."""
        return self._start(name, [arguments] * self.size, [arrays] * self.size)

    def start_scatter(
        self, name: str, arguments: Sequence[Any], arrays: Sequence[Sequence[Any]]
    ) -> Pending:
        """`start` with arguments and arrays of its own for each worker."""
        for what, values in (("arguments", arguments), ("arrays", arrays)):
            if len(values) != self.size:
                raise ArgumentError(f"workers: {what} needs {self.size} entries, got {len(values)}")
        return self._start(name, arguments, arrays)

    def scatter(
        self, name: str, arguments: Sequence[Any], arrays: Sequence[Sequence[Any]]
    ) -> list[Answer]:
        """`call` with arguments and arrays of its own for each worker."""
        return self.start_scatter(name, arguments, arrays).wait()

    def _start(
        self, name: str, arguments: Sequence[Any], arrays: Sequence[Sequence[Any]]
    ) -> Pending:
        self.check_process()  # before the lock, which another thread may have had when it was forked
        with self._one_at_a_time:  # another thread may hand over what has come together
            return self._handed_over(name, arguments, arrays)

    def _handed_over(
        self, name: str, arguments: Sequence[Any], arrays: Sequence[Sequence[Any]]
    ) -> Pending:
        self.check_alive()
        function = find_handler(name)
        site = call_site()
        pending = Pending(self, name, site)
        if self._local is not None:
            self._here(pending, function, arguments[0], arrays[0], site)
            return pending
        head = {"call": name, "module": function.__module__, "site": site}
        same = all(a is arguments[0] for a in arguments) and all(a is arrays[0] for a in arrays)
        first = packed({**head, "arguments": arguments[0]}, arrays[0])
        all_buffers = [
            first if same or not i else packed({**head, "arguments": arguments[i]}, arrays[i])
            for i in range(self.size)
        ]
        try:
            assert self._staff is not None
            for number, buffers in enumerate(all_buffers):
                send(self._staff.connections[number], buffers)
        except OSError:
            pending.error = self._lost(pending, number)
            return pending
        self._pending.append(pending)
        return pending

    def _here(
        self, pending: Pending, function: Any, arguments: Any, arrays: Any, site: str
    ) -> None:
        assert self._local is not None
        try:
            with told_site(site):
                given = [sendable_array(array) for array in arrays]
                pending.answers = [function(self._local, arguments, given) or Answer()]
        except Exception as error:  # raised where the call is waited for, as by other workers
            pending.error = _raised(described(error, 0), 1)
            pending.error.__cause__ = error

    def _finish(self, pending: Pending) -> None:
        with self._one_at_a_time:
            self._finish_in_order(pending)

    def _finish_in_order(self, pending: Pending) -> None:
        while pending.answers is None and pending.error is None:
            if pending not in self._pending:
                raise CommunicationError(f"workers: {self._ended or 'the call was given up'}")
            first = self._pending.popleft()
            try:
                self._receive(first)
            except BaseException:  # such as Ctrl-C: what comes next on the sockets is unknown
                if first.error is None:
                    self._end("a call was interrupted")
                raise

    def _receive(self, pending: Pending) -> None:
        """The answers of all workers to one call."""
        answers: list[Answer | None] = [None] * self.count
        failed: dict[str, Any] | None = None
        until = None
        assert self._staff is not None
        connections = self._staff.connections
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(connections):
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                left = None if until is None else until - time.monotonic()
                if left is not None and left < 0:
                    break
                for key, _ in selector.select(0.2 if left is None else left):
                    try:
                        record, arrays = receive(connections[key.data])
                    except (EOFError, OSError):
                        pending.error = self._lost(pending, key.data)
                        return
                    selector.unregister(key.fileobj)
                    if "error" in record:
                        failed = failed or record
                        until = time.monotonic() + _OTHERS
                    else:
                        answers[key.data] = Answer(record["value"], arrays)
                if found := self._staff.trouble():
                    pending.error = self._lost(pending, None, found)
                    return
            waiting = bool(selector.get_map())
        if failed is None:
            pending.answers = [one for one in answers if one is not None]
            return
        pending.error = _raised(failed, self.count)
        if waiting:  # for the one that failed
            self._end(
                f"they were ended, as worker {failed['rank']} raised {failed['error']} and others waited",
                pending.error,
            )

    def _lost(self, pending: Pending, number: int | None, found: str = "") -> CommunicationError:
        """A worker is gone: which, and what it did last."""
        assert self._staff is not None
        text = found or self._staff.gone(number)
        text += f"; it was asked for {pending._what}"
        error = CommunicationError(f"workers: {text}")
        self._end(text, error)
        return error

    # --- processes ---------------------------------------------------------------------------

    def restart(self) -> None:
        """End the workers, whatever they do, and start new ones; what they kept is lost.

        Raises:
            CommunicationError: if they do not come; of a job's own ranks, if one is lost; in a process that
                was forked from theirs.
        """
        self.check_process()
        self._let_go(wait=False)
        if self._in_job:
            self._finish_all()
        self._end("")
        if self.count == 0:
            self._local = Worker(SerialCommunicator())
        else:
            self._staff = join() if self._in_job else Processes(self.count)

    def close(self) -> None:
        """End the workers. Closing twice does nothing, nor does a process that was forked from theirs."""
        atexit.unregister(self.close)
        if self._is_elsewhere():
            return
        self._let_go(wait=True)
        if self._in_job:
            self._finish_all()
        self._end("they are closed")

    def _finish_all(self) -> None:
        """A job's ranks go on: what they still have to answer is waited for."""
        with contextlib.suppress(MagmaDNNError):
            while self._pending:
                self._finish(self._pending[-1])

    def _end(self, why: str, error: Exception | None = None) -> None:
        """Workers are no longer called, because of an error or at the user's wish."""
        idle = not self._ended and not self._pending
        self._ended = why
        self._local = None
        lost = CommunicationError(f"workers: {why or 'they were started again'}")
        while self._pending:
            self._pending.popleft().error = lost
        if self._staff is not None:
            staff, self._staff = self._staff, None
            staff.end(error) if error is not None else staff.dismiss(idle)


def _raised(record: dict[str, Any], count: int) -> Exception:
    """The error that a worker raised, with its number and line."""
    text = f"worker {record['rank']} of {count}, at {record['line']}: {record['text']}"
    error = error_like(record["error"], text)
    assert isinstance(error, Exception)  # workers tell of no others
    error.add_note(f"on the worker:\n{record['trace']}")
    return error
