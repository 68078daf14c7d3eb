"""Principal components, and singular values of large matrices by random projections."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np

from magmadnn.errors import ArgumentError, DataError

from ._estimator import Estimator
from ._rows import (
    Array,
    Floats,
    Moments,
    all_rows,
    blocks,
    counted,
    counted_from_0,
    flipped,
    narrow_blocks,
    needs_fit,
    refuse_vanishing,
    rows_of,
)

_SOLVERS = ("auto", "full", "covariance_eigh", "randomized")
_TINY = 1e-280  # a sum of squares that says nothing
_COLUMNS = 2000  # up to so many, "auto" takes the scatter of columns


def randomized_svd(
    M: Any, n_components: int, *, n_oversamples: int = 10, n_iter: int = 7, random_state: int = 0
) -> tuple[Floats, Floats, Floats]:
    """The largest singular values of a matrix and their vectors, from products with few random columns.

    As in Halko, Martinsson and Tropp, Finding structure with randomness, 2011, algorithms 4.4 and 5.1.

    Args:
        M: [m, n].
        n_components: k, how many.
        n_oversamples: how many columns more.
        n_iter: how often the matrix and its transpose are applied; more for values that fall slowly.
        random_state: the seed.

    Returns:
        U [m, k], S [k], V^T [k, n], of which the largest element of each row of V^T is positive.

    Raises:
        ArgumentError: if n_components is not from 1 to min(m, n), or another number is negative.
        DataError: if a number is NaN or infinite.
    """
    return _randomized(
        "randomized_svd",
        M,
        n_components,
        n_oversamples=n_oversamples,
        n_iter=n_iter,
        seed=random_state,
    )


def _randomized(
    name: str, x: Any, wanted: int, *, n_oversamples: int = 10, n_iter: int = 7, seed: int = 0
) -> tuple[Floats, Floats, Floats]:
    """The same under the name of the one who asks for it."""
    a = all_rows(name, x)
    k = counted(name, "n_components", wanted, min(a.shape))
    n_iter = counted_from_0(name, "n_iter", n_iter)
    random_state = counted_from_0(name, "random_state", seed)
    width = min(k + counted_from_0(name, "n_oversamples", n_oversamples), *a.shape)
    found = np.random.default_rng(random_state).normal(size=(a.shape[1], width))
    basis = np.linalg.qr(a @ found).Q
    for _ in range(n_iter):
        basis = np.linalg.qr(a @ np.linalg.qr(a.T @ basis).Q).Q
    u, s, v = np.linalg.svd(basis.T @ a, full_matrices=False)
    signs = flipped(v[:k])
    return (basis @ u[:, :k]) * signs, s[:k], v[:k] * signs[:, None]


class PCA(Estimator):
    """Principal components of rows: directions of the largest variance.

    Args:
        n_components: how many; a number between 0 and 1: as many as explain that part of the
            variance; None: all.
        whiten: whether transformed columns get the variance 1.
        svd_solver: "full" (singular values of the centred rows: the most digits, all rows in memory),
            "covariance_eigh" (eigenvalues of the scatter, which is added up block by block: rows may be a
            memory map larger than memory), "randomized", or "auto": the second up to 2000 columns if there
            are ten times as many rows, else the first.
        random_state: the seed of "randomized".

    Attributes:
        components_: [k, columns], the largest element of each positive.
        explained_variance_, explained_variance_ratio_, singular_values_: [k].
        mean_: [columns].
        noise_variance_: the mean variance of what was left out.
        n_components_, n_samples_, n_features_in_: sizes.
    """

    _kind, _found = "transformer", "components_"

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        whiten: bool = False,
        svd_solver: str = "auto",
        random_state: int = 0,
    ) -> None:
        if svd_solver not in _SOLVERS:
            raise ArgumentError(
                f"PCA: svd_solver must be one of {', '.join(_SOLVERS)}, got {svd_solver!r}"
            )
        self.n_components, self.whiten = n_components, whiten
        self.svd_solver, self.random_state = svd_solver, random_state
        self.components_: Floats | None = None
        self._moments: Moments | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of rows [rows, columns].

        Raises:
            DataError: if there are fewer than 2 rows, a number is NaN or infinite, or squares of all
                differences vanish.
            ArgumentError: if there are fewer components than asked for.
        """
        x = rows_of("PCA", X)
        if len(x) < 2:
            raise DataError("PCA: X has 1 row, expected 2 or more")
        solver = self.svd_solver
        if solver == "auto":
            thin = x.shape[1] <= _COLUMNS and len(x) >= 10 * x.shape[1]
            solver = "covariance_eigh" if thin else "full"
        if solver == "covariance_eigh":
            return self._take(x, Moments(x.shape[1]))
        rows = all_rows("PCA", x)
        mean = rows.mean(0)
        centred = rows - mean
        refuse_vanishing("PCA", np.abs(centred).max())
        total = float((centred**2).sum()) / (len(x) - 1)
        if solver == "randomized":
            k = counted("PCA", "n_components", self.n_components, min(x.shape))
            _, s, v = _randomized("PCA", centred, k, seed=self.random_state)
        else:
            _, s, v = np.linalg.svd(centred, full_matrices=False)
        self._keep(s, v, total, len(x))
        self._moments, self.mean_ = None, mean
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take more rows in: the components are those of all rows so far, exactly.

        It goes on from itself, and from `fit` where that adds up the scatter ("covariance_eigh").

        Raises:
            ArgumentError: after a `fit` that kept no scatter, since rows would be missing.
            DataError: if a number is NaN or infinite; none of the rows counts then.
        """
        if self._moments is None and self.components_ is not None:
            raise ArgumentError(
                "PCA: partial_fit after a fit by singular values, which keeps no sums to go on from; take "
                "svd_solver='covariance_eigh', or partial_fit from the beginning"
            )
        x = rows_of("PCA", X, None if self._moments is None else len(self._moments.mean))
        return self._take(x, copy.deepcopy(self._moments) or Moments(x.shape[1]))

    def _take(self, x: Array, moments: Moments) -> Self:
        """Add rows to these sums, and keep both if all rows could be taken."""
        for block in narrow_blocks("PCA", x):
            moments.add(block)
        if not float(np.trace(moments.scatter)) > _TINY:
            refuse_vanishing("PCA", np.ptp(x[:].astype(np.float64), axis=0).max())
        if moments.count < 2:
            self._moments = moments
            return self
        values, vectors = np.linalg.eigh(moments.scatter)
        rank = min(moments.count, len(values))
        s = np.sqrt(np.maximum(values[::-1][:rank], 0))
        total = float(np.trace(moments.scatter)) / (moments.count - 1)
        self._keep(s, vectors.T[::-1][:rank], total, moments.count)
        self._moments, self.mean_ = moments, moments.mean
        return self

    def _keep(self, s: Floats, v: Floats, total: float, rows: int) -> None:
        variance = s**2 / (rows - 1)
        ratio = variance / total if total else np.zeros_like(variance)
        k = self._wanted(len(s), ratio)
        self.components_ = v[:k] * flipped(v[:k])[:, None]
        self.explained_variance_, self.explained_variance_ratio_ = variance[:k], ratio[:k]
        self.singular_values_ = s[:k]
        rest = min(v.shape[1], rows) - k
        left = float(
            variance[k:].sum()
        )  # the total less the others would have their rounding errors
        if len(variance) < rest + k:
            left = max(total - float(variance[:k].sum()), 0.0)
        self.noise_variance_ = left / rest if rest else 0.0
        self.n_components_, self.n_samples_, self.n_features_in_ = k, rows, v.shape[1]

    def _wanted(self, most: int, ratio: Floats) -> int:
        wanted = self.n_components
        if wanted is None:
            return most
        if isinstance(wanted, float) and 0 < wanted < 1:
            return min(int(np.searchsorted(np.cumsum(ratio), wanted, side="right")) + 1, most)
        return counted("PCA", "n_components", wanted, most)

    def transform(self, X: Any) -> Array:
        """Coordinates [rows, k] of rows along the components; float32 for float32."""
        components = needs_fit("PCA", self.components_)
        x = rows_of("PCA", X, self.n_features_in_)
        out = np.empty(
            (len(x), len(components)), np.float32 if x.dtype == np.float32 else np.float64
        )
        for where, block in blocks("PCA", x):
            out[where] = (block - self.mean_) @ components.T / self._scale()
        return out

    def _scale(self) -> Floats:
        if not self.whiten:
            return np.ones(len(self.explained_variance_))
        return np.sqrt(np.maximum(self.explained_variance_, np.finfo(np.float64).tiny))

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """`fit`, then `transform` of the same rows."""
        return self.fit(X).transform(X)

    def inverse_transform(self, X: Any) -> Array:
        """Rows [rows, columns] with these coordinates."""
        components = needs_fit("PCA", self.components_)
        x = all_rows("PCA", X, len(components))
        return np.asarray((x * self._scale()) @ components + self.mean_)


class TruncatedSVD(Estimator):
    """The largest singular values of rows that are not centred, by `randomized_svd`.

    Args:
        n_components: how many.
        n_iter: as for `randomized_svd`.
        random_state: the seed.

    Attributes:
        components_: [k, columns].
        singular_values_: [k].
        explained_variance_, explained_variance_ratio_: [k], of the transformed columns, and beside that of
            all columns.
        n_features_in_: columns.
    """

    _kind, _found = "transformer", "components_"

    def __init__(self, n_components: int = 2, *, n_iter: int = 5, random_state: int = 0) -> None:
        self.n_components, self.n_iter, self.random_state = n_components, n_iter, random_state
        self.components_: Floats | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the singular directions of X [rows, columns]; y is ignored."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """Find the singular directions of X, and give U S [rows, n_components], its rows in them."""
        x = all_rows("TruncatedSVD", X)
        u, s, v = _randomized(
            "TruncatedSVD", x, self.n_components, n_iter=self.n_iter, seed=self.random_state
        )
        made, total = u * s, float(x.var(0).sum())
        self.components_, self.singular_values_ = v, s
        self.explained_variance_ = made.var(0)
        self.explained_variance_ratio_ = self.explained_variance_ / (total or 1.0)
        self.n_features_in_ = x.shape[1]
        return made

    def transform(self, X: Any) -> Array:
        """Coordinates [rows, k] of rows along the components."""
        components = needs_fit("TruncatedSVD", self.components_)
        x = rows_of("TruncatedSVD", X, components.shape[1])
        return np.concatenate([block @ components.T for _, block in blocks("TruncatedSVD", x)])
