"""What a search has found: its trials, the best of them, the front, the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import ArgumentError, NumericError, UnknownNameError

from .fronts import front
from .importances import importance_of
from .objectives import comparable
from .spaces.space import Space
from .study_table import StudyTable, table_of
from .trials.records import DONE, Trial


@dataclass(eq=False, repr=False)
class Findings(ExplainsAttributes):
    """The trials of a search.

    Attributes:
        space: what was searched.
        objectives: their names, in the order of each trial's `values`.
        signs: of each, 1 where higher is better and -1 where lower is.
        trials: by number.
        folder: where it is kept; None for nowhere.
        method: how it was searched.
        epochs: of a trial that is not ended early, unless they were searched.
    """

    space: Space
    objectives: tuple[str, ...]
    signs: tuple[int, ...]
    trials: list[Trial]
    folder: Path | None = None
    method: str = ""
    epochs: int = 0

    def __repr__(self) -> str:
        states: dict[str, int] = {}
        for trial in self.trials:
            states[trial.state] = states.get(trial.state, 0) + 1
        counted = ", ".join(f"{count} {state}" for state, count in states.items())
        return f"<Study of {len(self.trials):,} trials ({counted or 'none'}), by {self.method}>"

    @property
    def best(self) -> Trial:
        """The best trial of a search with one objective; of equal ones the first.

        Trials that were stopped count only where none went to the end.

        Raises:
            ArgumentError: there are several objectives, so that there is no best one: see `pareto`.
            NumericError: no trial has a value.
        """
        if len(self.objectives) > 1:
            raise ArgumentError(
                f"study.best: there are {len(self.objectives)} objectives; study.pareto() gives the "
                f"trials that "
                "no other one is better than in all of them"
            )
        trials = self._complete()
        return max(trials, key=lambda trial: (*self.scores(trial), -trial.number))

    def ranked(self) -> list[Trial]:
        """The trials of a search with one objective that went to the end, best first; of equal ones the
        first.

        Raises:
            ArgumentError, NumericError: as for `best`.
        """
        first = self.best
        others = [trial for trial in self._complete() if trial is not first]
        return [first, *sorted(others, key=lambda t: (*(-s for s in self.scores(t)), t.number))]

    def pareto(self) -> list[Trial]:
        """The trials that no other is at least as good as in all objectives and better in one, by number.

        Raises:
            NumericError: no trial has a value.
        """
        trials = self._complete()
        return [trials[k] for k in front([self.scores(trial) for trial in trials])]

    def scores(self, trial: Trial) -> tuple[float, ...]:
        """The values of a trial with signs such that higher is better; empty if it has none."""
        return comparable(trial.values, self.signs) if trial.values else ()

    def table(self) -> StudyTable:
        """One row for each trial: state, parameters, objectives, metrics, seconds."""
        return table_of(self.trials, list(self.space.dimensions), self.objectives)

    def importance(self, objective: str | None = None) -> dict[str, float]:
        """For each parameter the share of an objective's variance that it explains by itself, largest first.

        See `magmadnn.search.importances` for the formula: the corrected correlation ratio of ranks.

        Args:
            objective: its name; None: the first.

        Raises:
            UnknownNameError: there is no such objective.
        """
        name = self.objectives[0] if objective is None else objective
        if name not in self.objectives:
            raise UnknownNameError.of("study.importance: objective", name, self.objectives)
        return importance_of(self.space, self.trials, self.objectives.index(name))

    def selection_optimism(self) -> float:
        """How much the best trial's score owes to its having been chosen by the same folds.

        With e_k(t) the first objective of trial t on fold k, t* the best over all folds and t_k the best on
        fold k alone, it is the mean over k of e_k(t_k) - e_k(t*), in the objective's units and never
        negative.

        Source: R. J. Tibshirani, R. Tibshirani, "A bias correction for the minimum error rate in
        cross-validation", Ann. Appl. Stat. 3 (2009), section 2.

        Raises:
            ArgumentError: trials were not cross validated, or the objective is no metric of the folds.
        """
        name, sign = self.objectives[0], self.signs[0]
        trials = [trial for trial in self._complete() if trial.folds]
        if not trials or name not in trials[0].folds[0]:
            raise ArgumentError(
                "study.selection_optimism: needs a search with folds= whose objective is a metric of these"
            )
        best = max(trials, key=lambda trial: (*self.scores(trial), -trial.number))
        count = len(best.folds)
        gains = [
            max(sign * trial.folds[k][name] for trial in trials) - sign * best.folds[k][name]
            for k in range(count)
        ]
        return sum(gains) / count

    def _complete(self) -> list[Trial]:
        """The trials with values that went to the end; else those that got furthest."""
        valued = [trial for trial in self.trials if trial.values]
        if not valued:
            reasons = [trial.reason for trial in self.trials if trial.reason]
            raise NumericError(
                "study: no trial has a value: "
                + (f"the first failed: {reasons[0]}" if reasons else "none has ended")
            )
        done = [trial for trial in valued if trial.state == DONE]
        most = max(trial.rungs for trial in valued)
        return done or [trial for trial in valued if trial.rungs == most]
