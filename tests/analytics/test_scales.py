"""Rows of very different sizes, whose squares have few digits left or none."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.analytics import clusters, regressions, scaling
from magmadnn.errors import DataError

an = md.analytics
EPS = float(np.finfo(float).eps)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape)


def three_clusters(far: float) -> np.ndarray:
    """Two that are near each other, and one that is far away; each 1 % of the nearer distance wide."""
    return np.concatenate([0.01 * drawn(31, 3) + place for place in (0, 1, far)])


def test_clusters_beside_one_that_is_far_away_keep_their_distances() -> None:
    """Squares of 1e8 leave one digit of 0.01 squared: distances are computed from differences there."""
    x = three_clusters(1e8)
    found = an.KMeans(3, n_init=5, random_state=1).fit(x)
    apart = np.sqrt(((x[:, None] - found.cluster_centers_) ** 2).sum(-1))
    np.testing.assert_array_equal(found.predict(x), apart.argmin(1))
    # what is a product loses at most `1 / _CANCELLED` times the eps of a sum of 3 squares
    bound = 8 * EPS / clusters._CANCELLED
    np.testing.assert_allclose(found.transform(x), apart, rtol=bound)
    assert np.bincount(found.labels_).tolist() == [31, 31, 31]


@pytest.mark.parametrize("alpha", [1e-9, 1e-14, 1e-18])
@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_of_columns_that_are_nearly_alike(alpha: float, intercept: bool) -> None:
    """The scatter has squares of 1e-7 beside 1, of which rounding leaves no digit or makes it indefinite."""
    x = drawn(60, 6) + 2.0
    x[:, 5] = x[:, 4] + 1e-7 * drawn(60, 1)[:, 0]
    y = x @ (np.arange(6.0) + 1) + 0.5
    ridge = an.Ridge(alpha, fit_intercept=intercept).fit(x, y)
    rows, targets = (x - x.mean(0), y - y.mean()) if intercept else (x, y)
    higher = np.concatenate([rows, np.sqrt(alpha) * np.eye(6)])
    wanted = np.linalg.lstsq(higher, np.concatenate([targets, np.zeros(6)]), rcond=None)[0]
    # of least squares with a small rest: the condition times eps, of each of 60 products
    bound = 8 * np.linalg.cond(higher) * EPS * 60**0.5
    assert np.abs(ridge.coef_ - wanted).max() <= bound * np.abs(wanted).max()
    assert np.abs(ridge.predict(x) - (x @ ridge.coef_ + ridge.intercept_)).max() <= 64 * EPS * 60


def test_ridge_takes_the_sums_where_columns_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regressions.Ridge, "_by_reflections", None)
    sizes = np.array([1e-6, 1, 1e6, 1e9])  # which do not matter
    rows = drawn(50, 4)
    ridge = an.Ridge(1e-30).fit(rows * sizes, rows @ np.ones(4))
    # by squares: that of the condition of rows, times eps of each of 50 products
    bound = 8 * np.linalg.cond(rows) ** 2 * EPS * 50**0.5
    np.testing.assert_allclose(ridge.coef_ * sizes, 1, rtol=bound)


@pytest.mark.parametrize("scale", [1e-19, 1e-22, 1e-25, 1e-30])
def test_components_of_small_float32(scale: float) -> None:
    """Squares of such numbers are no longer numbers of float32, be it in one column alone."""
    rows = (drawn(200, 3) @ drawn(3, 3) * scale).astype("float32")
    for x in (rows, np.concatenate([np.float32(1) * drawn(200, 1).astype("float32"), rows], 1)):
        wide = x.astype("float64")
        wanted = np.linalg.svd(wide - wide.mean(0), compute_uv=False)
        found = an.PCA(svd_solver="covariance_eigh").fit(x).singular_values_
        # squares relative to that of the largest, by eigenvalues of the scatter
        assert np.abs(found**2 - wanted**2).max() <= 64 * 1.2e-7 * wanted[0] ** 2
        if x is rows:
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x: an.PCA(svd_solver="full").fit(x), "PCA: X differs by"),
        (lambda x: an.PCA(svd_solver="covariance_eigh").fit(x), "PCA: X differs by"),
        (lambda x: an.KMeans(2).fit(x), "KMeans: X differs by"),
        (lambda x: an.StandardScaler().fit(x), "StandardScaler: column 0 of X differs by"),
        (
            lambda x: an.LinearDiscriminantAnalysis().fit(x, np.arange(len(x)) % 2),
            "LinearDiscriminantAnalysis: column 0 of X differs by",
        ),
    ],
)
def test_differences_whose_squares_vanish_are_refused(
    made: Callable[[Any], Any], said: str
) -> None:
    """They would count as none, without a word; constant columns are none."""
    with pytest.raises(
        DataError, match=said + r" .*e-1\d\d at most, whose square vanishes: scale it"
    ):
        made(drawn(40, 2) * 1e-170)
    constant = drawn(40, 2)
    constant[:, 1] = 1e-170
    made(constant)


class Missing:
    """As pandas.NA: what it is compared with is not known, and so is the result."""

    def __eq__(self, other: object) -> Any:
        return self

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1.5, np.nan] * 20, object),
        np.array([1.0, np.nan] * 20),
        [1, None] * 20,
        np.array(["a", Missing()] * 20, object),
        np.array(["2020-01-01", "NaT"] * 20, "M8[D]"),
    ],
)
def test_what_is_no_class_is_refused(labels: Any) -> None:
    with pytest.raises(
        DataError, match=r"y holds (NaN or infinity|NoneType and int, which have no)"
    ):
        an.LinearDiscriminantAnalysis().fit(drawn(40, 2), labels)


def test_ridge_of_targets_whose_squares_overflow() -> None:
    """They are not used, and no warning says so."""
    x = drawn(40, 2)
    found = an.Ridge(1e-8).fit(x, 1e200 * x[:, 0]).coef_
    np.testing.assert_allclose(found, [1e200, 0], atol=1e192)


def test_clusters_beside_an_outlier_take_the_memory_of_few_copies() -> None:
    """Where all distances are computed from differences, few of them are there at a time."""
    x = drawn(3001, 31)
    x[0] = 1e9
    tracemalloc.start()
    try:
        an.KMeans(29, n_init=1, max_iter=2).fit(x)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 10 * x.nbytes


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-5, 1.0])
def test_ridge_of_fewer_rows_than_columns(
    intercept: bool, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a QR of so many columns as there are rows, and by no singular values."""
    monkeypatch.setattr(regressions, "lstsq", None)
    sizes = list[int]()
    qr = np.linalg.qr
    monkeypatch.setattr(
        np.linalg, "qr", lambda a, mode="reduced": (sizes.append(a.shape[1]), qr(a, mode))[1]
    )
    x, targets = 1e4 * (drawn(23, 71) + 1), drawn(23, 2)
    ridge = an.Ridge(alpha, fit_intercept=intercept).fit(x, targets)
    assert max(sizes) == 23 + 2
    rows, y = (x - x.mean(0), targets - targets.mean(0)) if intercept else (x, targets)
    higher = np.concatenate([rows, np.sqrt(alpha) * np.eye(71)])
    wanted = np.linalg.lstsq(higher, np.concatenate([y, np.zeros((71, 2))]), rcond=None)[0]
    # of least squares: the condition times eps, of each of 71 products
    bound = 8 * np.linalg.cond(higher) * EPS * 71**0.5
    assert np.abs(ridge.coef_.T - wanted).max() <= bound * np.abs(wanted).max()


def test_constant_columns_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "refuse_vanishing", None)
    x = np.full((40, 5), 3.0)
    x[:, 1] = drawn(40)
    assert an.StandardScaler().fit(x).scale_[[0, 2, 3, 4]].tolist() == [1] * 4


@pytest.mark.parametrize("rest", [1e-30, 1.0])
def test_components_of_float32_whose_first_rows_are_zeros(rest: float) -> None:
    """What they say of a column does not hold for the others."""
    x = drawn(300, 3).astype("float32")
    x[:200, 2] = 0
    x[:, 2] *= np.float32(rest)
    wide = x.astype("float64")
    found = an.PCA(svd_solver="covariance_eigh").fit(x)
    sizes = wide.std(0)[:, None] * wide.std(0)
    np.testing.assert_allclose(
        found._moments.scatter / sizes, (300 - 1) * np.cov(wide.T) / sizes, atol=300 * 8 * 1.2e-7
    )
