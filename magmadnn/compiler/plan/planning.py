"""From a program to a NativePlan: the list of passes, run in order.

Programs that are built alike, or differ in sizes only, take the plans of earlier ones (`reuse.py`, `sizes.py`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from magmadnn.compiler.collecting import uncollected
from magmadnn.compiler.dump import Dump
from magmadnn.compiler.formulas import compilable
from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.compiler.lower.kernels_of import select
from magmadnn.compiler.program.absorb import absorb
from magmadnn.compiler.program.join import join
from magmadnn.compiler.program.moved_halves import move_halves
from magmadnn.compiler.program.pipeline import BEFORE_FUSION
from magmadnn.compiler.program.pipeline import Pass as ProgramPass
from magmadnn.compiler.program.recompute import recompute
from magmadnn.compiler.program.remake import remake
from magmadnn.compiler.program.simplify import decompose
from magmadnn.compiler.program.verify import verify
from magmadnn.compiler.program.widen import widen
from magmadnn.compiler.regions.alias import fold
from magmadnn.compiler.regions.dependencies import phases_of
from magmadnn.compiler.regions.draft import Draft
from magmadnn.compiler.regions.fusion.fuse import fuse as fuse_program
from magmadnn.compiler.regions.open_sizes import open_choices
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.compiler.regions.verify_draft import verify_draft
from magmadnn.graph.drawing.diagram import to_svg
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import LaterProgram, Program

from .built_alike.reuse import LaterDraft, drafted
from .built_alike.sizes import planned
from .diagram import diagram_of_plan
from .listing import describe
from .loop import loop_plan
from .native_plan import LaterPlan, LoopPlan, NativePlan
from .parts_in_place import parts_placed

Pass = Callable[[Draft], Draft]
# Algorithms that ops offer beside what they are made of by rule.
ON_CPUS = frozenset({"winograd", "fft", "indexed pads"})
ON_GPUS = frozenset({"indexed pads of few axes"})
ONE_SAMPLE = "one sample"  # what ops offer for a run of a single one, beside these


def on_program(run_pass: ProgramPass) -> Pass:
    """A pass over the program as one over the draft."""

    def run(draft: Draft) -> Draft:
        return replace(draft, program=run_pass(draft.program))

    known = getattr(run_pass, "func", run_pass)  # of a partial one
    run.__name__, run.__doc__ = known.__name__, known.__doc__
    return run


def fuse(draft: Draft) -> Draft:
    """Nodes become regions, each of which will be one kernel."""
    regions, layouts = fuse_program(draft.program, functools.cache(compilable))  # asked for often
    return replace(draft, regions=tuple(regions), layouts=layouts)


def _fuse_without_rounding(draft: Draft) -> Draft:
    """As `fuse`, for devices whose kernels widen halves as they read them, but do not round."""
    regions, layouts = fuse_program(draft.program, functools.cache(compilable), rounding=False)
    return replace(draft, regions=tuple(regions), layouts=layouts)


def _unchanged(draft: Draft) -> Draft:
    return draft


def order(draft: Draft) -> Draft:
    """Regions get phases. Those of one phase do not depend on each other: threads share their work."""
    written = (value for _, value in draft.program.updates)
    phases = phases_of(draft.dependencies, draft.program.outputs, draft.before, written)
    return replace(draft, phases=phases)


# The passes in running order. Two more follow for each set of sizes that a plan is run with: `plan_memory`
# (plan/memory.py) and the emission of machine code (llvm/, cuda/).
_MOVE_HALVES = on_program(move_halves)
_ON_PROGRAMS: tuple[Pass, ...] = (
    *map(on_program, (*BEFORE_FUSION, widen)),
    _MOVE_HALVES,
    *map(on_program, (recompute, remake)),
)
# those that depend on the target's libraries
_BY_LIBRARIES = {_ON_PROGRAMS[BEFORE_FUSION.index(one)]: one for one in (decompose, absorb, join)}
_ON_REGIONS: tuple[Pass, ...] = (fuse, fold, order, select)
PASSES: tuple[Pass, ...] = (*_ON_PROGRAMS, *_ON_REGIONS)
# What some passes look for in a program; where no node of it has that, they are not entered.
LOOKS_FOR: dict[str, Callable[[Node], object]] = {
    absorb.__name__: lambda node: isinstance(node.op, Op) and node.op.absorbs,
    join.__name__: lambda node: isinstance(node.op, Op) and node.op.joins,
    widen.__name__: lambda node: node.dtype.name in HALVES,
    move_halves.__name__: lambda node: node.dtype.name in HALVES,
    remake.__name__: lambda node: isinstance(node.op, Op) and node.op.kind is OpKind.LIBRARY,
}


def _passed(
    program: Program, check: bool, rounding: bool, libraries: frozenset[str], dump: Dump
) -> Draft:
    """What all passes make of a program; those over regions run once for programs that differ in sizes."""
    ways = {
        one: on_program(functools.partial(by, libraries=libraries))
        for one, by in _BY_LIBRARIES.items()
    }
    if rounding:
        ways[_MOVE_HALVES] = _unchanged  # kernels round as they read
    else:
        ways[fuse] = _fuse_without_rounding
    run = functools.partial(_run, check=check, ways=ways, dump=dump)
    if check:
        verify(before=program, after=program, name="none yet")
    draft = run(_ON_PROGRAMS, Draft(program))

    def regions(program: Program) -> Draft:
        return run(_ON_REGIONS, Draft(program))

    if dump.is_wanted:  # with its own sizes after every pass
        return regions(draft.program)
    return planned(draft.program, regions, rounding)


def _run(
    passes: Sequence[Pass], draft: Draft, check: bool, ways: Mapping[Pass, Pass], dump: Dump
) -> Draft:
    """What some passes make of a draft; of some there are other `ways` for a target."""
    for run_pass in passes:
        wanted = LOOKS_FOR.get(run_pass.__name__)
        applies = wanted is None or any(map(wanted, draft.program.nodes()))
        after = ways.get(run_pass, run_pass)(draft) if applies else draft
        if check:
            name = run_pass.__name__
            verify(before=draft.program, after=after.program, name=name)
            verify_draft(after, name=name)
        draft = after
        dump.add(run_pass.__name__, draft.__str__)
    return draft


def _loops(draft: Draft, planned: Callable[[Program], NativePlan]) -> dict[Node, LoopPlan]:
    """The plans of all loops."""
    loops = [work for work in draft.work if work.region.kind is RegionKind.LOOP]
    return {w.region.nodes[0]: loop_plan(w.region.nodes[0], w.needed, planned) for w in loops}


@uncollected()
def native_plan(
    program: Program,
    *,
    check: bool = False,
    rounding: bool = True,
    libraries: frozenset[str] = ON_CPUS,
) -> NativePlan:
    """The native plan of a program.

    Args:
        program: outputs and updates of one phase.
        check: verify what each pass made, as the tests do, and memory whenever it is laid out.
        rounding: whether kernels round to bfloat16 and float16 as they read, as those of the CPU do; they all
            widen.
        libraries: names of functions of whole arrays that the target's libraries have, and of algorithms
            that suit it.

    Raises:
        GraphError: if a check fails.
    """
    dump = Dump("native")
    dump.add("given", program.__str__)
    run = functools.partial(_passed, check=check, dump=dump, rounding=rounding, libraries=libraries)
    found = drafted(program, run, (rounding, libraries), fill=not dump.is_wanted)
    how = {"check": check, "rounding": rounding, "libraries": libraries}

    def planned(draft: Draft) -> NativePlan:
        return _plan_of(program, draft, dump, how)

    if not isinstance(found, LaterDraft):
        return planned(found)
    if check or dump.is_wanted or not isinstance(program, LaterProgram):
        return planned(found.made())
    return _later_plan(found, dump, how)


def _later_plan(found: LaterDraft, dump: Dump, how: Mapping[str, Any]) -> LaterPlan:
    """The plan of a draft that is copied later; over other leaves it keeps nothing of these alive."""
    bare = replace(found, leaves=())

    def over(own: tuple[Node, ...]) -> NativePlan:
        return _plan_of(None, replace(bare, leaves=own).made(), dump, how)

    leaves = found.placeholders, found.variables, found.changed
    return LaterPlan(over, found.leaves, found.alike, leaves)


def _plan_of(
    program: Program | None, draft: Draft, dump: Dump, how: Mapping[str, Any]
) -> NativePlan:
    """The plan of a program of which the passes have made a draft.

    Args:
        program: as it was given; None of one that is built like another, with no choices that are open.
        draft: what became of it.
        dump: what was written of it so far.
        how: as `native_plan` takes it.
    """
    check: bool = how["check"]
    if check:
        verify_draft(draft, name="drafted")
    checked = None if draft.alike is None else draft.alike.checked
    if checked is None:
        early = draft.dependencies.early(draft.program.outputs)
        checked = max((draft.phases[r] for r in early), default=-1) + 1
        if draft.alike is not None:
            draft.alike.checked = checked
    plan = NativePlan(
        draft.program,
        draft.work,
        draft.layouts,
        draft.in_place,
        checked,
        dump,
        check,
        () if program is None or isinstance(program, LaterProgram) else open_choices(program),
        _loops(draft, functools.partial(native_plan, **how)),
        parts_placed(draft, not how["rounding"])
        if any(w.region.kind is RegionKind.MOVE for w in draft.work)
        else {},
        alike=draft.alike,
    )
    dump.add("plan", functools.partial(describe, plan))
    if program is not None:
        dump.add_file("given.svg", lambda: to_svg(program))
    dump.add_file("plan.svg", lambda: to_svg(diagram_of_plan(plan, {})))
    return plan
