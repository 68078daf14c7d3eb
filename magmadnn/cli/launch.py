"""magmadnn launch: a script on several processes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from magmadnn.comm.job import ranks_of_job
from magmadnn.comm.launching.launcher import MOST_RANKS, run_job
from magmadnn.errors import ArgumentError

from .arguments import Parser, whole


def parser() -> Parser:
    """The arguments of the command."""
    command = Parser(
        "launch",
        "Run a script on several processes, which find each other by md.comm.world().",
        "The job ends as a whole: when one rank fails or is killed, all end, and its number is said.",
    )
    command.add_argument(
        "-n",
        type=whole(1, MOST_RANKS),
        required=True,
        metavar="N",
        help="processes; more than there are cores work too",
    )
    command.add_argument("-m", action="store_true", help="the program is the name of a module")
    command.add_argument(
        "--topology",
        action="store_true",
        help="run no program: print where the ranks are, and what messages among them cost",
    )
    command.add_argument("program", nargs="?", metavar="PROGRAM", help="a script, such as train.py")
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="given to the program"
    )
    return command


def run(argv: Sequence[str]) -> int:
    """Run the script; returns the exit code of the job."""
    options = parser().read(argv)
    if (started := ranks_of_job()) > 1:
        raise ArgumentError(
            f"launch: this process is already one of {started} of a job, each of which would start "
            f"{options.n}: give the program to what started them (srun python train.py, mpiexec -n 4 python "
            "train.py), or call magmadnn launch once"
        )
    if options.topology:
        return run_job(options.n, ["-m", "magmadnn.comm.launching"])
    if options.program is None:
        raise ArgumentError("launch: a program is missing: give a script, such as train.py")
    if not options.m:
        from pathlib import Path

        if not Path(options.program).is_file():
            raise ArgumentError(
                f"launch: there is no script {options.program!r}: give a file's path"
            )
    begin = ["-m"] if options.m else []
    return run_job(options.n, [*begin, options.program, *options.arguments])
