"""Terms of several workers are added up, and sums rounded, in the phase of their products: on the stand-ins
of `test_graphs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.dmath import Blocks, Columns, Layout, Rows, cyclic
from magmadnn.dmath.arrays import casting
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import cutting, pipelining, running
from magmadnn.dmath.products.arithmetic import arithmetic_of
from magmadnn.dmath.products.choosing import candidates, predict
from magmadnn.dmath.products.finishing import Results
from magmadnn.dmath.products.plans import ProductPlan
from magmadnn.dmath.products.rates import Rates
from tests.dmath.placed import placed_parts
from tests.dmath.test_graphs import KINDS, on_workers

SHAPE = 26, 31, 22  # m, k, n
OUTER = {  # nothing is brought: all have the same local products, whoever adds them up
    "columns by rows to rows": (Columns(), Rows(), Rows()),
    "columns by rows to blocks": (Columns(), Rows(), Blocks((5, 9))),
    "columns by rows to columns": (Columns(), Rows(), Columns()),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORTEST", 4)
    monkeypatch.setattr(cutting, "FIRST", 4)
    monkeypatch.setattr(casting, "_fits", lambda into, piece: False)  # there is no compiler


class Elsewhere(Results):
    """Terms that are left where they are made: `remap` sends, adds and rounds them."""

    def __init__(
        self, team: Team, made: Layout, target: Layout, sums: Any, dtype: Any, turned: bool = False
    ) -> None:
        self._team, self._made, self._sums = team, made, sums
        self._everyone, self._arena = [], None
        self._target, self._dtype = made, sums
        self.terms = self._blocks = self._new(made, sums, turned)


def layouts(recipes: Any, workers: int) -> list[Layout]:
    m, k, n = SHAPE
    shapes = (m, k), (k, n), (m, n)
    return [resolve(recipe, shape, workers) for recipe, shape in zip(recipes, shapes, strict=True)]


def ways(recipes: Any, workers: int) -> dict[str, ProductPlan]:
    return {plan.name: plan for plan in candidates(*layouts(recipes, workers))}


def drawn(seed: int, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def products(
    recipes: Any,
    kind: str,
    plan: ProductPlan,
    workers: int,
    values: Callable[..., np.ndarray] = drawn,
) -> list[tuple[list[bytes], list[Any], tuple[int, ...]]]:
    """Of each worker the bits of five results, the blocks of the last, and what was counted."""
    m, k, n = SHAPE
    storage, compute, result = KINDS[kind]
    kept = np.dtype(getattr(ml_dtypes, storage, storage))
    dtype = np.dtype(getattr(ml_dtypes, result, result))
    how = arithmetic_of(kept, kept, dtype, compute)
    lies = layouts(recipes, workers)
    x, y = values(1, (m, k), kept), values(2, (k, n), kept)

    def one(team: Team) -> tuple[list[bytes], list[Any], tuple[int, ...]]:
        a, b = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])
        found: list[bytes] = []
        blocks: list[Any] = []
        for _ in range(5):
            made = running.run(a, b, plan, dtype, how)
            assert made.layout == lies[2] and made.dtype == dtype
            found.append(b"".join(np.asarray(block).tobytes() for block in made.blocks.values()))
            blocks = [(made.layout.boxes[i], np.array(x)) for i, x in made.blocks.items()]
            del made
        total = team.total()
        told = total.graphs_made, total.graph_launches, total.graph_failures
        return found, blocks, (*told, total.sent_bytes, total.planned_bytes)

    return on_workers(workers, one)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float32 in bfloat16"])
@pytest.mark.parametrize("recipes", OUTER.values(), ids=OUTER)
def test_sums_in_the_phase_have_the_bits_of_sums_that_are_sent(
    recipes: Any, kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random numbers, whose sums depend on their order."""
    plan = ways(recipes, workers)["A stays"]
    here = products(recipes, kind, plan, workers)
    monkeypatch.setattr(pipelining, "Results", Elsewhere)
    sent = products(recipes, kind, plan, workers)
    assert [bits for bits, _, _ in here] == [bits for bits, _, _ in sent]
    assert len({one for bits, _, _ in here for one in bits}) == workers  # the same in each turn
    for _, _, (made, launches, failures, *_) in here:
        # what is added up and the result may take turns in two places
        assert made in (1, 2) and launches >= 3 and not failures
    for place in (3, 4):  # bytes that were sent, and planned
        assert sum(told[place] for _, _, told in here) == sum(told[place] for _, _, told in sent)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shortest", [4, 512])
def test_every_way_with_terms_of_several_workers_is_right(
    kind: str, shortest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By terms, and by columns of B or rows of A; whole numbers are exact but where halves are rounded."""
    monkeypatch.setattr(cutting, "SHORTEST", shortest)

    def whole(seed: int, shape: tuple[int, int], dtype: Any) -> np.ndarray:
        return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)

    m, k, n = SHAPE
    exact = whole(1, (m, k), np.float64) @ whole(2, (k, n), np.float64)
    blocks = Blocks((9, 8), owners=cyclic(2, 2))
    tried = 0
    for recipes in ((Rows(), Rows(), Rows()), (blocks, blocks, Columns())):
        for plan in ways(recipes, 4).values():
            if not plan.c.partial or plan.way != "fetch":
                continue
            tried += 1
            for found, made, (_, _, failures, *_) in products(recipes, kind, plan, 4, whole):
                assert len(set(found)) == 1 and not failures
                for (rows, columns), block in made:
                    part = exact[slice(*rows), slice(*columns)]
                    assert block.tobytes() == part.astype(block.dtype).tobytes()
    assert tried >= 6


@pytest.mark.parametrize("way", ["C stays", "ring of B", "ring of sums"])
def test_halves_are_rounded_in_the_graph(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`remap` has nothing left to do."""
    calls = list[int]()
    real = running.remap

    def counted(x: Parts, target: Layout, dtype: Any, **told: Any) -> Parts:
        calls.append(0)
        assert x.layout == target and x.dtype == dtype
        return real(x, target, dtype, **told)

    monkeypatch.setattr(running, "remap", counted)
    recipes = (Rows(), Rows(), Rows())
    products(recipes, "bfloat16", ways(recipes, 3)[way], 3)
    assert len(calls) == 15


def test_adding_terms_up_is_part_of_the_prediction() -> None:
    """On GPUs terms cost their bytes on the links and in memory, and no message of a host."""
    shape = 8192, 8192
    columns, rows = resolve(Columns(), shape, 2), resolve(Rows(), shape, 2)
    plan = next(p for p in candidates(columns, rows, rows) if p.name == "A stays")
    rates = Rates(4e14, 4e14, 3.5e11, 1e-3, 0.0, 0.0, True)
    half = 8192 * 4096
    products_alone = 2 * 8192 * 8192 * 4096 / 4e14
    expected = products_alone + half * 4 / 3.5e11 + 2 * 4 * half / 2e12
    assert predict(plan, columns, rows, 4, rates).seconds == pytest.approx(expected, rel=1e-3)
