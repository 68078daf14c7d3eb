"""Determinants, factors and spectra of spread matrices, and functions whose results' shapes data decides."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from magmadnn.dmath.client.arranging import reshape
from magmadnn.dmath.client.checking import whole
from magmadnn.dmath.client.combining import home, moveaxis, stack
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.functions import reducing
from magmadnn.dmath.functions.factors import computed_dtype
from magmadnn.dmath.functions.spectra import result_shapes
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, quoted


class QR(NamedTuple):
    """Q with orthonormal columns, and R, which is 0 below its diagonal."""

    Q: Matrix
    R: Matrix


class SVD(NamedTuple):
    """Factors of X = U diag(S) Vh, with S from the largest on."""

    U: Matrix
    S: Matrix
    Vh: Matrix


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, and vectors as columns."""

    eigenvalues: Matrix
    eigenvectors: Matrix


class SignAndLog(NamedTuple):
    """Of a determinant: its sign (of complex ones det / |det|), and log |det|."""

    sign: Matrix
    logabsdet: Matrix


class UniqueAll(NamedTuple):
    """See `unique_all`."""

    values: Matrix
    indices: Matrix
    inverse_indices: Matrix
    counts: Matrix


class UniqueCounts(NamedTuple):
    """See `unique_counts`."""

    values: Matrix
    counts: Matrix


class UniqueInverse(NamedTuple):
    """See `unique_inverse`."""

    values: Matrix
    inverse_indices: Matrix


def _results(
    name: str, x: Matrix, square: bool, whole: bool = False, **settings: Any
) -> list[Matrix]:
    """What one worker computes of a matrix, and each worker of its part of a stack."""
    session = home(name, x)
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        kind = "square matrices" if square else "matrices"
        raise ShapeError(f"{name}: needs {kind} in the last two axes, got shape {x.shape}")
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    shapes = result_shapes(name, m, n, whole)
    if name in ("qr", "svd"):
        settings["whole"] = whole
    shape, dtype = (*lead, sum(map(prod, shapes))), computed_dtype(x.dtype)
    row = session._new("of_matrices", [x], shape, dtype, name=name, **settings)
    found, at = list[Matrix](), 0
    for one in shapes:
        part = row[(*(slice(None),) * len(lead), slice(at, at + prod(one)))]
        found.append(reshape(part, (*lead, *one)))
        at += prod(one)
    return found


def _real(x: Matrix) -> Matrix:
    made: Matrix = home("real", x).apply("real", x) if x.dtype.kind == "c" else x
    return made


def _determinant(name: str, x: Matrix) -> list[Matrix]:
    """Sign, log |det| and det: of a real matrix by LU factors in panels that workers own in turn."""
    if x.ndim == 2 and x.shape[0] == x.shape[1] and x.dtype.kind != "c":
        session = home(name, x)
        row = session._new("determinant", [x], (3,), computed_dtype(x.dtype))
        return [reshape(row[k : k + 1], ()) for k in range(3)]
    return _results("slogdet", x, square=True)


def det(x: Matrix, /) -> Matrix:
    """The determinant of square matrices [..., n, n].

    Of one real matrix by LU factors with partial pivoting, spread as for `solve`; of a stack each worker
    computes those that it holds, of a complex matrix one worker, which has to have room for it.

    Raises:
        ShapeError: if they are not square.
    """
    return _determinant("det", x)[2]


def slogdet(x: Matrix, /) -> SignAndLog:
    """Sign and log |det| of square matrices [..., n, n]: 0 and -inf of a singular one; as `det`."""
    sign, log, _ = _determinant("slogdet", x)
    return SignAndLog(sign, _real(log))


