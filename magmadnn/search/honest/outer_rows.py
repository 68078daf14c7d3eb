"""What a nested search has found: a row for each outer fold, and figures with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import ExplainsAttributes
from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.search.study_table import StudyTable

from .intervals import difference_p, interval

Row = dict[str, Any]


@dataclass(eq=False, repr=False)
class Nested(ExplainsAttributes):
    """Figures of a search that were measured on rows that the search had not seen.

    Attributes:
        rows: a dict for each outer fold of each repeat: `repeat`, `fold`, `rows` held out, the metrics on
            these, `chosen_by` (the best score of the inner search, on the inner folds), `trials`,
            `<method>_accuracy` of simple methods on the same rows, and the point that was chosen, `best_...`.
        objective: what the inner searches searched for.
        sign: 1 where higher is better, -1 where lower is.
        held: rows of an outer fold, in the mean.
        trained: rows that its search had.
        predictions: for each repeat a prediction of each row, as data has classes; None for quantities.
    """

    rows: list[Row]
    objective: str
    sign: int
    held: float
    trained: float
    predictions: list[NDArray[Any]] | None = None

    @property
    def figures(self) -> list[str]:
        """The names of what was measured on the outer folds."""
        left_out = ("repeat", "fold", "rows", "chosen_by", "trials")
        return [n for n in self.rows[0] if n not in left_out and not n.startswith("best_")]

    def values(self, figure: str) -> list[float]:
        """A figure on each outer fold.

        Raises:
            UnknownNameError: there is no such figure.
        """
        if figure not in (*self.figures, "chosen_by"):
            raise UnknownNameError.of("nested: figure", figure, [*self.figures, "chosen_by"])
        return [float(row[figure]) for row in self.rows]

    def mean(self, figure: str) -> float:
        """The mean over the outer folds."""
        return float(np.mean(self.values(figure)))

    def interval(self, figure: str, level: float = 0.95) -> tuple[float, float]:
        """An interval of the mean, corrected since the folds' training parts overlap.

        mean +- t sqrt((1/J + held/trained) s^2) over J outer folds: Nadeau and Bengio, Machine Learning 52
        (2003).

        Args:
            figure: its name.
            level: of the interval, above 0 and below 1.

        Raises:
            ArgumentError: if the level is out of range.
        """
        if not 0 < level < 1:
            raise ArgumentError(f"nested: level must be above 0 and below 1, got {level!r}")
        return interval(self.values(figure), self.held, self.trained, level)

    def difference_p(self, figure: str, other: str) -> float:
        """The two-sided p value of two figures having one mean, paired by fold, corrected likewise."""
        pairs = zip(self.values(figure), self.values(other), strict=True)
        return difference_p([a - b for a, b in pairs], self.held, self.trained)

    @property
    def optimism(self) -> float:
        """How much better the best inner score is than what the same choice reaches on unseen rows, in the
        mean.

        Whoever tunes and scores on the same folds reports a figure that is too good by this much.
        """
        return self.sign * (self.mean("chosen_by") - self.mean(self.objective))

    def table(self) -> StudyTable:
        """A row for each outer fold."""
        return StudyTable(list(self.rows[0]), self.rows)

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} outer folds; mean and 95 % interval:"]
        width = max(len(name) for name in self.figures)
        for name in self.figures:
            low, high = self.interval(name)
            lines.append(f"  {name.ljust(width)}  {self.mean(name):.4f}  ({low:.4f} to {high:.4f})")
        lines.append(
            f"{self.objective} on the folds that chose: {self.mean('chosen_by'):.4f}; selection optimism "
            f"{self.optimism:+.4f}"
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Nested of {len(self.rows)} outer folds: {self.objective} {self.mean(self.objective):.4f}>"


def matthews(true: NDArray[Any], predicted: NDArray[Any]) -> float:
    """The Matthews correlation of classes, R_K for more than two; 0 where one side has a single class.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", Comput.
    Biol. Chem. 28 (2004), equation (8).
    """
    names, numbers = np.unique(np.concatenate([true, predicted]), return_inverse=True)
    a, b = (np.eye(len(names))[part] for part in np.split(numbers, [len(true)]))
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    norm = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return float((a * b).sum()) / norm if norm else 0.0


def described(row: Mapping[str, Any], points: Sequence[str]) -> Row:
    """A row with the columns of a point that it lacks."""
    return {**row, **{f"best_{name}": row.get(f"best_{name}") for name in points}}
