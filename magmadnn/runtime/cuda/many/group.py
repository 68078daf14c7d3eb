"""Models that are built alike: the legs of their epochs, for some of them at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import Event
from magmadnn.compiler.cuda.megakernel.blocks import HEAD
from magmadnn.graph.op import Array
from magmadnn.runtime.cuda.code import functions_of

from .leg import Buffer, GridLeg, Numbers, Seat, Wanted
from .orders import Shuffled, shuffle, table_of


@dataclass(frozen=True)
class Piece:
    """What a model is to do next.

    Attributes:
        epochs: how many.
        counts: batches of each leg in an epoch.
        seats: what it brings to each leg.
        shuffled: rows of the legs that train, which the device draws; None where the host knows them.
    """

    epochs: int
    counts: Sequence[int]
    seats: Sequence[Seat]
    shuffled: Shuffled | None = None

    def rows(self, leg: int) -> int:
        """How many rows a leg has in all epochs."""
        order = self.seats[leg].order
        if order is not None:
            return len(order)
        assert self.shuffled is not None
        first, last = self.shuffled.parts[leg]
        return self.epochs * (last - first)


@dataclass(frozen=True)
class _Turn:
    """A launch: of which leg; the first and last batch of each model, and whether values are saved."""

    leg: int
    heads: Numbers


class Group:
    """Legs of models that are built alike.

    Args:
        wanted: the legs of one of them.
        training: how many of these train; they come first.
    """

    def __init__(self, wanted: Sequence[Wanted], training: int) -> None:
        self._device = wanted[0].runner.device
        self._legs = [GridLeg(w, number < training) for number, w in enumerate(wanted)]
        functions_of(device_engine(self._device), [leg.variant for leg in self._legs])
        self._buffers = {
            name: Buffer(self._device) for name in ("heads", "faults", "saved", "orders")
        }
        self._pieces: Sequence[Piece] = ()
        self._saving: list[int] = []  # the leg that saves a model's variables
        self._started = 0.0
        self._mark: Event | None = None

    def start(self, pieces: Sequence[Piece]) -> None:
        """Begin with a piece of each of some models."""
        self._pieces, count = pieces, len(pieces)
        self._saving = [next((k for k, n in enumerate(p.counts) if n), 0) for p in pieces]
        self._started = time.perf_counter()
        faults = self._buffers["faults"].holding(np.zeros(count, np.int64))
        active = [n for n in range(len(self._legs)) if any(p.counts[n] for p in pieces)]
        for number in active:
            seats = [piece.seats[number] for piece in pieces]
            batches = max(p.epochs * p.counts[number] for p in pieces)
            self._legs[number].take(seats, batches, max(piece.rows(number) for piece in pieces))
            self._legs[number].set_faults(faults)
        self._shuffle(active)
        turns = self._turns(active)
        heads = np.concatenate([turn.heads for turn in turns]) if turns else np.zeros(0, np.int64)
        place = self._buffers["heads"].holding(heads)
        saved = self._buffers["saved"].of(count * max(leg.saved_bytes for leg in self._legs))
        for turn in turns:
            self._legs[turn.leg].launch(place, faults, saved)
            place += turn.heads.nbytes
        self._mark = device_engine(self._device).mark()

    def _shuffle(self, active: Sequence[int]) -> None:
        """Begin to draw the orders that the host does not know."""
        places = {n: self._legs[n].orders.tolist() for n in active}
        wanted = []
        for k, piece in enumerate(self._pieces):
            if piece.shuffled is not None:
                legs = range(len(piece.shuffled.parts))
                found = [places[n][k] if n in places else 0 for n in legs]
                wanted.append((piece.epochs, piece.shuffled, found))
        if wanted:
            table = self._buffers["orders"].holding(table_of(wanted))
            shuffle(self._device, wanted, table)

    def _turns(self, active: Sequence[int]) -> list[_Turn]:
        """The launches in order; epochs of one leg are one."""
        pieces, turns = self._pieces, list[_Turn]()
        epochs = np.array([p.epochs for p in pieces])
        each = {n: np.array([p.counts[n] for p in pieces]) for n in active}
        saving = np.array(self._saving)
        together = len(active) == 1
        for epoch in range(1 if together else int(epochs.max(initial=0))):
            for number in active:
                heads = np.zeros((len(pieces), HEAD), np.int64)
                first = np.minimum(epoch, epochs) * each[number]
                last = (
                    epochs * each[number]
                    if together
                    else np.minimum(epoch + 1, epochs) * each[number]
                )
                heads[:, 0], heads[:, 1] = first, last
                heads[:, 2] = (saving == number) & (epoch == 0)
                turns.append(_Turn(number, heads))
        return turns

    def finish(self) -> tuple[list[list[list[Array]] | None], float]:
        """Wait; the outputs of each model's legs, None where it went wrong and is as before; and seconds."""
        assert self._mark is not None
        self._mark.wait()
        seconds, count = time.perf_counter() - self._started, len(self._pieces)
        memory = device_memory(self._device)
        faults = np.zeros(count, np.int64)
        if count:
            memory.copy_to_host(faults.view(np.uint8), self._buffers["faults"].of(faults.nbytes))
        active = [n for n in range(len(self._legs)) if any(p.counts[n] for p in self._pieces)]
        outputs = {n: self._legs[n].found() for n in active}
        found: list[list[list[Array]] | None] = []
        for k, piece in enumerate(self._pieces):
            if faults[k]:
                self._restore(k)
                found.append(None)
                continue
            found.append(
                [self._of_leg(outputs.get(n), k, piece, n) for n in range(len(self._legs))]
            )
        self._mark, self._pieces = None, ()
        return found, seconds

    def _of_leg(self, outputs: list[Array] | None, k: int, piece: Piece, leg: int) -> list[Array]:
        """What a leg gave for a model."""
        if outputs is None:
            return self._legs[leg].nothing()
        return [array[k, : piece.epochs * piece.counts[leg]] for array in outputs]

    def _restore(self, k: int) -> None:
        """Give a model's variables what they held before."""
        memory, leg = device_memory(self._device), self._legs[self._saving[k]]
        saved = self._buffers["saved"].of(0) + k * leg.saved_bytes
        variables = self._pieces[k].seats[self._saving[k]].variables
        for number, offset, nbytes in leg.changed:
            memory.copy_on_device(variables[number], saved + offset, nbytes)
        memory.wait()
