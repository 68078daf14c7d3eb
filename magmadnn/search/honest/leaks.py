"""The checks of an audit: each looks for one way in which test rows leak into a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError, quoted
from magmadnn.models.baselines import logistic_regression, ridge_regression, with_ones
from magmadnn.ops import philox
from magmadnn.search.study import Study

from .outer_rows import Nested

Array = NDArray[Any]
Parts = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]

_SURE = 0.01  # p value below which chance is ruled out
_EXACT = 1e-5  # relative to the spread of a column
_BINARY = 2


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes:
        check: its name.
        leaks: whether test rows leak.
        words: what was found, and the way out.
    """

    check: str
    leaks: bool
    words: str


def duplicates(x: Array, y: Array, parts: Parts) -> Finding:
    """Rows that are held out and also trained on: the same inputs, to the last digit of float32; values that
    are missing are the same too.
    """
    flat = np.ascontiguousarray(x.reshape(len(x), -1).astype(np.float32) + 0.0)  # -0.0 is 0.0
    flat[np.isnan(flat)] = np.nan  # with the same bits
    _, numbers = np.unique(flat.view(np.uint32), axis=0, return_inverse=True)
    numbers = numbers.reshape(-1)
    shared = sum(int(np.isin(numbers[held], numbers[train]).sum()) for train, held in parts)
    distinct = int(numbers.max()) + 1
    if not shared:
        return Finding(
            "duplicates", False, f"no row is held out and trained on ({distinct:,} distinct)"
        )
    share = shared / sum(len(held) for _, held in parts)
    return Finding(
        "duplicates",
        True,
        f"{share:.1%} of the held-out rows are trained on too: {distinct:,} of {len(x):,} rows are "
        f"distinct; keep "
        "one of each, or keep equal rows in one fold",
    )


