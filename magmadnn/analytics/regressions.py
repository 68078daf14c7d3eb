"""Least squares, and ridge regression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from magmadnn.errors import ArgumentError, DataError, DTypeError, NumericError, ShapeError
from magmadnn.linalg import cho_solve, cholesky, lstsq, solve_triangular
from magmadnn.memory.dtypes import refuse_masked

from ._estimator import Estimator, determination
from ._rows import Array, Moments, all_rows, blocks, needs_fit, rows_of

# Of a column's square the least part that no columns before it have: errors of coefficients are eps over it.
_COLLINEAR = 1e-6


class Ridge(Estimator):
    """The coefficients w with the least `|X w + b - y|^2 + alpha |w|^2`, from sums over blocks of rows.

    Where columns are nearly combinations of others and alpha does not tell them apart, squares would lose too
    many digits: by QR of the rows then, read a second time.

    Args:
        alpha: how much large coefficients cost, 0 or more.
        fit_intercept: whether b is free; else it is 0.

    Attributes:
        coef_: [columns], or [targets, columns].
        intercept_: a number, or [targets].
        n_features_in_: columns.
    """

    _kind, _found = "regressor", "coef_"

    def __init__(self, alpha: float = 1.0, *, fit_intercept: bool = True) -> None:
        if not isinstance(alpha, (int, float)) or not 0 <= alpha < np.inf:
            raise ArgumentError(
                f"{self._name}: alpha must be a number of at least 0, got {alpha!r}"
            )
        self.alpha, self.fit_intercept = alpha, fit_intercept
        self.coef_: Array | None = None

    @property
    def _name(self) -> str:
        return type(self).__name__

    def fit(self, X: Any, y: Any) -> Self:
        """Find the coefficients for targets [rows] or [rows, targets].

        Raises:
            ShapeError: if there is not one target for each row.
            DataError: if a number is NaN or infinite.
            DTypeError: if a target is no real number.
            NumericError: if coefficients leave the range of float64.
        """
        x, targets = rows_of(self._name, X), _targets(self._name, y)
        if targets.ndim not in (1, 2) or len(targets) != len(x):
            raise ShapeError(
                f"{self._name}: y has the shape {targets.shape}, expected one target for each of "
                f"{len(x)} rows"
            )
        if not np.isfinite(targets).all():
            raise DataError(f"{self._name}: y holds NaN or infinity; fill or drop such rows")
        columns = targets.reshape(len(x), -1)
        n = x.shape[1]
        shift = np.zeros(n + columns.shape[1])
        if self._exactly():
            dense = all_rows(self._name, x)
            if self.fit_intercept:
                shift = np.concatenate([dense.mean(0), columns.mean(0)])
            found = lstsq(dense - shift[:n], columns - shift[n:]).x.numpy()
        else:
            sums = Moments(len(shift))
            for where, block in blocks(self._name, x):
                with np.errstate(
                    over="ignore", invalid="ignore"
                ):  # squares of targets are not used
                    sums.add(np.concatenate([block, columns[where]], 1))
            scatter = sums.scatter
            if self.fit_intercept:
                shift = sums.mean
            else:
                scatter = scatter + len(x) * np.outer(sums.mean, sums.mean)
            found = self._by_sums(scatter[:n, :n] + self.alpha * np.eye(n), scatter[:n, n:])
            if found is None:
                found = self._by_reflections(x, columns, shift)
        if not np.isfinite(found).all():
            raise NumericError(f"{self._name}: coefficients overflow; scale the columns of X")
        intercept = shift[n:] - shift[:n] @ found
        flat = targets.ndim == 1
        self.n_features_in_ = n
        self.coef_ = found[:, 0] if flat else found.T
        self.intercept_ = float(intercept[0]) if flat else intercept
        return self

    def _by_sums(self, left: Array, right: Array) -> Array | None:
        """By a Cholesky factor; None where so little of a column is its own that digits would be lost."""
        try:
            factor = np.asarray(cholesky(left))
        except NumericError:
            return None
        own = np.diagonal(factor) ** 2 / np.diagonal(left)
        return None if own.min() < _COLLINEAR else np.asarray(cho_solve((factor, True), right))

    def _by_reflections(self, x: Array, columns: Array, shift: Array) -> Array:
        """The same by reflections of the rows, without their squares."""
        n = x.shape[1]
        if len(x) < n:  # coefficients are a sum of rows: so many numbers are to be found
            basis, r = np.linalg.qr((all_rows(self._name, x) - shift[:n]).T)
            return basis @ self._least(len(x), [np.concatenate([r.T, columns - shift[n:]], 1)])
        found = blocks(self._name, x)
        rows = (np.concatenate([block, columns[where]], 1) - shift for where, block in found)
        return self._least(n, rows)

    def _least(self, n: int, blocks_of_rows: Iterable[Array]) -> Array:
        """Coefficients [n, targets] of rows [rows, n + targets] that are centred.

        By R of a QR of [sqrt(alpha) I, 0] and the rows, block by block, as in Golub and Van Loan, Matrix
        computations, 4th edition, section 6.1.4.
        """
        least = np.sqrt(self.alpha)
        r = least * np.eye(n)
        for rows in blocks_of_rows:
            above = np.zeros((len(r), rows.shape[1]))
            above[:, : r.shape[1]] = r
            r = np.linalg.qr(np.concatenate([above, rows]), mode="r")
        left, right = r[:n, :n], r[:n, n:]
        # No singular value is below `least`: finding them, which takes long, would leave none out.
        if least > 10 * n * np.finfo(np.float64).eps * np.linalg.norm(left):
            return np.asarray(solve_triangular(left, right))
        return np.asarray(lstsq(left, right).x.numpy())

    def _exactly(self) -> bool:
        """Whether the rows themselves are factorised, since their scatter may be singular."""
        return self.alpha == 0

    def predict(self, X: Any) -> Array:
        """Targets [rows] or [rows, targets] of X [rows, columns]."""
        coefficients = needs_fit(self._name, self.coef_)
        x = all_rows(self._name, X, coefficients.shape[-1])
        return np.asarray(x @ coefficients.T + self.intercept_)

    def score(self, X: Any, y: Any) -> float:
        """R^2 of predictions for X: 1 - (sum of squared errors) / (sum of squares about the mean of y).

        The mean over targets; a target that does not differ counts 1 where it is met exactly, else 0.

        Raises:
            ShapeError: if y is not of the shape of the targets of `fit` for each row.
            ArgumentError: if there is one row only.
        """
        return determination(self._name, self.predict(X), _targets(self._name, y))


def _targets(name: str, y: Any) -> Array:
    """Targets in float64.

    Raises:
        DTypeError: if they are no real numbers.
    """
    refuse_masked(f"{name}: y", y)
    try:
        given = np.asarray(y)
    except ValueError:
        raise ShapeError(f"{name}: rows of y differ in length") from None
    if given.dtype.kind not in "fiub":
        raise DTypeError(f"{name}: y is {given.dtype.name}, expected real numbers")
    return given.astype(np.float64)


class LinearRegression(Ridge):
    """The shortest of the coefficients with the least `|X w + b - y|^2`, by singular values.

    Args:
        fit_intercept: whether b is free; else it is 0.
    """

    def __init__(self, *, fit_intercept: bool = True) -> None:
        super().__init__(0.0, fit_intercept=fit_intercept)
