"""Steps of complex numbers: ops' NumPy functions on arrays where they lie on the device.

A library with NumPy's interface computes them there, between the graphs of a step. What it lacks is computed
on the host, on copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.backends.cuda.nodes.arrays import ArrayNode, DeviceArray
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.errors import MagmaDNNError
from magmadnn.graph.dim import substitute
from magmadnn.graph.node import Node, naming_scope
from magmadnn.graph.op import Op
from magmadnn.memory.dtypes import is_complex
from magmadnn.runtime.cuda.layout import Layout


def takes_arrays(work: Work) -> bool:
    """Whether a step is one of complex numbers, which no kernel has."""
    kinds = (RegionKind.CALL, RegionKind.LIBRARY)
    return work.region.kind in kinds and all(map(_is_complex, work.region.nodes))


def _is_complex(node: Node) -> bool:
    return isinstance(node.op, Op) and any(is_complex(n.dtype) for n in (node, *node.inputs))


def array_call(layout: Layout, work: Work) -> ArrayNode:
    """The call of one step, on memory as it is laid out now."""
    made, bases = set(work.region.nodes), layout.plan.layouts.bases
    read = dict.fromkeys(
        i
        for node in work.region.nodes
        for i in node.inputs
        if i not in made and bases[i] not in made
    )
    needed = list(dict.fromkeys(work.needed))

    def run(arrays: Sequence[Any]) -> None:
        known: dict[Node, Any] = dict(zip(read, arrays[: len(read)], strict=True))
        for node in work.region.nodes:
            operands = [_operand(layout, i, known) for i in node.inputs]
            attributes = {k: substitute(v, layout.sizes) for k, v in node.attributes.items()}
            with naming_scope(node):
                known[node] = computed(node, operands, attributes)
        for node, goal in zip(needed, arrays[len(read) :], strict=True):
            goal[...] = known[node]

    label = ", ".join(dict.fromkeys(node.op.name for node in made if isinstance(node.op, Op)))
    arrays = tuple(_array(layout, node) for node in (*read, *needed))
    return ArrayNode(f"arrays {label}", arrays, run)


def _array(layout: Layout, node: Node) -> DeviceArray:
    frame = layout.frames[node]
    return DeviceArray(layout.address(node), frame.shape, frame.strides, frame.dtype)


def _operand(layout: Layout, node: Node, known: Mapping[Node, Any]) -> Any:
    """A value: one that is there, just computed, or a view of such."""
    if node in known:
        return known[node]
    return layout.viewed(node, _operand(layout, node.inputs[0], known))


def computed(node: Node, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """An op's NumPy function of arrays of whichever library; on the host where that has no such function."""
    op = node.op
    assert isinstance(op, Op)
    try:
        with np.errstate(all="ignore"):
            found = op.numpy(*operands, **attributes)
            return found if found.dtype == node.dtype else found.astype(node.dtype)
    except (TypeError, AttributeError, NotImplementedError, ValueError, RuntimeError) as error:
        if isinstance(error, MagmaDNNError):
            raise
        on_host = [x.get() if hasattr(x, "get") else x for x in operands]  # CuPy's name for a copy
        like = next((x for x in operands if hasattr(x, "get")), None)
        result = op.forward(on_host, attributes, node.dtype)
        return result if like is None else np.asarray(result, like=like)
