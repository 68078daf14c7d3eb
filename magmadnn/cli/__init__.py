"""The command line: `magmadnn train`, `search`, `evaluate`, `predict`, `summary`, `launch` and others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO, cast

from magmadnn.errors import MagmaDNNError, OutOfMemoryError
from magmadnn.storage.printing import SafeStream

from .commands import run_command
from .ending import Terminated, terminated_by_signals

__all__ = ["main"]

_NOT_PRINTED = 1
_PIPE_CLOSED = 128 + 13  # as a shell reports a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; what the user did wrong is one line on stderr.

    Exit codes: 0 done, 1 done but what was printed could not be written (141: nobody read it), 2 an error,
    128 + n ended by signal n (a training has saved its state then).

    Args:
        argv: the arguments after the program's name; None: those of this process.
    """
    before = sys.stdout, sys.stderr
    out, err = SafeStream(sys.stdout), SafeStream(sys.stderr, "standard error")
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        out.flush()
        err.flush()
    finally:
        sys.stdout, sys.stderr = before
    out.forget()
    err.forget()
    if code == 0 and out.failure is not None:
        return _PIPE_CLOSED if isinstance(out.failure, BrokenPipeError) else _NOT_PRINTED
    return code


def _run(argv: Sequence[str]) -> int:
    try:
        with terminated_by_signals():
            return run_command(argv)
    except MagmaDNNError as error:
        return _fail(str(error))
    except MemoryError as error:
        return _fail(str(OutOfMemoryError(f"the memory of this machine is used up: {error}")))
    except (KeyboardInterrupt, Terminated) as error:
        return error.exit_code if isinstance(error, Terminated) else 130


def _fail(message: str) -> int:
    """Print an error as one line; a message may have lines of details, which belong to Python users."""
    first = message.splitlines()[0] if message else "unknown"
    print(f"magmadnn: error: {first}", file=sys.stderr, flush=True)
    return 2
