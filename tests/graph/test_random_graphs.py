"""300 random graphs: simplified and not, they give the same bits; float32 stays near float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.compiler.program.call_plan import Plan, plan_of
from magmadnn.compiler.program.simplify import simplify
from magmadnn.compiler.program.verify import verify
from magmadnn.graph import Node, show
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime.reference import run
from tests.graph.random_graphs import error_bounds, random_graph

Array = NDArray[Any]
GRAPHS = 300
CHUNK = 30


def values_of(plan: Plan, feeds: dict[Node, Array], *, float64: bool = False) -> dict[Node, Array]:
    """The value of every node of a plan."""
    values: dict[Node, Array] = {}

    def look(node: Node, value: Array, operands: Sequence[Array]) -> None:
        values[node] = value
        values.update(zip(node.inputs, operands, strict=True))

    run(plan, feeds, watch=look, float64=float64, check=True)
    return values


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def describe(seed: int, node: Node, why: str) -> str:
    """The graph of one wrong node."""
    return f"seed {seed}: {why}\n{show(node)}"


@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_simplified_graphs_give_the_same_bits(first: int) -> None:
    removed = 0
    for seed in range(first, first + CHUNK):
        nodes, feeds = random_graph(seed)
        before = Program.of(nodes)
        after = simplify(before)
        verify(before=before, after=after, name="simplify")
        expected = run(plan_of(before), feeds, check=True)
        got = run(plan_of(after), feeds, check=True)
        for node, a, b in zip(nodes, expected, got, strict=True):
            assert same_bits(a, b), describe(seed, node, "changed by simplify")
        removed += len(plan_of(before).steps) - len(plan_of(after).steps)
    assert removed > 3 * CHUNK  # it did something


@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_float32_stays_within_its_bound_of_float64(first: int) -> None:
    used = []
    for seed in range(first, first + CHUNK):
        nodes, feeds = random_graph(seed)
        program = Program.of(nodes)
        plan = plan_of(program)
        exact, real = values_of(plan, feeds, float64=True), values_of(plan, feeds)
        bounds = error_bounds(program.nodes(), exact)
        for node in program.nodes():
            if node not in real:
                continue
            off = np.abs(real[node].astype(np.float64) - exact[node])
            assert (off <= bounds[node]).all(), describe(seed, node, f"off by {off.max()}")
            used.append(off.max(initial=0) / max(bounds[node].max(initial=0), 1e-30))
    assert max(used) > 0.05  # the bounds mean something


@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_simplified_gradients_give_the_same_bits(first: int) -> None:
    for seed in range(first, first + CHUNK):
        nodes, feeds = random_graph(seed)
        total = ops.sum(nodes[-1] * nodes[-1])
        before = Program.of([total, *gradient(total, list(feeds))])
        after = simplify(before)
        verify(before=before, after=after, name="simplify")
        expected, got = (
            run(plan_of(before), feeds, check=True),
            run(plan_of(after), feeds, check=True),
        )
        assert all(map(same_bits, expected, got)), describe(seed, nodes[-1], "gradient changed")


def test_a_wrong_rewrite_is_found_and_shown_in_small_form() -> None:
    from magmadnn.ops._pointwise import drop_neutral

    # x + 0.0 is x, but for x = -0.0
    object.__setattr__(ops.add, "rewrites", (drop_neutral(0.0),))
    try:
        with pytest.raises(AssertionError, match=r"seed \d+: changed by simplify\n *%0 = "):
            for first in range(0, GRAPHS, CHUNK):
                test_simplified_graphs_give_the_same_bits(first)
    finally:
        object.__setattr__(ops.add, "rewrites", (drop_neutral(-0.0),))
