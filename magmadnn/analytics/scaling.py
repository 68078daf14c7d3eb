"""Columns of mean 0 and deviation 1."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ._estimator import Estimator
from ._rows import Array, Floats, all_rows, blocks, needs_fit, refuse_vanishing, rows_of

_TINY = 1e-280  # a sum of squares that says nothing


class StandardScaler(Estimator):
    """(x - mean) / deviation of each column, with those of the rows of `fit`; constant columns become 0.

    Attributes:
        mean_, var_, scale_: [columns]; the variance has divisor n, the scale of a constant column is 1.
        n_samples_seen_, n_features_in_: how many rows and columns.
    """

    _kind, _found = "transformer", "mean_"
    n_samples_seen_: int
    var_: Floats

    def __init__(self) -> None:
        self.mean_: Floats | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find means and deviations.

        Raises:
            DataError: if a number is NaN or infinite, or the square of all differences of a column vanishes.
        """
        return self._take(X, None)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add the rows of X [rows, columns] to the means and deviations; y is ignored.

        Raises:
            DataError: if a number is NaN or infinite; none of the rows counts then.
        """
        return self._take(X, self.mean_)

    def _take(self, X: Any, mean: Floats | None) -> Self:
        """Add rows to those that have this mean; to none without one."""
        x = rows_of("StandardScaler", X, None if mean is None else len(mean))
        if mean is None:
            seen, mean, var = 0, np.zeros(x.shape[1]), np.zeros(x.shape[1])
        else:
            seen, var = self.n_samples_seen_, self.var_
        for _, block in blocks("StandardScaler", x):
            count = seen + len(block)
            apart = block.mean(0) - mean
            squares = var * seen + block.var(0) * len(block)
            few = np.flatnonzero(squares < _TINY)
            sizes = np.ptp(block[:, few], axis=0)
            for column, size in zip(few[sizes > 0], sizes[sizes > 0], strict=True):
                refuse_vanishing("StandardScaler", size, f"column {column} of X")
            squares += apart**2 * (seen * len(block) / count)
            mean = mean + apart * (len(block) / count)
            var, seen = squares / count, count
        self.mean_, self.var_, self.n_samples_seen_ = mean, var, seen
        self.n_features_in_ = x.shape[1]
        rounding = 10 * np.finfo(np.float64).eps * np.abs(mean)
        scale = np.sqrt(var)
        self.scale_ = np.where(scale <= rounding, 1.0, scale)
        return self

    def transform(self, X: Any) -> Array:
        """Scaled rows; float32 for float32."""
        mean = needs_fit("StandardScaler", self.mean_)
        x = rows_of("StandardScaler", X, len(mean))
        out = np.empty(x.shape, np.float32 if x.dtype == np.float32 else np.float64)
        for where, block in blocks("StandardScaler", x):
            out[where] = (block - mean) / self.scale_
        return out

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """`fit`, then `transform` of the same rows."""
        return self.fit(X).transform(X)

    def inverse_transform(self, X: Any) -> Array:
        """Rows in their own units."""
        mean = needs_fit("StandardScaler", self.mean_)
        return np.asarray(all_rows("StandardScaler", X, len(mean)) * self.scale_ + mean)