def scaled_outside(x: Array) -> Finding:
    """Columns that are scaled by statistics of all rows, so of those that are held out too."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    flat = flat[:, ~np.isnan(flat).all(axis=0)]
    if not flat.shape[1]:
        return Finding("preprocessing", False, "no column has a value")
    spread = np.nanmax(flat, axis=0) - np.nanmin(flat, axis=0)
    several = np.array([len(np.unique(c[~np.isnan(c)])) > _BINARY for c in flat.T])
    std = np.nanstd(flat, axis=0)
    counts = (~np.isnan(flat)).sum(axis=0)
    unbiased = std * np.sqrt(counts / np.maximum(counts - 1, 1))
    centred = np.abs(np.nanmean(flat, axis=0)) < _EXACT * np.maximum(std, 1e-300)
    unit = (np.abs(std - 1) < _EXACT) | (np.abs(unbiased - 1) < _EXACT)
    standardised = int((several & centred & unit).sum())
    ends = (np.abs(np.nanmin(flat, axis=0)) < 1e-7) & (np.abs(spread - 1) < 1e-6)
    to_range = int((several & ends).sum())
    if standardised or to_range:
        words = "have mean 0 and deviation 1" if standardised else "run from exactly 0 to exactly 1"
        return Finding(
            "preprocessing",
            True,
            f"{standardised or to_range} columns {words} over all rows: they were scaled before rows "
            f"were held "
            "out; scale in each training part, with Model(..., preparation=md.data.Standardize())",
        )
    return Finding("preprocessing", False, "no column is scaled by statistics of all rows")


def fitted_on_all(
    prepare: Callable[[Array, Array], Any], x: Array, y: Array, held: NDArray[np.int64], seed: int
) -> Finding:
    """Whether what is done to training rows depends on rows that are held out: these are changed to see it.

    `prepare(x, y)` gives the rows of x as they are trained on, or the numbers of the rows that are kept.
    """
    order = philox.permutation(len(held), seed, philox.stream_of("search: audit"))
    changed = x.copy()
    changed[held] = x[held][order] * 3 + 1
    train = np.setdiff1d(np.arange(len(x)), held)
    before, after = (np.asarray(prepare(value.copy(), y.copy())) for value in (x, changed))
    if _are_numbers(before, x):
        same = np.array_equal(np.intersect1d(before, train), np.intersect1d(after, train))
    elif len(before) == len(x) == len(after):
        same = np.array_equal(before[train], after[train], equal_nan=before.dtype.kind == "f")
    else:
        raise ArgumentError(
            f"search: audit: prepare must give a row for each row of x, or numbers of rows, got "
            f"{quoted(before)}"
        )
    if same:
        return Finding(
            "preparation", False, "training rows do not depend on rows that are held out"
        )
    return Finding(
        "preparation",
        True,
        "training rows are other ones when rows that are held out change: prepare learns from all rows; "
        "fit it in "
        "each training part",
    )


def kept_by_label(prepare: Callable[[Array, Array], Any], x: Array, y: Array, seed: int) -> Finding:
    """Whether which rows are kept depends on the targets: these are shuffled to see it."""
    before = np.asarray(prepare(x.copy(), y.copy()))
    order = philox.permutation(len(y), seed, philox.stream_of("search: audit", 1))
    after = np.asarray(prepare(x.copy(), y[order]))
    if _are_numbers(before, x) and not np.array_equal(np.unique(before), np.unique(after)):
        return Finding(
            "removal by label",
            True,
            "which rows are kept depends on the targets: rows that are hard to predict can be left out; "
            "choose rows "
            "by inputs alone, in each training part",
        )
    return Finding("removal by label", False, "which rows are kept does not depend on the targets")


def removed_by_error(
    x: Array, y: Array, original_x: Array, original_y: Array, parts: Parts
) -> Finding:
    """Whether rows that were left out are those that a simple method gets wrong when they are held out.

    The p value is that of Fisher's exact test, one-sided, of errors among removed and kept rows.
    """
    removed = _missing_rows(x, y, original_x, original_y)
    if not removed.any():
        return Finding("removal by error", False, "no row of the original is left out")
    wrong = _wrong_rows(original_x, original_y, parts)
    out, kept = wrong[removed], wrong[~removed]
    p = _fisher(int(out.sum()), len(out), int(wrong.sum()), len(wrong))
    words = (
        f"{len(out)} rows are left out; a simple method gets {out.mean():.0%} of these wrong and "
        f"{kept.mean():.0%} of "
        f"the others (p {p:.1g})"
    )
    if p < _SURE and out.mean() > kept.mean():
        return Finding(
            "removal by error", True, f"{words}: hard rows were removed; measure on all rows"
        )
    return Finding("removal by error", False, words)


def scored_where_tuned(study: Study, score: float | None, found: Nested | None) -> Finding:
    """Whether a figure is the best score of the search that chose it; how much it owes to that."""
    best = study.best.value
    assert best is not None
    claims = score is None or math.isclose(score, best, rel_tol=1e-9, abs_tol=1e-12)
    name = study.objectives[0]
    if not claims:
        return Finding(
            "tuned and scored",
            False,
            f"{name} {score:.4g} is not the score that the best of {len(study.trials)} trials was chosen by",
        )
    how = ""
    if found is not None:
        how = (
            f"; on rows that the search has not seen {found.mean(found.objective):.4f}, selection optimism "
            f"{found.optimism:+.4f}"
        )
    elif study.best.folds:
        how = f"; selection optimism about {study.selection_optimism():+.4f} (Tibshirani and Tibshirani)"
    return Finding(
        "tuned and scored",
        True,
        f"{name} {best:.4f} is the best of {len(study.trials)} trials on the rows that chose it{how}; report "
        "md.search.nested",
    )


def permuted(
    procedure: Callable[[Array, Array], float], x: Array, y: Array, count: int, seed: int
) -> Finding:
    """Whether a whole procedure, from data to its score, finds something where there is nothing to be found.

    Targets are shuffled `count` times. A score on rows that were held out properly is then that of chance,
    the commonest class's share p for an accuracy, with a deviation of about sqrt(p (1 - p) / n) for n rows.

    Source: Ojala and Garriga, "Permutation tests for studying classifier performance", JMLR 11 (2010), test
    1.
    """
    own = float(procedure(x.copy(), y.copy()))
    scores = []
    for number in range(count):
        order = philox.permutation(len(y), seed, philox.stream_of("search: audit", 2 + number))
        scores.append(float(procedure(x.copy(), y[order])))
    mean, p = float(np.mean(scores)), (1 + sum(s >= own for s in scores)) / (1 + count)
    _, counts = np.unique(y, return_counts=True)
    chance = float(counts.max() / len(y))
    error = max(math.sqrt(chance * (1 - chance) / len(y)), float(np.std(scores))) / math.sqrt(count)
    words = f"score {own:.4f}; with shuffled targets {mean:.4f} in the mean of {count}, "
    words += f"where chance is {chance:.4f}"
    if mean > chance + 4 * error:
        return Finding(
            "permutation",
            True,
            f"{words}: the procedure finds what is not there, so its score is too good",
        )
    return Finding("permutation", False, f"{words} (p {p:.2g} of the score by chance)")


# --- what they need --------------------------------------------------------------------------------


def _are_numbers(found: Array, x: Array) -> bool:
    """Whether it is numbers of rows, not rows."""
    return found.ndim == 1 and found.dtype.kind in "iu" and x.ndim > 1


def _missing_rows(x: Array, y: Array, original_x: Array, original_y: Array) -> NDArray[np.bool_]:
    """Which rows of the original are not there any more; equal rows count one by one."""
    left: dict[bytes, int] = {}
    for key in _keys(x, y):
        left[key] = left.get(key, 0) + 1
    found = np.zeros(len(original_x), bool)
    for number, key in enumerate(_keys(original_x, original_y)):
        found[number] = left.get(key, 0) == 0
        left[key] = left.get(key, 0) - 1
    return found


def _keys(x: Array, y: Array) -> list[bytes]:
    flat = np.ascontiguousarray(x.reshape(len(x), -1).astype(np.float32) + 0.0)
    return [
        row.tobytes() + str(target).encode() for row, target in zip(flat, y.tolist(), strict=True)
    ]


def _wrong_rows(x: Array, y: Array, parts: Parts) -> NDArray[np.bool_]:
    """Which rows logistic regression gets wrong when they are held out; of quantities, the worst fifth."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    is_class = y.dtype.kind in "iubUSO"
    names, numbers = np.unique(y, return_inverse=True)
    errors = np.zeros(len(x))
    for train, held in parts:
        mean, std = np.nanmean(flat[train], axis=0), np.nanstd(flat[train], axis=0)
        scaled = np.nan_to_num((flat - mean) / np.where(std > 0, std, np.inf))
        inputs = with_ones(scaled[held])
        if is_class:
            weights = logistic_regression(scaled[train], numbers[train], len(names))
            errors[held] = (inputs @ weights).argmax(axis=1) != numbers[held]
        else:
            predicted = inputs @ ridge_regression(scaled[train], y[train])
            errors[held] = np.abs(predicted.reshape(len(held)) - y[held])
    return errors > (0.5 if is_class else np.quantile(errors, 0.8))


def _fisher(hits: int, drawn: int, marked: int, total: int) -> float:
    """The chance of at least `hits` marked ones among `drawn` of `total`, of which `marked` are."""

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    most = min(drawn, marked)
    return min(
        1.0,
        sum(
            math.exp(
                log_choose(marked, k)
                + log_choose(total - marked, drawn - k)
                - log_choose(total, drawn)
            )
            for k in range(max(hits, drawn - (total - marked)), most + 1)
        ),
    )
