"""In which precision products are computed, and the local product of two blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from magmadnn.comm.gpu.phases import USUAL_MATH, WIDE_SUMS
from magmadnn.dmath.arrays.team import Array, Team, accumulated, is_half
from magmadnn.dmath.arrays.tracing import PRODUCT, span
from magmadnn.errors import ArgumentError, DTypeError, UnknownNameError, quoted
from magmadnn.memory.dtypes import as_dtype

COMPUTE: Final = ("float64", "float32", "tf32", "bfloat16", "float16")
# cudaDataType_t and cublasComputeType_t; the first algorithm is the library's choice.
_KINDS: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_FLOAT32, _TF32, _FLOAT64, _ANY_ALGORITHM = 68, 77, 70, -1


@dataclass(frozen=True)
class Arithmetic:
    """How local products are computed; the dtypes of storage and of the wire are another matter.

    Attributes:
        operand: dtype that elements of both operands are rounded to before they are multiplied.
        sums: dtype that products are added up in.
        tensor_float: whether a GPU may round operands of float32 to TF32, with 11 significant bits.
    """

    operand: np.dtype[Any]
    sums: np.dtype[Any]
    tensor_float: bool = False

    @cached_property
    def is_known(self) -> bool:
        """Whether cuBLAS multiplies such operands."""
        return self.operand.name in _KINDS

    @property
    def name(self) -> str:
        """That of `COMPUTE` where it is one."""
        return "tf32" if self.tensor_float else self.operand.name


@lru_cache(maxsize=256)
def arithmetic_of(
    a: np.dtype[Any], b: np.dtype[Any], result: np.dtype[Any], compute: str | None = None
) -> Arithmetic:
    """The arithmetic of a product.

    Without `compute`, halves of one dtype are multiplied as they are, which is exact in the float32 of
    their sums; all else in the dtype of the result.

    Args:
        a: dtype of the left operand.
        b: of the right one.
        result: of the result.
        compute: one of `COMPUTE`, or None.

    Raises:
        UnknownNameError: for a name that is none of them.
        DTypeError: if it is given for operands that are no real floating-point numbers.
    """
    if compute is not None:
        if compute not in COMPUTE:
            raise UnknownNameError.of("matmul: compute", compute, COMPUTE)
        for dtype in (a, b, result):
            if dtype.kind not in "fV":
                raise DTypeError(
                    f"matmul: compute={compute!r} is for real floating-point numbers, got {dtype}"
                )
        if compute == "tf32":
            return Arithmetic(np.dtype(np.float32), np.dtype(np.float32), True)
        operand = as_dtype(compute)
        return Arithmetic(operand, accumulated(operand))
    if a == b and is_half(a) and accumulated(result) == np.float32:
        return Arithmetic(a, np.dtype(np.float32))
    sums = accumulated(result)
    return Arithmetic(sums, sums)


def wire_of(dtype: np.dtype[Any], how: Arithmetic, wire: Any) -> np.dtype[Any] | None:
    """What an operand travels in: `wire`, else what it is rounded to before products if that is smaller."""
    if wire is not None:
        return as_dtype(wire)
    rounded = is_half(how.operand) and how.operand.itemsize < dtype.itemsize
    return how.operand if rounded else None


def wire_name(op: str, wire: Any, dtypes: Sequence[np.dtype[Any]]) -> str | None:
    """The name of a dtype in which elements travel.

    Raises:
        DTypeError: if they would be more than rounded: floating-point numbers travel as such.
    """
    if wire is None:
        return None
    known = as_dtype(wire)
    for dtype in dtypes:
        if known != dtype and (known.kind not in "fV" or dtype.kind not in "fV"):
            raise DTypeError(
                f"{op}: wire={known.name!r} rounds floating-point numbers on their way, got {dtype.name}: "
                "leave wire out, or give float32, bfloat16 or float16"
            )
    return known.name


def error_bound(op: str, error: Any, wire: Any, dtype: np.dtype[Any]) -> float:
    """How much elements may be off on their way.

    Raises:
        ArgumentError: it is no number above 0, or a dtype to travel in is given too.
        DTypeError: for elements that are no real floating-point numbers.
    """
    number = isinstance(error, (int, float, np.integer, np.floating)) and not isinstance(
        error, bool
    )
    if not number or not 0 < error < float("inf"):
        raise ArgumentError(f"{op}: error must be a number above 0, got {quoted(error)}")
    if wire is not None:
        raise ArgumentError(f"{op}: give wire= or error=, not both, got {quoted(wire)} and {error}")
    if dtype.kind not in "fV":
        raise DTypeError(
            f"{op}: error={error} rounds real floating-point numbers on their way, got {dtype.name}: leave "
            "error out"
        )
    return float(error)


def travelling_size(dtypes: Sequence[np.dtype[Any]], how: Arithmetic, wire: Any) -> int:
    """Bytes of an element of the operands on its way, the larger one's."""
    return max((wire_of(dtype, how, wire) or dtype).itemsize for dtype in dtypes)


def on_device(team: Team, how: Arithmetic) -> bool:
    """Whether `multiply` calls cuBLAS."""
    return team.multiply is None and team.xp is not np and how.is_known


