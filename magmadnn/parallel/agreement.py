"""Decisions of a training that all ranks come to alike."""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.errors import CommunicationError, OutOfMemoryError

if TYPE_CHECKING:
    from magmadnn.optim import StepSlices


def told_in(communicator: Communicator, call: str, value: Any) -> list[Any]:
    """What all ranks say as a call begins that all of them must make, such as "fit".

    Args:
        communicator: of the ranks.
        call: its name.
        value: JSON data.

    Raises:
        CommunicationError: if another rank is in another call, naming both.
    """
    found = communicator.exchange({"call": call, "told": value})
    calls = [one["call"] if isinstance(one, dict) and "call" in one else None for one in found]
    for rank, other in enumerate(calls):
        if other != call:
            raise CommunicationError(
                f"{call}: rank {communicator.rank} is in {call}, but rank {rank} in "
                f"{other or 'another call'}: all ranks must make the same calls in the same order, or give "
                "parallel=False where each trains its own"
            )
    return [one["told"] for one in found]


def choose_alike(communicator: Communicator, slices: StepSlices | None) -> None:
    """Let the libraries of all ranks' GPUs take the same algorithms in batches of full size; collective.

    Each rank chooses by measuring, and sums depend on the choice. So a run that is repeated, or goes on from
    a checkpoint, which has the choices of one rank, gives the same bits on all.

    Args:
        communicator: of the ranks; the choice is that of the first who has the product. A rank whose library
            does not propose that algorithm keeps its own.
        slices: of steps that are about to run; None where this rank has none.
    """
    from magmadnn.runtime.cuda.algorithms import frozen, take_first

    if slices is not None:
        with suppress(OutOfMemoryError):  # told where steps run; others wait for the exchange
            slices.choose()
    told: list[Any] = communicator.exchange(frozen())
    take_first(told)


class SameDecisions:
    """An `Agreement` (see `magmadnn.runtime.agreement`) of the ranks of a communicator."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank only."""
        return self._communicator.size == 1

    def all(self, fact: bool, about: str) -> bool:
        """Whether a fact holds on all ranks."""
        return bool(self.least(int(fact), about))

    def least(self, number: int, about: str) -> int:
        """The least number of any rank.

        Raises:
            CommunicationError: if another rank asks something else.
        """
        if self.is_alone:
            return number
        question = zlib.crc32(about.encode())
        asked = np.array([number, question, -question], np.int64)
        least, first, last = self._communicator.all_reduce(asked, op="min").tolist()
        if first != -last:
            raise CommunicationError(
                f"ranks ask different things: rank {self._communicator.rank} asks about {about!r}: all "
                f"of them "
                "must run the same training"
            )
        return int(least)
