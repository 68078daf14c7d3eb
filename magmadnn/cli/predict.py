"""magmadnn predict: what a trained network says about rows, as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from magmadnn.data import Preparation
from magmadnn.training import Model

from .arguments import Parser
from .console import Console
from .runs.outputs import check_place, write_output
from .runs.trained import open_trained, rows_for
from .runs.units import Array


def parser() -> Parser:
    """The arguments of the command."""
    made = Parser(
        "predict",
        "Write what a trained network predicts to a CSV file, one line for each row of the data: the\n"
        "class and the probability of each class, or the value in the target's own units. Data may be an\n"
        "image, or a folder of them; each line then begins with the name of its file.",
    )
    made.add_argument("folder", metavar="DIR", help="output folder of magmadnn train")
    made.add_reading()
    made.add_argument("--out", metavar="FILE.csv", required=True, help="where to write")
    made.add_threads()
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return made


def run(argv: Sequence[str]) -> int:
    """Predict; returns the exit code.

    Raises:
        MagmaDNNError: if there is no such model, or the data does not fit it.
    """
    arguments = parser().read(argv)
    say = Console(arguments.quiet)
    check_place("--out", arguments.out)
    model, preparation = open_trained(arguments.folder)
    rows = rows_for(preparation, arguments, with_target=False)
    say(rows.description)
    for remark in rows.notes:
        say(f"note: {remark}")
    lines = _lines(model, preparation, rows.x)
    if rows.files is not None:
        lines = ([f, *line] for f, line in zip(["file", *rows.files], lines, strict=True))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_output(arguments.out, text.getvalue().encode())
    say(f"{len(rows.x):,} predictions in {arguments.out}")
    return 0


def _lines(model: Model, preparation: Preparation, x: Array) -> Iterable[Sequence[Any]]:
    """The header, then the cells of each row."""
    if preparation.task == "regression":
        found = model.predict(x, prepared=True).reshape(len(x), -1)
        yield _names(preparation, found.shape[1])
        yield from found.tolist()
        return
    probabilities = model.predict_probability(x, prepared=True)
    names = model.predict_class(x, prepared=True)
    yield ["class", *(f"p_{name}" for name in preparation.classes)]
    for name, row in zip(names.tolist(), probabilities.tolist(), strict=True):
        yield [name, *(f"{p:.9g}" for p in row)]  # 9 digits hold a float32


def _names(preparation: Preparation, count: int) -> list[str]:
    """Names of predicted quantities: those of the target columns, where there are some."""
    if len(preparation.target_names) == count:
        return list(preparation.target_names)
    return ["value"] if count == 1 else [f"value_{k}" for k in range(count)]
