"""Solutions by factors that lie in the host's memory, one strip of columns after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, NumericError

from .cholesky_factor import cho_factor
from .division import divided
from .elimination import lu_factor, order_after
from .operands import matrix, place_of, right_side
from .place import Array, HostArray, Place
from .strips import Buffer, Strips, opened


def cho_solve(
    c_and_lower: Any, b: Any, *, memory_limit: int | None = None, device: str = "cuda"
) -> HostArray:
    """X with A X = B, by what `cho_factor` gave.

    Args:
        c_and_lower: the factor and True.
        b: [n] or [n, k]; lies on the device as a whole.
        memory_limit: as for `cho_factor`.
        device: as for `cho_factor`.

    Returns:
        [n] or [n, k], of the factor's dtype.

    Raises:
        ArgumentError: if the first argument is no such pair.
        NumericError: if there is a 0 on the factor's diagonal, or b holds NaN or infinity.
        OutOfMemoryError: if b and strips of one column do not fit the limit.
        ShapeError, DTypeError, DeviceError: for what is no such matrix or device.
    """
    c, lower = _pair("cho_solve", "cho_factor", c_and_lower)
    if lower is not True:
        raise ArgumentError("cho_solve: takes lower triangles: (c, True), as cho_factor gives them")
    x = right_side("cho_solve", c, b)
    _refuse_zeros("cho_solve", c)
    with _substituting("cho_solve", c, x, memory_limit, device) as steps:
        steps.by_lower(unit=False)
        steps.by_lower_flipped(unit=False)
    return x.reshape(np.shape(b))


def lu_solve(
    lu_and_piv: Any, b: Any, trans: int = 0, *, memory_limit: int | None = None, device: str = "cuda"
) -> HostArray:  # fmt: skip
    """X with A X = B, A^T X = B (trans=1) or A^H X = B (trans=2), by what `lu_factor` gave.

    Args:
        lu_and_piv: the pair.
        b: [n] or [n, k]; lies on the device as a whole.
        trans: 0, 1 or 2.
        memory_limit: as for `lu_factor`.
        device: as for `lu_factor`.

    Returns:
        [n] or [n, k], of the factors' dtype.

    Raises:
        ArgumentError: if the first argument is no such pair.
        NumericError: if A is singular, naming the pivot, or b holds NaN or infinity.
        OutOfMemoryError: if b and strips of one column do not fit the limit.
        ShapeError, DTypeError, DeviceError: for what is no such matrix or device.
    """
    lu, exchanges = _pair("lu_solve", "lu_factor", lu_and_piv)
    if trans not in (0, 1, 2):
        raise ArgumentError(f"lu_solve: trans must be 0, 1 or 2, got {trans!r}")
    order = _order("lu_solve", exchanges, len(lu))
    x = right_side("lu_solve", lu, b)
    _refuse_zeros("lu_solve", lu)
    if trans == 0:
        x[...] = x[order]
    elif trans == 1:  # A^T X = B is A^H conj(X) = conj(B)
        np.conj(x, out=x)
    with _substituting("lu_solve", lu, x, memory_limit, device) as steps:
        if trans == 0:
            steps.by_lower(unit=True)
            steps.by_upper()
        else:
            steps.by_upper_flipped()
            steps.by_lower_flipped(unit=True)
    if trans:
        x[order] = x.conj() if trans == 1 else x.copy()
    return x.reshape(np.shape(b))


def solve(
    a: HostArray, b: Any, *, assume_a: str = "gen", memory_limit: int | None = None, device: str = "cuda",
    out: HostArray | None = None,
) -> HostArray:  # fmt: skip
    """X with A X = B, by `lu_factor`, or `cho_factor` with assume_a="pos".

    Args:
        a: [n, n], as for `lu_factor`.
        b: [n] or [n, k]; lies on the device as a whole.
        assume_a: "gen", or "pos" for a Hermitian positive definite A.
        memory_limit: as for `lu_factor`.
        device: as for `lu_factor`.
        out: what the factors are written to, as for `lu_factor`.

    Raises:
        NumericError: if A is singular or not positive definite, naming the pivot or minor, or one
            of both is not finite.
        OutOfMemoryError: if b and strips of one column do not fit the limit.
        ArgumentError, ShapeError, DTypeError, DeviceError: for what is no such matrix or device.
    """
    if assume_a not in ("gen", "pos"):
        raise ArgumentError(f'solve: assume_a must be "gen" or "pos", got {assume_a!r}')
    right_side("solve", matrix("solve", "a", a), b)
    if assume_a == "pos":
        factor = cho_factor(a, memory_limit=memory_limit, device=device, out=out)
        return cho_solve(factor, b, memory_limit=memory_limit, device=device)
    factors = lu_factor(a, memory_limit=memory_limit, device=device, out=out)
    return lu_solve(factors, b, memory_limit=memory_limit, device=device)


@contextmanager
def _substituting(
    name: str, a: HostArray, x: HostArray, memory_limit: int | None, device: str
) -> Iterator[_Substitution]:
    """Steps on x, which lies on the device meanwhile."""
    place = place_of(device)
    with opened(place, a):
        steps = _Substitution(name, a, x, memory_limit, place)
        yield steps
        place.download(x, steps.x)


class _Substitution:
    """Rows of x that triangles decide, one strip of columns after the other.

    Attributes:
        x: [n, k] on the device, from which strips of a triangle are taken off as they pass.
    """

    def __init__(
        self, name: str, a: HostArray, x: HostArray, memory_limit: int | None, place: Place
    ) -> None:
        self._place, self._a = place, a
        division = divided(name, max(len(a), 1), a.dtype, place, memory_limit, 0, 2 * x.nbytes)
        self._parts = [part for part in division.strips if part.start < len(a)]
        self._strips = Strips(place, division, a.dtype)
        held = Buffer(place.allocate(max(x.size, 1), a.dtype))
        held.ready = place.upload(held.shaped(*x.shape), x, [])
        self.x: Array = self._strips.use(held)

    def by_lower(self, *, unit: bool) -> None:
        """X becomes L^-1 X: its rows from the first on."""
        for part, strip in self._passing(self._parts, lambda part: slice(part.start, None)):
            width = part.stop - part.start
            x = self.x[part]
            self._place.solve(x, strip[:width], lower=True, unit=unit, flip=False)
            self._place.subtract(self.x[part.stop :], strip[width:], x, flip_a=False, flip_b=False)

    def by_upper(self) -> None:
        """X becomes U^-1 X: its rows from the last on."""
        for part, strip in self._passing(self._parts[::-1], lambda part: slice(0, part.stop)):
            x, above = self.x[part], slice(0, part.start)
            self._place.solve(x, strip[part.start :], lower=False, unit=False, flip=False)
            self._place.subtract(self.x[above], strip[above], x, flip_a=False, flip_b=False)

    def by_lower_flipped(self, *, unit: bool) -> None:
        """X becomes L^-H X: its rows from the last on."""
        for part, strip in self._passing(self._parts[::-1], lambda part: slice(part.start, None)):
            width = part.stop - part.start
            x = self.x[part]
            self._place.subtract(x, strip[width:], self.x[part.stop :], flip_a=True, flip_b=False)
            self._place.solve(x, strip[:width], lower=True, unit=unit, flip=True)

    def by_upper_flipped(self) -> None:
        """X becomes U^-H X: its rows from the first on."""
        for part, strip in self._passing(self._parts, lambda part: slice(0, part.stop)):
            x, above = self.x[part], slice(0, part.start)
            self._place.subtract(x, strip[above], self.x[above], flip_a=True, flip_b=False)
            self._place.solve(x, strip[part.start :], lower=False, unit=False, flip=True)

    def _passing(
        self, parts: list[slice], rows: Callable[[slice], slice]
    ) -> Iterator[tuple[slice, Array]]:
        """Strips of the columns of these parts, and of them these rows."""
        sources: list[tuple[HostArray, int | None]] = [
            (self._a[rows(part), part], None) for part in parts
        ]
        for part, buffer in zip(parts, self._strips.stream(sources), strict=True):
            yield part, self._strips.use(buffer)


def _pair(name: str, maker: str, given: Any) -> tuple[HostArray, Any]:
    if not isinstance(given, tuple) or len(given) != 2:
        raise ArgumentError(f"{name}: the first argument must be the pair that {maker} gives")
    return matrix(name, "the factor", given[0]), given[1]


def _order(name: str, exchanges: Any, n: int) -> HostArray:
    """Which row of A each row of the factors is."""
    exchanges = np.asarray(exchanges)
    if exchanges.shape != (n,) or exchanges.dtype.kind not in "iu":
        raise ArgumentError(f"{name}: piv must hold {n} integers, as lu_factor gives them")
    if n and (exchanges.min() < 0 or exchanges.max() >= n):
        raise ArgumentError(
            f"{name}: piv must hold rows from 0 to {n - 1}, as lu_factor gives them"
        )
    return order_after(exchanges, n)


def _refuse_zeros(name: str, factor: HostArray) -> None:
    zeros = np.flatnonzero(np.diagonal(factor) == 0)
    if len(zeros):
        raise NumericError(
            f"{name}: the matrix is singular: pivot {zeros[0]} of {len(factor)} is 0"
        )
