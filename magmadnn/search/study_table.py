"""The table of a study: one row for each trial."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import UnknownNameError
from magmadnn.storage.durable import write_file

from .trials.records import Trial

Row = dict[str, Any]
_SHOWN = 20  # rows at each end that printing shows


class StudyTable(ExplainsAttributes):
    """One row for each trial, by number.

    Attributes:
        columns: `trial`, `state`, the parameters, the objectives, `epochs`, the metrics, `reason`, the
            columns of times, whose names end in `seconds`.
        rows: dicts with these names; None where a trial has no value.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.columns, self.rows = list(columns), list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> list[Any]:
        """The values of a column."""
        if name not in self.columns:
            raise UnknownNameError.of("study table: column", name, self.columns)
        return [row.get(name) for row in self.rows]

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table as CSV with all digits, which is also written to a file where one is given.

        For any number of workers it has the same bytes, but for the columns whose names end in `seconds`.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_cell(row.get(name)) for name in self.columns] for row in self.rows)
        if path is not None:
            write_file(path, text.getvalue().encode())
        return text.getvalue()

    def without_times(self) -> StudyTable:
        """The table without the columns whose names end in `seconds`."""
        return StudyTable([c for c in self.columns if not c.endswith("seconds")], self.rows)

    def __str__(self) -> str:
        columns = [c for c in self.columns if c != "reason" or any(self["reason"])]
        rows, left = self._few()
        cells = [columns, *([_short(row.get(c)) for c in columns] for row in rows)]
        widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        if left:
            lines.insert(1 + _SHOWN, f"... {left:,} more ...")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<StudyTable of {len(self):,} trials: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """The table, in a notebook."""
        rows, left = self._few()
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = [
            "".join(f"<td>{escape(_short(row.get(c)))}</td>" for c in self.columns) for row in rows
        ]
        lines = [f"<tr>{cells}</tr>" for cells in body]
        if left:
            lines.insert(_SHOWN, f"<tr><td>... {left:,} more ...</td></tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _few(self) -> tuple[list[Row], int]:
        """The rows that are shown, and how many are left out in the middle."""
        left = len(self.rows) - 2 * _SHOWN
        return (self.rows, 0) if left <= 0 else (self.rows[:_SHOWN] + self.rows[-_SHOWN:], left)


def table_of(
    trials: Sequence[Trial], parameters: Sequence[str], objectives: Sequence[str]
) -> StudyTable:
    """The table of trials; a metric that is called like a parameter or an objective is left out."""
    own = ["trial", "state", *parameters, *(n for n in objectives if n not in parameters)]
    metrics = list(dict.fromkeys(name for trial in trials for name in trial.metrics))
    metrics = [name for name in metrics if name not in own]
    times = sorted((n for n in metrics if n.endswith("seconds")), key=str)
    rest = sorted(n for n in metrics if not n.endswith("seconds"))
    columns = [*own, *rest, "reason", *times]
    rows = [
        {
            **trial.metrics,
            **dict(zip(objectives, trial.values, strict=False)),
            **{name: trial.point.get(name) for name in parameters},
            "trial": trial.number,
            "state": trial.state,
            "reason": trial.reason or None,
        }
        for trial in trials
    ]
    return StudyTable(columns, rows)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else repr(value)


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
