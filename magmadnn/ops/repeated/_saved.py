"""Which values of a step of a loop are worth their memory, so that a gradient reads them.

A product is: to compute an element of it again takes as many operations as it has terms, to keep it one write
and one read. A sum that takes products is kept in their place, since no gradient of a sum reads its terms: of
a recurrent cell `x w + h u + b` is one value, where its products are two.
"""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.graph.dim import Dim, Size
from magmadnn.graph.node import Node, topological
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import readers_of

_LEAST_TERMS = 16  # of a product: below, its operations take less time than its element in memory


def worth_saving(roots: Sequence[Node]) -> tuple[Node, ...]:
    """The values on the way to `roots` that are to be kept for a gradient, if one is asked for."""
    order = topological(roots)
    readers = readers_of(order)
    found: dict[Node, None] = {}
    for node in order:
        if _is_long_product(node):
            found[node] = None
        terms = [i for i in dict.fromkeys(node.inputs) if i in found]
        if terms and _is_sum(node) and all(_goes_into(i, node, readers[i]) for i in terms):
            for term in terms:
                del found[term]
            found[node] = None
    return tuple(found)


def _is_long_product(node: Node) -> bool:
    """Whether an element takes a chain of many operations: of a contraction, or in a library."""
    kind = node.op.kind if isinstance(node.op, Op) else None
    if kind not in (OpKind.CONTRACTION, OpKind.LIBRARY) or not node.inputs[0].ndim:
        return False
    terms: Size = node.inputs[0].shape[-1]
    return isinstance(terms, Dim) or terms >= _LEAST_TERMS


def _is_sum(node: Node) -> bool:
    return isinstance(node.op, Op) and node.op.name == "add"


def _goes_into(term: Node, node: Node, readers: Sequence[Node]) -> bool:
    """Whether a term is read by a sum alone that is as large."""
    return len(readers) == 1 and term.spec == node.spec
