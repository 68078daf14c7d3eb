"""Plans: slots, and the text that is kept.

The plans of three programs lie in `tests/plans`. A change of the compiler shows as a difference there;
`MAGMADNN_KEEP_PLANS=1 pytest tests/compiler/test_plan.py` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler import Plan, compile_program
from magmadnn.compiler.program.call_plan import plan_of
from magmadnn.compiler.program.verify import verify
from magmadnn.errors import GraphError
from magmadnn.graph import Node, Spec
from magmadnn.graph import node as nodes
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from tests.compiler.sample_programs import BATCH, PROGRAMS, ramp
from tests.graph.bare_nodes import F32, placed, variable
from tests.graph.random_graphs import random_graph

PLANS = Path(__file__).parent.parent / "plans"


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_are_as_they_were(name: str) -> None:
    text = f"{compile_program(PROGRAMS[name](), check=True)}\n"
    path = PLANS / f"{name}.txt"
    if os.environ.get("MAGMADNN_KEEP_PLANS"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_are_stable(name: str) -> None:
    assert str(compile_program(PROGRAMS[name]())) == str(compile_program(PROGRAMS[name]()))


def check_slots(plan: Plan) -> None:
    """Every step reads the values it means to, whatever slots they share."""
    holds: dict[int, Node] = dict(plan.leaves)
    for step in plan.steps:
        assert [holds.get(slot) for slot in step.inputs] == list(step.node.inputs)
        assert step.output not in step.inputs
        for slot in step.frees:
            assert isinstance(holds.pop(slot).op, Op)  # leaves stay
        assert step.output not in holds
        holds[step.output] = step.node
        assert max(holds) < plan.slots
    outputs = zip(plan.outputs, plan.program.outputs, strict=True)
    updates = (
        (slot, value)
        for (_, slot), (_, value) in zip(plan.updates, plan.program.updates, strict=True)
    )
    for slot, node in [*outputs, *updates]:
        assert holds[slot] is node
    kept = {*plan.outputs, *(slot for _, slot in plan.updates)}
    assert {*holds} - {slot for slot, _ in plan.leaves} <= kept  # everything else was freed


@pytest.mark.parametrize("name", PROGRAMS)
def test_slots_of_programs(name: str) -> None:
    check_slots(compile_program(PROGRAMS[name]()))


def test_slots_of_random_graphs() -> None:
    shared = 0
    for seed in range(60):
        made, _ = random_graph(seed)
        for outputs in ([made[-1]], made[-3:]):
            plan = plan_of(Program.of(outputs))
            check_slots(plan)
            shared += len(plan.steps) + len(plan.leaves) - plan.slots
    assert shared > 500


def test_a_chain_needs_two_slots() -> None:
    y = placed("x", 3)
    for _ in range(20):
        y = ops.tanh(y)
    plan = plan_of(Program.of([y]))
    assert (len(plan.steps), plan.slots) == (20, 3)  # one of them the placeholder's


def test_outputs_that_are_leaves_or_given_twice() -> None:
    x = placed("x", 3)
    y = x * 2.0
    plan = plan_of(Program.of([x, y, y]))
    assert str(plan).splitlines()[-2:] == ["return s0, s2, s2", "# 1 steps, 3 slots"]


def test_sizes_that_may_turn_out_negative_are_noted_once() -> None:
    x = placed("x", BATCH, 3)
    plan = plan_of(Program.of([x[2:] * 2.0, x[:-2], ops.concat([x, x])]))
    assert plan.program.open_sizes == (BATCH - 2,)


def test_program_text() -> None:
    v = variable("v", ramp(3))
    text = str(Program.of([v * 2.0], [(v, v + 1.0)]))
    assert text == (
        "%0 = variable v: float32[3]\n"
        "%1 = constant 2.0: float32[]\n"
        "%2 = multiply(%0, %1): float32[3]\n"
        "%3 = constant 1.0: float32[]\n"
        "%4 = add(%0, %3): float32[3]\n"
        "v := %4\n"
        "return %2"
    )


# --- verify ---------------------------------------------------------------------------------------


def spoilt(node: Node, **changes: Any) -> Node:
    from dataclasses import replace

    return replace(node, **changes)


def test_verify_finds_what_a_pass_did_wrong() -> None:
    x, v = placed("x", 3), variable("v", ramp(3))
    y = x * 2.0
    good = Program((y,), ((v, v + 1.0),))
    verify(before=good, after=good, name="good")
    wrong = [
        (Program((x[:2],), good.updates), "pass p turned <multiply: float32[3]> into <_slice: float32[2]>"),
        (Program((), good.updates), "pass p changed which outputs or updates there are"),
        (Program((y,), ()), "pass p changed which outputs or updates there are"),
        (Program((spoilt(y, inputs=(x, nodes.constant(np.ones((2, 1), F32)))),), good.updates),
         "pass p: <multiply: float32[3]> should be float32[2, 3]"),
        (Program((nodes.phase(y, x),), good.updates),
         "pass p: <phase: float32[3]> belongs to no single phase"),
    ]  # fmt: skip
    for after, message in wrong:
        with pytest.raises(GraphError) as info:
            verify(before=good, after=after, name="p")
        assert str(info.value) == message
    broken = Program((y,), ((x, y),))
    with pytest.raises(GraphError) as info:
        verify(before=broken, after=broken, name="p")
    assert str(info.value) == "pass p: <multiply: float32[3]> cannot update <x: float32[3]>"


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from magmadnn.compiler.program import pipeline

    def halve(program: Program) -> Program:
        return program.with_roots([root[:1] for root in program.roots])

    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES, halve))
    program = Program.of([placed("x", 4) * 2.0])
    with pytest.raises(
        GraphError, match=r"^pass halve turned <multiply: float32\[4\]> into <_slice"
    ):
        compile_program(program, check=True)
    assert compile_program(program).outputs  # unchecked, as users run it


def test_leaves_only() -> None:
    x = nodes.placeholder("x", Spec((3,), F32))
    plan = compile_program(Program.of([x]), check=True)
    assert (len(plan.steps), plan.outputs) == (0, (0,))
