"""Random graphs, each of several sizes: plans that are filled in are those that each would have alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn.compiler.plan import planning
from magmadnn.compiler.plan.built_alike import sizes
from magmadnn.compiler.regions.draft import Draft
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from tests.compiler.test_sizes import described
from tests.graph import random_graphs

SMALL = (5, 7, 3)
SIZES = [(17, 19, 16), (23, 29, 20), (31, 37, 18), (40, 33, 50), (64, 128, 32)]
SHAPES = list(random_graphs.SHAPES)


def shapes_of(a: int, b: int, c: int) -> list[tuple[int, ...]]:
    to = {1: 1, 5: a, 7: b, 3: c, 35: a * b}
    return [tuple(to[size] for size in shape) for shape in SHAPES]


def graphs_of(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[list[Node]]:
    """The same random graph, once for each of `SIZES`."""
    rng = np.random.default_rng(seed)
    shapes = [shapes_of(*given) for given in (SMALL, *SIZES)]
    graphs: list[list[Node]] = [[] for _ in shapes]
    count = int(rng.integers(2, 5))
    for number in range(count):
        place = int(rng.integers(len(SHAPES)))
        for graph, own in zip(graphs, shapes, strict=True):
            graph.append(placeholder(f"x{number}", Spec(own[place], np.dtype(np.float32))))
    for attempt in range(60):
        i, j = (int(rng.integers(len(graphs[0]))) for _ in range(2))
        step = random_graphs.STEPS[rng.integers(len(random_graphs.STEPS))]
        made: list[Node | None] = []
        for graph, own in zip(graphs, shapes, strict=True):
            monkeypatch.setattr(random_graphs, "SHAPES", own)
            made.append(step(np.random.default_rng((seed, attempt)), graph[i], graph[j]))
        if made[0] is None or np.prod(made[0].shape) > random_graphs.LARGEST:
            continue
        for graph, node in zip(graphs, made, strict=True):
            graph += [] if node is None else [node]
        if len({len(graph) for graph in graphs}) > 1:
            break
    return [graph[count:] for graph in graphs[1:]]


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 400), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_random_graphs_of_many_sizes(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = 0

    def planned(program: Program, run: Callable[[Program], Draft], way: Any) -> Draft:
        nonlocal filled
        runs: list[Program] = []

        def noted(given: Program) -> Draft:
            runs.append(given)
            return run(given)

        found = sizes.planned(program, noted, way)
        filled += not runs
        assert described(found) == described(run(program))
        return found

    monkeypatch.setattr(planning, "planned", planned)
    for seed in seeds:
        monkeypatch.setattr(sizes, "_known", type(sizes._known)())
        for roots in graphs_of(seed, monkeypatch):
            if roots:
                planning.native_plan(Program.of(roots[-3:]))
    assert filled > len(seeds) / 4
