"""Models too large for a block that are built alike: as many of them as are ready become one program."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.op import Array

from .group import Piece
from .leg import Buffer, Wanted
from .orders import Shuffled, shuffle, table_of
from .stacks import Stack, bytes_of_one, most_models

_KEPT_SHARE = 1 / 16  # of a device's memory
_TOGETHER = 1 << 16  # bytes: orders with fewer go to the device as one array
_SHARE = 1 / 3  # likewise, for one program where no limit is given


class StackedGroup:
    """Legs of models that are built alike.

    Models that are to do the same number of epochs and batches, with rows of the same arrays, run as one
    program; one that is alone is left to its own `fit`. The first program of a call is of as many models as
    there are; as models end, programs of powers of two follow, so that few are compiled. Which these are
    depends on the call alone, since roundings depend on it.

    Args:
        wanted: the legs of one of them.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted, self._device = list(wanted), wanted[0].runner.device
        self._whole = 0  # models of the call's first program
        self._most, self._each = most_models(wanted), max(bytes_of_one(wanted), 1)
        self._room: int | None = None  # bytes
        self._stacks: dict[int, Stack] = {}
        self._orders = [Buffer(self._device) for _ in wanted]
        self._table = Buffer(self._device)
        self._found: list[list[list[Array]] | None] = []
        self._seconds, self._is_used = 0.0, False

    def start(self, pieces: Sequence[Piece], room: int | None = None) -> None:
        """Run a piece of each of some models.

        Args:
            pieces: of each.
            room: bytes that a program may take; None for a share of the device's memory.
        """
        began, self._is_used, self._room = time.perf_counter(), True, room
        self._found = [None] * len(pieces)
        alike = defaultdict[object, list[int]](list)
        for number, piece in enumerate(pieces):
            alike[_looks(piece)].append(number)
        self._whole = self._whole or max(map(len, alike.values()), default=0)
        for numbers in alike.values():
            self._run(pieces, numbers)
        self._seconds = time.perf_counter() - began

    def finish(self) -> tuple[list[list[list[Array]] | None], float]:
        """The outputs of each model's legs, None where its own `fit` is to run them; and seconds."""
        found, self._found = self._found, []
        return found, self._seconds

    @property
    def nbytes(self) -> int:
        """About what it takes of the device's memory."""
        return sum(stack.nbytes for stack in self._stacks.values())

    def let_go(self) -> None:
        """A call has ended: give back the memory of the device; what is compiled stays.

        What the call used itself stays for the next one, if it is little.
        """
        used, self._is_used, self._whole = self._is_used, False, 0
        if used and self.nbytes <= _KEPT_SHARE * device_memory(self._device).total:
            return
        for stack in self._stacks.values():
            stack.let_go()
        self._orders = [Buffer(self._device) for _ in self._wanted]

    # --- stacks -----------------------------------------------------------------------------------

    def _run(self, pieces: Sequence[Piece], numbers: Sequence[int]) -> None:
        """Run pieces that are alike, as many at a time as one program may have and memory has room for."""
        first = 0
        while len(numbers) - first > 1:
            size = self._size(len(numbers) - first)
            chosen = numbers[first : first + size]
            try:
                self._run_stack(size, [pieces[n] for n in chosen], chosen)
            except OutOfMemoryError:
                self._stacks.pop(size, None)
                self._most = max(size // 2, 1)
                continue
            first += size

    def _size(self, count: int) -> int:
        """How many of so many models the next program has."""
        count = min(count, self._most, self._fitting)
        most = 1 << count.bit_length() - 1
        return max(most, self._whole) if self._whole <= count else most

    @property
    def _fitting(self) -> int:
        """How many models have room in one program."""
        room = self._room
        if room is None:
            room = int(_SHARE * device_memory(self._device).total)
        return max(room // self._each, 1)

    def _run_stack(self, size: int, pieces: Sequence[Piece], numbers: Sequence[int]) -> None:
        if size < 2:
            return
        if size not in self._stacks:
            self._stacks[size] = Stack(self._wanted, size)
        one = pieces[0]
        orders = self._ordered(pieces)
        found = self._stacks[size].run([p.seats for p in pieces], orders, one.epochs, one.counts)
        if found is None:
            return
        for k, number in enumerate(numbers):
            self._found[number] = [[array[:, k] for array in leg] for leg in found]

    def _ordered(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """For each leg where the rows of the first model lie, and how many each has."""
        lengths = [pieces[0].rows(leg) for leg in range(len(self._wanted))]
        places, memory = [], device_memory(self._device)
        for leg, length in enumerate(lengths):
            orders = [piece.seats[leg].order for piece in pieces]
            given = [order for order in orders if order is not None]
            if given and 8 * length < _TOGETHER:
                place = self._orders[leg].holding(np.stack(given))
            else:
                place = self._orders[leg].of(8 * length * len(pieces))
                for k, order in enumerate(given):
                    flat = np.ascontiguousarray(order, np.int64).view(np.uint8)
                    memory.copy_to_device(place + 8 * length * k, flat)
            places.append((place, length))
        if pieces[0].shuffled is not None:
            wanted: list[tuple[int, Shuffled, list[int]]] = []
            for k, piece in enumerate(pieces):
                assert piece.shuffled is not None
                legs = range(len(piece.shuffled.parts))
                own = [places[leg][0] + 8 * k * lengths[leg] for leg in legs]
                wanted.append((piece.epochs, piece.shuffled, own))
            shuffle(self._device, wanted, self._table.holding(table_of(wanted)))
        return places


def _looks(piece: Piece) -> tuple[object, ...]:
    """Equal for pieces that can run as one program."""
    data = tuple(tuple(seat.data) for seat in piece.seats)
    rows = tuple(piece.rows(leg) for leg in range(len(piece.seats)))
    return piece.epochs, tuple(piece.counts), data, rows, piece.shuffled is None
