"""Study: what a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.storage.disk import as_path
from magmadnn.storage.printing import note
from magmadnn.training import Model

from .findings import Findings
from .reporting.drawing import check_drawing, overview, write_picture
from .reporting.page import write_page
from .trials.records import Job, Outcome, Trial
from .trials.training import Task, models_sha256


@dataclass(eq=False, repr=False)
class Study(Findings):
    """The trials of a search, with what they were trained on.

    Attributes:
        space: what was searched.
        objectives: their names, in the order of each trial's `values`.
        signs: of each, 1 where higher is better and -1 where lower is.
        trials: by number.
        folder: where it is kept; None for nowhere.
        method: how it was searched.
        epochs: of a trial that is not ended early, unless they were searched.
    """

    _results: Sequence[tuple[Job, Outcome]] = field(default=(), repr=False)
    _task: Task | None = field(default=None, repr=False)

    def model(self, trial: Trial | int | None = None) -> Model:
        """The trained model of a trial: it is trained again, to the same parameters.

        In a search with folds it is trained on all rows, with none held out.

        Args:
            trial: or its number; None: the best one.

        Raises:
            ArgumentError: the study was read from a folder, which does not hold `build` and data.
        """
        if self._task is None:
            raise ArgumentError(
                "study.model: a study that is read from its folder has neither build nor data; run the "
                "search "
                "with resume=True, which trains nothing again, and ask its result"
            )
        number = self.best.number if trial is None else getattr(trial, "number", trial)
        found = [r for r in self._results if r[0].trial == number]
        if not found:
            raise ArgumentError(f"study.model: there is no trial {number}")
        job, outcome = max(found, key=lambda result: result[0].rung)
        model = self._task.model(job)
        if not self._task.folds and outcome.parameters_sha256 != models_sha256([model]):
            note(
                f"study.model: trial {number} has other parameters than in the search: build, data or "
                f"machine "
                "have changed, or build does not depend on its arguments alone"
            )
        return model

    def plot(self, path: str | Path | None = None) -> Any:
        """History, Pareto front, parallel coordinates and importance in one picture.

        Args:
            path: a picture to write; None only gives the figure.

        Returns:
            The matplotlib Figure.

        Raises:
            MissingExtraError: without matplotlib.
            ArgumentError: no trial has a value yet.
            UnknownNameError: matplotlib does not know the ending.
            FileError: the picture cannot be written.
        """
        check_drawing(self)
        figure = overview(self)
        if path is not None:
            write_picture(figure, Path(path))
        return figure

    def report(self, folder: str | Path) -> Path:
        """Write a page with all pictures and the table, `index.html`, and these as files beside it.

        Returns:
            The path of the page.

        Raises:
            MissingExtraError, ArgumentError: as `plot`.
            FileError: it cannot be written.
        """
        return write_page(self, as_path("study.report: the folder", folder))
