"""verify_draft: sound plans pass, and a plan that was broken by hand is named with its fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan import memory
from magmadnn.compiler.plan.arena import Arena
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.planning import PASSES, native_plan
from magmadnn.compiler.plan.verify_memory import verify_memory
from magmadnn.compiler.regions.draft import Draft
from magmadnn.compiler.regions.region import Region
from magmadnn.compiler.regions.verify_draft import verify_draft
from magmadnn.errors import GraphError
from magmadnn.graph import Node
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from tests.compiler.native_draw import draw
from tests.compiler.native_programs import PROGRAMS
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed
from tests.graph.by_numpy import doubled


def drafted(program: Program) -> Draft:
    draft = Draft(program)
    for run_pass in PASSES:
        draft = run_pass(draft)
    return draft


def held(name: str) -> Node:
    return md.variable(name, ramp(7, 5)).node


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_of_training_steps_are_sound(name: str) -> None:
    native_plan(PROGRAMS[name](), check=True)


def test_plans_of_random_programs_are_sound() -> None:
    for seed in range(400, 430):
        native_plan(draw(seed).program, check=True)


# --- plans that are broken ------------------------------------------------------------------------


def layer() -> tuple[Draft, Node, dict[str, Region]]:
    """A gradient step of `w`, which the gradient of the layer below reads as well."""
    x, g, w, v = placed("x", BATCH, 7), placed("g", BATCH, 5), held("w"), held("v")
    below = g @ ops.transpose(w)
    program = Program.of(
        [], [(w, w - 0.1 * (ops.transpose(x) @ g)), (v, v - ops.transpose(below) @ g)]
    )
    draft = drafted(program)
    homes = draft.dependencies.home
    found = {"below": next(r for n, r in homes.items() if n.shape == below.shape)}
    found |= {t.label: homes[value] for value, t in draft.in_place.items()}
    return draft, w, found


def test_the_layer_is_sound() -> None:
    draft, _, regions = layer()
    verify_draft(draft, name="given")
    assert draft.phases[regions["w"]] > draft.phases[regions["below"]]


def test_a_variable_that_is_written_beside_its_reader() -> None:
    draft, _, regions = layer()
    early = {**draft.phases, regions["w"]: draft.phases[regions["below"]]}
    broken = replace(draft, phases=early, before={})
    with pytest.raises(GraphError, match=r"pass mine: gemm\[batch, 7\] matmul reads w in phase 0"):
        verify_draft(broken, name="mine")


def test_a_region_that_does_not_wait() -> None:
    draft, _, regions = layer()
    late = {**draft.phases, regions["below"]: draft.phases[regions["v"]]}
    with pytest.raises(GraphError, match=r"gemm\[7, 5\].* in phase 1 needs gemm\[batch, 7\]"):
        verify_draft(replace(draft, phases=late), name="mine")


def test_regions_in_a_wrong_order() -> None:
    draft, _, _ = layer()
    with pytest.raises(GraphError, match="stands before"):
        verify_draft(replace(draft, regions=draft.regions[::-1]), name="mine")


def test_a_region_that_is_missing() -> None:
    draft, _, _ = layer()
    with pytest.raises(GraphError, match="is in 0 regions, expected 1"):
        verify_draft(replace(draft, regions=draft.regions[:-1]), name="mine")


def test_a_value_that_is_not_stored() -> None:
    draft, _, regions = layer()
    work = [replace(w, needed=()) if w.region is regions["below"] else w for w in draft.work]
    with pytest.raises(GraphError, match="reads matmul, which nothing stores"):
        verify_draft(replace(draft, work=tuple(work)), name="mine")


def written(outputs: list[Node], *updates: tuple[Node, Node]) -> Draft:
    """The draft in which the first update is in place, whether that is sound or not."""
    program = Program.of(outputs, updates)
    draft = drafted(program)
    ((target, new), *_) = draft.program.updates
    assert new not in draft.in_place
    return replace(draft, in_place={new: target})


BROKEN: dict[str, tuple[Callable[[Node], tuple[list[Node], Node]], str]] = {
    "reads another row": (lambda w: ([], w - w[0]), "reads other elements"),
    "reads all of it": (lambda w: ([], w - w @ ramp(5, 5)), "reads other elements"),
    "shows it": (lambda w: ([w * 2.0], w * 2.0), "outputs need"),
    "is a call": (lambda w: ([], doubled(w)), "no kernel computes it"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_an_update_that_must_not_be_in_place(name: str) -> None:
    make, fault = BROKEN[name]
    w = held("w")
    outputs, value = make(w)
    with pytest.raises(GraphError, match=f"pass mine: .* in place of w: .*{fault}"):
        verify_draft(written(outputs, (w, value)), name="mine")


def test_an_update_before_a_walk_that_reads_the_old_value() -> None:
    w, v = held("w"), held("v")
    doubled = w * 2.0
    draft = written([], (w, doubled), (v, w - ops.max(doubled, -1, keepdims=True)))
    with pytest.raises(GraphError, match=r"multiply in place of w: .* or reads it later"):
        verify_draft(draft, name="mine")


def test_an_update_that_a_later_walk_over_the_row_reads() -> None:
    w, v = held("w"), held("v")
    later = w - ops.max(w * 2.0, -1, keepdims=True)
    draft = drafted(Program.of([], [(w, w * 2.0), (v, later)]))
    (new,) = [value for target, value in draft.program.updates if target is w]
    assert new not in draft.in_place
    broken = replace(draft, in_place={**draft.in_place, new: w})
    with pytest.raises(GraphError, match=r"in place of w: .* reads it later"):
        verify_draft(broken, name="mine")


def test_a_call_that_may_raise_after_a_write() -> None:
    w, x = held("w"), placed("x", 3)
    v = md.variable("v", ramp(3)).node
    draft = drafted(Program.of([], [(w, w * 2.0), (v, doubled(x))]))
    writer = draft.dependencies.home[next(iter(draft.in_place))]
    (call,) = [r for r in draft.regions if r is not writer]
    assert draft.phases[call] < draft.phases[writer]
    broken = replace(draft, before={}, phases={writer: 0, call: 0})
    with pytest.raises(GraphError, match=r"phase 0 runs beside what outputs need, or may raise"):
        verify_draft(broken, name="mine")


# --- memory ---------------------------------------------------------------------------------------


def test_memory_that_is_used_too_early() -> None:
    plan = native_plan(PROGRAMS["mlp_adam"]())
    lives = arena_of(plan, {"batch": 13}).lives

    def check(broken: Any) -> None:
        verify_memory(broken, plan.work, plan.layouts.bases, name="mine")

    check(lives)
    first, second = next(
        (a, b) for a in lives for b in lives if a is not b and a.first <= b.first <= a.last
    )
    moved = [replace(life, start=first.start) if life is second else life for life in lives]
    with pytest.raises(GraphError, match="share memory while both are needed"):
        check(moved)
    with pytest.raises(GraphError, match="is given up after phase -1, but read in phase"):
        check([replace(life, last=-1) for life in lives])


def test_memory_is_verified_in_checked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan whose values all lie at one place runs unchecked, and is refused by name where it is checked."""

    def together(plan: Any, sizes: Any) -> Arena:
        arena = laid_out(plan, sizes)
        return replace(arena, lives=tuple(replace(life, start=0) for life in arena.lives))

    program = PROGRAMS["mlp_adam"]()
    laid_out = memory._laid_out
    monkeypatch.setattr(memory, "_laid_out", together)
    usual = Executable(program.outputs, program.updates, executor="native")
    arena_of(usual.native.plan, {"batch": 1313})
    checked = Executable(program.outputs, program.updates, executor="native", check=True)
    with pytest.raises(
        GraphError, match=r"pass plan_memory: .* share memory while both are needed"
    ):
        arena_of(checked.native.plan, {"batch": 1313})
