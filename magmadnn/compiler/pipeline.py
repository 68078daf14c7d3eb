"""The passes, in the order in which they run. This list is the documentation of the compiler."""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.graph.program import Program

from .passes.simplify import simplify
from .plan import Plan, plan_of
from .verify import verify

Pass = Callable[[Program], Program]

PASSES: tuple[Pass, ...] = (simplify,)


def compile_program(program: Program, *, check: bool = False) -> Plan:
    """The plan of a program.

    Args:
        program: outputs and updates of one phase.
        check: verify the graph before the first pass and after each, as the tests do.

    Raises:
        GraphError: if a check fails.
    """
    if check:
        verify(before=program, after=program, name="none yet")
    for run_pass in PASSES:
        after = run_pass(program)
        if check:
            verify(before=program, after=after, name=run_pass.__name__)
        program = after
    return plan_of(program)
