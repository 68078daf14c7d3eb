"""A process for each contender: libraries do not meet, and each has the threads that it is given.

Contenders take turns: while one runs, the others wait for a message.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import cores

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MAGMADNN_NUM_THREADS",
)
# Everything that contenders keep between processes goes into a folder of the run.
CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
    "CUPY_CACHE_DIR",
    "CUDA_CACHE_PATH",
)
INHERITED = ("OPENBLAS_CORETYPE", "XLA_FLAGS", "OMP_WAIT_POLICY", "MKL_DEBUG_CPU_TYPE")


class ContenderError(Exception):
    """What happened in a contender's process, in one line."""


class Worker:
    """A contender's process, seen from the one that measures."""

    def __init__(self, threads: int, caches: Path, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=False)
        self._there: tuple[str, dict[str, Any]] | None = None
        with _environment(threads, caches, device):
            self._process.start()
        other.close()

    def load(self, path: str) -> None:
        """Begin to import the contender's module; the next call waits for it."""
        with contextlib.suppress(OSError):
            self._pipe.send(("load", (path,)))

    def make(self, path: str, arguments: Mapping[str, Any]) -> None:
        """Make the contender `path` ("module:class"), if it is not the one that is there."""
        wanted = (path, dict(arguments))
        if wanted != self._there:
            self._there = None
            self._ask("make", *wanted)
            self._there = wanted

    def check(self) -> Any:
        """What the contender computed, to be compared."""
        return self._ask("check")

    def warm_up(self) -> None:
        """Run until nothing is put off any more."""
        self._ask("warm_up")

    def timed(self, repeats: int = 1) -> float:
        """Seconds of one run, over `repeats` of them."""
        seconds: float = self._ask("timed", repeats)
        return seconds

    def peak_bytes(self) -> float:
        """The most memory that the process has had so far."""
        found: float = self._ask("peak_bytes")
        return found

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(("end", ()))
            self._pipe.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()

    def _ask(self, what: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((what, arguments))
            error, value = self._pipe.recv()
        except (EOFError, OSError) as ended:
            raise ContenderError(f"the process ended: {ended!r}") from ended
        if error:
            sys.stderr.write(error)
            raise ContenderError(error.strip().splitlines()[-1])
        return value


@contextlib.contextmanager
def _environment(threads: int, caches: Path, device: str) -> Iterator[None]:
    """What a process that is started now inherits: threads, cores, empty settings of its own."""
    kept = dict(os.environ)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    os.environ.update({name: str(caches / name.lower()) for name in CACHE_VARIABLES})
    os.environ["JAX_PLATFORMS"] = device
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the contenders share a GPU
    for name in INHERITED:
        os.environ.pop(name, None)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if allowed is not None:
        os.sched_setaffinity(0, cores()[:threads])
    try:
        yield
    finally:
        if allowed is not None:
            os.sched_setaffinity(0, allowed)
        os.environ.clear()
        os.environ.update(kept)


def _serve(pipe: Connection) -> None:
    """The contender's process: answer until told to end."""
    contender: Any = None
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        if what == "end":
            return
        if what == "load":  # what fails here fails again where an answer is waited for
            with contextlib.suppress(Exception):
                importlib.import_module(arguments[0].partition(":")[0])
            continue
        value: Any = None
        error = ""
        try:
            if what == "make":
                contender = None  # its memory is free before the next one's is taken
                contender = _made(*arguments)
            elif what == "peak_bytes":
                value = _peak_bytes()
            elif what == "check":
                value = contender.check()
            elif what == "warm_up":
                _warm_up(contender)
            else:
                value = _timed(contender, *arguments)
        except Exception:
            error = traceback.format_exc()
        pipe.send((error, value))


def _made(path: str, arguments: dict[str, Any]) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)(**arguments)


def _warm_up(contender: Any) -> None:
    """One run; a contender with several programs, each of which prepares its own first run, says how many."""
    for _ in range(getattr(contender, "first_runs", 1)):
        contender.run()


def _timed(contender: Any, repeats: int) -> float:
    """Seconds of one run; a contender that does several in one call says how many."""
    gc.collect()
    run, at_once = contender.run, getattr(contender, "runs", 1)
    calls = max(1, repeats // at_once)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / (calls * at_once)


def _peak_bytes() -> int:
    """Of this process alone: on Linux, `getrusage` would count what the parent had when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
