"""How much memory of a device a step takes, known before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from magmadnn.backends.cuda.engine import PRODUCT_WORKSPACE, Engine
from magmadnn.compiler.cuda.gemm.gemm import choose_gemm
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.plan.frames import frames_of
from magmadnn.compiler.plan.memory import nbytes_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.region import product_of
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.graph.op import Array, Op
from magmadnn.memory.pool import size_class
from magmadnn.runtime.cpu.slot_values import slot_values
from magmadnn.runtime.cuda.code import chip_of
from magmadnn.runtime.cuda.data.pending import slots_for
from magmadnn.runtime.cuda.layout import places_of
from magmadnn.runtime.cuda.schedule.cuts import LONGEST
from magmadnn.runtime.cuda.schedule.small import is_small
from magmadnn.runtime.step_memory import StepMemory, loop_bytes, step_memory

PRODUCTS_AT_ONCE = 3


def memory_on_device(
    plan: NativePlan, sizes: Mapping[str, int], engine: Engine, tensor_float: bool, slices: bool
) -> StepMemory:
    """What a step takes, in blocks as the pool gives them.

    Args:
        plan: what is run.
        sizes: of symbolic dimensions.
        engine: the device.
        tensor_float: whether products of float32 may be computed in TF32.
        slices: for many steps in one go: where they are not large values twice, since a step begins beside
            the end of the one before, and variables twice, since a slice does so too; else for single steps.
    """
    found = step_memory(plan, sizes)
    places = places_of(plan, sizes, _own(plan))
    values = size_class(max(places.nbytes, 1)) + loop_bytes(plan, sizes)
    targets = [target for target, _ in plan.program.updates]
    variables = dict.fromkeys([n for n in plan.program.nodes() if n.op is VARIABLE] + targets)
    written = sum(nbytes_of(target, sizes) for target in targets)
    times, workspace = 1, 0
    if slices:
        frames, chip = frames_of(plan, sizes), chip_of(engine)
        small = is_small(plan, frames, sizes, chip)
        times = 1 if small else places.sets
        settings = sum(8 for node in plan.program.placeholders if not node.shape)
        outputs = sum(nbytes_of(node, sizes) for node in plan.program.outputs)
        workspace = LONGEST * (settings + outputs)
        if not small and _uses_library(plan, frames, sizes, chip, tensor_float):
            workspace += PRODUCTS_AT_ONCE * PRODUCT_WORKSPACE
    return replace(
        found,
        parameters=_blocks(variables, sizes),
        activations=times * (values - found.gradients - found.batch),
        gradients=times * found.gradients,
        batch=times * found.batch,
        copies=(slots_for(written) if slices else 1) * _blocks(targets, sizes),
        workspace=workspace,
    )


def _uses_library(
    plan: NativePlan,
    frames: Mapping[Node, Array],
    sizes: Mapping[str, int],
    chip: Chip,
    tensor_float: bool,
) -> bool:
    """Whether the device's library computes a product."""
    for work in plan.work:
        kernel = None if work.lowered is None else work.lowered.kernel
        if isinstance(kernel, Gemm):
            single = product_of(work.region).ndim == 2 and not kernel.joined_a
            own = single and choose_gemm(
                kernel, slot_values(work, frames, sizes), chip, tensor_float
            )
            if not own:
                return True
    return False


def _own(plan: NativePlan) -> list[Node]:
    """The values of a plan that lie in no variable and are no views."""
    stored = {node for work in plan.work for node in work.placed}
    return [
        node
        for node in plan.program.nodes()
        if not plan.layouts.is_view(node)
        and (node in stored or not isinstance(node.op, Op))
        and node.op is not VARIABLE
        and node not in plan.in_place
        and node not in plan.inside
    ]


def _blocks(nodes: Iterable[Node], sizes: Mapping[str, int]) -> int:
    return sum(size_class(nbytes_of(node, sizes)) for node in nodes)
