"""Operations that send elements without having been told to fail within `no_implicit_messages()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.dmath import Columns, Replicated, Rows
from magmadnn.errors import ArgumentError

X = np.random.default_rng(0).standard_normal((40, 30))


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    with md.workers(2) as w:
        yield w


def test_what_sends_nothing_goes_on_and_what_sends_says_which_line(two: Any) -> None:
    A, B = two.array(X, layout=Rows()), two.array(X, layout=Columns())
    with two.no_implicit_messages():
        C = A + A * 2.0
        D = A + B.to(Rows())  # has been told to
        mixed = A + B
        product = A @ A.T
        total = A.sum()
    np.testing.assert_allclose(np.asarray(C), 3 * X)
    np.testing.assert_allclose(np.asarray(D), 2 * X)
    for bad, name in ((mixed, "add"), (product, "matmul"), (total, "sum")):
        with pytest.raises(ArgumentError, match=rf"{name}: has sent \d+ bytes .*test_strict\.py"):
            np.asarray(bad)
    np.testing.assert_allclose(np.asarray(A + B), 2 * X)  # behind the block as before


def test_products_and_sums_of_what_lies_right_are_let_through(two: Any) -> None:
    A, B = two.array(X, layout=Rows()), two.array(X.T, layout=Replicated())
    with two.no_implicit_messages():
        C = md.dmath.matmul(A, B, layout=Rows())
        rows = A.sum(axis=1, layout=Rows())
    np.testing.assert_allclose(np.asarray(C), X @ X.T, atol=1e-12)
    np.testing.assert_allclose(np.asarray(rows), X.sum(axis=1), atol=1e-12)


def test_an_array_that_was_written_to_so_fails_when_it_is_used(two: Any) -> None:
    A, B = two.array(X, layout=Rows()), two.array(X, layout=Columns())
    with two.no_implicit_messages():
        A += B
    with pytest.raises(ArgumentError, match="add: has sent"):
        np.asarray(A)
    with two.no_implicit_messages():
        with two.no_implicit_messages():
            pass
        C = two.array(X, layout=Rows()) * B  # the outer block still holds
    with pytest.raises(ArgumentError, match="multiply: has sent"):
        np.asarray(C)


def test_one_worker_sends_nothing() -> None:
    with md.workers(0) as w, w.no_implicit_messages():
        A = w.array(X)
        np.testing.assert_allclose(np.asarray(A @ A.T), X @ X.T)
