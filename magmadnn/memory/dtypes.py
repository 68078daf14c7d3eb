"""The element types that magmadnn computes with."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from magmadnn.errors import DTypeError, UnknownNameError

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_NAMES = "float16 float32 float64 int8 int16 int32 int64 uint8 bool".split()
DTYPES: dict[str, np.dtype[Any]] = {**{n: np.dtype(n) for n in _NAMES}, "bfloat16": BFLOAT16}
_KNOWN = frozenset(DTYPES.values())


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype for a name or dtype, in this machine's byte order.

    Raises:
        DTypeError: if it is not one of `DTYPES`; names the nearest.
    """
    if isinstance(dtype, np.dtype) and dtype in _KNOWN:  # most often; another byte order is not
        return dtype
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    result: np.dtype[Any] | None = None
    try:
        result = None if dtype is None else np.dtype(dtype).newbyteorder("=")
    except TypeError:
        pass  # what it cannot be is said below
    if result is None or result not in _KNOWN:
        name = dtype if isinstance(dtype, str) or result is None else result.name
        if result is not None and result.kind in "USOMmV":  # no number is near text, or objects
            raise DTypeError(f"dtype {name!r} is not known: known are {', '.join(sorted(DTYPES))}")
        raise DTypeError(str(UnknownNameError.of("dtype", name, DTYPES)))
    return result


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a floating-point number (bfloat16 included)."""
    return dtype.kind == "f" or dtype == BFLOAT16
