"""Reductions that choose an element need one at least, and kernels do not look whether there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from magmadnn.compiler.kernels.columns import DEVIATIONS
from magmadnn.compiler.kernels.rows import CHOOSING, COMBINED
from magmadnn.graph.dim import Dim, bind_shape, substitute
from magmadnn.graph.node import Node, naming_scope
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

Choice = tuple[Node, Dim]


def open_choices(program: Program) -> tuple[Choice, ...]:
    """Reductions that choose along axes whose sizes are not known, with each of these sizes.

    Those of the program as it was given: what other ops are made of may have nothing to choose from where
    nobody reads what is chosen.
    """
    return tuple(
        (node, size)
        for node in program.nodes()
        if isinstance(node.op, Op) and _chooses(node.op)
        for axis in _axes(node)
        if isinstance(size := node.inputs[0].shape[axis], Dim)
    )


def _chooses(op: Op) -> bool:
    """Whether an op gives one of the elements, or its place: no other reduction goes without a name."""
    named = op.contracts in (*COMBINED, DEVIATIONS)
    return op.kind is OpKind.REDUCTION and (op.contracts in CHOOSING or not named)


def _axes(node: Node) -> tuple[int, ...]:
    """The axes of a reduction; none where a user's own op calls them something else."""
    axes = node.attributes.get("axis")
    return axes if isinstance(axes, tuple) else ()


def check_choices(choices: Iterable[Choice], sizes: Mapping[str, int]) -> None:
    """Before kernels run with these sizes: the op itself says if there is nothing to choose from.

    Raises:
        ShapeError: naming the empty axis.
    """
    for node, size in choices:
        if size.bind(sizes) == 0:
            assert isinstance(node.op, Op)
            x = node.inputs[0]
            attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
            with naming_scope(node):
                node.op.numpy(np.empty(bind_shape(x.shape, sizes), x.dtype), **attributes)
