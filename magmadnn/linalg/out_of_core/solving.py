"""Solutions by factors that lie in the host's memory, one strip of columns after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, NumericError

from .cholesky_factor import cho_factor
from .division import divided
from .elimination import lu_factor
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
        NumericError: if there is a 0 on the factor's diagonal.
        OutOfMemoryError: if b and strips of one column do not fit the limit.
        ShapeError, DTypeError, DeviceError: for what is no such matrix or device.
    """
    c, lower = _pair("cho_solve", "cho_factor", c_and_lower)
    if lower is not True:
        raise ArgumentError("cho_solve: takes lower triangles: (c, True), as cho_factor gives them")
    x = right_side("cho_solve", c, b)
    _refuse_zeros("cho_solve", c)
    with _Substitution("cho_solve", c, x, memory_limit, device) as steps:
        steps.forward(lower=True, unit=False)
        steps.backward_flipped(lower=True, unit=False)
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
        NumericError: if A is singular, naming the pivot.
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
    with _Substitution("lu_solve", lu, x, memory_limit, device) as steps:
        if trans == 0:
            steps.forward(lower=True, unit=True)
            steps.backward(lower=False, unit=False)
        else:
            steps.forward_flipped(lower=False, unit=False)
            steps.backward_flipped(lower=True, unit=True)
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
        NumericError: if A is singular or not positive definite, naming the pivot or minor, or not finite.
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


class _Substitution:
    """x [n, k] on the device, from which strips of a triangle are taken off as they pass."""

    def __init__(
        self, name: str, a: HostArray, x: HostArray, memory_limit: int | None, device: str
    ) -> None:
        self._name, self._a, self._host = name, a, x
        self._limit, self._device = memory_limit, device

    def __enter__(self) -> _Substitution:
        a, x = self._a, self._host
        self._place: Place = place_of(self._device)
        self._opened = opened(self._place, a)
        self._opened.__enter__()
        try:
            self._prepare(a, x)
        except BaseException:
            self._opened.__exit__(None, None, None)
            raise
        return self

    def _prepare(self, a: HostArray, x: HostArray) -> None:
        place = self._place
        division = divided(self._name, max(len(a), 1), a.dtype, place, self._limit, 0, 2 * x.nbytes)
        self._numbers = [part for part in division.strips if part.start < len(a)]
        self._strips = Strips(place, division, a.dtype)
        self._held = Buffer(place.allocate(max(x.size, 1), a.dtype))
        self._held.ready = place.upload(self._held.shaped(*x.shape), x, [])
        self._x: Array = self._strips.use(self._held)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        try:
            if kind is None:
                self._place.download(self._host, self._x)
        finally:
            self._opened.__exit__(kind, *rest)

    def forward(self, *, lower: bool, unit: bool) -> None:
        """By a lower triangle: rows of x from the first on."""
        for part, strip in self._passing(self._numbers, lambda part: slice(part.start, None)):
            width = part.stop - part.start
            x = self._x[part]
            self._place.solve(x, strip[:width], lower=lower, unit=unit, flip=False)
            self._place.subtract(self._x[part.stop :], strip[width:], x, flip_a=False, flip_b=False)

    def backward(self, *, lower: bool, unit: bool) -> None:
        """By an upper triangle: rows of x from the last on."""
        for part, strip in self._passing(self._numbers[::-1], lambda part: slice(0, part.stop)):
            x = self._x[part]
            self._place.solve(x, strip[part.start :], lower=lower, unit=unit, flip=False)
            self._place.subtract(
                self._x[: part.start], strip[: part.start], x, flip_a=False, flip_b=False
            )

    def backward_flipped(self, *, lower: bool, unit: bool) -> None:
        """By L^H of a lower triangle: rows of x from the last on."""
        for part, strip in self._passing(self._numbers[::-1], lambda part: slice(part.start, None)):
            width = part.stop - part.start
            x = self._x[part]
            self._place.subtract(x, strip[width:], self._x[part.stop :], flip_a=True, flip_b=False)
            self._place.solve(x, strip[:width], lower=lower, unit=unit, flip=True)

    def forward_flipped(self, *, lower: bool, unit: bool) -> None:
        """By U^H of an upper triangle: rows of x from the first on."""
        for part, strip in self._passing(self._numbers, lambda part: slice(0, part.stop)):
            x = self._x[part]
            self._place.subtract(
                x, strip[: part.start], self._x[: part.start], flip_a=True, flip_b=False
            )
            self._place.solve(x, strip[part.start :], lower=lower, unit=unit, flip=True)

    def _passing(self, parts: list[slice], rows: Any) -> Any:
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
    order = np.arange(n)
    for row, other in enumerate(exchanges):
        order[row], order[other] = order[other], order[row]
    return order


def _refuse_zeros(name: str, factor: HostArray) -> None:
    zeros = np.flatnonzero(np.diagonal(factor) == 0)
    if len(zeros):
        raise NumericError(
            f"{name}: the matrix is singular: pivot {zeros[0]} of {len(factor)} is 0"
        )