def multiply(
    team: Team, a: Array, b: Array, how: Arithmetic, into: Array | None = None, add: bool = False
) -> Array:
    """The local product of two matrices, whose elements are rounded to `how.operand` first.

    Args:
        team: the workers; its library of arrays multiplies.
        a: [m, k].
        b: [k, n].
        how: the arithmetic.
        into: [m, n], what is written to; None for a new array of `how.sums`.
        add: whether the product is added to what is in `into`.
    """
    if team.trace is None:
        return _multiplied(team, a, b, how, into, add)
    with span(team, PRODUCT, " x ".join(map(str, (*a.shape, b.shape[1])))):
        return _multiplied(team, a, b, how, into, add)


def _multiplied(
    team: Team, a: Array, b: Array, how: Arithmetic, into: Array | None, add: bool
) -> Array:
    if on_device(team, how):
        if into is None:
            into, add = team.xp.empty((a.shape[0], b.shape[1]), how.sums), False
        _on_device(team, _rounded(a, how.operand), _rounded(b, how.operand), how, into, add)
        return into
    left, right = (_rounded(x, how.operand).astype(how.sums, copy=False) for x in (a, b))
    # OpenBLAS may raise the flag where no operand and no result is one: its AVX-512 kernel for a vector of 5
    # float32 times columns also multiplies what its memory held before, and throws that away.
    with np.errstate(invalid="ignore"):
        made: Array = (team.multiply or team.xp.matmul)(left, right)
    if into is None:
        return made
    if add:
        into += made
    else:
        into[...] = made
    return into


def _rounded(x: Array, dtype: np.dtype[Any]) -> Array:
    return x.astype(dtype, copy=False)


def _on_device(team: Team, a: Array, b: Array, how: Arithmetic, out: Array, add: bool) -> None:
    """cuBLAS on the current stream; operands are read where they lie, in either order.

    The library counts in column order, where a matrix that is stored by rows is its transpose: C' = B' A'.
    """
    (m, k), n = a.shape, b.shape[1]
    if not m or not n:
        return
    if not k:
        if not add:
            out[...] = 0
        return
    if not _by_rows(out):
        if not _by_rows(out.T):
            raise AssertionError("a block of a product is stored by rows or by columns")
        a, b, out, m, n = b.T, a.T, out.T, n, m
    (first, flip_first, step_first), (second, flip_second, step_second) = (
        _stored(team, b),
        _stored(team, a),
    )
    one, other = _scales(how.sums, add)[1:]
    kind = _TF32 if how.tensor_float else _FLOAT64 if how.sums == np.float64 else _FLOAT32
    operand = _KINDS[how.operand.name]
    words = (
        flip_first, flip_second, n, m, k,
        one, first.data.ptr, operand, step_first, second.data.ptr, operand, step_second,
        other, out.data.ptr, _KINDS[out.dtype.name], _step(out), kind, _ANY_ALGORITHM,
    )  # fmt: skip
    if team.gemm is not None:  # its handle has the mode already
        team.gemm(*words)
        return
    cublas, handle = team.xp.cuda.cublas, team.xp.cuda.device.get_cublas_handle()
    if out.dtype.itemsize >= how.sums.itemsize:
        cublas.gemmEx(handle, *words)
        return
    cublas.setMathMode(handle, WIDE_SUMS)
    try:
        cublas.gemmEx(handle, *words)
    finally:
        cublas.setMathMode(handle, USUAL_MATH)


@lru_cache(maxsize=16)
def _scales(dtype: np.dtype[Any], add: bool) -> tuple[Array, int, int]:
    """The factors of a product and of what is there, as numbers in memory that stays, and where they lie."""
    scale = np.array([1.0, float(add)], dtype)
    at = int(scale.ctypes.data)
    return scale, at, at + scale.itemsize


def _by_rows(x: Array) -> bool:
    """Whether elements of a row follow each other, and rows do not overlap."""
    rows, columns = x.shape
    near = columns == 1 or x.strides[1] == x.itemsize
    return bool(near and (rows == 1 or x.strides[0] >= columns * x.itemsize))


def _step(x: Array) -> int:
    """Elements from row to row."""
    rows, columns = x.shape
    return int(max(columns, 1) if rows == 1 else x.strides[0] // x.itemsize)


def _stored(team: Team, x: Array) -> tuple[Array, int, int]:
    """A matrix as cuBLAS takes it, whether transposed, and the elements from row to row.

    Raises:
        NotImplementedError: a copy has to be made, in memory that a graph could not rely on.
    """
    if _by_rows(x):
        return x, 0, _step(x)
    if _by_rows(x.T):
        return x, 1, _step(x.T)
    if team.gemm is not None:
        raise NotImplementedError(
            "a graph reads operands where they lie, and this one has to be copied"
        )
    x = team.xp.ascontiguousarray(x)
    return x, 0, _step(x)


def kind_of(how: Arithmetic) -> str:
    """The name under which the speed of products is kept: one of `COMPUTE`."""
    return how.name if how.name in COMPUTE else "float32"


def of_kind(kind: str) -> Arithmetic:
    """The arithmetic of operands that are stored as they are multiplied."""
    stored = np.dtype(np.float32) if kind == "tf32" else as_dtype(kind)
    return arithmetic_of(stored, stored, stored, kind)
