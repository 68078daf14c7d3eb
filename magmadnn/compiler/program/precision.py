"""precision: contractions get operands of half precision; sums and everything else stay as they are.

Unlike all other passes it changes values, on purpose. So it runs first, and for every executor: the
reference computes the same rounded products. A rounded operand is a cast there and back. A value that a
product reads is rounded for whatever else reads it too, so that it is stored once; variables, what is fed and
what a program gives keep their digits. A bias is rounded where the sum, or its activation, will be: a
library then does it all. A gradient of an image that is a sum of others, of which one is a convolution's, is
rounded where it is stored: a residual block has one for its whole size, which several kernels read. So is
what is pooled, and the gradient of that (`Op.in_halves`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from magmadnn.compiler.formulas import is_contraction, is_pointwise, is_sum, operations
from magmadnn.compiler.layout import Layouts
from magmadnn.errors import UnknownNameError
from magmadnn.graph.body import with_bodies
from magmadnn.graph.node import CONSTANT, Node, scoped, with_inputs
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import parts
from magmadnn.memory.dtypes import BFLOAT16

PRECISIONS = ("float32", "tf32", "mixed_bf16", "mixed_fp16", "float64")

_IMAGE_AXES = 4  # batch, two of places, channels
_FEW = 2  # operations

_HALVES: dict[str, np.dtype[Any]] = {
    "mixed_bf16": BFLOAT16,
    "mixed_fp16": np.dtype(np.float16),
}


def half_of(mode: str) -> str | None:
    """The dtype that operands of products are rounded to; None where they are not."""
    return _HALVES[mode].name if mode in _HALVES else None


def precision(program: Program, mode: str) -> Program:
    """Round the float32 operands of all contractions as `mode` says.

    Args:
        program: any; values of other dtypes than float32 are left alone.
        mode: one of `PRECISIONS`. Only the mixed ones change the program: "float64" says how a model is
            built, and "tf32" allows devices that have it to round within a product.

    Raises:
        UnknownNameError: if there is no such precision.
    """
    if mode not in PRECISIONS:
        raise UnknownNameError.of("precision", mode, PRECISIONS)
    if mode not in _HALVES:
        return program
    run = partial(_rounded_products, half=_HALVES[mode])
    return run(with_bodies(program, run))


def _rounded_products(program: Program, half: np.dtype[Any]) -> Program:
    layouts = Layouts(program.nodes())
    read = {
        layouts.bases[i] for node in program.nodes() if is_contraction(node) for i in node.inputs
    }
    wanted = {n for n in read if n.dtype == np.float32 and n.op is not CONSTANT}
    biases = _biases(program, wanted)
    wanted |= _sums_of_images(program) | _kept_in_halves(program, layouts)
    wanted |= _parts_of(wanted, program)
    new: dict[Node, Node] = {}
    rounded: dict[Node, Node] = {}
    for node in program.nodes():
        inputs = tuple(
            rounded[i] if i in rounded and _reads_rounded(node, i, layouts) else new[i]
            for i in node.inputs
        )
        if node in biases:
            inputs = tuple(_rounded(i, half) if i is new[biases[node]] else i for i in inputs)
        new[node] = with_inputs(node, inputs)
        if node in wanted and _joins(node):
            rounded[node] = with_inputs(node, tuple(rounded[i] for i in node.inputs))
        elif node in wanted:
            rounded[node] = _rounded(new[node], half)
        elif layouts.is_view(node) and node.inputs[0] in rounded:
            rounded[node] = with_inputs(node, (rounded[node.inputs[0]],))
    return program.with_roots([new[root] for root in program.roots])


def _joins(node: Node) -> bool:
    """Whether a node has other values beside each other, which can be rounded before that."""
    is_moved = isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT and len(node.inputs) > 1
    return is_moved and all(isinstance(i.op, Op) and i.dtype == node.dtype for i in node.inputs)


def _parts_of(wanted: set[Node], program: Program) -> set[Node]:
    """The parts of what has others beside each other: they are stored once, in halves."""
    found = set[Node]()
    for node in reversed(program.nodes()):
        if (node in wanted or node in found) and _joins(node):
            found.update(node.inputs)
    return found


def _kept_in_halves(program: Program, layouts: Layouts) -> set[Node]:
    """What ops that are computed in halves read and give, but for numbers of places."""
    nodes = [n for n in program.nodes() if isinstance(n.op, Op) and n.op.in_halves]
    found = {*nodes, *(layouts.bases[n.inputs[0]] for n in nodes)}
    return {n for n in found if n.dtype == np.float32 and n.op is not CONSTANT}


def _biases(program: Program, wanted: set[Node]) -> dict[Node, Node]:
    """Sums of a product and a vector that become operands of products, at most after an activation."""
    found = {}
    for node in program.nodes():
        activated = [n for n in program.readers[node] if n.inputs == (node,) and is_pointwise(n)]
        if is_sum(node) and is_contraction(node.inputs[0]) and wanted & {node, *activated}:
            bias = node.inputs[1]
            if bias.ndim == 1 and bias.dtype == np.float32 and bias.op is not CONSTANT:
                found[node] = bias
    return found


def _sums_of_images(program: Program) -> set[Node]:
    """Sums of a convolution's result and another image, after what is done to them before they are stored."""
    readers, roots = program.readers, set(program.roots)
    found = set()
    for node in program.nodes():
        if not _adds_images(node) or not any(map(is_contraction, node.inputs)):
            continue
        while len(readers[node]) == 1 and _follows(readers[node][0], node):
            (node,) = readers[node]
        if len(readers[node]) > 1 and node not in roots:
            found.add(node)
    return found


def _adds_images(node: Node) -> bool:
    """Whether a node adds two arrays of the same size, each of several matrices."""
    return (
        is_sum(node)
        and node.ndim >= _IMAGE_AXES
        and node.dtype == np.float32
        and all(i.shape == node.shape for i in node.inputs)
    )


def _follows(reader: Node, node: Node) -> bool:
    """Whether a reader is a further sum, or cuts a gradient where an activation was cut."""
    same = is_pointwise(reader) and all(i.shape == node.shape for i in reader.inputs)
    return same and len(reader.inputs) == 2 and operations(reader) <= _FEW


def _reads_rounded(node: Node, operand: Node, layouts: Layouts) -> bool:
    """Whether a node reads an operand with the digits of `half`: all but variables and what is fed."""
    return is_contraction(node) or isinstance(layouts.bases[operand].op, Op)


def _rounded(operand: Node, half: np.dtype[Any]) -> Node:
    """The operand with the digits that `half` has, in float32."""
    cast = parts().cast
    with scoped(operand.path):
        return cast(cast(operand, dtype=half.name), dtype="float32")
