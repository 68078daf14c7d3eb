"""Which plans run in slices on a device, and what their fetch of a batch can do beside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from magmadnn.compiler.formulas import is_rounding
from magmadnn.compiler.kernels.formula import DTYPES, KEPT
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.layout import comes_to
from magmadnn.runtime.cuda.running.runner import CudaRunner
from magmadnn.runtime.cuda.schedule.library.among_gpus import is_collective, is_gpus_own
from magmadnn.runtime.variables import tensor_of


def can_slice(
    runner: CudaRunner, data: Mapping[Node, Array | OnDevice], settings: Sequence[Node]
) -> bool:
    """Whether a plan can run on its own: data of known types, values in memory of their own.

    Sums over ranks that the host would do are none of its own.
    """
    plan, fed = runner.plan, {*data, *settings}
    bases = plan.layouts.bases
    stored = {node for work in plan.work for node in work.needed}
    variables = [n for n in plan.program.nodes() if n.op is VARIABLE]
    return (
        all(is_gpus_own(work) for work in plan.work if is_collective(work))
        and all(n in fed for n in plan.program.nodes() if n.op is PLACEHOLDER)
        and all(a.dtype.isnative and a.dtype.name in KEPT and a.size for a in data.values())
        and all(bases[n] in stored and plan.layouts.is_whole(n) for n in plan.program.outputs)
        and all(
            v in plan.in_place
            or (v.dtype.name in DTYPES and bases[v] in stored and plan.layouts.is_whole(v))
            for _, v in plan.program.updates
        )
        and all(n.dtype.name in DTYPES for n in plan.program.outputs)
        and all(comes_to(tensor_of(n), runner.device) for n in variables)
        and all(comes_to(tensor_of(t), runner.device) for t, _ in plan.program.updates)
    )


def fetched_rounded(plan: NativePlan, placeholders: Iterable[Node]) -> dict[Node, Work]:
    """Placeholders that are read by one step only, which rounds them to half precision: the fetch can."""
    bases, readers = plan.layouts.bases, defaultdict[Node, list[Work]](list)
    for work in plan.work:
        for node in {bases[i] for n in work.region.nodes for i in n.inputs}:
            readers[node].append(work)
    roots = {bases[root] for root in plan.program.roots}
    found = {}
    for node in placeholders:
        if len(readers[node]) != 1 or node in roots or node.dtype != np.float32:
            continue
        (work,) = readers[node]
        rounding = len(work.region.nodes) == 1 and is_rounding(work.region.nodes[0])
        if rounding and work.region.nodes[0].inputs == (node,):
            found[node] = work
    return found
