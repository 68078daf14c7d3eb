"""magmadnn evaluate: loss and errors of a trained network on data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magmadnn.data import Preparation
from magmadnn.errors import ArgumentError, DataError
from magmadnn.storage.places import expanded

from .arguments import Parser, one_of
from .console import Console
from .report_page.page import PAGE, check_report, write_report
from .runs.outputs import check_new, check_place, write_json
from .runs.results import say_result
from .runs.run_rows import SPLITS, loader_of, note_on_rows, rows_of_run
from .runs.trained import open_trained, rows_for
from .runs.units import Array, figures

Prepared = tuple[Array, Array, Array]  # inputs, targets, and targets in their own units


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "evaluate",
        "Loss and errors of a trained network on data: on its test set, where it has one of its own,\n"
        "otherwise on all rows; or on rows of the run itself. Inputs are scaled as in training.",
    )
    made.add_argument("folder", metavar="DIR", help="output folder of magmadnn train")
    made.add_reading(required=False)
    made.add_argument(
        "--split",
        type=one_of("split", SPLITS),
        metavar="test|validation|train",
        help="the rows that the run kept for that; --data is then needed only if its data has moved",
    )
    made.add_argument("--json", metavar="FILE", help="write the result to FILE too")
    made.add_argument(
        "--report",
        metavar="DIR",
        help="write a page to the new folder DIR: confusions, worst mistakes, filters",
    )
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
    report = None if arguments.report is None else expanded(arguments.report)
    if report is not None:
        check_report(preparation)
        check_new("--report", report, "another one")
    if arguments.split is not None:
        name = arguments.split
        prepared, files = _of_run(preparation, arguments, say)
    else:
        name, prepared, files = _of_data(preparation, arguments, say)
    found = figures(model, preparation, *prepared)
    result: dict[str, Any] = {"evaluated": name, "rows": len(prepared[0])}
    result |= {f"{name}_{figure}": value for figure, value in found.items()}
    say_result(result, say, name)
    if arguments.json is not None:
        write_json(arguments.json, result)
    if report is not None:
        title = f"{arguments.folder}: {name}"
        write_report(
            report, model, preparation, *prepared[:2], title=title, result=result, files=files
        )
        say(f"report in {report / PAGE}")
    return 0


def _of_run(
    preparation: Preparation, arguments: argparse.Namespace, say: Console
) -> tuple[Prepared, tuple[str, ...] | None]:
    """The rows that the run kept for the chosen split, and their files."""
    for option in ("missing", "decimal", "bad_images"):
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise ArgumentError(
                f"--{name} does not go with --split: the run's data is read as for its training; leave it out"
            )
    loader = loader_of(arguments)
    rows = rows_of_run(arguments.folder, arguments.split, arguments.data, loader)
    say(rows.description)
    prepared = preparation.apply_inputs(rows.x), preparation.apply_target(rows.y), rows.y
    return prepared, rows.files


def _of_data(
    preparation: Preparation, arguments: argparse.Namespace, say: Console
) -> tuple[str, Prepared, tuple[str, ...] | None]:
    """What figures are called, the rows, their files: `test` for a test set of the data's own."""
    if arguments.data is None:
        raise ArgumentError("--data is missing: give data, or rows of the run by --split test")
    rows = rows_for(preparation, arguments)
    if rows.y is None or rows.raw_target is None:
        raise DataError(f"{arguments.data}: has no targets to compare with")
    say(rows.description)
    for remark in rows.notes:
        say(f"note: {remark}")
    if not rows.is_test_set and (note := note_on_rows(arguments.folder, arguments.data)):
        say(f"note: {note}")
    file = Path(arguments.data)
    name = (file.with_suffix("") if file.suffix in (".gz", ".xz", ".bz2") else file).stem
    prepared = (rows.x, rows.y, rows.raw_target)
    return "test" if rows.is_test_set else name, prepared, rows.files
