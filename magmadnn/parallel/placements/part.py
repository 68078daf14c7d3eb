"""A rank's part of a variable."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import variable
from magmadnn.graph.op import Array
from magmadnn.graph.placing import Placement, Shard, local_shape, ranks_on
from magmadnn.runtime.variables import tensor_of
from magmadnn.tensor import Tensor, Variable

from .layouts import strips

if TYPE_CHECKING:
    from magmadnn.dmath.layouts.layout import Layout


class Part:
    """This rank's part of a variable.

    Args:
        whole: the variable, all of it.
        placement: which ranks have what of it: parts of an axis, or copies.
        communicator: the ranks.

    Attributes:
        on: the ranks that have a part, in the order of parts.
        is_here: whether this rank is one of them.
        own: a variable of the shape of a part; it has a value on ranks that have one.
    """

    def __init__(self, whole: Node, placement: Placement, communicator: Communicator) -> None:
        self.whole, self.placement, self._comm = whole, placement, communicator
        self.on = ranks_on(placement.on, communicator.size)
        self.is_here = communicator.rank in self.on
        self._axis = placement.axis if isinstance(placement, Shard) else None
        shape = bind_shape(local_shape(whole.shape, placement, communicator.size), {})
        self._each = 0 if self._axis is None else shape[self._axis]
        if self.is_here:
            held = Tensor.wrap(np.zeros(shape, whole.dtype))
            self.own = Variable(str(whole.name), held).node
        else:  # this rank's program has no such node
            self.own = variable(whole.name, Spec(shape, whole.dtype), whole.value)
        self._given: int | None = None  # version of the whole value that this part is one of

    @property
    def layout(self) -> Layout:
        """Where the elements lie."""
        from magmadnn.dmath.layouts.layout import replicated

        shape = bind_shape(self.whole.shape, {})
        if self._axis is None:
            return replicated(shape, self._comm.size, self.on)
        return strips(shape, self._axis, self._comm.size, self.on)

    def take(self) -> None:
        """Go on from this rank's part of the whole value, whose memory is given back.

        The part stays as it is where nobody has written the whole value since it was made of parts.
        """
        held = tensor_of(self.whole)
        is_known = self._given is not None and self._given == held.memory.version
        if self.is_here and not is_known:
            self.own.value.write(self.own_part())
        if self._comm.size > 1:
            held.set_aside()

    def own_part(self) -> Array:
        """This rank's part of the whole value."""
        value = tensor_of(self.whole).read()
        if self._axis is None:
            return np.array(value, order="C")
        first = self._each * self.on.index(self._comm.rank)
        at = (slice(None),) * self._axis + (slice(first, first + self._each),)
        return np.ascontiguousarray(value[at])

    def give(self) -> None:
        """The whole value is that of the parts of all that have one; all ranks call it."""
        axis = self._axis
        if axis is None:  # the first of those that have a copy gives it
            shape = bind_shape(self.whole.shape, {})
            mine = self.own.value.read().reshape(-1) if self._comm.rank == self.on[0] else None
            found = self._rows(mine, (math.prod(shape),), self.on[:1]).reshape(shape)
        else:
            shape = self.own.shape
            moved = (shape[axis], *shape[:axis], *shape[axis + 1 :])
            mine = np.moveaxis(self.own.value.read(), axis, 0) if self.is_here else None
            found = np.moveaxis(self._rows(mine, moved, self.on), 0, axis)
        held = tensor_of(self.whole)
        held.bring_back()
        held.write(np.ascontiguousarray(found))
        self._given = held.memory.version

    def _rows(self, mine: Array | None, shape: tuple[int, ...], on: tuple[int, ...]) -> Array:
        """The rows of some ranks, in their order; a rank that gives none has None."""
        if on == ranks_on(None, self._comm.size):
            assert mine is not None
            whole: Array = self._comm.all_gather(np.ascontiguousarray(mine))
            return whole
        rows = np.empty((0, *shape[1:]), self.whole.dtype) if mine is None else mine
        counts = [shape[0] if rank in on else 0 for rank in range(self._comm.size)]
        found = self._comm.all_gather(np.ascontiguousarray(rows), counts=counts)
        places = [sorted(on).index(rank) * shape[0] for rank in on]
        return np.concatenate([found[at : at + shape[0]] for at in places])
