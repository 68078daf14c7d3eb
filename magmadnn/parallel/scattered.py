"""Parameters and moments that lie on one rank each, and are collected where somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError, CheckpointError
from magmadnn.graph import Node
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import as_dtype
from magmadnn.runtime.variables import tensor_of
from magmadnn.tensor import Tensor, Variable

from .buckets import size_of
from .ranks_step import RanksStep


class Scattered:
    """What ranks keep for each other.

    Args:
        communicator: the ranks.
        held: variables of the model, and the rank that has the newest value of each.
        slots: the optimiser's, of this rank, by name.

    Attributes:
        is_apart: whether each rank has what is its own alone, since `let_go`, until `collect`.
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
        self._away: dict[str, Array] = {}  # of other ranks, as of when they were collected
        self.is_apart = False
        self.read_away()

    def let_go(self, needed: Collection[Node] = ()) -> None:
        """Keep what is this rank's alone, and those variables that are needed on all."""
        if self.is_apart:
            return
        self._away, self.is_apart = {}, True
        for node, owner in self._held:
            if owner != self._comm.rank and node not in needed:
                tensor_of(node).set_aside()

    def read_away(self) -> None:
        """Have the slots of other ranks, as these have them."""
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
                if owner != self._comm.rank:
                    values = np.empty(sum(size_of(node.spec) for node in nodes), nodes[0].dtype)
                else:
                    values = np.concatenate([np.ravel(node.value.read()) for node in nodes])
                values = self._comm.broadcast(values, root=owner)
                if owner != self._comm.rank:
                    _give(nodes, values)
        self.read_away()
        self.is_apart = False

    def whole(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of all ranks, from that of this one.

        Raises:
            ArgumentError: while others have theirs alone.
        """
        if self.is_apart:
            raise ArgumentError(
                "state: moments lie on several ranks: collect() on all of them gives all"
            )
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
        others = self._places.keys() - self._slots.keys()
        away = {
            name: np.asarray(state[name]) for name in self._places if name in others & state.keys()
        }
        if missing := sorted(others - away.keys()):
            raise CheckpointError(
                f"state: {missing[0]} is missing; is it of another optimiser or model?"
            )
        for name, array in away.items():
            _, dtype, shape = self._places[name]
            if (array.shape, array.dtype) != (shape, dtype):
                raise CheckpointError(
                    f"state: {name} must be {dtype.name} of shape {shape}, got "
                    f"{array.dtype.name} of shape {array.shape}"
                )
        return away | check({k: v for k, v in state.items() if k not in away})

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the others' parts of a whole state, which was checked."""
        others = [name for name in self._places if name not in self._slots]
        self._away = {name: np.array(state[name]) for name in others}


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
        size = size_of(node.spec)
        tensor_of(node).bring_back()
        node.value.write(values[at : at + size].reshape(node.shape))
        at += size
