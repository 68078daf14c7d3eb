"""Products of stacks of matrices: one product of the device's library for each pair of matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from magmadnn.backends.cuda.engine import ProductNode
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Node
from magmadnn.runtime.cuda.layout import Layout


def products_of(node: Node, layout: Layout, whole: ProductNode) -> list[ProductNode]:
    """The products of a contraction; a single one, where its operands are matrices.

    Args:
        node: the contraction.
        layout: where its operands lie.
        whole: the product of all rows of the result, of which each gets its part.
    """
    if node.ndim == 2:
        return [whole]
    *leading, rows, _ = bind_shape(node.shape, layout.sizes)
    places = [_places(operand, tuple(leading), layout) for operand in node.inputs[:2]]
    step = rows * whole.strides[2] * node.dtype.itemsize
    sizes = (rows, *whole.sizes[1:])
    return [
        replace(whole, sizes=sizes, a=a, b=b, c=whole.c + number * step)
        for number, (a, b) in enumerate(zip(*places, strict=True))
    ]


def _places(operand: Node, leading: tuple[int, ...], layout: Layout) -> list[int]:
    """The addresses of an operand's matrices, each as often as it is used."""
    frame = layout.frames[operand]
    stack = np.broadcast_to(frame, (*leading, *frame.shape[-2:]))
    start = layout.address(operand) - frame.ctypes.data
    return [start + stack[index].ctypes.data for index in np.ndindex(*leading)]
