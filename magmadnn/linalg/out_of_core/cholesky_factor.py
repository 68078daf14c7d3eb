"""The Cholesky factor of a matrix beyond the device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from magmadnn.errors import NumericError

from .division import Division, divided
from .operands import goal, matrix, place_of
from .place import Array, HostArray, Place
from .strips import Buffer, Strips, opened


class CholeskyFactor(NamedTuple):
    """L [n, n] with A = L L^H in the lower triangle of `c`; above the diagonal of `c` stands anything."""

    c: HostArray
    lower: bool


def cho_factor(
    a: HostArray, *, memory_limit: int | None = None, device: str = "cuda", out: HostArray | None = None
) -> CholeskyFactor:  # fmt: skip
    """L with A = L L^H of a Hermitian positive definite A, of which the lower triangle is read.

    Strips of columns are brought to the device; see the folder's README. For n^3 / 3 products and sums the
    strips pass n / w times, w columns in a panel, so that a GPU with a fraction of the matrix is kept busy.

    Args:
        a: [n, n] of float32, float64, complex64 or complex128, by rows; also a memory map.
        memory_limit: bytes of the device that may be used; None for nine tenths of what is free on a GPU.
        device: "cuda", "cuda:1", ..., or "cpu" for a matrix in a file that is larger than memory.
        out: [n, n] that the factor is written to; `a` itself is allowed. None for a new array.

    Returns:
        The factor and True, as SciPy's `cho_factor(a, lower=True)`.

    Raises:
        NumericError: if A is not positive definite, naming the leading minor, or not finite. `out` then
            holds a part of the factor.
        OutOfMemoryError: if strips of one column do not fit the limit; says what is needed.
        ArgumentError, ShapeError, DTypeError, DeviceError: for what is no such matrix or device.
    """
    matrix("cho_factor", "a", a)
    out = goal("cho_factor", a, out)
    if not len(a):
        return CholeskyFactor(out, True)
    place = place_of(device)
    with opened(place, *([a] if out is a else [a, out])):
        division = divided("cho_factor", len(a), a.dtype, place, memory_limit, spare=0)
        _Factorisation(place, division, a, out).run()
    return CholeskyFactor(out, True)


class _Factorisation:
    """Panels from left to right; of a strip with first column c only the rows from c on are there."""

    def __init__(self, place: Place, division: Division, a: HostArray, out: HostArray) -> None:
        self._place, self._a, self._out = place, a, out
        self._strips = division.strips
        self._held = division.held
        self._there = Strips(place, division, a.dtype)

    def run(self) -> None:
        parts = self._parts(0)
        for first in range(0, len(self._strips), self._held):
            held = self._there.panel(parts)
            parts = self._parts(first + self._held)
            self._panel(held, parts)

    def _parts(self, first: int) -> Iterator[tuple[int, HostArray]]:
        """The strips of a panel as they lie on the host."""
        panel = range(len(self._strips))[first : first + self._held]
        return ((number, self._below(self._a, number)) for number in panel)

    def _panel(self, held: dict[int, Buffer], following: Iterator[tuple[int, HostArray]]) -> None:
        panel = list(held)
        totals = [self._place.total(self._there.use(buffer)) for buffer in held.values()]
        before = [(self._below(self._out, k, panel[0]), k) for k in range(panel[0])]
        for passing in self._there.stream(before):
            left = self._there.use(passing)
            for number, buffer in held.items():
                self._take_off(number, buffer, left, self._strips[panel[0]].start)
        self._refuse_infinity(panel, self._place.values(totals))
        orders: list[Array] = []
        for number in panel:
            buffer = held.pop(number)
            strip = self._there.use(buffer)
            width = strip.shape[1]
            orders.append(self._place.factor(strip[:width]))
            self._place.solve_behind(strip[width:], strip[:width])
            for later, other in held.items():
                self._take_off(later, other, strip, self._strips[number].start)
            self._there.store(self._below(self._out, number), strip, buffer, number)
            self._there.give(buffer)
            self._there.ahead(following)
        self._refuse_indefinite(panel, self._place.values(orders))

    def _below(self, array: HostArray, number: int, top: int | None = None) -> HostArray:
        """A strip from the diagonal on, or from that of a later strip on."""
        rows = self._strips[number if top is None else top].start
        return array[rows:, self._strips[number]]

    def _take_off(self, number: int, buffer: Buffer, left: Array, top: int) -> None:
        """Subtract what an earlier strip, whose first row is row `top`, adds to a strip."""
        columns = self._strips[number]
        goal = self._there.use(buffer)
        rows = left[columns.start - top :]
        square = left[columns.start - top : columns.stop - top]
        self._place.subtract(goal, rows, square, flip_a=False, flip_b=True)

    def _refuse_infinity(self, panel: list[int], totals: list[Any]) -> None:
        """By sums, which may be infinite where no element is; above the diagonal stands anything."""
        for number, total in zip(panel, totals, strict=True):
            if (
                not np.isfinite(total)
                and not np.isfinite(np.tril(self._below(self._a, number))).all()
            ):
                raise NumericError("cho_factor: a holds NaN or infinity")

    def _refuse_indefinite(self, panel: list[int], orders: list[Any]) -> None:
        for number, order in zip(panel, orders, strict=True):
            if order:
                minor = self._strips[number].start + int(order)
                raise NumericError(
                    f"cho_factor: a is not positive definite: its leading minor of order {minor} of "
                    f"{len(self._a)} is not positive"
                )
