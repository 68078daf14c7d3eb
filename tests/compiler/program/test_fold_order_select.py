"""fold, order and select: drafts before and after, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.planning import LOOKS_FOR, PASSES
from magmadnn.compiler.regions.draft import Draft
from magmadnn.graph import Node
from magmadnn.graph.program import Program
from magmadnn.ops.ranks.collectives import all_reduce
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed
from tests.graph.by_numpy import doubled


def drafts(program: Program) -> dict[str, Draft]:
    """The draft after each pass."""
    found, draft = {}, Draft(program)
    for run_pass in PASSES:
        draft = found[run_pass.__name__] = run_pass(draft)
    return found


def held(name: str, value: Any) -> Node:
    return md.variable(name, np.array(value)).node


def layer() -> Program:
    """Loss and update of a layer, and what the layer below gets."""
    x, g, w = placed("x", BATCH, 7), placed("g", BATCH, 5), held("w", ramp(7, 5))
    return Program.of([ops.relu(x @ w) * 2.0], [(w, w - 0.1 * (ops.transpose(x) @ g))])


def test_the_list_of_passes() -> None:
    names = [run_pass.__name__ for run_pass in PASSES]
    assert names[:1] == ["simplify"] and names[-4:] == ["fuse", "fold", "order", "select"]
    assert all(run_pass.__doc__ for run_pass in PASSES)


def test_passes_that_are_left_out_would_change_nothing() -> None:
    assert LOOKS_FOR.keys() <= {run_pass.__name__ for run_pass in PASSES}
    draft = Draft(layer())
    for run_pass in PASSES:
        if (wanted := LOOKS_FOR.get(run_pass.__name__)) is not None:
            assert not any(map(wanted, draft.program.nodes()))
            assert run_pass(draft).program is draft.program
        draft = run_pass(draft)


def test_fuse_puts_what_is_done_to_a_product_into_it() -> None:
    assert str(drafts(layer())["fuse"]) == (
        "r0 = gemm[batch, 5] matmul relu multiply\n"
        "r1 = gemm[7, 5] matmul multiply subtract\n"
        "w := subtract"
    )


def test_fold_writes_the_update_of_the_weights_in_place() -> None:
    assert str(drafts(layer())["fold"]) == (
        "r0 = gemm[batch, 5] matmul relu multiply\n"
        "r1 = gemm[7, 5] matmul multiply subtract\n"
        "    after r0\n"
        "    writes subtract in w\n"
        "w := subtract"
    )


def test_order_puts_independent_regions_into_one_phase() -> None:
    a, b = placed("a", 7, 5), placed("b", 5, 7)
    draft = drafts(Program.of([ops.tanh(a @ b), ops.exp(b @ a), ops.mean(a @ b)]))["order"]
    assert sorted(draft.phases.values()) == [0, 0, 1]


def test_order_computes_outputs_before_variables_change() -> None:
    draft = drafts(layer())["order"]
    assert list(draft.phases.values()) == [0, 1]


def test_select_chooses_kernels_and_what_they_keep() -> None:
    program = Program.of([doubled(ops.exp(placed("x", 5, 7))), ops.tanh(placed("y", 3))])
    lines = str(drafts(program)["select"]).splitlines()
    assert "    keeps exp" in lines and "    by NumPy" in lines
    assert sum(line.startswith("    by Rows(") for line in lines) == 2


def nothing_in_place(make: Callable[[Node, Node], Node]) -> bool:
    w, x = held("w", ramp(7, 5)), placed("x", 7, 7)
    return not drafts(Program.of([], [(w, make(w, x))]))["fold"].in_place


def test_fold_leaves_what_other_readers_need() -> None:
    assert nothing_in_place(lambda w, x: w - x @ w)
    assert nothing_in_place(lambda w, x: w - w[0])
    assert not nothing_in_place(lambda w, x: w - ops.max(w, 1, keepdims=True))
    assert not nothing_in_place(lambda w, x: w - x @ ramp(7, 5))


def test_collectives_come_in_the_order_in_which_they_can_begin() -> None:
    """Not in that of outputs: a sum would else wait for one that is ready later, and run beside nothing."""
    x, w = placed("x", BATCH, 7), held("w", ramp(7, 7))
    shallow = x @ w
    deep = shallow
    for _ in range(3):
        deep = ops.tanh(deep @ w)
    sums = [all_reduce(ops.sum(value, axis=0), ranks=2) for value in (deep, shallow)]
    draft = drafts(Program.of(sums))["order"]
    phases = {node: draft.phases[r] for r in draft.regions for node in r.nodes}
    last = max(phases[n] for n in phases if n.op.name == "matmul")
    assert phases[sums[1]] < last < phases[sums[0]]
