"""Matrices that products may read in place, though their rows and columns are each several axes of memory.

The windows over an image, as the matrix of a convolution's product, are such a view: `[n, y, x, i, j, c]`
joined to `[n * y * x, i * j * c]`. A copy of it holds each place as often as there are windows over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magmadnn.compiler.layout import Joinable
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

from .loads import is_product


def joinable(program: Program, compilable: Callable[[Node], bool]) -> dict[Node, Joinable]:
    """Matrices that only products read, as one of their factors: as they are, or by a movement of the matrix.

    Args:
        program: what is compiled.
        compilable: whether compiled code can do a node.

    Returns:
        Movements that give such a matrix from more than two axes. `Layouts` says which need no memory.
    """
    users, roots = program.readers, set(program.roots)

    def are_products(readers: Iterable[Node], factor: Node) -> bool:
        return all(_is_factor(factor, reader) and compilable(reader) for reader in readers)

    found = {}
    for node in program.nodes():
        if _is_movement(node) and node.inputs[0].ndim > 2 and users[node]:
            moved = tuple(reader for reader in users[node] if _is_movement(reader))
            inside = roots.isdisjoint((node, *moved)) and all(users[other] for other in moved)
            direct = (reader for reader in users[node] if reader not in moved)
            if inside and are_products(direct, node):
                if all(are_products(users[other], other) for other in moved):
                    factors = (node, *moved)
                    found[node] = Joinable(moved, any(_is_second(users[f], f) for f in factors))
    return found


def _is_movement(node: Node) -> bool:
    """Whether it gives a matrix of the elements of one operand."""
    moves = isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT
    return moves and node.ndim == 2 and len(node.inputs) == 1


def _is_factor(node: Node, reader: Node) -> bool:
    """Whether a product of two matrices reads it as one of them."""
    return is_product(reader) and reader.ndim == 2 and reader.inputs.count(node) == 1


def _is_second(readers: Iterable[Node], factor: Node) -> bool:
    """Whether a product reads it as its second factor."""
    return any(is_product(reader) and reader.inputs[1] is factor for reader in readers)
