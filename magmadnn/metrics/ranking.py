"""AUC: how well one output ranks samples of class 1 above those of class 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph import scope
from magmadnn.graph.signature import shape_text
from magmadnn.losses.matching import with_shape

from .metric import Metric, Sums, Value
from .operands import class_numbers, weights_like


@dataclass(frozen=True)
class AUC(Metric):
    """`P(a > b) + P(a = b) / 2`, for the scores a of class 1 and b of class 0.

    This is the area under the receiver operating characteristic: Hanley, McNeil, Radiology 143 (1982).
    Predictions are one logit [batch] or [batch, 1], or two [batch, 2], whose difference is the score. NaN
    where one of the classes does not occur, or a score is NaN.

    Scores are counted in a histogram, so memory does not grow with the data. Bins are even in
    `z / (1 + |z|)`, which keeps apart scores near 0 and far away. Scores of one bin count as equal, so the
    result is off by at most half the share of pairs (class 1, class 0) that fall into one bin.

    Attributes:
        bins: of the histogram; an even number, so that one bin ends where the score is 0.
    """

    higher_is_better: ClassVar[bool | None] = True
    bins: int = 4096

    def __post_init__(self) -> None:
        if type(self.bins) is not int or self.bins < 2 or self.bins % 2:
            raise ArgumentError(
                f"auc: bins must be an even number of at least 2, got {self.bins!r}"
            )

    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """The histogram of class 0, then that of class 1."""
        with scope(self.name):
            predictions = with_shape(predictions)
            shape = tuple(predictions.shape)
            if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] not in (1, 2)):
                raise ShapeError(
                    "auc: predictions must be (batch,), (batch, 1) or (batch, 2), "
                    f"got {shape_text(shape)}"
                )
            _, true, _ = class_numbers(self.name, predictions, targets)
            score = ops.cast(predictions, "float64")
            score = score[:, 1] - score[:, 0] if shape[-1] == 2 else ops.reshape(score, (-1,))
            true = ops.reshape(true, (-1,))
            nan = ops.isnan(score)
            w = ops.where(nan, math.nan, weights_like(self.name, weights, score))
            at = ops.where(nan, 0, self._bin(score)) + self.bins * true
            return ops.scatter_add(w, ops.cast(at, "int64"), count=2 * self.bins)

    def _bin(self, score: Value) -> Value:
        # beyond the bounds all is one bin; infinity / infinity would be NaN
        squeezed = ops.softsign(ops.clip(score, -1e12, 1e12))
        return ops.clip(ops.floor((squeezed + 1) * (self.bins / 2)), 0, self.bins - 1)

    def result(self, sums: Sums) -> float | NDArray[Any]:
        """The pairs in the right order, and half of those in one bin, over all pairs."""
        negative, positive = sums.reshape(2, -1)
        pairs = negative.sum() * positive.sum()
        if not pairs:
            return math.nan
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / pairs)
