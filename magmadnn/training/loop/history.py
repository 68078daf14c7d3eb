"""What is measured: sums over the batches of an epoch; History, with a row for each epoch."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import ArgumentError, MissingExtraError, UnknownNameError
from magmadnn.graph.op import Array
from magmadnn.metrics.metric import ratio
from magmadnn.storage.durable import write_file
from magmadnn.training.objective.heads import NO_CURVES
from magmadnn.training.objective.objective import Objective

from .pieces import Batch


class Totals:
    """Sums over the batches of an epoch."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.rows = 0
        self.weight = 0.0
        self.loss = 0.0
        self.sums: list[Array] = []

    def add(self, batch: Batch, loss: Array, sums: Sequence[Array]) -> None:
        """Add a batch's mean loss and its metrics' sums."""
        weight = batch.weight
        self.rows += batch.all_rows
        self.weight += weight
        self.loss += weight * float(loss)
        old = self.sums or [np.zeros_like(s, np.float64) for s in sums]
        self.sums = [a + b for a, b in zip(old, sums, strict=True)]

    def add_all(
        self, rows: int, losses: Array, sums: Sequence[Array], weights: Array | None = None
    ) -> None:
        """Add batches of so many rows each, in their order: the same bits as one by one.

        Args:
            rows: of a batch.
            losses: of the batches.
            sums: of the metrics, [batches, ...] each.
            weights: of the rows, [batches * rows] or [batches * rows, outputs]; None where all are 1.
        """
        count = len(losses)
        self.rows += rows * count
        terms = losses.astype(np.float64)
        if weights is None:
            self.weight += float(rows) * count  # of integers: exact in any order
            terms *= float(rows)
        else:
            total = weights.astype(np.float64).reshape(count, -1).sum(axis=1)
            self.weight = float(_added(self.weight, total))
            terms *= total
        self.loss = float(_added(self.loss, terms))
        old = self.sums or [np.zeros_like(s[0], np.float64) for s in sums]
        self.sums = [_added(a, s) for a, s in zip(old, sums, strict=True)]

    def results(self) -> dict[str, Any]:
        """Mean losses and metrics; NaN where all weights are 0."""
        mean = self.loss / self.weight if self.weight else math.nan
        return results_of(self.objective, mean, self.sums)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON data."""
        sums = [s.tolist() for s in self.sums]
        return {"rows": self.rows, "weight": self.weight, "loss": self.loss, "sums": sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.rows, self.weight, self.loss = state["rows"], state["weight"], state["loss"]
        self.sums = [np.asarray(s, np.float64) for s in state["sums"]]


def results_of(objective: Objective, loss: float, sums: Sequence[Array]) -> dict[str, Any]:
    """Losses and metrics for all batches, by column of the history.

    Args:
        objective: what was computed.
        loss: the mean over batches, weighted by their samples' weights.
        sums: the totals of `Objective.sums`.
    """
    count = len(objective.losses)
    means = [ratio(*pair, nothing=math.nan) for pair in sums[:count]]
    if count:
        loss = sum(w * mean for (_, w), mean in zip(objective.losses, means, strict=True))
    found: dict[str, Any] = {"loss": loss}
    found |= {c: m for (c, _), m in zip(objective.losses, means, strict=True) if c is not None}
    totals = iter(sums[count:])
    for measured in objective.metrics:
        found |= measured.results(totals)
    return found


def totals_of_epochs(
    objective: Objective, epochs: int, parts: Sequence[tuple[int, Array, Sequence[Array]]]
) -> list[Totals]:
    """The totals of whole epochs, in which all weights are 1: the same bits as `Totals.add_all` of each.

    Args:
        objective: what was computed.
        epochs: how many.
        parts: of an epoch, in their order: rows of a batch, losses and sums of the batches of all epochs.
    """
    count, losses, sums = sums_of_epochs(epochs, parts)
    found = []
    for epoch, loss in enumerate(losses.tolist()):
        totals = Totals(objective)
        totals.rows, totals.weight, totals.loss = count, float(count), loss
        totals.sums = [own[epoch] for own in sums]
        found.append(totals)
    return found


def sums_of_epochs(
    epochs: int, parts: Sequence[tuple[int, Array, Sequence[Array]]]
) -> tuple[int, Array, list[Array]]:
    """Rows of an epoch, and of each epoch the sums of losses and of metrics; see `totals_of_epochs`."""
    each = [(rows, loss, sums) for rows, loss, sums in parts if len(loss)]
    count = sum(rows * (len(loss) // epochs) for rows, loss, _ in each)
    losses = _totals(epochs, [loss.astype(np.float64) * float(rows) for rows, loss, _ in each])
    sums = [_totals(epochs, own) for own in zip(*(sums for *_, sums in each), strict=True)]
    return count, losses, sums


def _totals(epochs: int, terms: Sequence[Array]) -> Array:
    """For each epoch 0 + the terms of the first part + those of the second one, from the left."""
    by_epoch = [part.reshape(epochs, len(part) // epochs, *part.shape[1:]) for part in terms]
    start = np.zeros((epochs, 1, *terms[0].shape[1:]))
    last: Array = np.add.accumulate(np.concatenate([start, *by_epoch], axis=1), axis=1)[:, -1]
    return last


def _added(start: Any, terms: Array) -> Any:
    """start + terms[0] + terms[1] + ..., from the left."""
    return np.add.accumulate(np.concatenate([np.asarray(start, np.float64)[None], terms]))[-1]


def scalars(results: dict[str, Any]) -> dict[str, float]:
    """The results that are single numbers; a confusion matrix has no place in a row."""
    return {
        k: float(v) for k, v in results.items() if isinstance(v, (float, int)) or np.ndim(v) == 0
    }


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
        self._last: Row | None = None  # of those that are made later
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
        self._later = self._last = None
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def rows(self) -> list[Row]:
        """A row for each epoch, in order."""
        if self._rows is None:
            assert self._later is not None
            count, row = self._later
            self._rows, self._later = [row(number) for number in range(count)], None
            self._last = None
        return self._rows

    @rows.setter
    def rows(self, rows: list[Row]) -> None:
        self._rows, self._later, self._last = rows, None, None

    @property
    def last(self) -> Row:
        """The row of the last epoch; there has to be one."""
        if self._rows is None:
            assert self._later is not None
            count, row = self._later
            if self._last is None:
                self._last = row(count - 1)
            return self._last
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

    def __contains__(self, item: object) -> bool:
        """Whether there is a column of that name; or such a row."""
        return item in (self.columns if isinstance(item, str) else self.rows)

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
