"""Parameters of some layers end to end, of which each rank keeps an equal piece.

The elements of parameters of one dtype, in C order, make a vector, which is cut into as many rows of n
elements as there are ranks: row r is rank r's piece, so a large kernel is shared by all ranks. The end of the
last rows, and what lies between parameters that begin at multiples of `align`, are zeros that nobody keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.comm import Communicator
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import constant, placeholder
from magmadnn.graph.op import Array
from magmadnn.parallel.buckets import size_of
from magmadnn.runtime.variables import tensor_of
from magmadnn.tensor import Operation, Tensor, Variable


@dataclass
class Piece:
    """This rank's elements of a parameter.

    Attributes:
        whole: the parameter.
        counts: elements that each rank has.
        first: of this rank's, in the parameter.
        at: of this rank's, in its piece of the vector.
        own: a variable with them; None where there are none.
        gradient: a placeholder for the sum of their gradients over shards.
    """

    whole: Node
    counts: list[int]
    first: int
    at: int
    own: Node | None
    gradient: Node | None

    @property
    def shape(self) -> tuple[Any, ...]:
        """Of the whole parameter."""
        return self.whole.shape

    @property
    def count(self) -> int:
        """Elements that this rank has."""
        return 0 if self.own is None else int(self.own.shape[0])

    def cut(self, whole: Array) -> Array:
        """This rank's elements of a whole array, as a vector."""
        return np.ravel(whole)[self.first : self.first + self.count].copy()

    def together(self, comm: Communicator, own: Array | None) -> Array:
        """The whole array from all ranks' elements; all of them call it."""
        mine = np.empty(0, self.whole.dtype) if own is None else np.ascontiguousarray(own)
        flat: Array = comm.all_gather(mine, counts=self.counts)
        return flat.reshape(self.whole.shape)


class Group:
    """The parameters of some layers.

    Args:
        number: its place in the order of computation.
        parameters: in the order of their gradients.
        communicator: the ranks.
        align: elements whose multiples parameters begin at.

    Attributes:
        pieces: of this rank, of each parameter.
        each: elements of a rank's piece, by dtype.
    """

    def __init__(
        self, number: int, parameters: Sequence[Node], communicator: Communicator, align: int = 1
    ) -> None:
        self.number, self._comm = number, communicator
        self.each: dict[np.dtype[Any], int] = {}
        self._starts: dict[Node, int] = {}
        lengths: dict[np.dtype[Any], int] = {}
        for node in parameters:
            start = -(-lengths.get(node.dtype, 0) // align) * align
            self._starts[node], lengths[node.dtype] = start, start + size_of(node.spec)
        for dtype, length in lengths.items():
            self.each[dtype] = -(-length // communicator.size)
        self.pieces = [self._piece(node) for node in parameters]

    def _piece(self, node: Node) -> Piece:
        each, start, rank = self.each[node.dtype], self._starts[node], self._comm.rank
        rows = np.arange(self._comm.size + 1) * each
        inside = np.clip(rows, start, start + size_of(node.spec)).tolist()
        counts = [b - a for a, b in pairwise(inside)]
        first, at = inside[rank] - start, max(inside[rank] - rank * each, 0)
        if not counts[rank]:
            return Piece(node, counts, first, at, None, None)
        own = Variable(str(node.name), Tensor((counts[rank],), dtype=node.dtype)).node
        gradient = placeholder(f"own_gradient_of_{node.name}", Spec(own.shape, node.dtype))
        return Piece(node, counts, first, at, own, gradient)

    @property
    def nbytes(self) -> int:
        """Bytes of all its parameters, whole."""
        return sum(size_of(p.whole.spec) * p.whole.dtype.itemsize for p in self.pieces)

    @property
    def own_bytes(self) -> int:
        """Bytes of this rank's pieces of its parameters."""
        return sum(p.count * p.whole.dtype.itemsize for p in self.pieces)

    # --- values -----------------------------------------------------------------------------------

    def take(self) -> None:
        """Keep this rank's pieces of the whole values, whose memory is given back."""
        for piece in self.pieces:
            held = tensor_of(piece.whole)
            if piece.own is not None:
                piece.own.value.write(piece.cut(held.read()))
            if self._comm.size > 1:
                held.set_aside()

    def give(self) -> None:
        """All ranks have whole values again; all of them call it."""
        for dtype, each in self.each.items():
            row = np.zeros(each, dtype)
            for piece in self._of(dtype):
                if piece.own is not None:
                    row[piece.at : piece.at + piece.count] = piece.own.value.read()
            vector = self._comm.all_gather(row)
            for piece in self._of(dtype):
                start = self._starts[piece.whole]
                held = tensor_of(piece.whole)
                held.bring_back()
                flat = vector[start : start + size_of(piece.whole.spec)]
                held.write(flat.reshape(piece.whole.shape))

    # --- graphs -----------------------------------------------------------------------------------

    def row(self, dtype: np.dtype[Any]) -> Operation:
        """This rank's row of the vector, [each], from what it keeps."""
        own = [(p.at, Operation(p.own)) for p in self._of(dtype) if p.own is not None]
        return end_to_end(own, self.each[dtype], dtype)

    def whole(self, dtype: np.dtype[Any], rows: Operation) -> dict[Node, Node]:
        """Parameters, from the rows of all ranks, [ranks, each]."""
        vector, found = ops.reshape(rows, (self._comm.size * self.each[dtype],)), {}
        for piece in self._of(dtype):
            start = self._starts[piece.whole]
            flat = vector[start : start + size_of(piece.whole.spec)]
            found[piece.whole] = ops.reshape(flat, piece.whole.shape).node
        return found

    def rows(self, dtype: np.dtype[Any], values: Sequence[Operation]) -> Operation:
        """Values of the shapes of the parameters of a dtype as the rows of all ranks, [ranks, each]."""
        ranks, each, pairs = self._comm.size, self.each[dtype], []
        for piece, value in zip(self._of(dtype), values, strict=True):
            flat = ops.reshape(value, (size_of(piece.whole.spec),))
            pairs.append((self._starts[piece.whole], flat))
        found: Operation = ops.reshape(end_to_end(pairs, ranks * each, dtype), (ranks, each))
        return found

    def gradients(self, dtype: np.dtype[Any], row: Operation) -> dict[Node, Node]:
        """What stands for gradients of this rank's pieces, from its row of their sums."""
        return {
            p.gradient: row[p.at : p.at + p.count].node
            for p in self._of(dtype)
            if p.gradient is not None
        }

    def members(self, dtype: np.dtype[Any]) -> list[Node]:
        """The parameters of a dtype, in the order of the vector."""
        return [piece.whole for piece in self._of(dtype)]

    def _of(self, dtype: np.dtype[Any]) -> list[Piece]:
        return [piece for piece in self.pieces if piece.whole.dtype == dtype]


def end_to_end(
    parts: Sequence[tuple[int, Operation]], length: int, dtype: np.dtype[Any]
) -> Operation:
    """Vectors in one vector, each from a place on, in their order; zeros where there is none."""
    found: list[Operation] = []
    at = 0
    for start, value in [*parts, (length, None)]:
        if start > at:
            found.append(Operation(constant(np.zeros(start - at, dtype))))
        if value is not None:
            found.append(value)
            at = start + size_of(value.node.spec)
    vector: Operation = found[0] if len(found) == 1 else ops.concat(found, axis=0)
    return vector
