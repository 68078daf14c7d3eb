"""magmadnn export: a trained network, with the scaling of its data, as an object file for C and Fortran."""

from __future__ import annotations

from collections.abc import Sequence

from .arguments import Parser
from .console import Console
from .runs.trained import open_trained


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "export",
        "Write a trained network as an object file, with a C header and a Fortran module beside it.\n"
        "It takes the columns of the data in their own units, as double, and gives what\n"
        "magmadnn predict writes: the probability of each class, or the target in its own units.",
    )
    made.add_argument("folder", metavar="DIR", help="output folder of magmadnn train")
    made.add_argument("--out", metavar="FILE.o", required=True, help="where to write")
    made.add_argument("--name", help="what names of functions begin with (that of the file)")
    made.add_argument("--cpu", help="such as x86-64-v3 (the CPU of this machine)")
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Export; returns the exit code.

    Raises:
        MagmaDNNError: if there is no such model, or it cannot be exported.
    """
    arguments = parser().read(argv)
    say = Console(arguments.quiet)
    model, _ = open_trained(arguments.folder)
    files = model.export(arguments.out, name=arguments.name, cpu=arguments.cpu)
    say("wrote " + ", ".join(map(str, files)))
    return 0
