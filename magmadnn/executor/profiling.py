"""Measures where the time of a compiled program goes: each step, each layer."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from magmadnn.compiler.emit.llvm.clock import ticks_per_second
from magmadnn.compiler.listing import costs_of, layer_of, title_of
from magmadnn.compiler.native import NativePlan, Work
from magmadnn.compiler.rates import Rates
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array

from .measure import measured_rates
from .native import Instance
from .profile_text import Profile, StepTime
from .threads import thread_count

_SECONDS = 0.3
_LEAST_RUNS, _MOST_RUNS = 5, 2000


def profile(plan: NativePlan, fed: Mapping[Node, Array], sizes: Mapping[str, int]) -> Profile:
    """Run a plan for some tenths of a second and count each step's time; variables keep their values.

    Args:
        plan: what is run.
        fed: arrays for the placeholders, as `bind` gives them.
        sizes: of symbolic dimensions.
    """
    rates = measured_rates()
    instance = Instance(plan, sizes, thread_count(), timed=True)
    before = [(t, np.array(t.value.read())) for t, _ in plan.program.updates]
    walls: list[float] = []
    try:
        instance.run(fed, guard=False)  # caches, pages
        start, first = instance.ticks(), time.perf_counter()
        while len(walls) < _LEAST_RUNS or (
            time.perf_counter() - first < _SECONDS and len(walls) < _MOST_RUNS
        ):
            begun = time.perf_counter()
            instance.run(fed, guard=False)
            walls.append(time.perf_counter() - begun)
        spent = {work: ticks - start[work] for work, ticks in instance.ticks().items()}
    finally:
        for target, value in before:
            target.value.write(value)
    second = ticks_per_second()
    steps = tuple(
        _step(number, plan, work, sizes, _seconds(work, spent[work], second) / len(walls), rates)
        for number, work in enumerate(plan.work)
    )
    return Profile(steps, float(np.median(walls)), len(walls), thread_count(), rates)


def _seconds(work: Work, spent: int, second: float) -> float:
    """Kernels count ticks, calls nanoseconds."""
    return spent * 1e-9 if work.lowered is None else spent / second


def _step(
    number: int,
    plan: NativePlan,
    work: Work,
    sizes: Mapping[str, int],
    seconds: float,
    rates: Rates,
) -> StepTime:
    flops, read, written = costs_of(plan, work, sizes)
    wide = any(node.dtype == np.float64 for node in work.region.nodes)
    return StepTime(
        number,
        work.phase,
        title_of(work, sizes),
        layer_of(work),
        seconds,
        flops,
        read + written,
        rates.flops["float64" if wide else "float32"],
    )
