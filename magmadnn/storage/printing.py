"""Printing that ends no work where standard output or error is closed, full or not read."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


class SafeStream:
    """A text stream whose failures are kept, and told once on standard error, and raise nothing.

    What its encoding lacks becomes `?`. That nobody reads a pipe any more is not told: who closed it knows.

    Args:
        stream: where text goes; None: it is closed, as Python has it for standard output.
        name: of the stream, for the line that tells.

    Attributes:
        failure: the first error; None as long as all was written.
    """

    def __init__(self, stream: TextIO | None, name: str = "standard output") -> None:
        self._stream, self._name = stream, name
        self.failure: Exception | None = None

    def write(self, text: str) -> int:
        """Write, if that works; how many characters were given."""
        if self.failure is None:
            try:
                self._write(text)
            except (OSError, ValueError) as error:  # ValueError: it was closed meanwhile
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        if self.failure is None and self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._fail(error)

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        with contextlib.suppress(OSError, ValueError):
            return self._stream is not None and self.failure is None and self._stream.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's."""
        return getattr(self._stream, name)

    def forget(self) -> None:
        """After a failure: let the interpreter flush what is left into nothing, without a complaint."""
        if self.failure is None or self._stream is None:
            return
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, self._stream.fileno())
            finally:
                os.close(nowhere)

    def _write(self, text: str) -> None:
        if self._stream is None:
            raise ValueError("it is closed")
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))

    def _fail(self, error: Exception) -> None:
        self.failure = error
        if not isinstance(error, BrokenPipeError):
            reason = getattr(error, "strerror", None) or str(error)
            note(f"{self._name} cannot be written any more ({reason}); work goes on without it")


def note(text: str) -> None:
    """Print a line on standard error, if that can be written."""
    if sys.stderr is not None:  # Python would print on standard output
        with contextlib.suppress(OSError, ValueError):
            print(f"magmadnn: note: {text}", file=sys.stderr, flush=True)
