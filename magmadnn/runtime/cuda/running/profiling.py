"""Measures where the time of a plan on a device goes, by events between its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from magmadnn.backends.cuda.engine import EventNode, GraphNode
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.plan.listing import title_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.program.precision import half_of
from magmadnn.compiler.rates import Rates
from magmadnn.compiler.regions.draft import Work
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.cuda.schedule.launch import can_be_in_graph
from magmadnn.runtime.profile.steps import enough_runs, is_wide, step_time, variables_kept
from magmadnn.runtime.profile.text import Profile

from .graphs import graph_of, nodes_of
from .instance import Instance
from .rates import rates_of
from .runner import CudaRunner


def profile_on_device(
    runner: CudaRunner, fed: Mapping[Node, Array], sizes: Mapping[str, int], precision: str
) -> Profile:
    """Run a plan for some tenths of a second, and time each step; variables keep their values.

    Steps run one after the other, with an event between any two, in one graph as far as no step is NumPy's.
    Before that each runs once by itself, in an NVTX range with its title.

    Args:
        runner: the plan and the device.
        fed: arrays for the placeholders, as `bind` gives them.
        sizes: of symbolic dimensions.
        precision: of products.
    """
    plan = runner.plan
    rates = rates_of(runner.device, _kinds(plan, precision))
    instance = runner.instance(sizes)
    with variables_kept(plan):
        instance.run(fed, guard=False)  # compiles, and feeds
        pieces = _pieces(instance)
        _run_in_ranges(instance)
        times = [_timed(pieces, len(plan.work)) for _ in enough_runs()]
        walls = [_wall(instance, fed) for _ in enough_runs()]
    means = np.mean(times, axis=0)
    steps = tuple(
        step_time(number, plan, work, sizes, float(means[number]), _peak(work, rates, precision))
        for number, work in enumerate(plan.work)
    )
    where = f"device {runner.device}"
    return Profile(steps, float(np.median(walls)), len(walls), 1, rates, where)


def _kinds(plan: NativePlan, precision: str) -> dict[str, tuple[str, bool]]:
    """What products are measured: operands, and whether they may be rounded to TF32."""
    found = {"float32": ("float32", False)}
    if precision == "tf32":
        found["tf32"] = ("float32", True)
    if (half := half_of(precision)) is not None:
        found[precision] = (half, False)
    if any(map(is_wide, plan.work)):
        found["float64"] = ("float64", False)
    return found


def _wall(instance: Instance, fed: Mapping[Node, Array]) -> float:
    begun = time.perf_counter()
    instance.run(fed, guard=False)
    return time.perf_counter() - begun


# --- steps one after the other --------------------------------------------------------------------


class _Chain:
    """Steps in one graph, with an event before each and after the last."""

    def __init__(self, instance: Instance, works: Mapping[int, Work]) -> None:
        self._engine, items = instance.engine, instance.items
        nodes: list[GraphNode] = []
        self._events = [(number, self._engine.event()) for number in (*works, -1)]
        for (_, event), work in zip(self._events, works.values(), strict=False):
            nodes.append(EventNode(event, _last(nodes)))
            made = items.of(work)
            first = len(nodes)
            chain = [(first + k - 1,) for k in range(len(made))]
            nodes += nodes_of(self._engine, made, chain)
        nodes.append(EventNode(self._events[-1][1], _last(nodes)))
        self._graph = self._engine.graph(nodes)

    def run(self) -> dict[int, float]:
        """Seconds of each step."""
        self._graph.launch()
        self._engine.wait()
        pairs = zip(self._events, self._events[1:], strict=False)
        return {number: self._engine.seconds(a, b) for (number, a), (_, b) in pairs}


def _last(nodes: list[GraphNode]) -> tuple[int, ...]:
    return (len(nodes) - 1,) if nodes else ()


class _Call:
    """A step that no graph holds: NumPy's, on copies that belong to its time, or with a library's calls."""

    def __init__(self, instance: Instance, number: int, work: Work) -> None:
        self._number, self._engine = number, instance.engine
        self._call = _alone(instance, work)

    def run(self) -> dict[int, float]:
        """Seconds of the step."""
        begun = time.perf_counter()
        self._call()
        self._engine.wait()
        return {self._number: time.perf_counter() - begun}


def _alone(instance: Instance, work: Work) -> Callable[[], None]:
    """A step by itself."""
    return graph_of(instance.engine, instance.items.of(work)).launch


def _pieces(instance: Instance) -> list[_Chain | _Call]:
    pieces: list[_Chain | _Call] = []
    waiting: dict[int, Work] = {}
    for number, work in enumerate(instance.plan.work):
        if all(map(can_be_in_graph, instance.items.of(work))):
            waiting[number] = work
            continue
        if waiting:
            pieces.append(_Chain(instance, waiting))
        waiting = {}
        pieces.append(_Call(instance, number, work))
    return [*pieces, _Chain(instance, waiting)] if waiting else pieces


def _timed(pieces: list[_Chain | _Call], count: int) -> Array:
    """Seconds of each step in one run."""
    found = np.zeros(count)
    for piece in pieces:
        for number, seconds in piece.run().items():
            found[number] = seconds
    return found


# --- ranges for NVIDIA's tools --------------------------------------------------------------------


def _run_in_ranges(instance: Instance) -> None:
    """Run each step by itself, in a range with its title."""
    engine = instance.engine
    for work in instance.plan.work:
        action = _alone(instance, work)
        with engine.marked(title_of(work, instance.layout.sizes)):
            action()
            engine.wait()


# --- what a step could do at most -----------------------------------------------------------------


def _peak(work: Work, rates: Rates, precision: str) -> float:
    """FLOP/s of large products, in the precision that a step may use."""
    product = work.lowered is not None and isinstance(work.lowered.kernel, Gemm)
    if is_wide(work):
        return rates.flops["float64"]
    return rates.flops[precision if product and precision in rates.flops else "float32"]
