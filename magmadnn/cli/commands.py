"""Which command is meant; each has a file of its own, loaded when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Protocol

from magmadnn.errors import ArgumentError, UnknownNameError

from .arguments import Parser
from .console import version

COMMANDS = {
    "train": "train a network on data",
    "search": "train for many values of the options, and find the best",
    "workflow": "run programs by dependency inside one job of MPI",
    "evaluate": "loss and errors of a trained network on data",
    "predict": "write what a trained network predicts to a CSV file",
    "export": "write a trained network as an object file for C and Fortran",
    "summary": "print the layers of a network",
    "launch": "run a script on several processes",
    "doctor": "print what this machine has, and what is missing",
    "tune": "show or clear what was measured with this machine's GPUs",
}


class Command(Protocol):
    """What the file of a command holds."""

    parser: Callable[[], Parser]
    run: Callable[[Sequence[str]], int]


def run_command(argv: Sequence[str]) -> int:
    """Run the command that the arguments name and return the exit code.

    Raises:
        ArgumentError: if there is none, or its arguments are wrong.
        MagmaDNNError: whatever the command cannot do.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"magmadnn {version()}")
        return 0
    if not name:
        raise ArgumentError(f"a command is missing: give one of {', '.join(COMMANDS)}, or --help")
    if name not in COMMANDS:
        what = "option" if name.startswith("-") else "command"
        known = ["--help", "--version"] if what == "option" else COMMANDS
        raise UnknownNameError.of(what, name, known)
    module: Command = importlib.import_module(f"magmadnn.cli.{name}")
    return module.run(argv[1:])


def usage() -> str:
    """What `magmadnn --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {about}" for name, about in COMMANDS.items()]
    return "\n".join(
        [
            "usage: magmadnn COMMAND [OPTIONS]",
            "",
            *lines,
            "",
            "magmadnn COMMAND --help lists the options of a command; magmadnn --version.",
        ]
    )
