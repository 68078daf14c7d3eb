"""How much of what an objective varies each parameter explains by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.search.spaces.dimensions import Dimension, spelled
from magmadnn.search.spaces.space import Space
from magmadnn.search.trials.records import Trial

_BINS = 6
_LEAST = 3  # trials of a bin


def importance_of(space: Space, trials: Sequence[Trial], objective: int = 0) -> dict[str, float]:
    """For each parameter the share of an objective's variance between groups of its values.

    epsilon^2 = (SSB - (k - 1) MSW) / SST with k groups, sums of squares SSB between them and SST in all,
    and MSW = (SST - SSB) / (n - k): the share that is explained, less what chance alone would explain; not
    below 0. Groups are values, or up to six parts of equal size of a parameter with more. The objective's
    ranks stand for its values, so that a few very bad trials do not decide. What parameters do together is
    in none of them.

    Source: Kelley, "An unbiased correlation ratio measure", PNAS 21 (1935), equation for epsilon squared;
    ranks as in the test of Kruskal and Wallis, JASA 47 (1952).

    Args:
        space: what was searched.
        trials: of which those with values count, and for each parameter those that have it.
        objective: which one.

    Returns:
        A share for each parameter with several values, largest first, if at least six trials have it.
    """
    found = {}
    for name, dimension in space.dimensions.items():
        own = [trial for trial in trials if trial.values and name in trial.point]
        if dimension.count != 1 and len(own) >= 2 * _LEAST:
            ranks = _ranks(np.array([trial.values[objective] for trial in own]))
            found[name] = _explained(ranks, _groups(dimension, [t.point[name] for t in own]))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0; equal values have the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: NDArray[np.float64] = (ends - (counts + 1) / 2)[inverse]
    return means


def _groups(dimension: Dimension, values: Sequence[Any]) -> NDArray[np.int64]:
    """The group of each trial."""
    texts = [spelled(value) for value in values]
    if len(set(texts)) <= _BINS or not dimension.ordered:
        return np.unique(texts, return_inverse=True)[1].astype(np.int64)
    positions = np.array([dimension.position(value) or 0.0 for value in values])
    bins = min(_BINS, len(values) // _LEAST)
    edges = np.quantile(positions, np.linspace(0, 1, bins + 1)[1:-1])
    return np.searchsorted(edges, positions, side="right").astype(np.int64)


def _explained(ranks: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    total = float(((ranks - ranks.mean()) ** 2).sum())
    kinds = np.unique(groups)
    if total == 0 or len(kinds) < 2 or len(ranks) <= len(kinds):
        return 0.0
    parts = [ranks[groups == kind] for kind in kinds]
    between = sum(len(part) * float(part.mean() - ranks.mean()) ** 2 for part in parts)
    within = (total - between) / (len(ranks) - len(kinds))
    return float(np.clip((between - (len(kinds) - 1) * within) / total, 0.0, 1.0))
