"""How many steps each graph of a slice has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magmadnn.backends.cuda.nodes.matrices import CAPTURED
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.dim import bind_value

from .array_calls import takes_arrays
from .launches import runs_on_device

LONGEST = 4096  # batches of one slice, for which there is room to keep outputs and settings
STEPS = (1, 8, 64)  # of a graph
_MOST = 1024  # steps of one kernel
_MOST_LAUNCHES = 2048  # of a graph with loops: to record one takes some half a millisecond
_LONG_AS_SHORT = 2  # of the longest graphs, while rows come: the host is ahead of the device then


def most_steps(plan: NativePlan, sizes: Mapping[str, int], long_steps: bool = False) -> int:
    """How many steps the longest graphs of a plan have: fewer where each step is long, or has long loops.

    One where graphs are cut within a step: those of each step are the same then.
    """
    if is_cut(plan):
        return 1
    launches = _launches_of_loops(plan, sizes)
    allowed = STEPS[:-1] if long_steps else STEPS
    return max(steps for steps in allowed if steps == 1 or steps * launches <= _MOST_LAUNCHES)


def is_cut(plan: NativePlan) -> bool:
    """Whether a step has calls that no graph can hold."""
    if any(takes_arrays(work) or not runs_on_device(plan, work) for work in plan.work):
        return True
    kernels = (work.lowered.kernel for work in plan.work if work.lowered is not None)
    calls = (k.function not in CAPTURED for k in kernels if isinstance(k, Library))
    return any(calls) or any(is_cut(loop.step) for loop in plan.loops.values())


def _launches_of_loops(plan: NativePlan, sizes: Mapping[str, int]) -> int:
    """About how many launches the loops of a step are."""
    found = 0
    for loop in plan.loops.values():
        within = len(loop.step.work) + _launches_of_loops(loop.step, sizes)
        found += bind_value(loop.length, sizes) * within
    return found


def cut(count: int, is_one_kernel: bool, most: int = STEPS[-1]) -> list[int]:
    """Graphs of so many steps each, at most `most`, that make a slice.

    Short ones come first, that the device begins early.
    """
    if is_one_kernel:
        return [_MOST] * -(-count // _MOST)
    found = []
    allowed = tuple(steps for steps in STEPS if steps <= most)
    for steps, longer in zip(allowed, (*allowed[1:], LONGEST + 1), strict=True):
        found += [steps] * (count % longer // steps)
    return found


def short_first(graphs: Sequence[int]) -> list[int]:
    """A slice's graphs with the first long ones as shorter ones, which wait for fewer rows."""
    short, long = STEPS[-2:]
    first = graphs.index(long) if long in graphs else len(graphs)
    last = first + min(len(graphs) - first, _LONG_AS_SHORT)
    return [*graphs[:first], *[short] * (long // short * (last - first)), *graphs[last:]]
