"""Arrays by name that one rank gives to all, many in one message."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from magmadnn.comm import Communicator
from magmadnn.memory.dtypes import as_dtype

_ALIGNED: Final = 64  # bytes between the beginnings of arrays
MOST_BYTES: Final = 1 << 24  # of a message, unless one set of arrays has more


class NamedArrays:
    """Where arrays lie in a buffer.

    Args:
        shapes: name, dtype and shape of each, as `of` gives them.
    """

    def __init__(self, shapes: Sequence[Any]) -> None:
        self.shapes = shapes
        self._sizes = [math.prod(shape) * as_dtype(dtype).itemsize for _, dtype, shape in shapes]
        self._places = np.cumsum([0, *(-(-size // _ALIGNED) * _ALIGNED for size in self._sizes)])

    @staticmethod
    def of(arrays: Mapping[str, Any]) -> list[list[Any]]:
        """Names, dtypes and shapes of arrays: JSON data."""
        return [
            [name, np.asarray(array).dtype.name, list(np.shape(array))]
            for name, array in arrays.items()
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return int(self._places[-1])

    def found(self, buffer: NDArray[np.uint8]) -> dict[str, Any]:
        """The arrays of a buffer."""
        rows = zip(self.shapes, self._places, self._sizes, strict=False)
        return {
            name: buffer[place : place + size].view(as_dtype(dtype)).reshape(shape)
            for (name, dtype, shape), place, size in rows
        }

    def put(self, arrays: Sequence[Any], buffer: NDArray[np.uint8]) -> None:
        """Write arrays into a buffer."""
        for array, place, size in zip(arrays, self._places, self._sizes, strict=False):
            flat = np.ascontiguousarray(array).reshape(-1)
            buffer[place : place + size] = flat.view(np.uint8)

    def spread(
        self, comm: Communicator, arrays: Sequence[Any] | None, root: int
    ) -> NDArray[np.uint8]:
        """The buffer on all ranks. Collective.

        Args:
            comm: the ranks.
            arrays: what is in it; None on ranks that get it.
            root: the rank that gives it.
        """
        buffer = np.zeros(self.nbytes, np.uint8)
        if arrays is not None:
            self.put(arrays, buffer)
        found: NDArray[np.uint8] = comm.broadcast(buffer, root=root)
        return found


def in_messages(sizes: Mapping[Any, int]) -> Iterator[list[Any]]:
    """What travels in one message: keys of sets of so many bytes, in order."""
    message: list[Any] = []
    total = 0
    for key, size in sizes.items():
        if message and total + size > MOST_BYTES:
            yield message
            message, total = [], 0
        message.append(key)
        total += size
    if message:
        yield message


def given_to_all(comm: Communicator, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of rank 0's arrays on all ranks, which say nothing of their own. Collective."""
    shapes = {row[0]: row for row in comm.exchange(NamedArrays.of(arrays))[0]}
    found: dict[str, Any] = {}
    for names in in_messages({name: NamedArrays([row]).nbytes for name, row in shapes.items()}):
        message = NamedArrays([shapes[name] for name in names])
        given = None if comm.rank else [arrays[name] for name in names]
        found |= message.found(message.spread(comm, given, 0))
    return found
