"""Standardising columns with the mean and standard deviation of weighted rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scaling:
    """`(x - mean) / std` for each column; a column that is constant has std 1.

    Attributes:
        mean: [columns].
        std: [columns], with divisor n; all positive.
    """

    mean: Floats
    std: Floats

    @classmethod
    def of(cls, x: NDArray[Any], weights: Floats | None) -> Scaling:
        """The statistics of rows x [rows, columns]; a weight counts as so many rows."""
        x = np.asarray(x, np.float64)
        mean = np.average(x, axis=0, weights=weights)
        std = np.sqrt(np.average(np.square(x - mean), axis=0, weights=weights))
        # By their range: the mean of equal numbers is rounded, so their std need not be exactly 0.
        varies = (x.max(axis=0) > x.min(axis=0)) & (std > 0.0)
        return cls(mean, np.where(varies, std, 1.0))

    def apply(self, x: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Standardised columns in a new array of `dtype`."""
        found: NDArray[Any] = ((np.asarray(x, np.float64) - self.mean) / self.std).astype(dtype)
        return found

    def restore(self, scaled: NDArray[Any]) -> Floats:
        """Back to the columns' own units."""
        return np.asarray(scaled, np.float64) * self.std + self.mean
