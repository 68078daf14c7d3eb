"""Columns of mean 0 and deviation 1."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ._rows import Array, Floats, all_rows, blocks, needs_fit, rows_of


class StandardScaler:
    """(x - mean) / deviation of each column, with those of the rows of `fit`; constant columns become 0.

    Attributes:
        mean_, var_, scale_: [columns]; the variance has divisor n, the scale of a constant column is 1.
        n_samples_seen_: how many rows.
    """

    def __init__(self) -> None:
        self.mean_: Floats | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find means and deviations.

        Raises:
            DataError: if a number is NaN or infinite.
        """
        self.mean_ = None
        return self.partial_fit(X)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add the rows of X [rows, columns] to the means and deviations; y is ignored."""
        x = rows_of("StandardScaler", X, None if self.mean_ is None else len(self.mean_))
        if self.mean_ is None:
            self.n_samples_seen_, self.mean_ = 0, np.zeros(x.shape[1])
            self.var_ = np.zeros(x.shape[1])
        for _, block in blocks("StandardScaler", x):
            count = self.n_samples_seen_ + len(block)
            apart = block.mean(0) - self.mean_
            squares = self.var_ * self.n_samples_seen_ + block.var(0) * len(block)
            squares += apart**2 * (self.n_samples_seen_ * len(block) / count)
            self.mean_ = self.mean_ + apart * (len(block) / count)
            self.var_, self.n_samples_seen_ = squares / count, count
        rounding = 10 * np.finfo(np.float64).eps * np.abs(self.mean_)
        scale = np.sqrt(self.var_)
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
