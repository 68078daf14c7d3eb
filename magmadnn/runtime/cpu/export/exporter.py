"""From a plan to what an object file needs: every size as a polynomial, every address as a place.

A plan is laid out for given sizes. What an argument block holds is therefore looked up for several sets of
sizes, and the polynomials through them are found and checked on further sets (`sizes.py`). So these files
know how layouts behave, and not what any kernel's arguments mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.plan.export import Copy, Place, Standalone
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.errors import GraphError
from magmadnn.graph.dim import Dim, dims_of
from magmadnn.graph.node import Node

from .memory import Memory, nbytes_of
from .steps import Steps


def standalone(plan: NativePlan, inputs: Sequence[Node], longest: int) -> Standalone:
    """What the object file of a plan computes.

    Args:
        plan: of a prediction.
        inputs: placeholders in the order in which the caller gives them.
        longest: samples that are computed at a time.

    Raises:
        GraphError: for a step without a kernel, naming op and layer; for updates of variables; for inputs
            or outputs whose first axis is not the batch.
    """
    plan = replace(plan, inside={}, arenas={})  # every value in memory of its own
    outputs = list(plan.program.outputs)
    batch = _batch_of(inputs, outputs)
    _check_kernels(plan)
    _check_updates(plan)
    found = {s for n in inputs for d in dims_of(n.shape) for s in d.symbols}
    symbols = tuple(sorted(found - {batch}))
    direct = _written_directly(plan, outputs)
    held = {node: Place("input", number) for number, node in enumerate(inputs)}
    held |= {node: Place("output", number) for node, number in direct.items()}
    memory = Memory()
    steps = Steps(plan, (batch, *symbols), memory, held)
    calls = tuple(steps.all())
    copies = tuple(_copies(plan, steps, outputs, direct))
    nodes = plan.program.nodes()
    dims = dict.fromkeys(d for n in nodes for d in dims_of((n.shape, *n.attributes.values())))
    chosen = [size - 1 for _, size in plan.choices if str(size) != batch]
    return Standalone(
        batch,
        symbols,
        tuple(nbytes_of(n.shape[1:], n) for n in inputs),
        tuple(nbytes_of(n.shape[1:], n) for n in outputs),
        tuple(memory.buffers),
        tuple(memory.data),
        memory.facts,
        calls,
        copies,
        # What must not be negative: sizes; and so that there is always something to choose from.
        (
            *(dim for dim in dims if not dim.never_negative),
            *(dim for dim in dict.fromkeys(chosen) if isinstance(dim, Dim)),
        ),
        longest,
        memory.faults,
    )


def _written_directly(plan: NativePlan, outputs: Sequence[Node]) -> dict[Node, int]:
    """Stored values that kernels write straight into the caller's memory."""
    stored = {node for work in plan.work for node in work.needed}
    found: dict[Node, int] = {}
    for number, node in enumerate(outputs):
        base = plan.layouts.bases[node]
        if base in stored and base not in found and plan.layouts.is_whole(node):
            found[base] = number
    return found


def _copies(
    plan: NativePlan, steps: Steps, outputs: Sequence[Node], direct: dict[Node, int]
) -> list[Copy]:
    """Outputs that do not lie in the caller's memory already."""
    return [
        steps.copy(node, Place("output", number))
        for number, node in enumerate(outputs)
        if direct.get(plan.layouts.bases[node]) != number
    ]


def _batch_of(inputs: Sequence[Node], outputs: Sequence[Node]) -> str:
    """The symbol that all inputs and outputs have as first axis."""
    first = inputs[0].shape[0] if inputs[0].shape else 1
    if not isinstance(first, Dim) or not first.is_symbol:
        raise GraphError(
            f"export: the first axis of input {inputs[0].name} must be the batch, of any size, got "
            f"{first}; make it with md.layers.Input"
        )
    for what, nodes in (("input", inputs), ("output", outputs)):
        for node in nodes:
            if not node.shape or node.shape[0] != first:
                raise GraphError(
                    f"export: the first axis of {what} {node.label} must be {first} as in input "
                    f"{inputs[0].name}, got shape {node.spec}"
                )
    return str(first)


def _check_kernels(plan: NativePlan) -> None:
    for work in plan.work:
        node = work.region.nodes[0]
        where = f" of layer {node.scope}" if node.scope else ""
        if work.region.kind is RegionKind.LOOP:
            _check_kernels(plan.loops[node].step)
            continue
        if work.lowered is None:
            raise GraphError(
                f"export: op {node.label}{where} has no native kernel for {node.spec} (predict calls "
                "NumPy there), so it cannot be in an object file; replace it, or export the part of "
                "the model without it: md.Model(inputs=..., outputs=...)"
            )
        if isinstance(work.lowered.kernel, Library):
            raise GraphError(
                f"export: op {node.label}{where} is a call of {work.lowered.kernel.function} of LAPACK or "
                "BLAS, which an object file does not hold; replace it, or export the part of the model "
                "without it: md.Model(inputs=..., outputs=...)"
            )


def _check_updates(plan: NativePlan) -> None:
    for target, _ in plan.program.updates:
        raise GraphError(
            f"export: a prediction gives {target.label} a new value, but an exported function keeps "
            "nothing between calls; export a model without that update"
        )
