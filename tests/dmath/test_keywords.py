"""What the keywords of the array API standard ask for, beside its names, and mistakes in its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from tests.dmath.test_array_api import BYTES, A, B, Case, H, M, N, P, Q, S, T, V, Workers, Z

d = md.dmath


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    pytest.importorskip("mpi4py")
    with md.workers(2) as workers:
        yield workers


# what the standard's keywords ask for, beside the names
KEYWORDS: dict[str, Case] = {
    "sum dtype": (lambda w: d.sum(w(N), axis=0, dtype="float32"), N.sum(axis=0, dtype=np.float32)),
    "prod dtype": (lambda w: d.prod(w(A), dtype="float32"), A.astype(np.float32).prod()),
    "sum uint8": (lambda w: d.sum(w(BYTES), axis=1), BYTES.sum(axis=1, dtype=np.int64)),
    "var": (lambda w: d.var(w(A), axis=0, correction=1.5), np.var(A, axis=0, ddof=1.5)),
    "std": (lambda w: d.std(w(A), correction=1, keepdims=True), np.std(A, ddof=1, keepdims=True)),
    "cumulative_sum": (
        lambda w: d.cumulative_sum(w(N), axis=0, include_initial=True, dtype="float64"),
        np.cumulative_sum(N, axis=0, include_initial=True, dtype=np.float64),
    ),
    "cumulative_prod": (
        lambda w: d.cumulative_prod(w(V), include_initial=True), np.cumulative_prod(V, include_initial=True)
    ),
    "sort": (lambda w: d.sort(w(A), axis=0, descending=True), -np.sort(-A, axis=0)),
    "argsort": (
        lambda w: d.argsort(w(BYTES), descending=True), np.argsort(-BYTES.astype(int), kind="stable")
    ),
    "argsort equal": (lambda w: d.argsort(w(BYTES), axis=0), np.argsort(BYTES, axis=0, kind="stable")),
    "argmax": (lambda w: d.argmax(w(A)), A.argmax()),
    "argmin": (lambda w: d.argmin(w(A), axis=1, keepdims=True), A.argmin(axis=1, keepdims=True)),
    "argmax keepdims": (lambda w: d.argmax(w(P), keepdims=True), P.argmax(keepdims=True)),
    "flip": (lambda w: d.flip(w(P)), np.flip(P)),
    "flip axes": (lambda w: d.flip(w(P), axis=(0, 2)), np.flip(P, (0, 2))),
    "clip min": (lambda w: d.clip(w(A), 0.5), A.clip(0.5)),
    "clip max": (lambda w: d.clip(w(A), max=0.5), A.clip(max=0.5)),
    "clip none": (lambda w: d.clip(w(A)), A),
    "diff": (
        lambda w: d.diff(w(A), prepend=w(B[:, :2]), append=w(A[:, :1])),
        np.diff(A, prepend=B[:, :2], append=A[:, :1]),
    ),
    "vecdot": (lambda w: d.vecdot(w(Z), w(V[:4])), np.vecdot(Z, V[:4])),
    "cross": (lambda w: d.cross(w(P), w(V[:3])), np.cross(P, V[:3])),
    "trace": (lambda w: d.trace(w(A), dtype="float32"), np.trace(A.astype(np.float32), dtype=np.float32)),
    "tril of a stack": (lambda w: d.tril(w(P), k=-1), np.tril(P, -1)),
    "triu of a stack": (lambda w: d.triu(w(Q)), np.triu(Q)),
    "vecdot of axes": (lambda w: d.vecdot(w(M), w(V[:5]), axis=0), np.vecdot(M, V[:5], axis=0)),
    "cross of axes": (lambda w: d.cross(w(M[:3]), w(V[:3]), axis=0), np.cross(M[:3], V[:3], axis=0)),
    "norm of small rows": (
        lambda w: d.norm(w(M * 10.0 ** np.array([[300, 0, -160, 9, -300]]).T), axis=1),
        np.linalg.norm(M, axis=1) * 10.0 ** np.array([300, 0, -160, 9, -300]),
    ),
    "softmax of bytes": (
        lambda w: d.softmax(w(np.array([[-128, 127], [5, 4]], np.int8))),
        np.array([[np.exp(-255.0), 1], [1 / (1 + np.exp(-1.0)), 1 / (1 + np.e)]]),
    ),
    "log_softmax of truths": (
        lambda w: d.log_softmax(w(T[:1, :2]), axis=1),
        T[:1, :2] - np.log(np.exp(1.0 * T[:1, :2]).sum(axis=1, keepdims=True)),
    ),
    "cumulative_sum of halves": (
        lambda w: d.cumulative_sum(w(np.ones((1, 4100), np.float16)), axis=1)[:, 2046::1025],
        np.array([[2047, 3072, 4096]], np.float16),
    ),
    "cholesky": (lambda w: d.cholesky(w(np.triu(S)), upper=True), np.linalg.cholesky(S).T),
    "cholesky complex": (
        lambda w: d.matmul(d.conj(d.cholesky(w(H), upper=True)).T, d.cholesky(w(H), upper=True)), H
    ),
    "roll": (lambda w: d.roll(w(A), 3), np.roll(A, 3)),
    "concat": (lambda w: d.concat([w(A), w(V)], axis=None), np.concatenate([A, V], axis=None)),
    "repeat": (
        lambda w: d.repeat(w(A), w(np.array([2, 0, 1, 3, 1])), axis=0), np.repeat(A, [2, 0, 1, 3, 1], 0)
    ),
    "fftfreq": (lambda w: w.home.fftfreq(7, d=0.5, dtype="float32"), np.fft.fftfreq(7, 0.5).astype("f4")),
    **{
        f"vector_norm {k}": (
            lambda w, k=k: d.vector_norm(w(A - 0.5), axis=1, ord=k), np.linalg.norm(A - 0.5, ord=k, axis=1)
        )
        for k in (0, 1, 2, 2.5, -1, np.inf, -np.inf)
    },
    **{
        f"matrix_norm {k}": (
            lambda w, k=k: d.matrix_norm(w(P), ord=k, keepdims=True),
            np.linalg.norm(P, ord=k, axis=(1, 2), keepdims=True),
        )
        for k in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    },
}  # fmt: skip


@pytest.mark.parametrize("case", KEYWORDS)
def test_keywords_of_the_standard(two: Any, case: str) -> None:
    function, expected = KEYWORDS[case]
    for home in (two, md.workers.Workers(0)):
        found, expected = np.asarray(function(Workers(home))), np.asarray(expected)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        np.testing.assert_allclose(
            found, expected, rtol=1e-5 if found.dtype == np.float32 else 1e-13
        )


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "vecdot": (lambda x: d.vecdot(x, x[:, :1]), "vecdot: axis -1 of shapes (5, 4) and (5, 1) differs"),
    "vector_norm": (lambda x: d.vector_norm(x, ord="fro"), "vector_norm: ord must be a number, got 'fro'"),
    "var": (lambda x: d.var(x, correction="1"), "var: correction must be a number, got '1'"),
    "repeat": (lambda x: d.repeat(x, [1, 2], axis=0), "repeat: repeats must be whole numbers from 0, 1 or 5"),
    **{
        name: (
            lambda x, f=f: f(x.astype("bfloat16"), x.astype("float16")),
            f"{name}: bfloat16, float16 have no common dtype: cast them with astype",
        )
        for name, f in {
            "matmul": lambda x, y: x.T @ y,
            "concat": lambda x, y: d.concat([x, y]),
            "vecdot": d.vecdot,
            "solve": lambda x, y: d.solve(x[:2, :2], y[:2]),
        }.items()
    },
    "whole products": (
        lambda x: d.matmul(x, x.T, dtype="int8"), "matmul: products of float64 do not go into dtype=int8",
    ),
    "real products": (
        lambda x: d.matmul(x * 1j, x.T, dtype="float64"),
        "matmul: products of complex128 do not go into dtype=float64",
    ),
    "layouts": (lambda x: x.to(d.Blocks), "remap: expected a layout such as md.dmath.Rows()"),
    "eye": (lambda x: md.dmath.local.eye(3, k=0.5), "eye: k must be a whole number, got 0.5"),
    "slices": (lambda x: x[1.5:], "index: slice indices must be integers"),
    "steps": (lambda x: x[::0], "index: slice step cannot be zero, got slice(None, None, 0)"),
    "rates": (lambda x: md.dmath.local.set_rates(3), "set_rates: takes md.dmath.Rates(...), got 3"),
    "triu": (lambda x: d.triu(x[0]), "triu: needs two axes, shape (4,) has 1"),
    "sums": (
        lambda x: d.add_row_col_sum(x[0], x * 1j),
        "add_row_col_sum: sums of complex128 with alpha=1.0 and beta=1.0 do not go into float64",
    ),
    "whole sums": (
        lambda x: d.add_row_col_sum(x[0].astype("int32"), x > 0, alpha=0.5),
        "add_row_col_sum: sums of bool with alpha=0.5 and beta=1.0 do not go into int32",
    ),
    "argmax": (lambda x: d.argmax(x[:0], axis=0), "argmax: an axis of size 0 has no argmax, shape (0, 4)"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    wrong, text = MISTAKES[case]
    with pytest.raises(md.errors.MagmaDNNError) as error:
        wrong(md.workers.Workers(0).array(A))
    assert str(error.value).startswith(text)


def test_no_layout_is_that_of_new_arrays(two: Any) -> None:
    """`array` alone sent workers a record without one, in which they failed."""
    for made in (two.array(A, layout=None), two.array(two.array(A), layout=None)):
        np.testing.assert_array_equal(np.asarray(made), A)
