"""Estimators beside those of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.analytics import _rows
from magmadnn.errors import MagmaDNNError

pytest.importorskip("sklearn")
from sklearn import (
    base,
    cluster,
    decomposition,
    discriminant_analysis,
    linear_model,
    model_selection,
    pipeline,
    preprocessing,
)
from sklearn.utils import validation

RNG = np.random.default_rng(12)
X = RNG.normal(size=(211, 7)) * np.array([5, 4, 3, 2, 1, 0.5, 0.1]) @ RNG.normal(size=(7, 7)) + 3.0
Y = X @ RNG.normal(size=(7, 2)) + RNG.normal(size=(211, 2))
CLASSES = np.array(["a", "b", "c"])[(X[:, 0] > 3).astype(int) + (X[:, 1] > 4)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rows, "_BLOCK_BYTES", 8 * 7 * 30)


def alike(one: Any, other: Any, *names: str, atol: float = 1e-9) -> None:
    for name in names:
        found, expected = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=atol, err_msg=name)


@pytest.mark.parametrize("solver", ["auto", "full", "covariance_eigh", "randomized"])
@pytest.mark.parametrize("k", [3, 0.95, None])
@pytest.mark.parametrize("whiten", [False, True])
def test_components(whiten: bool, k: Any, solver: str) -> None:
    if solver == "randomized":
        k = 3
    ours = md.analytics.PCA(k, svd_solver=solver, whiten=whiten)
    theirs = decomposition.PCA(k, svd_solver="full", whiten=whiten)
    found, expected = ours.fit_transform(X), theirs.fit_transform(X)
    alike(
        ours, theirs, "mean_", "explained_variance_", "explained_variance_ratio_",
        "singular_values_", "noise_variance_", "components_", "n_components_", atol=1e-7,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-7)
    np.testing.assert_allclose(
        ours.inverse_transform(found), theirs.inverse_transform(expected), atol=1e-7
    )
    assert ours.transform(X.astype(np.float32)).dtype == np.float32


def test_what_is_left_out_may_be_far_smaller() -> None:
    x = np.random.default_rng(3).normal(size=(12, 3)) * [1e8, 1e-3, 1e-4]
    ours = md.analytics.PCA(1, svd_solver="full").fit(x)
    alike(ours, decomposition.PCA(1, svd_solver="full").fit(x), "noise_variance_", atol=0)


def test_components_of_a_memory_map_and_of_parts(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    stored = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = md.analytics.PCA(4, svd_solver="covariance_eigh").fit(stored)
    parts = md.analytics.PCA(4)
    for low in range(0, 211, 53):
        parts.partial_fit(stored[low : low + 53])
    alike(parts, whole, "components_", "explained_variance_", "mean_")
    alike(whole, decomposition.PCA(4).fit(X), "components_", "explained_variance_", atol=1e-7)


def test_randomised_singular_values() -> None:
    low = RNG.normal(size=(90, 5)) @ RNG.normal(size=(5, 60))
    u, s, v = md.analytics.randomized_svd(low, 5)
    np.testing.assert_allclose(u * s @ v, low, atol=1e-10)
    np.testing.assert_allclose(s, np.linalg.svd(low, compute_uv=False)[:5], rtol=1e-12)
    ours = md.analytics.TruncatedSVD(2).fit(X)
    alike(ours, decomposition.TruncatedSVD(2, algorithm="arpack").fit(X), "singular_values_")
    np.testing.assert_allclose(ours.transform(X), ours.fit_transform(X), atol=1e-8)


def test_scaling() -> None:
    x = np.concatenate([X, np.full((211, 1), 0.1)], 1)
    ours, theirs = md.analytics.StandardScaler().fit(x), preprocessing.StandardScaler().fit(x)
    alike(ours, theirs, "mean_", "var_", "scale_")
    np.testing.assert_allclose(ours.transform(x), theirs.transform(x), atol=1e-9)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(x)), x, rtol=1e-12)


@pytest.mark.parametrize("y", [Y, Y[:, 0]], ids=["two", "one"])
@pytest.mark.parametrize("intercept", [True, False])
def test_regressions(intercept: bool, y: np.ndarray) -> None:
    for ours, theirs in [
        (
            md.analytics.Ridge(0.7, fit_intercept=intercept),
            linear_model.Ridge(0.7, fit_intercept=intercept),
        ),
        (
            md.analytics.LinearRegression(fit_intercept=intercept),
            linear_model.LinearRegression(fit_intercept=intercept),
        ),
    ]:
        alike(ours.fit(X, y), theirs.fit(X, y), "coef_", "intercept_", atol=1e-8)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-8)


def test_discriminants() -> None:
    ours = md.analytics.LinearDiscriminantAnalysis().fit(X, CLASSES)
    theirs = discriminant_analysis.LinearDiscriminantAnalysis().fit(X, CLASSES)
    alike(
        ours,
        theirs,
        "means_",
        "xbar_",
        "priors_",
        "coef_",
        "intercept_",
        "explained_variance_ratio_",
        atol=1e-8,
    )
    found, expected = ours.transform(X), theirs.transform(X)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-8)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
    assert np.array_equal(ours.predict(X), theirs.predict(X))


def test_clusters() -> None:
    centres = np.array([[0, 0], [9, 0], [0, 9], [9, 9]])
    x = np.concatenate([c + RNG.normal(size=(40, 2)) for c in centres])
    ours = md.analytics.KMeans(4, n_init=3).fit(x)
    theirs = cluster.KMeans(4, n_init=5, random_state=0).fit(x)
    order = [
        int(((theirs.cluster_centers_ - c) ** 2).sum(1).argmin()) for c in ours.cluster_centers_
    ]
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_[order], atol=1e-9)
    assert abs(ours.inertia_ - theirs.inertia_) < 1e-8
    assert np.array_equal(np.array(order)[ours.labels_], theirs.labels_)
    assert np.array_equal(ours.predict(x), ours.labels_)
    assert np.array_equal(ours.transform(x).argmin(1), ours.labels_)


def test_mistakes() -> None:
    holes = X.copy()
    holes[40, 2] = np.nan
    for call, text in [
        (
            lambda: md.analytics.PCA(3).fit(X[0]),
            r"PCA: X has the shape \(7,\), expected \[rows, columns\]",
        ),
        (
            lambda: md.analytics.PCA(8).fit(X),
            "PCA: n_components must be an integer from 1 to 7, got 8",
        ),
        (lambda: md.analytics.PCA(3).transform(X), "PCA: is not fitted yet; call fit first"),
        (lambda: md.analytics.PCA(3).fit(holes), "PCA: X holds nan in row 40, column 2"),
        (
            lambda: md.analytics.PCA(3).fit(X).transform(X[:, :4]),
            "PCA: X has 4 columns, expected 7",
        ),
        (lambda: md.analytics.PCA(svd_solver="arpack"), "PCA: svd_solver must be one of auto"),
        (lambda: md.analytics.Ridge(-1), "Ridge: alpha must be a number of at least 0"),
        (lambda: md.analytics.Ridge().fit(X, Y[:5]), "expected one target for each of 211 rows"),
        (lambda: md.analytics.KMeans(0), "KMeans: n_clusters must be an integer at least 1, got 0"),
        (lambda: md.analytics.KMeans(9).fit(X[:5]), "KMeans: 9 clusters need as many rows, got 5"),
        (
            lambda: md.analytics.LinearDiscriminantAnalysis().fit(X, np.zeros(211)),
            "211 rows of 1 classes; give 2 classes or more",
        ),
    ]:
        with pytest.raises(MagmaDNNError, match=text):
            call()


def test_rows_of_float32_far_from_0_keep_their_variances() -> None:
    """Products are made in float32, but of rows less their mean: off by roundings of those."""
    draw = np.random.default_rng(3)
    rows = 1000 + draw.normal(size=(30_011, 7)) * np.geomspace(1, 0.05, 7)
    narrow = rows.astype(np.float32)
    expected = np.linalg.eigvalsh(np.cov(narrow.astype(np.float64).T))[::-1]
    found = md.analytics.PCA(5, svd_solver="covariance_eigh").fit(narrow)
    assert found.mean_.dtype == found.components_.dtype == np.float64
    eps = float(np.finfo(np.float32).eps)
    assert np.abs(found.explained_variance_ - expected[:5]).max() <= 4 * eps * expected[0]
    assert np.abs(found.mean_ - narrow.astype(np.float64).mean(0)).max() <= 4 * eps
    again = md.analytics.PCA(5)
    for part in np.array_split(narrow, 7):
        again.partial_fit(part)
    np.testing.assert_allclose(again.explained_variance_, found.explained_variance_, rtol=1e-4)


# --- scikit-learn's conventions ----------------------------------------------------------------------

ALL = [
    md.analytics.PCA(2), md.analytics.TruncatedSVD(3), md.analytics.KMeans(3, n_init=2),
    md.analytics.LinearDiscriminantAnalysis(1), md.analytics.Ridge(0.5),
    md.analytics.LinearRegression(fit_intercept=False), md.analytics.StandardScaler(),
]  # fmt: skip


@pytest.mark.parametrize("one", ALL, ids=lambda one: type(one).__name__)
def test_settings_are_read_changed_and_copied_by_name(one: Any) -> None:
    again = base.clone(one)
    assert type(again) is type(one) and again.get_params() == one.get_params()
    assert not again.__sklearn_is_fitted__()
    with pytest.raises(validation.NotFittedError):
        validation.check_is_fitted(again)
    again.fit(X, CLASSES if isinstance(one, md.analytics.LinearDiscriminantAnalysis) else Y)
    validation.check_is_fitted(again)
    assert again.n_features_in_ == 7
    with pytest.raises(
        MagmaDNNError, match=rf"{type(one).__name__}: argument 'wrong' is not known"
    ):
        again.set_params(wrong=1)
    known = dict(vars(md.analytics))
    assert eval(repr(one), known).get_params() == one.get_params()


def test_a_setting_is_looked_at_when_it_is_changed() -> None:
    ridge = md.analytics.Ridge(2.0).fit(X, Y)
    before = ridge.coef_
    assert ridge.set_params(alpha=3.0) is ridge and ridge.alpha == 3.0
    assert ridge.coef_ is before
    with pytest.raises(MagmaDNNError, match="alpha must be a number of at least 0, got -1"):
        ridge.set_params(alpha=-1)
    assert ridge.alpha == 3.0
    assert repr(md.analytics.PCA(2, whiten=True)) == "PCA(n_components=2, whiten=True)"


def test_scores_and_tools_of_scikit_learn() -> None:
    ours, theirs = md.analytics.Ridge(1.0).fit(X, Y), linear_model.Ridge(1.0).fit(X, Y)
    constant = np.stack([np.ones(211), Y[:, 0]], 1)
    assert ours.score(X, Y) == pytest.approx(theirs.score(X, Y), abs=1e-12)
    ours.fit(X, constant)
    assert ours.score(X, constant) == pytest.approx(
        theirs.fit(X, constant).score(X, constant), abs=1e-9
    )
    pairs = (
        (
            md.analytics.LinearDiscriminantAnalysis(),
            discriminant_analysis.LinearDiscriminantAnalysis(),
        ),
        (md.analytics.LinearRegression(), linear_model.LinearRegression()),
    )
    for (mine, other), y in zip(pairs, (CLASSES, Y[:, 0]), strict=True):
        expected = model_selection.cross_val_score(other, X, y, cv=3)
        np.testing.assert_allclose(model_selection.cross_val_score(mine, X, y, cv=3), expected)
    steps = pipeline.make_pipeline(
        md.analytics.StandardScaler(), md.analytics.PCA(2), md.analytics.Ridge()
    )
    searched = model_selection.GridSearchCV(
        steps, {"pca__n_components": [1, 7], "ridge__alpha": [0.1, 9.0]}
    )
    assert searched.fit(X, Y[:, 0]).best_params_ == {"pca__n_components": 7, "ridge__alpha": 0.1}
    for wrong in (CLASSES[:5], CLASSES[:, None]):
        with pytest.raises(MagmaDNNError, match="expected a class for each of 211 rows"):
            md.analytics.LinearDiscriminantAnalysis().fit(X, CLASSES).score(X, wrong)
    with pytest.raises(
        MagmaDNNError, match=r"y has the shape \(211,\), predictions have \(211, 2\)"
    ):
        md.analytics.Ridge().fit(X, Y).score(X, Y[:, 0])
    with pytest.raises(MagmaDNNError, match="score needs 2 rows or more, got 1"):
        md.analytics.Ridge().fit(X, Y).score(X[:1], Y[:1])


def test_two_classes_have_one_function() -> None:
    two = CLASSES == "a"
    ours = md.analytics.LinearDiscriminantAnalysis().fit(X, two)
    theirs = discriminant_analysis.LinearDiscriminantAnalysis().fit(X, two)
    alike(ours, theirs, "coef_", "intercept_", atol=1e-8)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-8)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-9)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_transformed_rows_of_singular_vectors_explain_variance() -> None:
    ours = md.analytics.TruncatedSVD(3, n_iter=9).fit(X)
    theirs = decomposition.TruncatedSVD(3, algorithm="arpack").fit(X)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(
        ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-6
    )


# --- what could be wrong without a word --------------------------------------------------------------


def test_clusters_far_from_0_are_told_apart_by_predict_too() -> None:
    """x^2 - 2 x c + c^2 has no digits left of a distance of 3 where x^2 is 1e18."""
    x = np.concatenate([RNG.normal(k * 3, 0.3, (40, 2)) for k in range(3)]) + 1e9
    found = md.analytics.KMeans(3, n_init=3)
    labels = found.fit_predict(x)
    np.testing.assert_array_equal(found.predict(x), labels)
    apart = np.sqrt(((x[:, None] - found.cluster_centers_) ** 2).sum(-1))
    np.testing.assert_allclose(found.transform(x), apart, atol=1e-5)
    np.testing.assert_array_equal(found.fit_transform(x), found.transform(x))


@pytest.mark.parametrize("make", [md.analytics.PCA, md.analytics.StandardScaler])
def test_rows_that_are_refused_do_not_count_in_part(make: Any) -> None:
    """The blocks before a NaN would count twice once the rows come again without it."""
    bad, one, other = X.copy(), make().partial_fit(X[:50]), make().partial_fit(X[:50])
    bad[200, 3] = np.nan
    with pytest.raises(MagmaDNNError, match="holds nan in row 200, column 3"):
        one.partial_fit(bad)
    one.partial_fit(X)
    other.partial_fit(X)
    name = "explained_variance_" if make is md.analytics.PCA else "var_"
    np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.mean_, other.mean_)


def test_parts_do_not_go_on_from_a_fit_that_kept_no_sums() -> None:
    whole = md.analytics.PCA(2, svd_solver="full").fit(X)
    with pytest.raises(MagmaDNNError, match="PCA: partial_fit after a fit by singular values"):
        whole.partial_fit(X)
    summed = md.analytics.PCA(2, svd_solver="covariance_eigh").fit(X[:100]).partial_fit(X[100:])
    alike(summed, whole, "explained_variance_", "mean_", atol=1e-8)


def test_masked_elements_are_refused() -> None:
    masked = np.ma.masked_greater(X, 5)
    for call in (
        lambda: md.analytics.PCA(2).fit(masked),
        lambda: md.analytics.StandardScaler().fit(X).transform(masked),
        lambda: md.analytics.Ridge().fit(X, np.ma.masked_greater(Y, 5)),
        lambda: md.analytics.LinearDiscriminantAnalysis().fit(
            X, np.ma.masked_equal(X[:, 0] > 3, True)
        ),
        lambda: (
            md.analytics.LinearDiscriminantAnalysis()
            .fit(X, X[:, 0] > 3)
            .score(X, np.ma.masked_equal(X[:, 0] > 3, True))
        ),
    ):
        with pytest.raises(MagmaDNNError, match=r"[Xy]: elements are masked: fill them"):
            call()
    md.analytics.PCA(2).fit(np.ma.masked_greater(X, np.inf))  # of which none is
