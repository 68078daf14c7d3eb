"""Products of stacks of matrices: where the matrices lie, for one launch or for a library's products."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from magmadnn.backends.cuda.engine import ProductNode
from magmadnn.compiler.kernels.gemm import Gemm, axis_slots
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import Node
from magmadnn.runtime.cuda.layout import Layout


def products_of(node: Node, layout: Layout, whole: ProductNode) -> list[ProductNode]:
    """The products of a contraction: one, where its operands are matrices or these lie in equal steps.

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
    apart = [
        _even_step(
            side, layout.frames[operand].itemsize
        )  # halves that the product widens are halves
        for side, operand in zip(places, node.inputs, strict=False)
    ]
    if None not in apart:
        steps = (apart[0] or 0, apart[1] or 0, rows * whole.strides[2])
        count = len(places[0])
        return [
            replace(whole, sizes=sizes, a=places[0][0], b=places[1][0], count=count, steps=steps)
        ]
    return [
        replace(whole, sizes=sizes, a=a, b=b, c=whole.c + number * step)
        for number, (a, b) in enumerate(zip(*places, strict=True))
    ]


def apart(
    gemm: Gemm, values: Mapping[str, int]
) -> tuple[Gemm, dict[str, tuple[tuple[int, int], ...]]]:
    """A product whose first factor's rows are two axes of memory, as one of a stack that shares the second.

    Returns:
        The product of each matrix, and the axes that `stack_axes` gives of a stack.
    """
    sizes = [values[slot] for slot in axis_slots("a", "row")]
    (count, step), (_, row) = zip(sizes[-4::2], sizes[-3::2], strict=True)
    assert row == values["lda"]
    return replace(gemm, joined_a=0), {"a": ((count, step),), "b": ((count, 0),)}


def _even_step(places: list[int], itemsize: int) -> int | None:
    """Elements from one address to the next; None where they differ."""
    apart = {after - before for before, after in itertools.pairwise(places)}
    if len(apart) > 1 or any(step < 0 or step % itemsize for step in apart):
        return None
    return next(iter(apart), 0) // itemsize


def stack_axes(node: Node, layout: Layout) -> dict[str, tuple[tuple[int, int], ...]]:
    """The axes along which the factors `a` and `b` of a contraction are stacked.

    Matrices along each, the same of both, and elements from one to the next: 0 where one serves all.
    """
    leading = bind_shape(node.shape, layout.sizes)[:-2]
    found = {}
    for side, operand in zip("ab", node.inputs, strict=False):
        frame = layout.frames[operand]
        strides = np.broadcast_to(frame, (*leading, *frame.shape[-2:])).strides
        steps = [stride // frame.itemsize for stride in strides[:-2]]
        found[side] = tuple(zip(leading, steps, strict=True))
    return found


def _places(operand: Node, leading: tuple[int, ...], layout: Layout) -> list[int]:
    """The addresses of an operand's matrices, each as often as it is used."""
    frame = layout.frames[operand]
    stack = np.broadcast_to(frame, (*leading, *frame.shape[-2:]))
    start = layout.address(operand) - frame.ctypes.data
    return [start + stack[index].ctypes.data for index in np.ndindex(*leading)]
