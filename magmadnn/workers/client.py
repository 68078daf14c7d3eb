"""The client's side of workers: starting them, calling them, and what happens when one fails."""

from __future__ import annotations

import atexit
import builtins
import importlib
import secrets
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from magmadnn import errors
from magmadnn.comm import SerialCommunicator
from magmadnn.comm.job import rank_in_job, ranks_of_job
from magmadnn.comm.launching.launcher import Job
from magmadnn.comm.sites import call_site, told_site
from magmadnn.errors import ArgumentError, CommunicationError, UnknownAttributeError

from .handlers import Answer, Worker, find_handler
from .records import packed, receive, send, sendable_array
from .serving import ADDRESS, described

MOST: Final = 256
# Imported when its names are asked for first, as modules of handlers are.
_ABOVE: Final = "magmadnn.dmath.client.processes"
_START: Final = 60.0  # seconds until workers must have come
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


_entered: list[Workers] = []


def entered() -> Workers | None:
    """The workers of the innermost `with md.workers(...)` that this is in; None outside of one."""
    return _entered[-1] if _entered else None


class Workers:
    """Processes that carry out calls together, started from this one, which stays outside of their group.

    It is a context, and closes at its end; processes end with this one, whatever happens to it.

    Args:
        count: of processes; 0 for one worker in this process, which shares its memory.

    Raises:
        MissingExtraError: if there is no MPI and several are wanted.
        ArgumentError: for a wrong count.
        CommunicationError: if workers do not come, or this process is one of several ranks itself.
    """

    def __init__(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
            raise ArgumentError(
                f"workers: count must be an integer from 0 to {MOST}, got {count!r}"
            )
        self.count = count
        self._job: Job | None = None
        self._connections: list[socket.socket] = []
        self._pending: deque[Pending] = deque()
        self._local: Worker | None = None
        self._ended = ""
        self._one_at_a_time = threading.RLock()
        atexit.register(self.close)
        self.restart()

    @property
    def size(self) -> int:
        """Ranks that carry out a call: 1 for a worker in this process."""
        return max(1, self.count)

    def __repr__(self) -> str:
        return f"<Workers: {self.count or 'in this process'}{', ended' if self._ended else ''}>"

    def __enter__(self) -> Workers:
        _entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _entered.remove(self)
        self.close()

    # --- what folders above add --------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """What folders above add to workers: `array`, `random`, `counters` and the rest of
        `md.dmath.Session`.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        above = self.__dict__.get("_above")
        if above is None:
            above = self._above = importlib.import_module(_ABOVE).session(self)
        try:
            return getattr(above, name)
        except AttributeError:
            raise UnknownAttributeError(
                f"workers have no attribute {name!r}: see md.dmath.Session for what arrays on them can do"
            ) from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(importlib.import_module(_ABOVE).Session)})

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
        with self._one_at_a_time:  # another thread may hand over what has come together
            return self._handed_over(name, arguments, arrays)

    def _handed_over(
        self, name: str, arguments: Sequence[Any], arrays: Sequence[Sequence[Any]]
    ) -> Pending:
        if self._ended:
            raise CommunicationError(f"workers: {self._ended}: call restart() or make new ones")
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
            for connection, buffers in zip(self._connections, all_buffers, strict=True):
                send(connection, buffers)
        except OSError:
            pending.error = self._lost(pending)
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
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(self._connections):
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                left = None if until is None else until - time.monotonic()
                if left is not None and left < 0:
                    break
                for key, _ in selector.select(0.2 if left is None else left):
                    try:
                        record, arrays = receive(self._connections[key.data])
                    except (EOFError, OSError):
                        pending.error = self._lost(pending)
                        return
                    selector.unregister(key.fileobj)
                    if "error" in record:
                        failed = failed or record
                        until = time.monotonic() + _OTHERS
                    else:
                        answers[key.data] = Answer(record["value"], arrays)
                if self._job is not None and (found := self._job.trouble()):
                    pending.error = self._lost(pending, found)
                    return
            waiting = bool(selector.get_map())
        if failed is None:
            pending.answers = [one for one in answers if one is not None]
            return
        pending.error = _raised(failed, self.count)
        if waiting:  # for the one that failed
            self._end(
                f"they were ended, as worker {failed['rank']} raised {failed['error']} and others waited"
            )

    def _lost(self, pending: Pending | None, found: str = "") -> CommunicationError:
        """A worker is gone: which, and what it did last."""
        until = time.monotonic() + 0.5
        while not found and self._job is not None and time.monotonic() < until:
            found = self._job.trouble() or ""
            time.sleep(0.01)
        text = (found or "a worker has ended").replace("rank ", "worker ", 1)
        if pending is not None:
            text += f"; it was asked for {pending._what}"
        self._end(text)
        return CommunicationError(f"workers: {text}")

    # --- processes ---------------------------------------------------------------------------

    def restart(self) -> None:
        """End the workers, whatever they do, and start new ones; what they kept is lost."""
        self._let_go(wait=False)
        self._end("")
        if self.count == 0:
            self._local = Worker(SerialCommunicator())
            return
        if ranks_of_job() > 1:
            raise CommunicationError(
                f"workers: this process is rank {rank_in_job()} of a job of {ranks_of_job()} ranks: start "
                "the script with plain python, or let all ranks work together by md.comm.world()"
            )
        word = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0), backlog=self.count) as server:
            port = server.getsockname()[1]
            environment = {ADDRESS: f"127.0.0.1 {port} {word}"}
            module = ["-m", "magmadnn.workers"]
            self._job = Job(self.count, module, environment, stdin=subprocess.DEVNULL)
            try:
                self._connect(server, word)
            except BaseException:
                self._end("they did not start")
                raise

    def _connect(self, server: socket.socket, word: str) -> None:
        """Wait for all workers; the connections, by number."""
        assert self._job is not None
        found: dict[int, socket.socket] = {}
        until = time.monotonic() + _START
        server.settimeout(0.1)
        while len(found) < self.count:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                trouble = self._job.trouble()
                if trouble or self._job.process.poll() is not None or time.monotonic() > until:
                    reason = trouble or "mpiexec did not start them"
                    raise CommunicationError(f"workers: {reason}; see the lines above") from None
                continue
            connection.settimeout(10)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                record, _ = receive(connection)
            except (EOFError, OSError, ValueError):
                connection.close()
                continue
            if record.get("word") != word:
                connection.close()
                continue
            connection.settimeout(None)
            found[record["rank"]] = connection
        self._connections = [found[rank] for rank in range(self.count)]
        for connection in self._connections:
            try:
                receive(connection)  # its group is there
            except (EOFError, OSError):
                raise self._lost(None) from None

    def close(self) -> None:
        """End the workers. Closing twice does nothing."""
        atexit.unregister(self.close)
        self._let_go(wait=True)
        if self._job is not None and not self._ended and not self._pending:
            try:
                for connection in self._connections:
                    send(connection, packed({"close": True}))
                self._job._wait_for_end(2.0)
            except OSError:  # they have ended already
                print("magmadnn: workers had ended before they were closed", file=sys.stderr)
        self._end("they are closed")

    def _end(self, why: str) -> None:
        self._ended = why
        self._local = None
        error = CommunicationError(f"workers: {why or 'they were started again'}")
        while self._pending:
            self._pending.popleft().error = error
        for connection in self._connections:
            connection.close()
        self._connections = []
        if self._job is not None:
            job, self._job = self._job, None
            job.end()


def _raised(record: dict[str, Any], count: int) -> Exception:
    """The error that a worker raised, with its number and line."""
    name = record["error"]
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    text = f"worker {record['rank']} of {count}, at {record['line']}: {record['text']}"
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return CommunicationError(f"{text} ({name})")
    try:
        error = kind(text)
    except TypeError:  # an exception that wants other arguments
        return CommunicationError(f"{text} ({name})")
    error.add_note(f"on the worker:\n{record['trace']}")
    return error
