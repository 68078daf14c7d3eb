"""Measures where the time of a compiled program goes: each step, each layer."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from magmadnn.compiler.llvm.driver.clock import ticks_per_second
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.threads import thread_count

from .measure import measured_rates
from .steps import enough_runs, is_wide, step_time, variables_kept
from .text import Profile, Span


def profile(plan: NativePlan, fed: Mapping[Node, Array], sizes: Mapping[str, int]) -> Profile:
    """Run a plan for some tenths of a second and count each step's time; variables keep their values.

    Args:
        plan: what is run.
        fed: arrays for the placeholders, as `bind` gives them.
        sizes: of symbolic dimensions.
    """
    rates = measured_rates()
    instance = Instance(plan, sizes, thread_count(), timed=True)
    walls: list[float] = []
    with variables_kept(plan):
        instance.run(fed, guard=False)  # caches, pages
        start = instance.ticks()
        for _ in enough_runs():
            begun = time.perf_counter()
            instance.run(fed, guard=False)
            walls.append(time.perf_counter() - begun)
        spent = {work: ticks - start[work] for work, ticks in instance.ticks().items()}
    second = ticks_per_second()
    steps = tuple(
        step_time(
            number,
            plan,
            work,
            sizes,
            spent[work] / second / len(walls),
            rates.flops["float64" if is_wide(work) else "float32"],
        )
        for number, work in enumerate(plan.work)
    )
    spans = _spans(instance, plan, second)
    wall = float(np.median(walls))
    return Profile(steps, wall, len(walls), thread_count(), rates, spans=spans)


def _spans(instance: Instance, plan: NativePlan, second: float) -> tuple[Span, ...]:
    """When which thread worked on which step in the last run; the first thread is the caller's."""
    found = sorted(instance.spans(), key=lambda span: span[1])
    numbers = {work: number for number, work in enumerate(plan.work)}
    first = min((begin for _, begin, _, _ in found), default=0)
    threads: dict[int, int] = {0: 0}
    made = []
    for work, begin, end, thread in found:
        thread = threads.setdefault(thread, len(threads))
        at, seconds = (begin - first) / second, (end - begin) / second
        made.append(Span(numbers[work], thread, at, seconds))
    return tuple(made)
