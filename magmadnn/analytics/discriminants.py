"""Linear discriminants: directions in which classes differ most beside how much they scatter."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from magmadnn.errors import DataError, ShapeError
from magmadnn.memory.dtypes import refuse_masked

from ._estimator import Estimator, right_share
from ._rows import Array, Floats, all_rows, counted, flipped, needs_fit, refuse_vanishing

_TINY = 1e-140  # a deviation that says nothing
_RANK = 1e-4  # singular values below that, relative to columns of deviation 1, count as 0


def _are_classes(labels: Array) -> bool:
    """Whether none is NaN or infinite, or missing as pandas has it, which equals nothing."""
    if labels.dtype == object:
        return all(isinstance(same := label == label, bool | np.bool) and same for label in labels)
    return not (np.any(labels != labels) or (labels.dtype.kind in "fc" and np.isinf(labels).any()))


class LinearDiscriminantAnalysis(Estimator):
    """Directions that separate classes best, and the classifier of normal classes with one covariance.

    As in Hastie, Tibshirani and Friedman, The elements of statistical learning, section 4.3, by singular
    values of the rows; no scatter is formed. Variances have divisor n.

    Args:
        n_components: how many directions; all, classes - 1 or fewer, where it is left out.

    Attributes:
        classes_, priors_, means_, xbar_: of the classes; the mean of all.
        scalings_: [columns, directions].
        coef_, intercept_: of the classifier, [classes, columns] and [classes]; of two classes
            [1, columns] and [1], those of the second less those of the first.
        n_features_in_: columns.
        explained_variance_ratio_: how much of the variance among classes each direction has.
    """

    _kind, _found = "classifier", "scalings_"

    def __init__(self, n_components: int | None = None) -> None:
        self.n_components = n_components
        self.scalings_: Floats | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Find the directions of rows with classes [rows].

        Raises:
            DataError: if there is one class only, classes have equal means, no column differs within a class,
                the square of all differences of one vanishes, or a number is NaN or infinite; if classes have
                no order.
            ShapeError: if there is not one class for each row.
        """
        name = "LinearDiscriminantAnalysis"
        refuse_masked(f"{name}: y", y)
        x, labels = all_rows(name, X), np.asarray(y)
        if labels.shape != (len(x),):
            raise ShapeError(
                f"{name}: y has the shape {labels.shape}, expected a class for each of {len(x)} rows"
            )
        if not _are_classes(labels):
            raise DataError(
                f"{name}: y holds NaN or infinity, which are no classes; drop such rows"
            )
        try:
            classes, number = np.unique(labels, return_inverse=True)
        except TypeError:
            kinds = sorted({type(label).__name__ for label in labels})
            raise DataError(
                f"{name}: y holds {' and '.join(kinds)}, which have no order; give classes of one type"
            ) from None
        count = len(classes)
        if count < 2 or len(x) <= count:
            raise DataError(
                f"{name}: {len(x)} rows of {count} classes; give 2 classes or more, and more rows"
            )
        wanted = most = min(count - 1, x.shape[1])
        if self.n_components is not None:
            wanted = counted(name, "n_components", self.n_components, most)
        priors = np.bincount(number) / len(x)
        means = np.array([x[number == k].mean(0) for k in range(count)])
        mean = priors @ means
        inner = x - means[number]
        deviation = inner.std(0)
        for column in np.flatnonzero(deviation < _TINY):
            refuse_vanishing(name, np.abs(inner[:, column]).max(), f"column {column} of X")
        deviation[deviation == 0] = 1
        _, s, v = np.linalg.svd(inner / deviation / np.sqrt(len(x)), full_matrices=False)
        rank = int((s > _RANK).sum())
        white = (v[:rank] / deviation).T / s[:rank]
        among = np.sqrt(len(x) * priors / (count - 1))[:, None] * (means - mean) @ white
        _, s, v = np.linalg.svd(among, full_matrices=False)
        if not rank or not s[0] > 0:
            what = "classes have equal means" if rank else "no column differs within a class"
            raise DataError(f"{name}: {what}, so there are no discriminants; give other columns")
        kept = int((s > _RANK * s[0]).sum())
        scalings = white @ v.T[:, :kept]
        projected = (means - mean) @ scalings
        coefficients = projected @ scalings.T
        intercepts = np.log(priors) - 0.5 * (projected**2).sum(1) - coefficients @ mean
        if count == 2:
            coefficients, intercepts = np.diff(coefficients, axis=0), np.diff(intercepts)
        # All is found: nothing of an earlier fit is left beside what is new.
        self.classes_, self.priors_, self.means_, self.xbar_ = classes, priors, means, mean
        self.coef_, self.intercept_ = coefficients, intercepts
        self.n_features_in_ = x.shape[1]
        self.scalings_ = scalings * flipped(scalings.T)
        self._kept = min(wanted, kept)
        self.explained_variance_ratio_ = (s**2 / (s**2).sum())[: self._kept]
        return self

    def transform(self, X: Any) -> Array:
        """Coordinates [rows, directions] of X [rows, columns] along the discriminants."""
        scalings = needs_fit("LinearDiscriminantAnalysis", self.scalings_)
        x = all_rows("LinearDiscriminantAnalysis", X, len(scalings))
        return np.asarray((x - self.xbar_) @ scalings[:, : self._kept])

    def fit_transform(self, X: Any, y: Any) -> Array:
        """`fit`, then `transform` of the same rows."""
        return self.fit(X, y).transform(X)

    def decision_function(self, X: Any) -> Array:
        """Log odds [rows, classes], up to a number for each row; of two classes [rows], of the second."""
        scores = self._scores(X)
        return scores[:, 1] if len(self.classes_) == 2 else scores

    def _scores(self, X: Any) -> Array:
        """The same for each class, of two classes too."""
        scalings = needs_fit("LinearDiscriminantAnalysis", self.scalings_)
        x = all_rows("LinearDiscriminantAnalysis", X, len(scalings))
        scores = np.asarray(x @ self.coef_.T + self.intercept_)
        return (
            np.concatenate([np.zeros_like(scores), scores], 1)
            if len(self.classes_) == 2
            else scores
        )

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [rows, classes] of rows of X [rows, columns], in the order of `classes_`."""
        scores = self._scores(X)
        odds = np.exp(scores - scores.max(1, keepdims=True))
        return np.asarray(odds / odds.sum(1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """The most probable class [rows] of each row of X [rows, columns]."""
        return np.asarray(self.classes_[self._scores(X).argmax(1)])

    def score(self, X: Any, y: Any) -> float:
        """The share of rows of X whose class `predict` gives.

        Raises:
            ShapeError: if there is not one class for each row.
        """
        return right_share("LinearDiscriminantAnalysis", self.predict(X), y)
