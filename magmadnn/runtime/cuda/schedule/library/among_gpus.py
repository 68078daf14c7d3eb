"""Calls among the GPUs of several ranks, as launches of a step."""

from __future__ import annotations

import math
from typing import Any, Final

from magmadnn.backends.cuda.nodes.among_gpus import AmongNode, Gpus, Kind
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.op import Op
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item

# Stands for no memory. All calls write it, so that they run one after the other, as libraries of messages ask
# for, and on all ranks in the order of the plan: a graph would else begin with whichever is ready.
CALLS_IN_ORDER: Final[Span] = (-8, 0)


def is_collective(work: Work) -> bool:
    """Whether a step is one of several ranks."""
    return work.region.kind is RegionKind.COLLECTIVE


def is_gpus_own(work: Work) -> bool:
    """Whether GPUs do it themselves; else the host does."""
    return _op(work).on_device is not None


def calls_of(layout: Layout, work: Work) -> list[Item]:
    """The launch of a call; none where a GPU has nothing to do."""
    node, on_device = work.region.nodes[0], _op(work).on_device
    assert on_device is not None
    found: tuple[Gpus, Kind] | None = on_device(**node.attributes)
    if found is None:
        return []
    gpus, kind = found
    source, (result,) = node.inputs[0], work.needed
    read, made = layout.frames[source], layout.frames[result]
    assert read.flags.c_contiguous and made.flags.c_contiguous
    if kind == "move":  # a rank that sends nothing, or gets nothing, has one element there
        count = math.prod(bind_shape(node.attributes["piece"], layout.sizes))
    else:
        wider = {"gather": gpus.size, "scatter": 1 / gpus.size}.get(kind, 1)
        assert made.size == read.size * wider
        count = {"scatter": made.size, "exchange": read.size // gpus.size}.get(kind, read.size)
    places = layout.address(source), layout.address(result)
    call = AmongNode(gpus, kind, count, source.dtype.name, *places, result.dtype.name)
    return [Item(call, (layout.span(source),), (layout.span(result), CALLS_IN_ORDER))]


def _op(work: Work) -> Op:
    op: Any = work.region.nodes[0].op
    assert isinstance(op, Op)
    return op
