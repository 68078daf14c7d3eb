"""Sums over all parameters in an update of which each rank has some: the norm that gradients are clipped by.

What `over_parameters` adds up is computed by a program of its own, before the update, which gets the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.comm import Communicator
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import Array
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import ALONE, agreeing
from magmadnn.tensor import Operation


class SharedSums:
    """The sums of an update.

    Args:
        communicator: the ranks.
        numbers: of each rank's parameters among all; sums are made in the order of all.
    """

    def __init__(self, communicator: Communicator, numbers: Sequence[Sequence[int]]) -> None:
        self._comm, self._numbers = communicator, numbers
        self._terms: list[tuple[list[Operation], Node]] = []
        self._programs: list[Executable] = []

    def adding(self, terms: Sequence[Operation]) -> Operation:
        """A placeholder for the sum; see `magmadnn.optim.parts.over_parameters`."""
        spec = Spec((), np.result_type(*(term.dtype for term in terms)))
        total = placeholder(f"over_parameters_{len(self._terms)}", spec)
        self._terms.append((list(terms), total))
        return Operation(total)

    @property
    def some(self) -> bool:
        """Whether anything is added up."""
        return bool(self._terms)

    def compile(self, way: Mapping[str, Any]) -> None:
        """Make the programs."""
        self._programs = [
            Executable([ops.stack(terms).node], training=True, **way) for terms, _ in self._terms
        ]

    def feeds(self, known: Mapping[Node, Array]) -> dict[Node, Array]:
        """What the placeholders get, the same on all ranks, which all call this.

        Args:
            known: the feeds of the update.
        """
        found: dict[Node, Array] = {}
        for program, (_, total) in zip(self._programs, self._terms, strict=True):
            fed = {n: np.asarray({**known, **found}[n]) for n in program.program.placeholders}
            with agreeing(ALONE):
                own = np.ascontiguousarray(program.run(fed)[0])
            counts = [len(numbers) for numbers in self._numbers]
            everyone = self._comm.all_gather(own, counts=counts)
            order = np.argsort(np.concatenate([np.asarray(n, np.int64) for n in self._numbers]))
            terms = everyone[order]
            found[total] = np.add.accumulate(terms)[-1]  # from the left, as one rank adds
        return found