def qr(x: Matrix, /, *, mode: str = "reduced") -> QR:
    """Q [..., m, k] and R [..., k, n] with X = Q R, k = min(m, n); k = m for "complete".

    One worker computes it and has to have room for X; of a stack each those that it holds.
    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f'qr: mode must be "reduced" or "complete", got {quoted(mode)}')
    return QR(*_results("qr", x, square=False, whole=mode == "complete"))


def svd(x: Matrix, /, *, full_matrices: bool = True) -> SVD:
    """U, S and Vh with X = U diag(S) Vh; one worker computes it, as for `qr`.

    Args:
        x: [..., m, n].
        full_matrices: U [..., m, m] and Vh [..., n, n]; else [..., m, k] and [..., k, n], k = min(m, n).

    Raises:
        NumericError: when a result is used, if it does not converge.
    """
    u, s, vh = _results("svd", x, square=False, whole=bool(full_matrices))
    return SVD(u, _real(s), vh)


def svdvals(x: Matrix, /) -> Matrix:
    """Singular values [..., min(m, n)] from the largest on; one worker computes them, as for `qr`."""
    return _real(_results("svdvals", x, square=False)[0])


def eigh(x: Matrix, /) -> Eigh:
    """Eigenvalues and vectors of symmetric or Hermitian matrices, of which the lower triangle is read.

    One worker computes them, as for `qr`.
    """
    values, vectors = _results("eigh", x, square=True)
    return Eigh(_real(values), vectors)


def eigvalsh(x: Matrix, /) -> Matrix:
    """Eigenvalues of `eigh` alone."""
    return _real(_results("eigvalsh", x, square=True)[0])


def pinv(x: Matrix, /, *, rtol: float | None = None) -> Matrix:
    """The pseudoinverse [..., n, m] by singular values, of which those up to rtol times the largest are 0.

    One worker computes it, as for `qr`.

    Args:
        x: [..., m, n].
        rtol: None for max(m, n) times the distance of 1 to the next number.
    """
    return _results("pinv", x, square=False, rtol=_tolerance("pinv", rtol))[0]


def matrix_rank(x: Matrix, /, *, rtol: float | None = None) -> Matrix:
    """How many singular values are above rtol times the largest; as for `pinv`."""
    rank = _results("matrix_rank", x, square=False, rtol=_tolerance("matrix_rank", rtol))[0]
    return _real(rank).astype("int64")


def _tolerance(name: str, rtol: Any) -> float | None:
    if rtol is None:
        return None
    if isinstance(rtol, bool) or not isinstance(rtol, (int, float, np.number)) or rtol < 0:
        raise ArgumentError(f"{name}: rtol must be a number from 0, got {quoted(rtol)}")
    return float(rtol)


def cross(x1: Matrix, x2: Matrix, /, *, axis: int = -1) -> Matrix:
    """The cross product of vectors of three elements along an axis of both arrays, which broadcast.

    Raises:
        ShapeError: if the axis has another size in one of them, or shapes do not broadcast.
    """
    session = home("cross", x1)
    for x in (x1, x2):
        if not -x.ndim <= whole("cross", "axis", axis) < x.ndim or x.shape[axis] != 3:
            raise ShapeError(
                f"cross: axis {axis} must have 3 elements, got shapes {x1.shape} and {x2.shape}"
            )
    # The axis is that of each operand; other axes broadcast.
    first, second = ([moveaxis(x, axis, -1)[..., k] for k in range(3)] for x in (x1, x2))
    parts = []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        left = session.apply("multiply", first[i], second[j])
        parts.append(
            session.apply("subtract", left, session.apply("multiply", first[j], second[i]))
        )
    return moveaxis(stack(parts, axis=-1), -1, axis)


def take_along_axis(x: Matrix, indices: Any, /, *, axis: int = -1) -> Matrix:
    """Elements along an axis by indices of the same shape but for that axis, as `argsort` gives them.

    Raises:
        ShapeError: if another axis differs in size.
        DTypeError: if indices are no integers.
        IndexOutOfRangeError: when the result is used, for an index beyond the axis.
    """
    session = home("take_along_axis", x)
    given = indices if isinstance(indices, Matrix) else session.array(np.asarray(indices))
    if given.dtype.kind not in "iu":
        raise DTypeError(f"take_along_axis: indices are integers, got {given.dtype}")
    (along,) = reducing.axes_of("take_along_axis", axis, x.ndim)
    others = [i for i in range(x.ndim) if i != along]
    if given.ndim != x.ndim or any(given.shape[i] != x.shape[i] for i in others):
        raise ShapeError(
            f"take_along_axis: indices of shape {given.shape} do not fit shape {x.shape} beside axis {axis}"
        )
    made: Matrix = session._new("take_along_axis", [x, given], given.shape, x.dtype, axis=along)
    return made


def nonzero(x: Matrix, /) -> tuple[Matrix, ...]:
    """Indices of elements that are not 0, a vector for each axis, in row-major order.

    How many there are only the data says: x comes to this process, and the indices go to the workers.
    """
    session = home("nonzero", x)
    if not x.ndim:
        raise ShapeError("nonzero: needs an array of one axis at least")
    return tuple(session.array(indices) for indices in np.nonzero(np.asarray(x)))


def unique_all(x: Matrix, /) -> UniqueAll:
    """Different values in ascending order; the first place of each, where each element went, how often.

    Places are of the elements in row-major order. Each NaN is a value of its own. How many there are only
    the data says: x comes to this process, and the results go to the workers.
    """
    session, array = home("unique_all", x), np.asarray(x)
    values, places, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    inverse = inverse.reshape(array.shape)
    return UniqueAll(*(session.array(found) for found in (values, places, inverse, counts)))


def unique_counts(x: Matrix, /) -> UniqueCounts:
    """Values and counts of `unique_all`."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Matrix, /) -> UniqueInverse:
    """Values of `unique_all`, and where each element went, of the shape of x."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Matrix, /) -> Matrix:
    """Values of `unique_all`."""
    return unique_all(x).values


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(det, slogdet, qr, svd, svdvals, eigh, eigvalsh, pinv, matrix_rank, cross),
        *(take_along_axis, nonzero, unique_all, unique_counts, unique_inverse, unique_values),
    )
}
