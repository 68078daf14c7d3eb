"""L and U of a matrix beyond the device's memory, with exchanges of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from magmadnn.errors import NumericError
from magmadnn.linalg.factorisations.factors import LUFactors

from .division import Division, divided
from .operands import goal, matrix, place_of
from .place import Array, HostArray, Place
from .strips import Buffer, Strips, opened


def lu_factor(
    a: HostArray, *, memory_limit: int | None = None, device: str = "cuda", out: HostArray | None = None
) -> LUFactors:  # fmt: skip
    """L and U with P A = L U, by elimination with the largest element of each column as its pivot.

    Strips of columns are brought to the device; see the folder's README. Exchanges of rows that come after a
    strip has gone back to the host are made up for when it comes again, and once for all at the end.

    Args:
        a: [n, n] of float32, float64, complex64 or complex128, by rows; also a memory map.
        memory_limit: bytes of the device that may be used; None for nine tenths of what is free on a GPU.
        device: "cuda", "cuda:1", ..., or "cpu" for a matrix in a file that is larger than memory.
        out: [n, n] that the factors are written to; `a` itself is allowed. None for a new array.

    Returns:
        L below the diagonal and U in one matrix, and with which row each was exchanged [n], as SciPy's
        `lu_factor`. A 0 in U is no error here.

    Raises:
        NumericError: if A holds NaN or infinity. `out` then holds a part of the factors.
        OutOfMemoryError: if strips of one column do not fit the limit; says what is needed.
        ArgumentError, ShapeError, DTypeError, DeviceError: for what is no such matrix or device.
    """
    matrix("lu_factor", "a", a)
    out = goal("lu_factor", a, out)
    exchanges = np.zeros(len(a), np.int32)
    if not len(a):
        return LUFactors(out, exchanges)
    place = place_of(device)
    with opened(place, *([a] if out is a else [a, out])):
        division = divided("lu_factor", len(a), a.dtype, place, memory_limit, spare=1)
        _Elimination(place, division, a, out, exchanges).run()
    return LUFactors(out, exchanges)


class _Elimination:
    """Panels from left to right.

    Attributes:
        order: [n], which row of A stands in each place after the exchanges so far.
    """

    def __init__(
        self, place: Place, division: Division, a: HostArray, out: HostArray, exchanges: HostArray
    ) -> None:
        self._place, self._a, self._out, self._exchanges = place, a, out, exchanges
        self._strips = division.strips
        self._held = division.held
        self._there = Strips(place, division, a.dtype)
        self._spare: Array = self._there.take().flat
        self.order = np.arange(len(a))
        self._stored: list[HostArray] = []  # of each strip, the order when it was stored

    def run(self) -> None:
        parts = self._parts(0)
        for first in range(0, len(self._strips), self._held):
            held = self._there.panel(parts)
            parts = self._parts(first + self._held)
            self._panel(held, parts)
        self._finish()

    def _parts(self, first: int) -> Iterator[tuple[int, HostArray]]:
        """The strips of a panel as they lie on the host."""
        panel = range(len(self._strips))[first : first + self._held]
        return ((number, self._a[:, self._strips[number]]) for number in panel)

    def _panel(self, held: dict[int, Buffer], following: Iterator[tuple[int, HostArray]]) -> None:
        panel = list(held)
        totals = [self._place.total(self._there.use(buffer)) for buffer in held.values()]
        if panel[0]:
            for buffer in held.values():
                self._place.reorder(buffer.array, self.order, self._spare)
        before = [(self._out[self._strips[k].start :, self._strips[k]], k) for k in range(panel[0])]
        for number, passing in enumerate(self._there.stream(before)):
            lower = self._ordered(number, passing)
            if panel[-1] == len(self._strips) - 1:  # `_finish` has less to bring then
                self._store_below(number, lower, passing)
            for buffer in held.values():
                self._take_off(number, lower, self._there.use(buffer))
        self._refuse_infinity(panel, self._place.values(totals))
        self._within(panel, held, following)

    def _within(
        self,
        panel: list[int],
        held: dict[int, Buffer],
        following: Iterator[tuple[int, HostArray]],
    ) -> None:
        """Eliminate in the strips of a panel, one after the other, and store them."""
        for number in panel:
            start = self._strips[number].start
            strip = self._there.use(held[number])
            exchanges = self._place.eliminate(strip[start:], self._spare)
            order = order_after(exchanges, len(strip) - start)
            self._exchanges[self._strips[number]] = exchanges + start
            self.order[start:] = self.order[start:][order]
            self._stored.append(self.order.copy())
            for later in range(number + 1, panel[-1] + 1):
                other = self._there.use(held[later])
                self._place.exchange(other[start:], order)
                self._take_off(number, strip[start:], other)
            # Strips of this panel that are stored already wait for `_finish` to exchange their rows.
            buffer = held.pop(number)
            self._there.store(self._out[:, self._strips[number]], strip, buffer, number)
            self._there.give(buffer)
            self._there.ahead(following)

    def _take_off(self, number: int, lower: Array, strip: Array) -> None:
        """Make the rows of U that an earlier strip decides, and subtract what they add to rows below."""
        start, stop = self._strips[number].start, self._strips[number].stop
        square, below = lower[: stop - start], lower[stop - start :]
        self._place.solve(strip[start:stop], square, lower=True, unit=True, flip=False)
        self._place.subtract(strip[stop:], below, strip[start:stop], flip_a=False, flip_b=False)

    # --- exchanges that came later ----------------------------------------------------------------

    def _later(self, number: int) -> HostArray:
        """From where the rows below a strip's square come, since it was stored."""
        stop = self._strips[number].stop
        places = np.empty(len(self.order), np.int64)
        places[self._stored[number]] = np.arange(len(self.order))
        later: HostArray = places[self.order[stop:]] - stop
        return later

    def _ordered(self, number: int, passing: Buffer) -> Array:
        """A strip that passes, from its square on, with its rows as they stand now."""
        strip = self._there.use(passing)
        later = self._later(number)
        if _moves(later):
            self._place.reorder(strip[strip.shape[1] :], later, self._spare)
        return strip

    def _store_below(self, number: int, strip: Array, buffer: Buffer) -> None:
        """Store the rows below a strip's square, as they stand now."""
        if not np.array_equal(self._stored[number], self.order):
            rows = self._out[self._strips[number].stop :, self._strips[number]]
            self._there.store(rows, strip[strip.shape[1] :], buffer, number)
            self._stored[number] = self.order.copy()

    def _finish(self) -> None:
        """Bring the rows of all strips that are stored into the last order."""
        moved = [k for k in range(len(self._strips)) if _moves(self._later(k))]
        firsts = [self._strips[k].stop + int(_moved(self._later(k))[0]) for k in moved]
        parts = [
            (self._out[first:, self._strips[k]], k) for first, k in zip(firsts, moved, strict=True)
        ]
        for passing, first, (rows, number) in zip(
            self._there.stream(parts), firsts, parts, strict=True
        ):
            later = self._later(number)[first - self._strips[number].stop :]
            strip = self._there.use(passing)
            self._place.reorder(strip, later - (first - self._strips[number].stop), self._spare)
            self._there.store(rows, strip, passing, number)

    def _refuse_infinity(self, panel: list[int], totals: list[Any]) -> None:
        """By sums, which may be infinite where no element is."""
        for number, total in zip(panel, totals, strict=True):
            if not np.isfinite(total) and not np.isfinite(self._a[:, self._strips[number]]).all():
                raise NumericError("lu_factor: a holds NaN or infinity")


def _moved(order: HostArray) -> HostArray:
    """The places whose rows come from elsewhere."""
    return np.flatnonzero(order != np.arange(len(order)))


def _moves(order: HostArray) -> bool:
    return len(_moved(order)) > 0


def order_after(exchanges: HostArray, rows: int) -> HostArray:
    """Which row stands in each place after exchanges of row 0, 1, ... with others: of one matrix, a number
    at a time, which is quicker than `linalg.factorisations.elimination.order_of` for a single long one.
    """
    order = np.arange(rows)
    for row, other in enumerate(exchanges):
        order[row], order[other] = order[other], order[row]
    return order
