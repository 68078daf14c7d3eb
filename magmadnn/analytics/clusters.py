"""K-means: centres of clusters that rows are nearest to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError

from ._estimator import Estimator
from ._rows import (
    Array,
    Floats,
    all_rows,
    blocks,
    counted,
    counted_from_0,
    needs_fit,
    refuse_vanishing,
    rows_of,
)

_CANCELLED = (
    2.0**-16
)  # of the squares of rows and centres is a squared distance that has lost too many digits
_PAIRS = 1 << 17  # numbers of differences that are there at a time


class KMeans(Estimator):
    """Centres with the least sum of squared distances of rows to the nearest, by Lloyd's iteration.

    It begins with centres that are drawn far apart: Arthur and Vassilvitskii, k-means++, 2007.

    Args:
        n_clusters: how many centres.
        n_init: how often it begins anew; the best result is kept.
        max_iter: at most so many iterations.
        tol: it ends when centres move by less, squared and relative to the mean variance of columns.
        random_state: the seed.

    Attributes:
        cluster_centers_: [clusters, columns].
        labels_: [rows], the nearest centre of each.
        inertia_: the sum of squared distances.
        n_iter_: iterations of the best.
        n_features_in_: columns.
    """

    _kind, _found = "clusterer", "cluster_centers_"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        self.n_clusters = counted("KMeans", "n_clusters", n_clusters)
        self.n_init = counted("KMeans", "n_init", n_init)
        self.max_iter = counted("KMeans", "max_iter", max_iter)
        if not isinstance(tol, (int, float)) or isinstance(tol, bool) or not tol >= 0:
            raise ArgumentError(f"KMeans: tol must be a number of at least 0, got {tol!r}")
        self.tol = tol
        self.random_state = counted_from_0("KMeans", "random_state", random_state)
        self.cluster_centers_: Floats | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the centres.

        Raises:
            ArgumentError: if there are fewer rows than clusters.
            DataError: if a number is NaN or infinite, or squares of all differences vanish.
        """
        x = all_rows("KMeans", X)
        if len(x) < self.n_clusters:
            raise ArgumentError(
                f"KMeans: {self.n_clusters} clusters need as many rows, got {len(x)}"
            )
        mean = x.mean(0)
        x = x - mean  # sums of rows keep more digits
        refuse_vanishing("KMeans", np.abs(x).max())
        draw = np.random.default_rng(self.random_state)
        best = min((self._once(x, draw) for _ in range(self.n_init)), key=lambda found: found[2])
        centres, self.labels_, self.inertia_, self.n_iter_ = best
        self.cluster_centers_ = centres + mean
        self.n_features_in_ = x.shape[1]
        return self

    def fit_predict(self, X: Any, y: Any = None) -> Array:
        """`fit`; the number [rows] of the centre nearest to each row."""
        return self.fit(X).labels_

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """`fit`, then `transform` of the same rows."""
        return self.fit(X).transform(X)

    def _once(
        self, x: Floats, draw: np.random.Generator
    ) -> tuple[Floats, NDArray[np.int32], float, int]:
        centres, least = self._apart(x, draw), self.tol * float(x.var(0).mean())
        iterations = 0
        while iterations < self.max_iter:
            iterations += 1
            labels, distances = _nearest(x, centres)
            counts = np.bincount(labels, minlength=len(centres))
            sums = np.zeros_like(centres)
            np.add.at(sums, labels, x)
            moved = sums / np.maximum(counts, 1)[:, None]
            for empty in np.flatnonzero(
                counts == 0
            ):  # it begins anew at the row farthest from its own
                row = int(distances.argmax())
                moved[empty], distances[row] = x[row], 0
            change = float(((moved - centres) ** 2).sum())
            centres = moved
            if change <= least:
                break
        labels, distances = _nearest(x, centres)
        return centres, labels, float(distances.sum()), iterations

    def _apart(self, x: Floats, draw: np.random.Generator) -> Floats:
        """Rows drawn with odds that are squared distances to the nearest of those before."""
        chosen = [x[draw.integers(len(x))]]
        distances = ((x - chosen[0]) ** 2).sum(1)
        while len(chosen) < self.n_clusters:
            total = distances.sum()
            odds = distances / total if total > 0 else None
            chosen.append(x[draw.choice(len(x), p=odds)])
            distances = np.minimum(distances, ((x - chosen[-1]) ** 2).sum(1))
        return np.array(chosen)

    def predict(self, X: Any) -> Array:
        """The number [rows] of the centre nearest to each row of X [rows, columns]."""
        return np.concatenate([_nearest(*pair)[0] for pair in self._pairs(X)])

    def transform(self, X: Any) -> Array:
        """Euclidean distances [rows, clusters] of rows of X [rows, columns] from the centres."""
        return np.concatenate([np.sqrt(_squares(*pair)) for pair in self._pairs(X)])

    def _pairs(self, X: Any) -> Iterator[tuple[Floats, Floats]]:
        """Blocks of rows, and the centres."""
        centres = needs_fit("KMeans", self.cluster_centers_)
        for _, block in blocks("KMeans", rows_of("KMeans", X, centres.shape[1])):
            yield block, centres


def _squares(x: Floats, centres: Floats) -> Floats:
    """Squared distances by products, less the mean of the centres, of which distances keep more digits.

    Those of which few are left all the same are computed from differences.
    """
    mean = centres.mean(0)
    rows, others = x - mean, centres - mean
    sizes = (rows**2).sum(1)[:, None] + (others**2).sum(1)
    found = sizes - 2 * (rows @ others.T)
    near, which = np.nonzero(found < _CANCELLED * sizes)
    step = max(_PAIRS // x.shape[1], 1)  # differences of all pairs at once would fill the memory
    for low in range(0, len(near), step):
        row, centre = near[low : low + step], which[low : low + step]
        found[row, centre] = ((x[row] - centres[centre]) ** 2).sum(1)
    return np.asarray(found)


def _nearest(x: Floats, centres: Floats) -> tuple[NDArray[np.int32], Floats]:
    """Numbers of the nearest centres, and squared distances to them."""
    squares = _squares(x, centres)
    labels = squares.argmin(1).astype(np.int32)
    return labels, ((x - centres[labels]) ** 2).sum(1)
