"""Which plans are so small that a step is one kernel of one block: by sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from magmadnn.compiler.cuda.gemm.small import can_be_small
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.compiler.plan.listing import costs_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import product_of
from magmadnn.graph.node import PLACEHOLDER, Node
from magmadnn.graph.op import Array

MOST_OPERATIONS = 1.2e5  # of a phase, on an average
LEAST_STEPS = 3
MOST_FED = 4096  # elements of a batch, which lie in registers on their way

_known: WeakKeyDictionary[NativePlan, dict[object, bool]] = WeakKeyDictionary()


def is_small(
    plan: NativePlan, frames: Mapping[Node, Array], sizes: Mapping[str, int], chip: Chip
) -> bool:
    """Whether one block is faster than launches that wait for each other, and has room for all values.

    A launch more takes longer than a barrier more, and one multiprocessor longer than all. So what counts is
    how many operations there are between two barriers.

    Args:
        plan: what is run.
        frames: an array like each value that has memory.
        sizes: of symbolic dimensions.
        chip: the GPU.
    """
    known = _known.setdefault(plan, {})
    key = (*sorted(sizes.items()), chip, MOST_OPERATIONS, MOST_FED)
    if key not in known:
        known[key] = _is_small(plan, frames, sizes, chip)
    return known[key]


def _is_small(
    plan: NativePlan, frames: Mapping[Node, Array], sizes: Mapping[str, int], chip: Chip
) -> bool:
    kernels = [work.lowered.kernel for work in plan.work if work.lowered is not None]
    if len(plan.work) < LEAST_STEPS or not any(isinstance(kernel, Gemm) for kernel in kernels):
        return False  # nothing to be won, and every size would have to be compiled
    if not all(map(_can_be_part, plan.work)):
        return False
    fed = sum(frames[n].size for n in frames if n.op is PLACEHOLDER)
    operations = sum(costs_of(plan, work, sizes)[0] for work in plan.work)
    phases = 1 + max(work.phase for work in plan.work)
    bases = {plan.layouts.bases[node] for work in plan.work for node in _touched(work)}
    homes = {plan.in_place.get(base, base): base for base in bases}
    nbytes = sum(-(-frames[base].nbytes // 16) * 16 + 16 for base in homes.values())
    return (
        operations <= MOST_OPERATIONS * phases
        and fed <= MOST_FED
        and nbytes <= chip.shared_bytes
        and all(frame.size for frame in frames.values())
    )


def _touched(work: Work) -> list[Node]:
    """The values that a step reads and writes."""
    assert work.lowered is not None
    kernel, writes = work.lowered.kernel, work.lowered.writes
    if isinstance(kernel, Gemm) and kernel.unread:
        writes = writes[:-1]  # room for sums, which stay in registers
    return [node for _, node, _ in (*work.lowered.reads, *writes)]


def _can_be_part(work: Work) -> bool:
    kernel = None if work.lowered is None else work.lowered.kernel
    if isinstance(kernel, Gemm):
        return can_be_small(kernel) and product_of(work.region).ndim == 2
    return isinstance(kernel, Rows | Columns | Draw)
