"""magmadnn search: many trainings, of which the best is found; and a report of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magmadnn.search import load
from magmadnn.search.given import check_alone
from magmadnn.search.methods.choosing import METHODS
from magmadnn.storage.places import expanded

from .arguments import Parser, number, one_of, whole
from .console import Console
from .runs.outputs import check_place, write_output
from .searches.option_spelling import OptionSpelling
from .searches.search_run import resume_search, start_search
from .training_options import DATA, MACHINE, NETWORK, Option, add_options

_SECONDS = number("a number of seconds above 0", lambda value: value > 0)
_SEARCH: tuple[Option, ...] = (
    ("--space", str, "FILE", "what is searched, as TOML: lr = {log_uniform = [1e-4, 1e-1]}"),
    ("--method", one_of("method", METHODS), "NAME", f"{', '.join(METHODS)} (default: random)"),
    (
        "--objective",
        str,
        "METRIC,...",
        (
            'a metric of the validation rows, or several; "max NAME" or "min NAME" says what is better '
            "(default: accuracy, or the loss of quantities)"
        ),
    ),
    ("--trials", whole(1), "N", "most trials"),
    ("--until", str, "METRIC=X", "ends at the first trial that is as good: accuracy=0.98"),
    ("--total-epochs", whole(1), "N", "budget of epochs of all trials together"),
    ("--total-seconds", _SECONDS, "X", "budget of time; the table then depends on the machine"),
    ("--trial-seconds", _SECONDS, "X", "after which a training is ended"),
    ("--eta", whole(2), "N", "of halving and asha: one in N goes on (default: 3)"),
    ("--cohort", whole(1), "N", "of asha, median and tpe: new trials between two decisions"),
)
_RUN: tuple[Option, ...] = (
    *MACHINE,
    ("--workers", whole(1, 1024), "N", "processes that train; the table does not depend on it"),
    ("--mpi", whole(1, 1000), "N", "ranks that train, in a job of MPI; one more hands out points"),
    ("--out", str, "DIR", "new folder for the study (default: runs/<time>-search)"),
    ("--resume", str, "DIR", "go on with the search in DIR; nothing else is needed"),
)
_ABOUT = (
    "Train a network for many values of its options, and find the best on rows that are kept back.\n"
    "magmadnn search report DIR writes pictures and a page of what was found."
)
_SPACE = """parameters of the space: lr, weight_decay, batch_size, epochs, optimizer, activation, hidden (or
units and layers in its place).
  lr = {log_uniform = [1e-4, 1e-1]}
  weight_decay = {start = 0.0, stop = 0.01, step = 0.002}
  units = {choice = [32, 64]}
  layers = {integer = [1, 4]}
  optimizer = {choice = ["adam", "sgd"]}
kinds: uniform, log_uniform, integer, log_integer, choice, grid (start, stop, step).
A parameter with when = {optimizer = "sgd"} beside its kind is searched with that optimiser only."""


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser("search", _ABOUT, _SPACE)
    made.add_argument(
        "model", nargs="?", metavar="MODEL", help="network, or a .prototxt (default: mlp)"
    )
    add_options(made, "search", _SEARCH)
    add_options(made, "data", DATA, streams=False)
    add_options(made, "network and training, where the space says nothing", NETWORK)
    made.add_threads(add_options(made, "run", _RUN))
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def report_parser() -> Parser:
    """The arguments of `magmadnn search report`."""
    made = Parser("search report", "Pictures, table and a page of a search, also while it goes on.")
    made.add_argument("folder", metavar="DIR", help="folder of magmadnn search")
    made.add_argument("--csv", metavar="FILE", help="write the table there, and no pictures")
    made.add_argument("--out", metavar="DIR", help="where the page goes (default: DIR/report)")
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Search, or report; returns the exit code.

    Raises:
        MagmaDNNError: whatever is wrong with arguments, space, data or disk.
    """
    if argv and argv[0] == "report":
        return _report(argv[1:])
    arguments = parser().read(argv)
    check_alone(OptionSpelling())
    say = Console(arguments.quiet)
    return (
        start_search(arguments, say) if arguments.resume is None else resume_search(arguments, say)
    )


def _report(argv: Sequence[str]) -> int:
    arguments = report_parser().read(argv)
    say = Console(arguments.quiet)
    check_place("--csv", arguments.csv)
    study = load(expanded(arguments.folder))
    if arguments.csv is not None:
        write_output(arguments.csv, study.table().to_csv().encode())
    if arguments.csv is None or arguments.out is not None:
        folder: Path = expanded(arguments.out or f"{arguments.folder}/report")
        say(f"report in {study.report(folder)}")
    say(str(study.table()))
    return 0
