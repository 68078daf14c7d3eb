"""A step of which each rank keeps parts of moments, which all ranks bring together where somebody looks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from magmadnn.errors import ArgumentError, CheckpointError
from magmadnn.graph.op import Array
from magmadnn.tensor import Tensor

from .step import ParallelStep


class Part(Protocol):
    """Elements of a parameter, and of its moments, that this rank has."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Of the whole parameter."""

    def cut(self, whole: Array) -> Array:
        """This rank's elements of a whole array."""


class PartedMomentsStep(ParallelStep):
    """One step of one rank; see `ParallelStep`. States, and so checkpoints, have whole moments."""

    is_scattered = True
    _moments: Mapping[str, Part]  # by the names of slots, also of those that only other ranks have
    _collected: Mapping[str, Array]  # whole, as of when they were brought together

    @abstractmethod
    def _whole_moment(self, name: str, part: Any) -> Array:
        """A moment, from the elements of each rank; all ranks call it."""

    def _collect_moments(self) -> None:
        self._collected = {
            name: self._whole_moment(name, part) for name, part in self._moments.items()
        }

    def state(self) -> dict[str, Tensor]:
        """All that all ranks keep, as it was when it was collected.

        Raises:
            ArgumentError: while it lies in parts.
        """
        if self._moments.keys() - self._collected.keys():
            raise ArgumentError(
                f"{type(self._way).__name__}: moments lie in parts on all ranks: collect() on all of them "
                "first"
            )
        found = super().state()
        return found | {name: Tensor.wrap(a.copy()) for name, a in self._collected.items()}

    def _of_this_rank(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A whole state with this rank's elements of moments, and without slots that others have."""
        found = dict(state)
        for name, part in self._moments.items():
            if name not in state:
                continue
            array = np.asarray(found.pop(name))
            if array.shape != part.shape:
                raise CheckpointError(
                    f"state: {name} must be of shape {part.shape}, got {array.shape}"
                )
            if name in self._slots:
                found[name] = part.cut(array)
        return found

    def check_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Look whether `load_state` takes this; gives the arrays."""
        return super().check_state(self._of_this_rank(state))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, on any number of ranks."""
        super().load_state(state)
        self._collected = {name: np.array(state[name]) for name in self._moments}
