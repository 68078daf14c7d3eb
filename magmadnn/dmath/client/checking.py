"""Numbers that users give: looked at by the client, since on workers one that does not fit ends them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError, quoted

NUMBERS = (bool, int, float, complex, np.bool, np.number)


def refuse_complex(name: str, given: np.dtype[Any], goal: np.dtype[Any]) -> None:
    """Look whether imaginary parts would be lost."""
    if given.kind == "c" and goal.kind != "c":
        raise DTypeError(
            f"{name}: elements are {given}, which do not go into {goal}: take md.dmath.real, imag or abs"
        )


def fitting(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """Python's number, which an element of this dtype can be; cast as NumPy casts what is assigned.

    Raises:
        ArgumentError: for what is no number, and for numbers beyond the dtype's, such as NaN for integers.
        DTypeError: for complex ones in a real dtype.
    """
    number = (
        value.item() if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0 else value
    )
    if not isinstance(number, NUMBERS):
        raise ArgumentError(f"{name}: expected a number, got {quoted(value)}")
    if isinstance(number, complex):
        refuse_complex(name, np.dtype(np.complex128), dtype)
    try:
        with np.errstate(all="ignore"):
            np.zeros((), dtype)[()] = number
    except (OverflowError, ValueError):
        raise ArgumentError(
            f"{name}: {number} does not go into elements of {dtype}: take another number, or another dtype"
        ) from None
    return number


def promoted(name: str, *given: Any) -> np.dtype[Any]:
    """The common dtype of dtypes and numbers, as NumPy has it.

    Raises:
        DTypeError: if there is none, as of bfloat16 and float16.
    """
    try:
        return np.result_type(*given)
    except TypeError:
        words = ", ".join(str(one) for one in dict.fromkeys(given))
        raise DTypeError(f"{name}: {words} have no common dtype: cast them with astype") from None


_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}


def goes_into(given: np.dtype[Any], goal: np.dtype[Any]) -> bool:
    """Whether elements of a dtype are of no higher kind: truths, whole, real, complex numbers."""
    return _KINDS[given.kind] <= _KINDS[goal.kind]


def whole(name: str, what: str, value: Any) -> int:
    """A whole number, of Python's or NumPy's types.

    Raises:
        ArgumentError: for anything else.
    """
    try:
        if isinstance(value, (bool, np.bool)):
            raise TypeError
        return index(value)
    except (TypeError, ArgumentError):
        raise ArgumentError(f"{name}: {what} must be a whole number, got {quoted(value)}") from None


def several(name: str, what: str, value: Any) -> tuple[int, ...]:
    """Whole numbers: one, or a sequence of them."""
    given = value if isinstance(value, (Sequence, np.ndarray)) and np.ndim(value) else (value,)
    return tuple(whole(name, what, one) for one in given)


def real(name: str, what: str, value: Any) -> float:
    """A real number.

    Raises:
        ArgumentError: for anything else.
    """
    if isinstance(value, (bool, np.bool)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise ArgumentError(f"{name}: {what} must be a real number, got {quoted(value)}")
    return float(value)
