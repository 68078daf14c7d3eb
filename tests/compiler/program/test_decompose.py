"""decompose: ops become others of equal value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.program.call_plan import plan_of
from magmadnn.compiler.program.simplify import decompose
from magmadnn.compiler.program.verify import verify
from magmadnn.errors import MagmaDNNError
from magmadnn.graph import Node
from magmadnn.graph.node import scope
from magmadnn.graph.op import REGISTRY, Op
from magmadnn.graph.program import Program
from magmadnn.runtime.reference import run
from tests.compiler.sample_programs import BATCH, PROGRAMS
from tests.graph.bare_nodes import placed


def names(program: Program) -> list[str]:
    return [n.op.name for n in program.nodes() if isinstance(n.op, Op)]


def result(program: Program, feeds: dict[Node, Any]) -> Any:
    return run(plan_of(program), feeds)[0]


def test_before_and_after() -> None:
    program = Program.of([ops.softmax(placed("x", BATCH, 3))])
    assert names(program) == ["softmax"]
    assert names(decompose(program)) == ["max", "subtract", "exp", "sum", "divide", "multiply"]


def test_parts_are_taken_apart_too() -> None:
    """The largest and the sum of a softmax along the first of three axes are reductions of a matrix."""
    program = decompose(Program.of([ops.softmax(placed("x", BATCH, 3, 5), axis=0)]))
    reduced = [n.inputs[0].shape for n in program.nodes() if "axis" in n.attributes]
    assert reduced == [(BATCH, 15), (BATCH, 15)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_stay_legal(name: str) -> None:
    program = PROGRAMS[name]()
    verify(before=program, after=decompose(program), name="decompose")


def test_values_are_equal() -> None:
    x, labels = placed("x", BATCH, 5), placed("labels", BATCH, dtype=np.int64)
    feeds = {
        x: np.random.default_rng(7).normal(size=(11, 5)).astype(np.float32),
        labels: np.arange(11) % 5,
    }
    for y in (ops.softmax(x), ops.take_class(ops.log_softmax(x), labels), ops.one_hot(labels, 5)):
        program = Program.of([y])
        used = {n: a for n, a in feeds.items() if n in program.nodes()}
        before, after = result(program, used), result(decompose(program), used)
        assert len(names(decompose(program))) > len(names(program))
        # five terms are summed, of at most 1; exp, log and the subtraction round once each
        np.testing.assert_allclose(after, before, rtol=8 * 2**-23, atol=8 * 2**-23)


def test_what_says_nothing_stays() -> None:
    x = placed("x", BATCH, 3)
    program = Program.of([ops.tanh(x) @ np.ones((3, 2), np.float32)])
    assert [*decompose(program).nodes()] == [*program.nodes()]


def test_an_op_may_decline() -> None:
    """The sum of a few elements stays as it is: large ones are made of two."""
    program = Program.of([ops.sum(placed("x", 3, 5), axis=None)])
    assert names(decompose(program)) == ["sum"]


def test_parts_belong_to_the_layer_of_the_whole() -> None:
    with scope("classifier"):
        y = ops.softmax(placed("x", BATCH, 3))
    made = [n for n in decompose(Program.of([y])).nodes() if n.inputs]
    assert made and all(n.scope == "classifier" for n in made)


def test_shape_and_dtype_stay_for_every_op_that_decomposes() -> None:
    checked = 0
    for op in list(REGISTRY.values()):
        if op.decompose is None:
            continue
        for x in (placed("x", BATCH, 3), placed("i", BATCH, dtype=np.int64)):
            operands = [x, placed("c", BATCH, dtype=np.int64)][: len(op.args)]
            given = {"depth": 5} if "depth" in op.attributes else {}
            try:
                program = Program.of([op(*operands, **given)])
            except MagmaDNNError:
                continue  # not for such operands
            verify(before=program, after=decompose(program), name=op.name)
            checked += 1
    assert checked >= 5
