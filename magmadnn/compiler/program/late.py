"""Values that are computed where they are read, though the region before them could compute them too.

What is made of a matrix by one operation with a row (g * scale in the gradient of a normalisation) is as
large as the matrix. Where that is reduced over its rows it lies in memory anyway, and a reader that waits for
the sums walks over memory again: it reads the matrix as fast as what was made of it, which then need not be
written.

Likewise what is made by one operation of a matrix of which its reader also reads parts, as the windows of
a pooling are: whether an element is NaN, which place a window chose. The matrix lies in memory, since parts
of it are read, and its reader walks over it anyway.

So is what a product is multiplied with before its rows are summed, if a formula that waits for the sums reads
both factors: in the gradient of attention's softmax, `p * (dp - sum(p * dp))`.
"""

from __future__ import annotations

from magmadnn.compiler.formulas import is_contraction, is_pointwise, operations, widens
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

_STEPS = 3  # from a value to the one that is made of parts too
_MOST_LOOKED_AT = 64  # values of a formula


def late_nodes(program: Program) -> set[Node]:
    """Such values: with a single reader that waits for reductions, or that reads parts of the same matrix."""
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
    return found | _beside_parts(program) | _summed_beside(program)


def _summed_beside(program: Program) -> set[Node]:
    """Values made by one operation of a product and summed over rows, whose operands are read behind that."""
    nodes, readers, roots = program.nodes(), program.readers, set(program.roots)
    made: dict[Node, Node] = {}  # by their sums
    behind: dict[Node, set[Node]] = {}  # the sums that a node depends on
    for node in nodes:
        of = set[Node]().union(*(behind.get(i, ()) for i in node.inputs))
        if (value := _summed(node)) is not None and readers[value] == [node] and value not in roots:
            made[node] = value
            of.add(node)
        if of:
            behind[node] = of
    return {
        value
        for total, value in made.items()
        if all(any(total in behind.get(r, ()) for r in readers[i]) for i in value.inputs)
    }


def _summed(node: Node) -> Node | None:
    """What a node adds along the last axis, if that is one operation on a product and matrices like it."""
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.REDUCTION:
        return None
    value = node.inputs[0]
    if node.attributes.get("axis") != (value.ndim - 1,) or not is_pointwise(value):
        return None
    alike = operations(value) == 1 and all(i.shape == value.shape for i in value.inputs)
    return value if alike and any(map(is_contraction, value.inputs)) else None


def _beside_parts(program: Program) -> set[Node]:
    """Values made by one operation of such matrices, or such values, whose reader reads parts of them too."""
    readers, roots = program.readers, set(program.roots)
    parts: dict[Node, set[Node]] = {}  # movements that are parts of each matrix
    for node in program.nodes():
        if _moves(node) and product(node.shape) != product(node.inputs[0].shape):
            parts.setdefault(_whole(node.inputs[0]), set()).add(node)
    found: dict[Node, set[Node]] = {}
    for node in program.nodes() if parts else ():
        if not is_pointwise(node) or operations(node) != 1 or node in roots:
            continue
        own = [
            found.get(i) or parts.get(_whole(i), set())
            for i in node.inputs
            if i.shape == node.shape
        ]
        if own and all(own) and _reads_parts(node, set().union(*own), readers):
            found[node] = set().union(*own)
    return set(found)


def _moves(node: Node) -> bool:
    kind = node.op.kind if isinstance(node.op, Op) else OpKind.OTHER
    return kind is OpKind.MOVEMENT and len(node.inputs) == 1


def _whole(node: Node) -> Node:
    """The matrix that a node has all elements of, maybe converted."""
    while widens(node) or (_moves(node) and product(node.shape) == product(node.inputs[0].shape)):
        node = node.inputs[0]
    return node


def _reads_parts(node: Node, parts: set[Node], readers: dict[Node, list[Node]]) -> bool:
    """Whether some of these parts are operands of the formula that a node is in, within a few operations."""
    reader = node
    for _ in range(_STEPS):
        if len(readers[reader]) != 1 or not is_pointwise(readers[reader][0]):
            return False
        below, (reader,) = reader, readers[reader]
        waiting, seen = [i for i in reader.inputs if i is not below], 0
        while waiting and seen < _MOST_LOOKED_AT:
            at = waiting.pop()
            seen += 1
            if at in parts:
                return True
            if is_pointwise(at) or _moves(at):
                waiting += at.inputs
    return False


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
