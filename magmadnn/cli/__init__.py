"""The command line: `magmadnn train`, `evaluate`, `predict`, `summary`, `doctor`, `tune`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from magmadnn.errors import MagmaDNNError, OutOfMemoryError

from .commands import run_command
from .ending import Terminated, terminated_by_signals

__all__ = ["main"]

_PIPE_CLOSED = 128 + 13  # as a shell reports a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; what the user did wrong is one line on stderr.

    Exit codes: 0 done, 2 an error, 128 + n ended by signal n (a training has saved its state then).

    Args:
        argv: the arguments after the program's name; None: those of this process.
    """
    try:
        with terminated_by_signals():
            code = run_command(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
            return code
    except MagmaDNNError as error:
        return _fail(str(error))
    except MemoryError as error:
        return _fail(str(OutOfMemoryError(f"the memory of this machine is used up: {error}")))
    except BrokenPipeError:
        _forget_output()
        return _PIPE_CLOSED
    except (KeyboardInterrupt, Terminated) as error:
        return error.exit_code if isinstance(error, Terminated) else 130


def _fail(message: str) -> int:
    """Print an error as one line; a message may have lines of details, which belong to Python users."""
    first = message.splitlines()[0] if message else "unknown"
    try:
        print(f"magmadnn: error: {first}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _forget_output()
    return 2


def _forget_output() -> None:
    """Nobody reads: let the interpreter flush into nothing when it ends, without a complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
