"""Runs a reader over many damaged files and looks at everything that it may do wrong.

A reader may give a result, which the test then compares with another way to it, or refuse with one of
magmadnn's own errors, in one line of bounded length. It may not raise anything else, warn, take long or take
much memory.
"""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from magmadnn.errors import MagmaDNNError, OutOfMemoryError

FILES = 2_000  # for each reader; 100,000 with --all
SECONDS = 2.0  # of this thread's own time, for one file
MEMORY = 700 << 20  # bytes beyond what the process has before
LETTERS = 6_000  # of a message


@contextlib.contextmanager
def bounded_memory(nbytes: int = MEMORY) -> Iterator[None]:
    """In the block, this process gets no more than `nbytes` of further address space (on Linux)."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(statm.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Fuzz:
    """Damaged files for one reader.

    Args:
        name: of the reader; with a file's number it gives that file again.
        files: how many there are.
    """

    def __init__(self, name: str, files: int = FILES) -> None:
        self.name, self.files = name, files
        self.found: Counter[str] = Counter()
        self.texts: set[str] = set()

    def run(
        self,
        make: Callable[[random.Random], Any],
        read: Callable[[Any], Any],
        check: Callable[[Any, Any], None] | None = None,
        refused: Callable[[Any], None] | None = None,
    ) -> None:
        """Read every file.

        Args:
            make: a damaged file from random numbers.
            read: the reader, on what `make` gave.
            check: compares what was made with what was read; raises AssertionError.
            refused: looks at what is left after a refusal.
        """
        with bounded_memory(), warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(self.files):
                made = make(random.Random(f"{self.name} {number}"))
                try:
                    self._one(made, read, check, refused)
                except BaseException as error:
                    error.add_note(f"file {number} of {self.name}: {made!r:.1000}")
                    raise

    def _one(self, made: Any, read: Any, check: Any, refused: Any) -> None:
        begun = time.thread_time()
        try:
            result = read(made)
        except OutOfMemoryError:
            raise
        except MagmaDNNError as error:
            text = str(error)
            assert text.isprintable() and 0 < len(text) < LETTERS, f"the message is {text!r:.300}"
            self.found["refused"] += 1
            self.texts.add(text)
            result = None
            if refused is not None:
                refused(made)
        else:
            self.found["read"] += 1
            if check is not None:
                check(made, result)
        seconds = time.thread_time() - begun
        assert seconds < SECONDS, f"took {seconds:.1f} s"
