"""Layouts, and arrays that change them: exact on simulated workers, with the bytes that were foretold."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from magmadnn.comm import Communicator
from magmadnn.comm.simulated import simulate
from magmadnn.dmath import Blocks, Columns, Layout, Replicated, Rows, cyclic
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.layout import elements
from magmadnn.dmath.layouts.moves import moves, traffic
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.memory.dtypes import BFLOAT16
from tests.dmath.drawn import SIZES, check_parts, drawn_layout, parts_of


def owners_of(layout: Layout) -> list[int]:
    return [holders[0] for holders in layout.holders]


def test_the_four_samples_of_the_paper() -> None:
    shape = (8, 8)
    rows = resolve(Rows(), shape, 4)
    columns = resolve(Columns(), shape, 4)
    turns = resolve(Rows(block=1), shape, 4)
    square = resolve(Blocks((4, 4), owners=cyclic(2, 2)), shape, 4)
    assert rows.cuts == ((0, 2, 4, 6, 8), (0, 8))
    assert owners_of(rows) == owners_of(columns) == [0, 1, 2, 3]
    assert owners_of(turns) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert square.grid == (2, 2)
    assert owners_of(square) == [0, 1, 2, 3]


def test_blocks_at_the_edge_are_clipped_and_maps_too() -> None:
    layout = resolve(Blocks((4, 3), owners=[[0, 1, 2], [2, 1, 0], [9, 9, 9]]), (7, 5), 3)
    assert layout.cuts == ((0, 4, 7), (0, 3, 5))
    assert owners_of(layout) == [0, 1, 2, 1]
    assert [layout.elements(w) for w in range(3)] == [12, 8 + 6, 9]


def test_records_of_layouts_are_json_and_read_back() -> None:
    rng = random.Random(3)
    for _ in range(50):
        layout = drawn_layout(rng, (rng.choice(SIZES), rng.choice(SIZES)), rng.randint(1, 6))
        again = Layout.of_record(json.loads(json.dumps(layout.record())))
        assert again == layout
        assert hash(again) == hash(layout)
    assert len(json.dumps(resolve(Blocks((64, 64)), (1024, 1024), 4).record())) < 2000


def remapped(seed: int) -> None:
    rng = random.Random(seed)
    workers, m, n = rng.randint(1, 6), rng.choice(SIZES), rng.choice(SIZES)
    turned = rng.random() < 0.5
    source = drawn_layout(rng, (n, m) if turned else (m, n), workers)
    target = drawn_layout(rng, (m, n), workers)
    dtypes = [np.dtype(d) for d in ("int64", "float64", "float32", "float16")] + [BFLOAT16]
    before, after = rng.choice(dtypes), rng.choice(dtypes)
    # Whole numbers up to 100 are exact in all of them.
    x = np.random.default_rng(seed).integers(-100, 101, source.shape).astype(before)

    def one(comm: Communicator) -> int:
        team = Team(comm)
        parts = parts_of(team, x, source)
        parts = parts.transposed() if turned else parts
        made = remap(parts, target, after)
        check_parts(made, x.T if turned else x)
        assert made.dtype == after
        assert all(b.flags.owndata or b.base is not None for b in made.blocks.values())
        for block in parts.blocks.values():
            assert not any(np.shares_memory(block, new) for new in made.blocks.values())
        return team.total().sent_bytes

    sent = sum(simulate(workers, one))
    lies = source.transposed((1, 0)) if turned else source
    moved = sum(elements(move.box) for move in moves(lies, target) if move.source != move.target)
    assert moved == traffic(lies, target).sum()
    assert sent == moved * min(before.itemsize, after.itemsize)


@pytest.mark.parametrize("seed", range(150))
def test_any_layout_to_any_other(seed: int) -> None:
    remapped(seed)


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(30))
def test_any_layout_to_any_other_again(hundred: int) -> None:
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        remapped(seed)


def test_an_element_is_sent_once_and_only_where_it_is_needed() -> None:
    rows, columns = resolve(Rows(), (8, 8), 4), resolve(Columns(), (8, 8), 4)
    assert (traffic(rows, columns) == 4 * (1 - np.eye(4, dtype=int))).all()
    everywhere = resolve(Replicated(), (8, 8), 4)
    assert traffic(everywhere, rows).sum() == 0
    assert (traffic(rows, everywhere) == 16 * (1 - np.eye(4, dtype=int))).all()


def test_half_precision_on_the_wire_rounds_once_everywhere() -> None:
    x = np.random.default_rng(0).standard_normal((7, 5))

    def one(comm: Communicator) -> int:
        team = Team(comm)
        parts = parts_of(team, x, resolve(Rows(), x.shape, 3))
        made = remap(parts, resolve(Replicated(), x.shape, 3), wire=np.dtype(np.float16))
        check_parts(made, x.astype(np.float16))
        assert made.dtype == np.float64
        return team.total().sent_bytes

    assert sum(simulate(3, one)) == 2 * 35 * 2


def test_eight_workers_two_and_eight_again() -> None:
    x = np.arange(11 * 6).reshape(11, 6)

    def one(comm: Communicator) -> None:
        team = Team(comm)
        parts = parts_of(team, x, resolve(Rows(), x.shape, 8))
        two = remap(parts, resolve(Blocks((5, 6), owners=[[6], [1], [6]]), x.shape, 8))
        check_parts(two, x)
        assert bool(two.blocks) == (comm.rank in (1, 6))
        check_parts(remap(two, resolve(Columns(), x.shape, 8)), x)

    simulate(8, one)


@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [
        (Rows(on=(0, 4)), ArgumentError, "owner 4 names no worker, there are 3"),
        (Blocks((2, 2), owners=[[0, 5], [0, 0], [0, 0]]), ArgumentError, "owner 5 names no worker"),
        (
            Blocks((2, 2), owners=[[0, 1]]),
            ShapeError,
            r"an owner map of shape \(1, 2\) does not cover",
        ),
        (Blocks(cuts=((0, 3), (0, 4))), ShapeError, r"cuts \[0, 3\] do not cover axis 0 of size 5"),
        (Blocks(cuts=((0, 4, 2, 5), (0, 4))), ShapeError, "do not cover axis 0"),
        (Blocks((2,)), ShapeError, "blocks of 1 axes do not cover an array of 2"),
        (Rows(sizes=(2, 2, 2)), ShapeError, "do not cover axis 0 of size 5"),
        (resolve(Rows(), (5, 4), 2), ArgumentError, "is of another worker set, this one has 3"),
        (resolve(Rows(), (5, 3), 3), ShapeError, r"shape \(5, 3\) does not fit shape \(5, 4\)"),
        ("rows", ArgumentError, "expected a layout such as"),
    ],
)
def test_layouts_that_do_not_fit(recipe: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        resolve(recipe, (5, 4), 3)  # type: ignore[arg-type]


def test_recipes_that_mean_nothing() -> None:
    with pytest.raises(ArgumentError, match="must be at least 1, got 0"):
        Blocks((0, 2))
    with pytest.raises(ArgumentError, match="and not both"):
        Blocks((2, 2), cuts=((0, 1), (0, 1)))
    with pytest.raises(ArgumentError, match="must be at least 1"):
        cyclic(2, 0)
