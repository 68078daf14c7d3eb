"""Which plans are so small that a step is one kernel of one block: by sizes alone."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.emit.cuda.gemm_small import can_be_small
from magmadnn.compiler.emit.cuda.variant import Chip
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.compiler.listing import costs_of
from magmadnn.compiler.lower import product_of
from magmadnn.compiler.native import NativePlan, Work
from magmadnn.graph.node import PLACEHOLDER, Node
from magmadnn.graph.op import Array

MOST_OPERATIONS = 1.2e6  # of a step
MOST_FED = 4096  # elements of a batch, which lie in registers on their way


def is_small(
    plan: NativePlan, frames: Mapping[Node, Array], sizes: Mapping[str, int], chip: Chip
) -> bool:
    """Whether one block is faster than launches that wait for each other, and has room for all values.

    Args:
        plan: what is run.
        frames: an array like each value that has memory.
        sizes: of symbolic dimensions.
        chip: the GPU.
    """
    if not plan.work or not all(map(_can_be_part, plan.work)):
        return False
    own = [n for n in frames if not plan.layouts.is_view(n)]
    fed = sum(frames[n].size for n in own if n.op is PLACEHOLDER)
    nbytes = sum(-(-frames[n].nbytes // 16) * 16 + 16 for n in own)
    operations = sum(costs_of(plan, work, sizes)[0] for work in plan.work)
    return (
        operations <= MOST_OPERATIONS
        and fed <= MOST_FED
        and nbytes <= chip.shared_bytes
        and all(frames[n].size for n in own)
    )


def _can_be_part(work: Work) -> bool:
    kernel = None if work.lowered is None else work.lowered.kernel
    if isinstance(kernel, Gemm):
        return can_be_small(kernel) and product_of(work.region).ndim == 2
    return isinstance(kernel, Rows | Columns | Draw)
