"""Parameters and moments that lie on one rank each, and are collected where somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.errors import CheckpointError
from magmadnn.graph import Node
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import as_dtype
from magmadnn.tensor import Tensor, Variable

from .ranks_step import RanksStep


class Scattered:
    """What ranks keep for each other.

    Args:
        communicator: the ranks.
        held: variables of the model, and the rank that has the newest value of each.
        slots: the optimiser's, of this rank, by name.
    """

    def __init__(
        self,
        communicator: Communicator,
        held: Sequence[tuple[Node, int]],
        slots: Mapping[str, Variable],
    ) -> None:
        self._comm, self._held, self._slots = communicator, held, slots
        own = [[name, s.dtype.name, list(bind_shape(s.shape, {}))] for name, s in slots.items()]
        self._places: dict[str, tuple[int, Any, tuple[int, ...]]] = {}
        for rank, named in enumerate(communicator.exchange(own)):
            for name, dtype, shape in named:
                self._places.setdefault(name, (rank, as_dtype(dtype), tuple(shape)))
        self._away = {
            name: np.zeros(shape, dtype)
            for name, (_, dtype, shape) in self._places.items()
            if name not in slots
        }
        self.read_away()

    def read_away(self) -> None:
        """Begin with the slots of other ranks as these have them."""
        for name, (owner, dtype, shape) in self._places.items():
            mine = self._slots.get(name)
            value = np.empty(shape, dtype) if mine is None else np.array(mine.value.read())
            got = self._comm.broadcast(np.ascontiguousarray(value), root=owner)
            if mine is None:
                self._away[name] = got

    def collect(self) -> None:
        """Give all ranks everything; all of them call it."""
        for owner in range(self._comm.size):
            of = [node for node, rank in self._held if rank == owner]
            by: dict[np.dtype[Any], list[Node]] = {}
            for node in of:
                by.setdefault(node.dtype, []).append(node)
            for nodes in by.values():
                values = np.concatenate([np.ravel(node.value.read()) for node in nodes])
                self._comm.broadcast(values, root=owner)
                if owner != self._comm.rank:
                    _give(nodes, values)
        self.read_away()

    def whole(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of all ranks, from that of this one."""
        found = {name: own[name] for name in self._places if name in own}
        found |= {name: Tensor.wrap(array.copy()) for name, array in self._away.items()}
        return {name: found[name] for name in self._places} | {
            name: value for name, value in own.items() if name not in found
        }

    def checked(
        self,
        state: Mapping[str, Any],
        check: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> dict[str, Any]:
        """Arrays of a whole state; `check` looks at this rank's part.

        Raises:
            CheckpointError: if names, shapes or dtypes do not fit.
        """
        away = {name: np.asarray(state[name]) for name in self._away if name in state}
        if missing := sorted(self._away.keys() - away.keys()):
            raise CheckpointError(
                f"state: {missing[0]} is missing; is it of another optimiser or model?"
            )
        for name, array in away.items():
            held = self._away[name]
            if (array.shape, array.dtype) != (held.shape, held.dtype):
                raise CheckpointError(
                    f"state: {name} must be {held.dtype.name} of shape {held.shape}, got "
                    f"{array.dtype.name} of shape {array.shape}"
                )
        return away | check({k: v for k, v in state.items() if k not in away})

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the others' parts of a whole state, which was checked."""
        self._away = {name: np.array(state[name]) for name in self._away}


class ScatteredStep(RanksStep):
    """A step whose parameters or moments lie on one rank each between steps."""

    is_scattered = True
    _scattered: Scattered

    def collect(self) -> None:
        """Give all ranks what others have: parameters and states that are held apart, and all moments."""
        self._scattered.collect()

    def state(self) -> dict[str, Tensor]:
        """All that all ranks keep, as it was when it was collected."""
        return self._scattered.whole(super().state())

    def check_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Look whether `load_state` takes this; gives the arrays."""
        return self._scattered.checked(state, super().check_state)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, on any number of ranks."""
        super().load_state(state)
        self._scattered.load(state)


def _give(nodes: Sequence[Node], values: Array) -> None:
    at = 0
    for node in nodes:
        size = int(np.prod(node.shape, dtype=np.int64))
        node.value.write(values[at : at + size].reshape(node.shape))
        at += size
