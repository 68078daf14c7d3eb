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
from magmadnn.losses.loss import with_shape

from .classified import Classified
from .metric import Sums, Value
from .operands import is_labels, weights_like


@dataclass(frozen=True)
class AUC(Classified):
    """`P(a > b) + P(a = b) / 2`, for the scores a of class 1 and b of class 0.

    This is the area under the receiver operating characteristic: Hanley, McNeil, Radiology 143 (1982).
    Predictions are one label [batch] or [batch, 1]; or two classes [batch, 2], whose difference is the score;
    or several labels [batch, labels]: then it is the mean over those labels that are both true and not true
    for some samples. NaN where one of the classes does not occur (for several labels: in none of them), or a
    score is NaN.

    Scores are counted in a histogram, so memory does not grow with the data. Bins are even in
    `z / (1 + |z|)`, which keeps apart scores near 0 and far away. Scores of one bin count as equal, so the
    result is off by at most half the share of pairs (class 1, class 0) that fall into one bin.

    Attributes:
        bins: of the histogram, of which there is one for each label; an even number, so that one bin ends
            where the score is 0.
        outputs: what predictions are; see `magmadnn.losses.Loss`.
    """

    higher_is_better: ClassVar[bool | None] = True
    bins: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.bins) is not int or self.bins < 2 or self.bins % 2:
            raise ArgumentError(
                f"auc: bins must be an even number of at least 2, got {self.bins!r}"
            )

    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """The histogram of class 0, then that of class 1; so for each label."""
        with scope(self.name):
            predictions = with_shape(predictions)
            shape = tuple(predictions.shape)
            labels = is_labels(self.kind_of_outputs, shape)
            if len(shape) not in (1, 2) or not (labels or shape[-1] == 2):
                raise ShapeError(
                    "auc: predictions must be labels (batch,) or (batch, labels), or 2 classes "
                    f"(batch, 2), got {shape_text(shape)}"
                )
            _, true, _ = self.compared(predictions, targets)
            score = ops.cast(predictions, "float64")
            if not labels:
                score = score[:, 1] - score[:, 0]
            nan = ops.isnan(score)
            w = ops.where(nan, math.nan, weights_like(self.name, weights, score))
            at = ops.where(nan, 0, self._bin(score)) + self.bins * true
            if (count := self.labels(predictions)) > 1:
                at = at + 2 * self.bins * np.arange(count)
            flat = [ops.reshape(x, (-1,)) for x in (w, ops.cast(at, "int64"))]
            return ops.scatter_add(*flat, count=2 * self.bins * count)

    def _bin(self, score: Value) -> Value:
        # beyond the bounds all is one bin; infinity / infinity would be NaN
        squeezed = ops.softsign(ops.clip(score, -1e12, 1e12))
        return ops.clip(ops.floor((squeezed + 1) * (self.bins / 2)), 0, self.bins - 1)

    def result(self, sums: Sums) -> float | NDArray[Any]:
        """The pairs in the right order, and half of those in one bin, over all pairs."""
        negative, positive = np.moveaxis(sums.reshape(-1, 2, self.bins), 1, 0)
        pairs = negative.sum(axis=1) * positive.sum(axis=1)
        below = np.cumsum(negative, axis=1) - negative
        right = (positive * (below + negative / 2)).sum(axis=1)
        known = pairs != 0
        return float((right[known] / pairs[known]).mean()) if known.any() else math.nan
