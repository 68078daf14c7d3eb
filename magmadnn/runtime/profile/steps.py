"""What profiles on every device have in common: how often a plan is run, what stays as it was, one line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from magmadnn.compiler.plan.listing import costs_of, layer_of, title_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work

from .text import StepTime

_SECONDS = 0.3
_LEAST_RUNS, _MOST_RUNS = 5, 2000


def enough_runs() -> Iterator[int]:
    """1, 2, ... until enough runs were measured."""
    begun, count = time.perf_counter(), 0
    while count < _LEAST_RUNS or (time.perf_counter() - begun < _SECONDS and count < _MOST_RUNS):
        count += 1
        yield count


@contextmanager
def variables_kept(plan: NativePlan) -> Iterator[None]:
    """Afterwards, the variables that the plan updates hold what they held before."""
    before = [(t, np.array(t.value.read())) for t, _ in plan.program.updates]
    try:
        yield
    finally:
        for target, value in before:
            target.value.write(value)


def is_wide(work: Work) -> bool:
    """Whether a step computes in float64."""
    return any(node.dtype == np.float64 for node in work.region.nodes)


def step_time(
    number: int, plan: NativePlan, work: Work, sizes: Mapping[str, int], seconds: float, peak: float
) -> StepTime:
    """The line of a step that took so many seconds, where `peak` FLOP/s would be the most."""
    flops, read, written = costs_of(plan, work, sizes)
    title, layer = title_of(work, sizes), layer_of(work)
    return StepTime(number, work.phase, title, layer, seconds, flops, read + written, peak)
