"""Which blocks a worker of a grid is brought first, and in which pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks, Columns, Rows, cyclic
from magmadnn.dmath.arrays import casting
from magmadnn.dmath.arrays.kept import Kept
from magmadnn.dmath.arrays.replaying import Replays
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import cutting, running
from magmadnn.dmath.products.arithmetic import arithmetic_of
from magmadnn.dmath.products.plans import c_stays
from magmadnn.memory.dtypes import as_dtype
from tests.dmath.drawn import check_parts, parts_of, plain
from tests.dmath.placed import placed_parts, team_of
from tests.dmath.shared_memory import SharedPeers

WORKERS = 4


@pytest.mark.parametrize("rows", [True, False])
def test_workers_of_a_grid_bring_their_first_blocks_from_another_one_each(rows: bool) -> None:
    n = 8192
    lies = resolve(Blocks((n // 2, n // 2), owners=cyclic(2, 2)), (n, n), WORKERS)
    plan = cutting.cut_as_they_lie(lies, lies, c_stays(n, lies, lies))
    assert plan is not None
    ring = tuple(range(WORKERS))
    steps = [cutting.worker_terms(lies, lies, plan, rank, ring, rows) for rank in ring]
    side = 0 if rows else 1
    sources = []
    for one in steps:
        which, block = one.brought[0]
        assert which == side
        holders = {  # of the whole block, in the layout in which it lies
            lies.holders[number][0]
            for number, box in enumerate(lies.boxes)
            if box == (plan.a, plan.b)[which].boxes[block]
        }
        sources += holders
    assert sources == ([1, 0, 3, 2] if rows else [2, 3, 0, 1])
    # those without a term of their own blocks begin by a piece: as it lies, if it is rows
    pieces = [(0, 512), (512, 1024), (1024, 2048), (2048, 4096)]
    shifted = [(low + n // 2, high + n // 2) for low, high in pieces]
    assert [list(one.early) for one in steps] == (
        [[], pieces, shifted, []] if rows else [[], shifted, pieces, []]
    )


@pytest.mark.parametrize("views", ["", "a", "b", "ab"])
def test_the_first_pieces_are_those_that_lie_in_one_piece(
    views: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "SHORTEST", 4)
    monkeypatch.setattr(cutting, "FIRST", 2)
    n, board = 22, dict[tuple[int, int], Any]()
    blocks = resolve(Blocks((11, 11), owners=cyclic(2, 2)), (n, n), WORKERS)
    draw = np.random.default_rng(3)
    a, b = (draw.integers(-4, 5, (n, n)).astype(float) for _ in range(2))

    def one(comm: SimulatedCommunicator) -> list[tuple[int, ...]]:
        shapes = list[tuple[int, ...]]()

        def multiplied(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            shapes.append((*x.shape, y.shape[1]))
            made: np.ndarray = x @ y
            return made

        team = Team(comm, peers=SharedPeers(comm, board), multiply=multiplied)
        turned = blocks.transposed((1, 0))
        left, right = (
            parts_of(team, x.T.copy(), turned).transposed()
            if name in views
            else parts_of(team, x, blocks)
            for name, x in (("a", a), ("b", b))
        )
        made = running.run(left, right, c_stays(n, blocks, blocks), a.dtype, plain(a))
        check_parts(made, a @ b)
        assert team.count.sent_bytes == team.count.planned_bytes == n * n * 8 // 2
        return shapes

    whole = (11, 11, 11)
    cuts = [high - low for low, high in cutting.early_chunks(0, 11)]
    assert len(cuts) > 1
    rows, columns = ([(w, 11, 11) for w in cuts], [(11, 11, w) for w in cuts])
    pieces = columns if "a" in views else rows
    assert simulate(WORKERS, one) == [
        [whole] * 2,
        [*pieces, whole],
        [*pieces, whole],
        [whole] * 2,
    ]


LAYOUTS = {
    "rows": (Rows(), Rows(), Rows(), 4),
    "columns": (Columns(), Columns(), Columns(), 4),
    "blocks": (Blocks((11, 11), owners=cyclic(2, 2)),) * 3 + (4,),
    "blocks on two": (Blocks((11, 11), owners=cyclic(1, 2)),) * 3 + (2,),
    "uneven": (Rows(), Blocks((9, 22), owners=cyclic(3, 1)), Blocks((7, 22), owners=cyclic(4, 1)), 4),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
@pytest.mark.parametrize("views", ["", "a", "b"])
@pytest.mark.parametrize("keep", [False, True])
def test_terms_come_first_and_the_rest_is_whole_sums(
    name: str, kind: str, views: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "SHORTEST", 2)
    monkeypatch.setattr(cutting, "FIRST", 2)
    n, board, dtype = 22, dict[tuple[int, int], Any](), as_dtype(kind)
    *recipes, workers = LAYOUTS[name]
    lies = [resolve(recipe, (n, n), workers) for recipe in recipes]
    draw = np.random.default_rng(3)
    a, b = (draw.integers(-4, 5, (n, n)).astype(float) for _ in range(2))
    plan = replace(c_stays(n, lies[2], lies[2]), mixed=0.4)

    def one(comm: SimulatedCommunicator) -> tuple[float, float]:
        work = dict.fromkeys((False, True), 0)  # by whether sums are whole

        def multiplied(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            work[x.shape[1] == n] += x.shape[0] * x.shape[1] * y.shape[1]
            made: np.ndarray = x @ y
            return made

        team = Team(comm, peers=SharedPeers(comm, board), multiply=multiplied)
        team.kept = Kept(1 << 20) if keep else None
        left, right = (
            parts_of(team, x.T.copy().astype(dtype), lie.transposed((1, 0))).transposed()
            if side in views
            else parts_of(team, x.astype(dtype), lie)
            for side, x, lie in (("a", a, lies[0]), ("b", b, lies[1]))
        )
        how = arithmetic_of(dtype, dtype, dtype)
        made = running.run(left, right, plan, dtype, how, keep=keep)
        check_parts(made, (a @ b).astype(dtype))
        assert team.count.sent_bytes == team.count.planned_bytes
        if keep:  # what came serves again
            sent = team.count.sent_bytes
            again = running.run(left, right, plan, dtype, how, keep=keep)
            check_parts(again, (a @ b).astype(dtype))
            assert team.count.sent_bytes == sent
        return work[False], work[True]

    terms, whole = (sum(each) for each in zip(*simulate(workers, one), strict=True))
    assert 0 < terms < 1.2 * whole


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["rows", "blocks"])
def test_both_parts_are_one_graph(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORTEST", 2)
    monkeypatch.setattr(cutting, "FIRST", 2)
    monkeypatch.setattr(casting, "_fits", lambda into, piece: False)  # there is no compiler
    n, board, dtype = 22, dict[Any, Any](), as_dtype(kind)
    lies = resolve(LAYOUTS[name][0], (n, n), WORKERS)
    plan = replace(c_stays(n, lies, lies), mixed=0.4)
    draw = np.random.default_rng(3)
    a, b = (draw.integers(-2, 3, (n, n)).astype(dtype) for _ in range(2))

    def one(comm: SimulatedCommunicator) -> tuple[int, ...]:
        team = team_of(comm, board, Replays())
        left, right = placed_parts(team, a, lies), placed_parts(team, b, lies)
        for turn in range(4):
            how = arithmetic_of(dtype, dtype, dtype)
            made = running.run(left, right, plan, dtype, how)
            exact = (a.astype(np.float32) + turn) @ b.astype(np.float32)
            for number, block in made.blocks.items():
                place = tuple(slice(*cut) for cut in lies.boxes[number])
                assert np.array_equal(np.asarray(block), exact[place].astype(dtype))
            del made
            for block in left.blocks.values():
                block[...] = np.asarray(block) + np.asarray(1, dtype)
        total = team.total()
        return total.graphs_made, total.graph_launches, total.graph_failures

    assert simulate(WORKERS, one) == [(1, 3, 0)] * WORKERS
