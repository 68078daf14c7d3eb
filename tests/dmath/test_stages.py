"""Stages of one network on different numbers of workers: the planner chooses, and `explain` foretells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.dmath import Rates, Rows
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products.choosing import ranked

# A product of 512 x 256 by 256 x 256 takes 67 ms on one worker, one of 16 x 256 by 256 x 16 takes 0.13 ms; a
# message 0.1 ms.
RATES = Rates(flops=1e9, flops_alone=1e9, bytes_per_second=2e9, seconds_per_message=1e-4)
DRAW = np.random.default_rng(0)
IMAGES, KERNEL = DRAW.normal(size=(512, 256)), DRAW.normal(size=(256, 256))
DENSE, LAST = DRAW.normal(size=(256, 16)), DRAW.normal(size=(16, 16))


@pytest.fixture(scope="module")
def four() -> Iterator[Any]:
    with md.workers(4) as w:
        w.set_rates(RATES)
        yield w


def network(images: Any, kernel: Any, dense: Any, last: Any) -> list[Any]:
    """A wide stage, a step to few rows, two narrow stages, and two wide ones on the way back."""
    library = np if isinstance(images, np.ndarray) else md.dmath
    hidden = library.maximum(images @ kernel, 0.0)
    pooled = hidden[:16]
    scores = pooled @ dense
    out = scores @ last
    back = (out @ dense.T).T
    gradient = images.T @ hidden
    return [hidden, scores, out, back, gradient]


def test_narrow_stages_compute_on_fewer_workers_than_their_neighbours(four: Any) -> None:
    given = [four.array(x, layout="auto") for x in (IMAGES, KERNEL, DENSE, LAST)]
    assert len(given[0].layout.active) == 4
    text = four.explain(lambda: network(*given))
    head, _, table = text.partition("stages, of 4 workers:\n")
    assert head.count("->") == 5
    rows = [line.split() for line in table.splitlines()[1:]]
    used = {
        " ".join(row[row.index("matmul") + 1 :]): int(row[0]) for row in rows if "matmul" in row
    }
    assert used == {
        "512 x 256 by 256 x 256": 4,
        "16 x 256 by 256 x 16": 1,
        "16 x 16 by 16 x 16": 1,
        "16 x 16 by 16 x 256": 4,  # where the columns of the last factor lie
        "256 x 512 by 512 x 256": 4,
    }
    expected = network(IMAGES, KERNEL, DENSE, LAST)
    made = network(*given)
    for one, value in zip(made, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), value, rtol=1e-11, atol=1e-10)
    assert [len(one.layout.active) for one in made] == [4, 1, 1, 4, 4]


def test_a_single_operation_has_no_table_of_stages(four: Any) -> None:
    x = four.array(IMAGES)
    assert "stages" not in four.explain(lambda: x.T @ x)
    assert "stages" in four.explain(lambda: (x.T @ x) + 1.0)


def test_all_workers_would_take_longer_for_the_narrow_stage() -> None:
    first, rows = resolve(Rows(on=(0,)), (16, 256), 4), resolve(Rows(), (256, 16), 4)
    free = ranked(first, rows, None, 8, RATES)
    assert free[0].active == 1
    assert all(one.seconds > 1.2 * free[0].seconds for one in free if one.active == 4)


def test_small_matrices_lie_on_as_many_workers_as_pay_once_rates_are_known(four: Any) -> None:
    small = four.array(
        DRAW.normal(size=(64, 64)), layout="auto"
    )  # 32 KB: no copies, too few to measure
    assert len(small.layout.active) < 4
    assert len(four.array(KERNEL, layout="auto").layout.active) == 4
