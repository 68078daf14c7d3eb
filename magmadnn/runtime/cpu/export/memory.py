"""The memory of an object file: buffers, constants, and sizes that kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from magmadnn.compiler.plan.arena import Life
from magmadnn.compiler.plan.export import Fact, Place
from magmadnn.graph.dim import Size, product
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.graph.op import Array


class Memory:
    """What is found out about memory, step after step.

    Attributes:
        buffers: bytes of the values that share each.
        data: constants.
        faults: where kernels note that a number of a row was wrong; None as long as none does.
    """

    def __init__(self) -> None:
        self.buffers: list[tuple[Size, ...]] = []
        self.data: list[bytes] = []
        self.faults: Place | None = None
        self._constants: dict[Node, int] = {}
        self._facts: dict[Node, Fact] = {}

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What is to be stored before the first step."""
        none = [] if self.faults is None else [Fact(self.faults, 0, "int64")]
        return (*self._facts.values(), *none)

    def buffer(self, nbytes: Size) -> Place:
        """A new buffer."""
        self.buffers.append((nbytes,))
        return Place("buffer", len(self.buffers) - 1)

    def shared(self, lives: Iterable[Life]) -> dict[Node, int]:
        """Buffers for values, in the order of phases: one that nobody needs any more, or a new one."""
        made: list[list[Life]] = []
        places: dict[Node, int] = {}
        for life in lives:
            free = [k for k, held in enumerate(made) if held[-1].last < life.first]
            if free:
                number = min(free, key=lambda k: abs(_largest(made[k]) - life.nbytes))
                made[number].append(life)
            else:
                number = len(made)
                made.append([life])
            places[life.node] = len(self.buffers) + number
        self.buffers += [tuple(nbytes_of(h.node.shape, h.node) for h in held) for held in made]
        return places

    def constant(self, node: Node) -> int:
        """The number of the constant that a parameter, or a constant of the graph, becomes."""
        if node not in self._constants:
            self._constants[node] = len(self.data)
            value = node.value.read() if node.op is VARIABLE else node.value
            self.data.append(np.asarray(value, node.dtype).tobytes())
        return self._constants[node]

    def data_place(self, array: Array) -> Place:
        """What never changes, as data of the object file."""
        self.data.append(array.tobytes() or bytes(1))
        return Place("constant", len(self.data) - 1)

    def fact(self, node: Node) -> Place:
        """Where a size lies that kernels read."""
        if node not in self._facts:
            place = self.buffer(node.dtype.itemsize)
            self._facts[node] = Fact(place, node.attributes["dim"], node.dtype.name)
        return self._facts[node].goal

    def wrong_rows(self) -> Place:
        """Where kernels note that a number of a row was wrong."""
        self.faults = self.faults or self.buffer(8)
        return self.faults


def nbytes_of(shape: Sequence[Size], node: Node) -> Size:
    """Bytes of a value of this shape and the node's dtype."""
    return product(shape) * node.dtype.itemsize


def _largest(lives: Sequence[Life]) -> int:
    return max(life.nbytes for life in lives)
