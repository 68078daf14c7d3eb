"""Study: what a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError
from magmadnn.storage.disk import as_path
from magmadnn.storage.printing import note
from magmadnn.training import Model
from magmadnn.training.arguments import at_least

from .findings import Findings
from .reporting.drawing import check_drawing, overview, write_picture
from .reporting.page import write_page
from .study_table import StudyTable
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
        task = self._known_task("model")
        number = self.best.number if trial is None else trial
        number = number.number if isinstance(number, Trial) else number
        job, outcome = self._last(number)
        model = task.model(job)
        if not task.folds and outcome.parameters_sha256 != models_sha256([model]):
            note(
                f"study.model: trial {number} has other parameters than in the search: build, data or "
                f"machine "
                "have changed, or build does not depend on its arguments alone"
            )
        return model

    def measure_seconds(self, count: int = 3, repeats: int = 5) -> StudyTable:
        """Time the best trials again, one at a time in this process and by turns, so that others do not
        decide.

        Trials that ran beside others shared the machine with them. Each is trained `repeats` times after a
        run that compiles; `seconds` of a training is the number of its epochs times their median.

        Args:
            count: how many of the best; with several objectives of the front.
            repeats: of each.

        Returns:
            A row for each: `trial`, `repeats`, and of the repeats `least_seconds`, `median_seconds`,
            `spread_seconds` (from the first to the third quartile), beside `seconds` of the search.

        Raises:
            ArgumentError: the study was read from a folder, or a number is below 1.
        """
        at_least("study.measure_seconds: count", count, 1)
        at_least("study.measure_seconds: repeats", repeats, 1)
        best = self.pareto() if len(self.objectives) > 1 else self.ranked()
        jobs = [self._last(trial.number)[0] for trial in best[:count]]
        measured: list[list[float]] = [[] for _ in jobs]
        for repeat in range(repeats + 1):
            for k, job in enumerate(jobs):
                seconds = self._known_task("measure_seconds").seconds(job)
                if repeat:
                    measured[k].append(seconds)
        rows = [
            {
                "trial": trial.number,
                "repeats": repeats,
                "seconds": trial.metrics["seconds"],
                "least_seconds": min(times),
                "median_seconds": float(np.median(times)),
                "spread_seconds": float(np.subtract(*np.quantile(times, [0.75, 0.25]))),
            }
            for trial, times in zip(best, measured, strict=False)
        ]
        return StudyTable(list(rows[0]), rows)

    def _known_task(self, what: str) -> Task:
        """What a trial is.

        Raises:
            ArgumentError: the study was read from a folder.
        """
        if self._task is None:
            raise ArgumentError(
                f"study.{what}: a study that is read from its folder has neither build nor data; run the "
                "search with resume=True, which trains nothing again, and ask its result"
            )
        return self._task

    def _last(self, number: int) -> tuple[Job, Outcome]:
        """The last training of a trial.

        Raises:
            ArgumentError: there is no such trial.
        """
        found = [result for result in self._results if result[0].trial == number]
        if not found:
            raise ArgumentError(f"study: there is no trial {number}")
        return max(found, key=lambda result: result[0].rung)

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
        place = None if path is None else as_path("study.plot: path", path)
        check_drawing(self)
        figure = overview(self)
        if place is not None:
            write_picture(figure, place)
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
