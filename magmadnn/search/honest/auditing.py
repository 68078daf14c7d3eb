"""An audit: all checks for which there is something to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, quoted
from magmadnn.search.study import Study
from magmadnn.search.trials.rows import folds_of
from magmadnn.training.arguments import at_least

from .leaks import (
    Array,
    Finding,
    duplicates,
    fitted_on_all,
    kept_by_label,
    permuted,
    removed_by_error,
    scaled_outside,
    scored_where_tuned,
)
from .outer_rows import Nested


@dataclass(frozen=True)
class Audit:
    """What an audit has found.

    Attributes:
        findings: of each check that was made.
        left_out: checks that were not, and what they need.
    """

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]

    @property
    def leaks(self) -> list[str]:
        """The names of the checks that have found a leak."""
        return [finding.check for finding in self.findings if finding.leaks]

    def __str__(self) -> str:
        lines = [
            f"{'LEAK' if one.leaks else 'ok  '}  {one.check}: {one.words}" for one in self.findings
        ]
        lines += [f"      not looked at: {words}" for words in self.left_out]
        return "\n".join(lines)


@checked_call
def audit(
    x: Any,
    y: Any,
    *,
    folds: int = 10,
    stratified: bool | None = None,
    original: tuple[Any, Any] | None = None,
    prepare: Callable[[Any, Any], Any] | None = None,
    study: Study | None = None,
    score: float | None = None,
    nested: Nested | None = None,
    procedure: Callable[[Any, Any], float] | None = None,
    permutations: int = 20,
    seed: int = 0,
) -> Audit:
    """Look for the usual ways in which rows that a figure is measured on leak into what is measured.

    It finds leaks that leave traces in data, or that show when data is changed. An audit without a finding
    is no proof that there is none.

    - duplicates: rows that are held out and trained on;
    - preprocessing: columns scaled by statistics of all rows;
    - preparation: with `prepare`, training rows that depend on rows that are held out;
    - removal by label: with `prepare` that gives numbers of rows, a choice that depends on targets;
    - removal by error: with `original`, rows left out that are hard to predict;
    - tuned and scored: with `study`, a figure that is the best score of the search that chose it;
    - permutation: with `procedure`, a score above chance for shuffled targets.

    Args:
        x: inputs as the figure was measured on them, an array with a row for each sample.
        y: targets.
        folds: that rows are cut into.
        stratified: as for `run`.
        original: (x, y) before rows were left out; inputs of the same columns.
        prepare: what was done before rows were held out: a function of all of x and y that gives the rows as
            they are trained on, or the numbers of the rows that are kept.
        study: the search that chose the network.
        score: the figure that is reported; None: the study's best.
        nested: of the same search, for how much the figure owes to the choice.
        procedure: a function of x and y that does everything and gives the score, the higher the better.
        permutations: of the targets.
        seed: of folds and permutations.

    Raises:
        ArgumentError: if score or nested are given without study; if x or y are no arrays, or of different
            lengths; if `prepare` gives something else.
    """
    at_least("search: audit: permutations", permutations, 1)
    if study is None and (score is not None or nested is not None):
        given = "score" if score is not None else "nested"
        raise ArgumentError(
            f"search: audit: {given} is compared with what a search found; give study= too, or leave it out"
        )
    inputs, targets = _arrays(x, y)
    parts = folds_of(targets, len(inputs), folds, 0, stratified, seed)
    found = [duplicates(inputs, targets, parts), scaled_outside(inputs)]
    left_out = []
    if prepare is not None:
        found.append(fitted_on_all(prepare, inputs, targets, parts[0][1], seed))
        found.append(kept_by_label(prepare, inputs, targets, seed))
    else:
        left_out.append("preparation (prepare=, what was done to all rows)")
    if original is not None:
        before = _arrays(*original)
        if before[0].shape[1:] != inputs.shape[1:]:
            raise ArgumentError(
                f"search: audit: original has rows of shape {before[0].shape[1:]}, x of {inputs.shape[1:]}"
            )
        whole = folds_of(before[1], len(before[0]), folds, 0, stratified, seed)
        found.append(removed_by_error(inputs, targets, *before, whole))
    else:
        left_out.append("removal of rows (original=, the data before)")
    if study is not None:
        found.append(scored_where_tuned(study, score, nested))
    else:
        left_out.append("tuned and scored on the same folds (study=, score=)")
    if procedure is not None:
        found.append(permuted(procedure, inputs, targets, permutations, seed))
    else:
        left_out.append("permutation (procedure=, from data to score)")
    return Audit(tuple(found), tuple(left_out))


def _arrays(x: Any, y: Any) -> tuple[Array, Array]:
    inputs, targets = np.asarray(x), np.asarray(y)
    if inputs.ndim < 2 or inputs.dtype.kind not in "fiub" or targets.ndim != 1:
        raise ArgumentError(
            "search: audit: expected an array of numbers x, [rows, columns], and one target for each "
            "row, got x "
            f"of shape {inputs.shape} and type {inputs.dtype}, y of shape {targets.shape}"
        )
    if len(inputs) != len(targets):
        raise ArgumentError(
            f"search: audit: x has {len(inputs)} rows but y has {quoted(len(targets))}"
        )
    return inputs, targets
