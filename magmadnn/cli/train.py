"""magmadnn train: a network on data, from the first step or from the last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.comm.job import rank_in_job, ranks_of_job
from magmadnn.comm.launching.launcher import MOST_RANKS, run_job
from magmadnn.errors import ArgumentError

from .arguments import Parser, in_bytes, one_of, whole
from .console import Console
from .runs.sharing import PARALLEL
from .runs.training_run import follow, resume_run, start_run
from .training_options import DATA, MACHINE, NETWORK, Option, add_options, presets_text

_REFIT = (
    "train anew on all training rows, those kept back too, up to the epoch that was best for these"
)
_RUN: tuple[Option, ...] = (
    *MACHINE,
    ("--out", str, "DIR", "new folder for the run (default: runs/<time>-<model>)"),
    (
        "--checkpoint-every",
        whole(1),
        "N",
        "steps (default: each epoch that is not short, and each minute)",
    ),
    (
        "--workers",
        whole(1, MOST_RANKS),
        "N",
        "processes that share each batch; the result has the same bits with 2 to 8 of them",
    ),
    (
        "--parallel",
        one_of("way", PARALLEL),
        "WAY",
        "how they share it: data (default), optimiser, parameters, model, hybrid, pipeline, auto: the best",
    ),
    (
        "--memory-limit",
        in_bytes,
        "BYTES",
        "most that a step may take on each worker, such as 512MiB (default: what is free)",
    ),
    ("--resume", str, "DIR", "go on with the run in DIR; nothing else is needed"),
    ("--json", str, "FILE", "write the result to FILE too"),
)


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "train", "Train a network, and keep all that comes of it in a folder.", presets_text()
    )
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help="network, or a .prototxt (default: mlp)"
    )
    add_options(made, "data", DATA)
    group = add_options(made, "network and training (defaults: the preset's)", NETWORK)
    group.add_argument("--refit", action="store_const", const=True, help=_REFIT)
    made.add_threads(add_options(made, "run", _RUN))
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Train; returns the exit code.

    Raises:
        MagmaDNNError: whatever is wrong with arguments, data or disk.
    """
    arguments = parser().read(argv)
    if arguments.parallel and max(arguments.workers or 1, ranks_of_job()) == 1:
        raise ArgumentError(
            f"--parallel {arguments.parallel}: one process shares nothing: give --workers 2, or more, too"
        )
    if (arguments.workers or 1) > 1 and ranks_of_job() == 1:
        return run_job(arguments.workers, ["-m", "magmadnn", "train", *argv])
    if rank_in_job():
        return follow(arguments)
    say = Console(arguments.quiet)
    return start_run(arguments, say) if arguments.resume is None else resume_run(arguments, say)
