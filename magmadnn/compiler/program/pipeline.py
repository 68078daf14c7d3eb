"""The passes over programs, in the order in which they run; `plan/native_plan.py` has those that follow.

A pass is a pure function from program to program, in a file of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from magmadnn.compiler.dump import Dump
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import stabilise

from .absorb import absorb
from .call_plan import Plan, plan_of
from .join import join
from .simplify import decompose, simplify
from .verify import verify

Pass = Callable[[Program], Program]

# What stabilise and decompose make may repeat what is there, so simplify runs once more. What the reference
# executor runs is not taken apart, so that errors and NaN are found at the op that was written.
PASSES: tuple[Pass, ...] = (simplify, stabilise, simplify)
BEFORE_FUSION: tuple[Pass, ...] = (simplify, stabilise, decompose, simplify, absorb, join)


def compile_program(program: Program, *, check: bool = False) -> Plan:
    """The plan of a program for the reference executor.

    Args:
        program: outputs and updates of one phase.
        check: verify the graph before the first pass and after each, as the tests do.

    Raises:
        GraphError: if a check fails.
    """
    if check:
        verify(before=program, after=program, name="none yet")
    dump = Dump("reference")
    dump.add("given", program.__str__)
    for run_pass in PASSES:
        after = run_pass(program)
        if check:
            verify(before=program, after=after, name=run_pass.__name__)
        program = after
        dump.add(run_pass.__name__, program.__str__)
    plan = plan_of(program, functools.partial(compile_program, check=check))
    dump.add("plan", plan.__str__)
    return plan
