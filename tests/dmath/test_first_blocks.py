"""Which blocks a worker of a grid is brought first, and in which pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks, cyclic
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import cutting, running
from magmadnn.dmath.products.plans import c_stays
from tests.dmath.drawn import check_parts, parts_of, plain
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
    pieces = [(0, 1024), (1024, 2048), (2048, 4096)]
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
    cuts = [high - low for low, high in cutting.chunks_of(0, 11, 1.5)]
    assert len(cuts) > 1
    rows, columns = ([(w, 11, 11) for w in cuts], [(11, 11, w) for w in cuts])
    pieces = columns if "a" in views else rows
    assert simulate(WORKERS, one) == [
        [whole] * 2,
        [*pieces, whole],
        [*pieces, whole],
        [whole] * 2,
    ]
