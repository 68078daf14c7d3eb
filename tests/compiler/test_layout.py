"""How values lie in memory: views, and how they spread over a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    ROW,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
)
from magmadnn.compiler.layout import Layouts, spread_of
from magmadnn.graph import Node
from magmadnn.graph.node import topological
from tests.compiler.sample_programs import BATCH
from tests.graph.bare_nodes import placed

LONG = np.arange(5 * 7 * 3 * 2, dtype=np.float32)


def layouts(*nodes: Node) -> Layouts:
    return Layouts(topological(nodes))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (LONG[:35].reshape(5, 7), FULL),
        (LONG[:70].reshape(5, 14)[:, :7], FULL),  # rows that do not follow each other
        (LONG[:70].reshape(10, 7)[::2], FULL),
        (LONG[:35].reshape(5, 7)[:, ::-1], None),
        (LONG[:35].reshape(5, 7)[::-1], FULL),  # the step from row to row may be negative
        (LONG[:35].reshape(7, 5).T, None),
        (LONG[:70].reshape(5, 14)[:, ::2], None),
        (np.broadcast_to(LONG[:7], (5, 7)), ROW),
        (np.broadcast_to(LONG[:5].reshape(5, 1), (5, 7)), COLUMN),
        (np.broadcast_to(LONG[:10].reshape(5, 2)[:, :1], (5, 7)), STRIDED_COLUMN),
        (np.broadcast_to(LONG[:1], (5, 7)), SCALAR),
        (LONG[:105].reshape(3, 5, 7), FULL),
        (np.broadcast_to(LONG[:35].reshape(5, 7), (3, 5, 7)), STRIDED),  # rows repeat in blocks
        (np.broadcast_to(LONG[:21].reshape(3, 1, 7), (3, 5, 7)), STRIDED),
        (np.broadcast_to(LONG[:15].reshape(3, 5, 1), (3, 5, 7)), COLUMN),
        (LONG[:105].reshape(5, 3, 7).transpose(1, 0, 2), STRIDED),
        (LONG[:35].reshape(1, 5, 7).transpose(1, 0, 2), FULL),  # an axis of 1 has no stride
        (LONG[:5].reshape(5, 1), COLUMN),
        (LONG[:10].reshape(5, 2)[:, :1], FULL),
        (LONG[:7].reshape(1, 7), FULL),
        (LONG[:1].reshape(1, 1), SCALAR),
        (LONG[:7], FULL),
        (LONG[:14][::2], None),
    ],
)
def test_spreads(array: Any, expected: str | None) -> None:
    assert spread_of(array) == expected


def test_views_and_copies() -> None:
    x = placed("x", BATCH, 6)
    views = [ops.transpose(x), x[:, 1:3], ops.reshape(x, (BATCH, 2, 3)), ops.flip(x, 0),
             ops.broadcast_to(x, (2, BATCH, 6)), ops.expand_dims(x, 1)]  # fmt: skip
    copies = [ops.reshape(ops.transpose(x), (6 * BATCH,)), ops.concat([x, x]), x * 2, ops.exp(x),
              ops.pad(x, ((1, 0), (0, 0)))]  # fmt: skip
    found = layouts(*views, *copies)
    assert all(found.is_view(v) and found.bases[v] is x for v in views)
    assert not any(found.is_view(c) for c in copies)
    assert all(found.bases[c] is c for c in copies)


def test_a_view_of_a_view_has_the_same_base() -> None:
    x = ops.exp(placed("x", BATCH, 6))
    y = ops.reshape(x, (BATCH, 2, 3))[:, 1]
    assert layouts(y).bases[y] is x


def test_whole_values() -> None:
    x = placed("x", BATCH, 6)
    whole = [ops.reshape(x, (2 * BATCH, 3)), ops.expand_dims(x, 0)]
    parts = [ops.transpose(x), x[1:], x[:, :5], ops.flip(x, 1), ops.broadcast_to(x, (2, BATCH, 6))]
    found = layouts(*whole, *parts)
    assert all(found.is_whole(n) for n in whole)
    assert not any(found.is_whole(n) for n in parts)


def test_spread_over_a_matrix_with_a_symbolic_size() -> None:
    x, row, column = placed("x", BATCH, 7), placed("row", 7), placed("column", BATCH, 1)
    one, vector = placed("one", 1, 1), placed("vector", BATCH)
    found = layouts(x, row, column, one, vector)
    spreads = [found.spread(n, (BATCH,), 7) for n in (x, row, column, one, vector)]
    assert spreads == [FULL, ROW, COLUMN, SCALAR, None]
    numbers = [found.number(n, (BATCH,)) for n in (vector, column, one, row)]
    assert numbers == [COLUMN, COLUMN, SCALAR, None]


def test_symbols_are_told_apart_from_each_other_and_from_usual_sizes() -> None:
    first = placed("x", BATCH, 7)
    other = placed("y", 7, BATCH)
    found = layouts(first, other)
    assert found.spread(other, (BATCH,), 7) is None


def test_a_contiguous_value_of_several_axes_is_a_run() -> None:
    x = placed("x", BATCH, 3, 7)
    turned = ops.transpose(x, (0, 2, 1))
    found = layouts(x, turned)
    assert found.is_run(x, (), 21 * BATCH) and not found.is_run(turned, (), 21 * BATCH)
    assert not found.is_run(x, (BATCH,), 21) and not found.is_run(x, (), 7 * BATCH)


@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (0,), (0, 0)])
def test_empty_values_are_never_views(shape: tuple[int, ...]) -> None:
    x = placed("x", *shape)
    y = ops.reshape(x, (*shape, 1))
    assert not layouts(y).is_view(y)
