"""What is made only to be reduced over rows: the reduction's own kernel computes it as it reads.

So `sum((x - mean) ** 2, axis=0)` reads x, and nothing is stored for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magmadnn.compiler.formulas import is_cheap, is_pointwise
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    PADDED,
    ROW,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
)
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.region import is_reduction
from magmadnn.graph.dim import product
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program

_READ = (FULL, ROW, COLUMN, SCALAR)  # how such kernels read operands,
_ALSO = (STRIDED, STRIDED_COLUMN, PADDED)  # and where they combine all rows of one matrix
_STREAMS = (FULL, STRIDED, PADDED)
# ops whose kernels compute nothing besides, so that their results are stored,
_STORES = (OpKind.GATHER, OpKind.SCATTER, OpKind.KERNEL, OpKind.LIBRARY, OpKind.LOOP, OpKind.RESULT)
_READS_MEMORY = (*_STORES, OpKind.CONTRACTION)  # and those that read what is stored
_MOST = 16  # nodes that one reduction computes for each element
MOST_STREAMS = 6  # matrices that it reads


class Producers:
    """Finds what reductions over rows compute for themselves.

    Args:
        program: what is compiled.
        layouts: how values lie in memory.
        compilable: whether compiled code can do a node.
        is_walked: whether a reduction becomes a region of columns,
        is_whole: or one of all elements as a single row; others compute nothing for themselves.

    Attributes:
        inner: all of that; it belongs to the reduction's region.
    """

    def __init__(
        self,
        program: Program,
        layouts: Layouts,
        compilable: Callable[[Node], bool],
        is_walked: Callable[[Node], bool],
        is_whole: Callable[[Node], bool],
    ) -> None:
        self._layouts, self._compilable = layouts, compilable
        self._roots = {layouts.bases[root] for root in program.roots}
        self._readers: dict[Node, list[Node]] = {}
        nodes = program.nodes()
        for node in nodes:
            for base in {layouts.bases[i] for i in node.inputs}:
                if not layouts.is_view(node):
                    self._readers.setdefault(base, []).append(node)
        self._position = {node: k for k, node in enumerate(nodes)}
        walked = [n for n in nodes if reduces_rows(n) and compilable(n) and is_walked(n)]
        self._of = {n: self._found(n) for n in walked}
        whole = [n for n in nodes if is_reduction(n) and compilable(n) and is_whole(n)]
        self._of |= {n: self._made_for_all(n) for n in whole}
        self.inner = {node for found in self._of.values() for node in found}

    def of(self, reduction: Node) -> list[Node]:
        """What a reduction computes of each element before it combines them, in order."""
        return self._of.get(reduction, [])

    def streams(self, reduction: Node) -> set[Node]:
        """The matrices that it reads, as large as the one that it reduces."""
        made = self.of(reduction)
        return self._streams([*made, reduction], set(made), reduction.inputs[0])

    def _made_for_all(self, reduction: Node) -> list[Node]:
        """The same for a reduction of all elements, which are read in the order in which they lie.

        Only what is cheap, of values that are stored anyway: below a length one thread computes all of it.
        """
        source, found = reduction.inputs[0], self._found(reduction)
        length = product(source.shape)
        inner = set(found)
        read = {i for node in found for i in node.inputs if i not in inner}
        in_order = all(
            self._layouts.is_run(i, (), length)
            or self._layouts.spread(i, source.shape[:-1], source.shape[-1]) == SCALAR
            for i in read
        )
        stored = all(map(self._is_stored, self._streams(found, inner, source)))
        return found if in_order and stored and all(map(is_cheap, found)) else []

    def _is_stored(self, base: Node) -> bool:
        """Whether a value lies in memory whoever else computes with its elements."""
        if not isinstance(base.op, Op) or base in self._roots or base.op.kind in _STORES:
            return True
        return any(
            isinstance(node.op, Op) and node.op.kind in _READS_MEMORY
            for node in self._readers[base]
        )

    def _found(self, reduction: Node) -> list[Node]:
        source, found = reduction.inputs[0], set[Node]()
        reads = (*_READ, *_ALSO) if reduces_rows(reduction) else _READ
        stack = [(source, reduction)]
        while stack:
            node, reader = stack.pop()
            if self._is_private(node, reader, source, reads):
                found.add(node)
                stack += [(self._rounded(i), node) for i in dict.fromkeys(node.inputs)]
        streams = self._streams([*found, reduction], found, source)
        if len(found) > _MOST or len(streams) > MOST_STREAMS or self._stores_more(streams, found):
            return []
        return sorted(found, key=self._position.__getitem__)

    def _is_private(self, node: Node, reader: Node, source: Node, reads: tuple[str, ...]) -> bool:
        """Whether a node is computed element by element, for one reader only."""
        if not is_pointwise(node) or not self._compilable(node) or self._layouts.is_view(node):
            return False
        if node.shape != source.shape or node in self._roots or self._readers[node] != [reader]:
            return False
        own = (i for i in reader.inputs if self._layouts.bases[i] is node)
        rows, columns = source.shape[:-1], source.shape[-1]
        return all(self._rounded(i) is node for i in own) and all(
            self._layouts.spread(i, rows, columns) in reads for i in node.inputs
        )

    def _rounded(self, node: Node) -> Node:
        """What a value is widened of, where that is no pass over memory; the value itself otherwise."""
        return node.inputs[0] if self._layouts.loaded(node) is node else node

    def _streams(self, readers: Iterable[Node], inner: set[Node], source: Node) -> set[Node]:
        rows, columns = source.shape[:-1], source.shape[-1]
        read = (i for node in readers for i in node.inputs if self._rounded(i) not in inner)
        return {
            self._layouts.bases[i]
            for i in read
            if self._layouts.spread(i, rows, columns) in _STREAMS
        }

    def _stores_more(self, streams: set[Node], inner: set[Node]) -> bool:
        """Whether more would be stored than what is reduced: values that nobody else reads."""
        alone = [
            base
            for base in streams
            if isinstance(base.op, Op)
            and base not in self._roots
            and all(reader in inner for reader in self._readers[base])
        ]
        return len(alone) > 1


def reduces_rows(node: Node) -> bool:
    """Whether a node combines the rows of one matrix: all axes but the last."""
    if not is_reduction(node) or node.inputs[0].ndim < 2:
        return False
    return bool(node.attributes.get("axis") == tuple(range(node.inputs[0].ndim - 1)))
