"""Values that are computed where they are read, though the region before them could compute them too.

What is made of a matrix by one operation with a row (g * scale in the gradient of a normalisation) is as
large as the matrix. Where that is reduced over its rows it lies in memory anyway, and a reader that waits for
the sums walks over memory again: it reads the matrix as fast as what was made of it, which then need not be
written.
"""

from __future__ import annotations

from magmadnn.compiler.formulas import is_pointwise, operations
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program


def late_nodes(program: Program) -> set[Node]:
    """Such values, each with a single reader that waits for reductions."""
    nodes, roots = program.nodes(), set(program.roots)
    sums: dict[Node, set[Node]] = {}  # the reductions that each node depends on
    found, reduced = set(), set()
    for node in nodes:
        sums[node] = set().union(*(sums[i] for i in node.inputs))
        if (matrix := _reduced_by(node)) is not None:
            sums[node].add(node)
            reduced.add(matrix)
    for node in nodes:
        matrix = _made_of(node)
        if matrix is None or node in roots or len(program.readers[node]) != 1:
            continue
        (reader,) = program.readers[node]
        waits = sums[reader] - sums[node]
        if waits and matrix in reduced and is_pointwise(reader) and reader.shape == node.shape:
            found.add(node)
    return found


def _reduced_by(node: Node) -> Node | None:
    """The matrix that a node combines all rows of, as it is or after operations element by element."""
    kind = node.op.kind if isinstance(node.op, Op) else OpKind.OTHER
    if kind is not OpKind.REDUCTION or node.inputs[0].ndim < 2:
        return None
    source = node.inputs[0]
    return source if node.attributes.get("axis") == tuple(range(source.ndim - 1)) else None


def _made_of(node: Node) -> Node | None:
    """The matrix that a node makes by one operation with what is the same in every row."""
    if not is_pointwise(node) or operations(node) != 1:
        return None
    full = [i for i in node.inputs if i.shape == node.shape]
    rows = (i for i in node.inputs if i.shape != node.shape)
    few = len(full) == 1 and all(product(i.shape[:-1]) == 1 for i in rows)
    return full[0] if few else None
