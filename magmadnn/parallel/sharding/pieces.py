"""Parameters of some layers end to end, of which each rank keeps an equal piece.

The elements of parameters of one dtype, in C order, make a vector of n elements; rank r of P has those from
n * r // P to n * (r + 1) // P, so a large kernel is shared by all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import Array
from magmadnn.parallel.buckets import size_of
from magmadnn.parallel.tree import cuts
from magmadnn.runtime.variables import tensor_of
from magmadnn.tensor import Tensor, Variable


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

    def cut(self, whole: Array) -> Array:
        """This rank's elements of a whole array, as a vector."""
        count = 0 if self.own is None else int(self.own.shape[0])
        return np.ravel(whole)[self.first : self.first + count].copy()

    def together(self, comm: Communicator, own: Array | None) -> Array:
        """The whole array from all ranks' elements; all of them call it."""
        mine = np.empty(0, self.whole.dtype) if own is None else np.ascontiguousarray(own)
        dtype = self.whole.dtype if own is None else mine.dtype
        flat: Array = comm.all_gather(np.asarray(mine, dtype), counts=self.counts)
        return flat.reshape(self.whole.shape)


class Group:
    """The parameters of some layers.

    Args:
        number: its place in the order of computation.
        parameters: in the order of their gradients.
        communicator: the ranks.

    Attributes:
        pieces: of this rank, of each parameter.
        bounds: where each rank's piece of a vector begins, by dtype, and its length.
    """

    def __init__(self, number: int, parameters: Sequence[Node], communicator: Communicator) -> None:
        self.number, self._comm = number, communicator
        self.pieces: list[Piece] = []
        self.bounds: dict[np.dtype[Any], list[int]] = {}
        self._starts: dict[Node, int] = {}
        self.fed = {p: placeholder(str(p.name), p.spec) for p in parameters}
        lengths: dict[np.dtype[Any], int] = {}
        for node in parameters:
            self._starts[node] = lengths.get(node.dtype, 0)
            lengths[node.dtype] = self._starts[node] + size_of(node.spec)
        for dtype, length in lengths.items():
            self.bounds[dtype] = cuts(length, communicator.size)
        self.pieces = [self._piece(node) for node in parameters]

    def _piece(self, node: Node) -> Piece:
        bounds, start, rank = self.bounds[node.dtype], self._starts[node], self._comm.rank
        inside = np.clip(bounds, start, start + size_of(node.spec)).tolist()
        counts = [b - a for a, b in pairwise(inside)]
        first, at = inside[rank] - start, max(inside[rank] - bounds[rank], 0)
        if not counts[rank]:
            return Piece(node, counts, first, at, None, None)
        own = Variable(str(node.name), Tensor((counts[rank],), dtype=node.dtype)).node
        wide = np.dtype(np.float64 if node.dtype == np.float64 else np.float32)
        gradient = placeholder(f"own_gradient_of_{node.name}", Spec((counts[rank],), wide))
        return Piece(node, counts, first, at, own, gradient)

    @property
    def nbytes(self) -> int:
        """Bytes of all its parameters, whole."""
        return sum(bounds[-1] * dtype.itemsize for dtype, bounds in self.bounds.items())

    @property
    def own_bytes(self) -> int:
        """Bytes of this rank's pieces of its parameters."""
        return sum(
            int(np.prod(p.own.shape)) * p.own.dtype.itemsize
            for p in self.pieces
            if p.own is not None
        )

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
        found = self.gathered(self.sources())
        for piece in self.pieces:
            held = tensor_of(piece.whole)
            held.bring_back()
            held.write(found[self.fed[piece.whole]])

    def sources(self) -> list[Array]:
        """This rank's piece of the vector of each dtype, in the order of `bounds`."""
        found = []
        for dtype in self.bounds:
            own = [
                p.own.value.read()
                for p in self.pieces
                if p.own is not None and p.own.dtype == dtype
            ]
            found.append(np.concatenate(own) if own else np.empty(0, dtype))
        return found

    def gathered(self, sources: Sequence[Array]) -> dict[Node, Array]:
        """Whole parameters, by what stands for them in programs; all ranks call it."""
        vectors = {}
        for source, (dtype, bounds) in zip(sources, self.bounds.items(), strict=True):
            vectors[dtype] = self._comm.all_gather(source, counts=np.diff(bounds).tolist())
        found = {}
        for node, fed in self.fed.items():
            start = self._starts[node]
            flat = vectors[node.dtype][start : start + size_of(node.spec)]
            found[fed] = flat.reshape(node.shape)
        return found
