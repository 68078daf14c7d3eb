"""magmadnn evaluate: loss and errors of a trained network on data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magmadnn.errors import DataError

from .arguments import Parser
from .console import Console
from .outputs import check_place, say_result, write_json
from .trained import open_trained, rows_for
from .units import figures


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "evaluate",
        "Loss and errors of a trained network on data: on its test set, where it has one of its own,\n"
        "otherwise on all rows. Inputs are scaled as in training.",
    )
    made.add_argument("folder", metavar="DIR", help="output folder of magmadnn train")
    made.add_reading()
    made.add_argument("--json", metavar="FILE", help="write the result to FILE too")
    made.add_threads()
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Evaluate; returns the exit code.

    Raises:
        MagmaDNNError: if there is no such model, or the data does not fit it.
    """
    arguments = parser().read(argv)
    say = Console(arguments.quiet)
    check_place("--json", arguments.json)
    model, preparation = open_trained(arguments.folder)
    rows = rows_for(preparation, arguments)
    if rows.y is None or rows.raw_target is None:
        raise DataError(f"{arguments.data}: has no targets to compare with")
    say(rows.description)
    found = figures(model, preparation, rows.x, rows.y, rows.raw_target)
    result: dict[str, Any] = {f"test_{name}": value for name, value in found.items()}
    result["rows"] = len(rows.x)
    say_result(result, say)
    if arguments.json is not None:
        write_json(arguments.json, result)
    return 0
