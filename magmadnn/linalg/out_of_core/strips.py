"""Buffers for strips on the device, and what each waits for: copies run beside the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .division import STREAMED, Division
from .place import Array, HostArray, Mark, Place


class Buffer:
    """Room for one strip.

    Attributes:
        array: the strip [rows, columns] that lies there.
        ready: mark of the copy that brings it, until somebody has waited for it.
        last: marks of what reads it, after which something else may be written there.
    """

    def __init__(self, flat: Array) -> None:
        self.flat = flat
        self.array: Array = flat
        self.ready: Mark = None
        self.last: list[Mark] = []

    def shaped(self, rows: int, columns: int) -> Array:
        """The room as a strip of that shape."""
        self.array = self.flat[: rows * columns].reshape(rows, columns)
        return self.array


class Strips:
    """Strips that come and go.

    Args:
        place: the device.
        division: how many there are, and how large.
        dtype: of the elements.
    """

    def __init__(self, place: Place, division: Division, dtype: np.dtype[Any]) -> None:
        self.place = place
        count = division.n * division.width
        self.free = [Buffer(place.allocate(count, dtype)) for _ in range(division.buffers)]
        self._there: dict[int, Mark] = {}  # of strips of the host: the copy that brought them
        self._coming: dict[int, Buffer] = {}

    def take(self) -> Buffer:
        """A buffer that nobody uses."""
        return self.free.pop(0)

    def ahead(self, parts: Iterator[tuple[int, HostArray]]) -> None:
        """Begin to bring strips of the next panel to where nothing else lies; two buffers stay free."""
        while len(self.free) > STREAMED and (part := next(parts, None)):
            number, source = part
            self._coming[number] = self.bring(source)

    def panel(self, parts: Iterator[tuple[int, HostArray]]) -> dict[int, Buffer]:
        """The strips of a panel: those that were begun to be brought `ahead`, and the rest of `parts`."""
        held, self._coming = self._coming, {}
        return held | {number: self.bring(source) for number, source in parts}

    def give(self, buffer: Buffer) -> None:
        """Give a buffer back, once all is done that is asked for by now."""
        buffer.last.append(self.place.computed())
        self.free.append(buffer)

    def bring(self, source: HostArray, number: int | None = None) -> Buffer:
        """Begin to bring a strip to the device.

        Args:
            source: the strip.
            number: that under which `store` wrote it, None where it did not.
        """
        buffer = self.take()
        if number is not None:
            buffer.last.append(self._there[number])
        to = buffer.shaped(*source.shape)
        buffer.ready, buffer.last = self.place.upload(to, source, buffer.last), []
        return buffer

    def use(self, buffer: Buffer) -> Array:
        """A strip, for what is computed from now on."""
        if buffer.ready is not None:
            self.place.follow(buffer.ready)
            buffer.ready = None
        return buffer.array

    def store(self, to: HostArray, source: Array, buffer: Buffer, number: int) -> None:
        """Begin to bring a strip, or a part of it, to the host; its buffer may be given back then."""
        self._there[number] = self.place.download(to, source)
        buffer.last.append(self._there[number])

    def stream(self, parts: Sequence[tuple[HostArray, int | None]]) -> Iterator[Buffer]:
        """Strips one after the other; the next is on its way while one is computed with."""
        coming = [self.bring(*part) for part in parts[:1]]
        for following in range(1, len(parts) + 1):
            here = coming.pop()
            if following < len(parts):
                coming.append(self.bring(*parts[following]))
            yield here
            self.give(here)


@contextmanager
def opened(place: Place, *arrays: HostArray) -> Iterator[None]:
    """The place with arrays of the host pinned meanwhile; all copies are done behind it."""
    try:
        for array in arrays:
            place.hold(array)
        yield
    finally:
        place.close()
