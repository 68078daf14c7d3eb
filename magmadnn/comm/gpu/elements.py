"""Dtypes and reductions as NCCL numbers them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from magmadnn.errors import DTypeError, UnknownNameError

# ncclDataType_t and ncclRedOp_t. CuPy has no name for bfloat16, and passes the number on.
DTYPES: Final = {
    "bool": 1,
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
OPS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3}


def nccl_dtype(array: Any) -> int:
    """The number of an array's dtype.

    Raises:
        DTypeError: if NCCL has none.
    """
    name = name_of(array.dtype)
    if name not in DTYPES:
        raise DTypeError(
            f"NCCL does not know elements of {array.dtype}: known are {', '.join(DTYPES)}"
        )
    return DTYPES[name]


@cache
def name_of(dtype: Any) -> str:
    """`dtype.name`, which NumPy puts together anew each time."""
    return str(dtype.name)


def nccl_op(name: str) -> int:
    """The number of a reduction.

    Raises:
        UnknownNameError: if there is no such.
    """
    if name not in OPS:
        raise UnknownNameError.of("op", name, OPS)
    return OPS[name]
