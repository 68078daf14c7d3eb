"""History: what was measured in each epoch, as table, files and curves."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from html import escape
from importlib.util import find_spec
from pathlib import Path
from statistics import median_low
from typing import Any

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import ArgumentError, MissingExtraError, UnknownNameError
from magmadnn.storage.durable import write_file
from magmadnn.training.objective.heads import NO_CURVES

Row = dict[str, float]


class History(ExplainsAttributes):
    """One row for each epoch.

    Attributes:
        rows: dicts with `epoch` (from 1), `loss`, the metrics, `val_...` for validation, `seconds`,
            `samples_per_second`, `learning_rate` of the epoch's last step; in mixed_fp16 `skipped_steps`, how
            many steps of the optimiser so far changed nothing, because a gradient was not finite.
        stopped: why training ended early; None if it did not.
        failed: whether a number became NaN or infinite, so that `md.fit_many` left this model out.
    """

    def __init__(self, rows: list[Row] | None = None) -> None:
        self._rows: list[Row] | None = rows or []
        self._later: tuple[int, Callable[[int], Row]] | None = None
        self.stopped: str | None = None
        self.failed = False

    @classmethod
    def later(cls, count: int, row: Callable[[int], Row]) -> History:
        """A history whose rows are made when they are read.

        Args:
            count: epochs.
            row: gives the row of an epoch, by its number from 0.
        """
        made = cls()
        made._rows, made._later = None, (count, row)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows, "stopped": self.stopped, "failed": self.failed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._later = None
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def rows(self) -> list[Row]:
        """A row for each epoch, in order."""
        if self._rows is None:
            assert self._later is not None
            count, row = self._later
            self._rows, self._later = [row(number) for number in range(count)], None
        return self._rows

    @rows.setter
    def rows(self, rows: list[Row]) -> None:
        self._rows, self._later = rows, None

    @property
    def last(self) -> Row:
        """The row of the last epoch; there has to be one."""
        if self._rows is None:
            assert self._later is not None
            count, row = self._later
            return row(count - 1)
        return self._rows[-1]

    @property
    def median_seconds(self) -> float:
        """The lower median of the epochs' times."""
        if self._rows is None:  # a share of the time of all of them each
            return self.last["seconds"]
        return median_low(self["seconds"])

    def __getitem__(self, name: str) -> list[float]:
        """The values of one column over the epochs; NaN where an epoch has none."""
        if not self.rows:
            why = f": {self.stopped}" if self.stopped else ""
            raise UnknownNameError(
                f"history: there is no column {name!r}, as no epoch has ended{why}"
            )
        if name not in self.columns:
            raise UnknownNameError.of("history column", name, self.columns)
        return [row.get(name, math.nan) for row in self.rows]

    def __len__(self) -> int:
        return len(self._rows or ()) if self._later is None else self._later[0]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order in which they appeared."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as CSV, with all digits."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_file(path, text.getvalue().encode())

    def to_json(self, path: str | Path) -> None:
        """Write the rows as JSON; NaN and infinities become text."""
        plain = [
            {k: v if math.isfinite(v) else repr(v) for k, v in row.items()} for row in self.rows
        ]
        write_file(path, json.dumps({"rows": plain, "stopped": self.stopped}, indent=1).encode())

    def plot(self, path: str | Path | None = None) -> Any:
        """Curves of loss and metrics over the epochs, training and validation in one panel.

        Args:
            path: a picture to write; its ending says the format, else .png. None only gives the figure.

        Returns:
            The matplotlib Figure.

        Raises:
            MissingExtraError: without matplotlib.
            ArgumentError: if there is no epoch yet, or matplotlib does not know the ending.
            FileError: if the picture cannot be written.
        """
        try:
            from matplotlib.figure import Figure
            from matplotlib.ticker import MaxNLocator
        except ImportError as error:
            raise MissingExtraError.of("matplotlib", "history.plot", "plot") from error
        if not self.rows:
            raise ArgumentError("history.plot: there is no epoch to draw yet")
        names = [c for c in self.columns if c not in NO_CURVES and not c.startswith("val_")]
        figure = Figure(figsize=(5 * len(names), 3.6), layout="constrained")
        axes = figure.subplots(1, len(names), squeeze=False)[0]
        for panel, name in zip(axes, names, strict=True):
            for column, label in ((name, "training"), (f"val_{name}", "validation")):
                if column in self.columns:
                    panel.plot(self["epoch"], self[column], marker="o", markersize=3, label=label)
            panel.set_xlabel("epoch")
            panel.set_title(name)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.grid(alpha=0.3)
            panel.legend()
        if path is not None:
            path = Path(path)
            path = path if path.suffix else path.with_name(f"{path.name}.png")
            write_file(path, _picture(figure, path))
        return figure

    def _repr_png_(self) -> bytes | None:
        """The curves, in a notebook; None without matplotlib, or without an epoch."""
        try:
            figure = self.plot() if self.rows else None
        except MissingExtraError:
            return None
        return None if figure is None else _picture(figure, Path("history.png"))

    def _repr_html_(self) -> str | None:
        """The rows as a table, in a notebook without matplotlib."""
        if not self.rows or find_spec("matplotlib") is not None:
            return None
        names = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{row.get(c, math.nan):.4g}</td>' for c in self.columns)}</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"

    def __repr__(self) -> str:
        if not self.rows:
            return "History(no epoch)"
        last = ", ".join(f"{k}={v:.4g}" for k, v in self.rows[-1].items())
        return f"History({len(self.rows)} epochs; last: {last})"


def _picture(figure: Any, path: Path) -> bytes:
    """The figure as a file whose ending says the format."""
    known = figure.canvas.get_supported_filetypes()
    ending = path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise UnknownNameError.of(f"history.plot {path}: format", ending, known)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending, dpi=120)
    return drawn.getvalue()
