"""The element types that magmadnn computes with."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, DTypeError, UnknownNameError

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_NAMES = "float16 float32 float64 int8 int16 int32 int64 uint8 bool".split()
DTYPES: dict[str, np.dtype[Any]] = {**{n: np.dtype(n) for n in _NAMES}, "bfloat16": BFLOAT16}
COMPLEX: dict[str, np.dtype[Any]] = {n: np.dtype(n) for n in ("complex64", "complex128")}
BLAS_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}
"""How names of BLAS and LAPACK begin, by the character of a dtype."""
_BY_NAME = {**DTYPES, **COMPLEX}
_KNOWN = frozenset(_BY_NAME.values())


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype for a name or dtype, in this machine's byte order.

    Raises:
        DTypeError: if it is neither one of `DTYPES` nor complex; names the nearest.
    """
    if isinstance(dtype, np.dtype) and dtype in _KNOWN:  # most often; another byte order is not
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    result: np.dtype[Any] | None = None
    try:
        result = None if dtype is None else np.dtype(dtype).newbyteorder("=")
    except TypeError:
        pass  # what it cannot be is said below
    if result is None or result not in _KNOWN:
        name = dtype if isinstance(dtype, str) or result is None else result.name
        if result is not None and result.kind in "USOMmV":  # no number is near text, or objects
            raise DTypeError(
                f"dtype {name!r} is not known: known are {', '.join(sorted(_BY_NAME))}"
            )
        raise DTypeError(str(UnknownNameError.of("dtype", name, _BY_NAME)))
    return result


def is_complex(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a complex number."""
    return dtype.kind == "c"


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a floating-point number (bfloat16 included)."""
    return dtype.kind == "f" or dtype == BFLOAT16


def limits_of(dtype: Any) -> Any:
    """`np.finfo` of a floating-point dtype, bfloat16 too: `eps`, `tiny`, `max` and the like.

    Raises:
        ValueError: of integers, as NumPy's.
    """
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def in_own_order(array: NDArray[Any]) -> NDArray[Any]:
    """The array in this machine's order of bytes; a copy only where it has the other one."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def refuse_masked(what: str, value: Any) -> None:
    """Look whether an array leaves elements out: NumPy's own functions would take what is under the mask.

    Raises:
        DataError: if it does; begins with `what`.
    """
    if type(value) is np.ndarray:
        return
    module = sys.modules.get("numpy.ma")  # which whoever has such an array has loaded
    if module is not None and isinstance(value, module.MaskedArray) and module.is_masked(value):
        raise DataError(
            f"{what}: elements are masked: fill them, x.filled(value), or leave them out"
        )


def converted(what: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array in a dtype: floating-point numbers in any width, integers that fit, others in a wider kind.

    Raises:
        DTypeError: if a number would become one of a narrower kind, as 1.5 an integer; begins with `what`.
        DataError: if an integer does not fit, or elements are masked.
    """
    refuse_masked(what, array)
    if array.dtype == dtype:
        return array
    floats = is_floating(array.dtype) and is_floating(dtype)
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"  # whose values are looked at below
    loses_imaginary = is_complex(array.dtype) and not is_complex(dtype)
    if loses_imaginary or not (floats or integers or np.can_cast(array.dtype, dtype, "same_kind")):
        raise DTypeError(f"{what}: expected {dtype.name}, got {array.dtype}; cast it")
    with np.errstate(over="ignore"):
        made = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(made, array):
        wrong = array[made != array]
        raise DataError(f"{what}: {wrong.flat[0]} does not fit into {dtype.name}")
    return made
