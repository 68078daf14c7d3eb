"""Changes of layout whose elements may be off by a bound, and travel in few bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.dmath import Columns, Replicated, Rows
from magmadnn.dmath.arrays import bounded
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.errors import ArgumentError, DTypeError
from magmadnn.memory.dtypes import BFLOAT16
from tests.dmath import gpu
from tests.dmath.drawn import check_parts, drawn_layout, parts_of

DTYPES = [np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
WIDEST = {8: 2**31 - 1, 4: 2**15 - 1, 2: 2**7 - 1}  # multiples, by bytes of an element


def expected(x: np.ndarray, error: float) -> np.ndarray:
    """Element by element."""
    made = x.copy()
    for place, value in np.ndenumerate(x):
        whole = float(value) / (2 * error)
        if np.isfinite(whole) and abs(np.rint(whole)) <= WIDEST[x.itemsize]:
            made[place] = np.rint(whole) * (2 * error)
    return made


@pytest.mark.parametrize("seed", range(60))
def test_any_layout_to_any_other_within_the_bound(seed: int) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    workers, dtype = rng.randint(1, 5), rng.choice(DTYPES)
    shape = rng.randint(1, 13), rng.randint(1, 13)
    error = rng.choice([1e-3, 0.01, 0.25, 3.0])
    size = rng.choice([0.5, 20.0, 3e4 if dtype.itemsize > 2 else 3e3])
    x = (draw.standard_normal(shape) * size).astype(dtype)
    if rng.random() < 0.3:
        x[rng.randrange(shape[0]), rng.randrange(shape[1])] = rng.choice([np.nan, np.inf, -np.inf])
    source, target = (drawn_layout(rng, shape, workers) for _ in range(2))
    goal = rng.choice([dtype, np.dtype(np.float32)])
    value = expected(x, error).astype(goal)
    with np.errstate(invalid="ignore"):
        off = np.abs(expected(x, error).astype(float) - x.astype(float))
    unit = {8: 2.0**-53, 4: 2.0**-24}.get(
        dtype.itemsize, 2.0**-8 if dtype == BFLOAT16 else 2.0**-11
    )
    finite = np.isfinite(x.astype(float))
    assert (off[finite] <= error * (1 + 1e-9) + unit * np.abs(x.astype(float))[finite]).all()

    def one(comm: Communicator) -> None:
        team = Team(comm)
        made = remap(parts_of(team, x, source), target, goal, error=error)
        assert made.layout == target and made.dtype == goal
        for number, block in made.blocks.items():
            box = tuple(slice(low, high) for low, high in target.boxes[number])
            np.testing.assert_array_equal(block, value[box])
        total = team.total()
        assert total.sent_bytes == total.planned_bytes

    simulate(workers, one)


@pytest.mark.parametrize(
    ("size", "dtype", "bytes_of_one"),
    [
        (1.0, np.float32, 1), (100.0, np.float32, 2), (1e4, np.float32, 4), (np.nan, np.float32, 4),
        (1.0, np.float64, 1), (100.0, np.float64, 2), (1e4, np.float64, 4), (1e9, np.float64, 8),
        (1.0, np.float16, 1), (100.0, np.float16, 2),
    ],
)  # fmt: skip
def test_messages_are_as_short_as_their_elements_let_them(
    size: float, dtype: type, bytes_of_one: int
) -> None:
    n, workers = 16, 4
    x = np.full((n, n), 0.5, dtype)
    x[::4, ::4] = size  # in every message
    source, target = resolve(Rows(), (n, n), workers), resolve(Columns(), (n, n), workers)

    def one(comm: Communicator) -> int:
        team = Team(comm)
        remap(parts_of(team, x, source), target, error=0.01)
        return team.total().sent_bytes

    assert simulate(workers, one) == [n * n // workers * 3 // 4 * bytes_of_one] * workers


def test_copies_are_alike_and_terms_that_stay_are_rounded_too() -> None:
    x = np.random.default_rng(1).standard_normal((6, 5))
    rows, everywhere = resolve(Rows(), (6, 5), 3), resolve(Replicated(), (6, 5), 3)

    def one(comm: Communicator) -> None:
        check_parts(
            remap(parts_of(Team(comm), x, rows), everywhere, error=0.1), bounded.rounded(np, x, 0.1)
        )
        check_parts(
            remap(parts_of(Team(comm), x, rows), rows, error=0.1), bounded.rounded(np, x, 0.1)
        )

    simulate(3, one)


def test_on_a_stand_in_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = gpu.on_stand_ins(monkeypatch)
    x = np.random.default_rng(2).standard_normal((8, 6)).astype(np.float32)
    rows, columns = resolve(Rows(), (8, 6), 2), resolve(Columns(), (8, 6), 2)

    def one(comm: Communicator) -> Any:
        team = Team(comm, xp=cupy)
        source = parts_of(Team(comm), x, rows)
        blocks = {n: cupy.asarray(block) for n, block in source.blocks.items()}
        moved = remap(
            type(source)(team, rows, x.dtype, blocks), columns, np.dtype(np.float32), error=0.01
        )
        assert team.count.device_to_host_bytes == 8  # the largest of the elements that it sends
        return {n: np.array(team.on_host(block)) for n, block in moved.blocks.items()}

    found = simulate(2, one)
    made = np.concatenate([found[0][0], found[1][1]], axis=1)
    np.testing.assert_array_equal(made, expected(x, 0.01))


def test_from_the_client() -> None:
    with md.workers(0) as w:
        x = np.random.default_rng(3).standard_normal((7, 5))
        A = w.array(x)
        made = np.asarray(A.T.to(Rows(), "float32", error=0.01))
        np.testing.assert_array_equal(made, expected(x, 0.01).T.astype(np.float32))
        assert "sends at most" in w.explain(lambda: A.to(Columns(), error=0.01))
        for wrong in (0, -1.0, float("nan"), float("inf"), True, "1"):
            with pytest.raises(ArgumentError, match="to: error must be a number above 0, got"):
                A.to(error=wrong)
        with pytest.raises(ArgumentError, match="give wire= or error=, not both"):
            A.to(wire="float16", error=0.1)
        with pytest.raises(DTypeError, match=r"error=0\.1 rounds real floating-point numbers"):
            w.array(np.arange(3)).to(error=0.1)
