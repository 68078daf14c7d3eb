"""Arguments of what solves equations step by step, and the range in which sums of squares stay numbers."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError

_ROUNDING = 4  # eps of |b| that a residual keeps, whatever is done


def checked_count(name: str, argument: str, value: Any) -> int:
    """A number of steps or vectors.

    Raises:
        ArgumentError: it is no integer of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        none = " or None" if argument == "maxiter" else ""
        raise ArgumentError(f"{name}: {argument} must be a positive integer{none}, got {value!r}")
    return int(value)


def checked_tolerances(name: str, rtol: Any, atol: Any = None) -> tuple[float, float]:
    """What steps end at; no atol where a function has none.

    Raises:
        ArgumentError: one is no number that a residual could be compared with, or both are 0.
    """
    both = " and atol=0 ask" if atol is not None else " asks"
    for argument, value in (("rtol", rtol), ("atol", 0.0 if atol is None else atol)):
        number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
        if not number or not 0 <= value < math.inf:
            raise ArgumentError(f"{name}: {argument} must be a number from 0 on, got {value!r}")
    if rtol >= 1:
        raise ArgumentError(
            f"{name}: rtol must be below 1, got {rtol!r}: x = 0 leaves |b|, so it would be the answer"
        )
    if rtol == 0 and not atol:
        raise ArgumentError(
            f"{name}: rtol=0{both} that nothing is left of |A x - b|, but rounding leaves some of it: give "
            f"rtol=1e-12, say{'' if atol is None else ', or an atol above 0'}"
        )
    return float(rtol), float(atol or 0.0)


def check_goal(name: str, rtol: float, atol: float, size: float, dtype: Any) -> float:
    """What `|A x - b|` is to become at most, given `|b|`.

    Raises:
        ArgumentError: rounding leaves more, so that steps would go on in vain.
    """
    eps = float(np.finfo(dtype).eps)
    goal, least = max(rtol * size, atol), _ROUNDING * eps * size
    if goal < least:
        given = f"rtol={rtol:g}" if rtol * size >= atol else f"atol={atol:g}"
        wide = ", or operands of float64" if np.dtype(dtype).char in "fF" else ""
        raise ArgumentError(
            f"{name}: |A x - b| is to be at most {goal / size:.3g} of |b|, by {given}, but rounding in "
            f"{np.dtype(dtype).name} leaves up to {_ROUNDING * eps:.3g} of it: give "
            f"rtol={_ROUNDING * eps:.1g} or more{wide}"
        )
    return goal


def exponent_of(largest: float, dtype: Any) -> int:
    """e where a vector with this largest element is divided by 2^e, so that its squares are numbers.

    0 where they are so already.
    """
    edge = 2.0 ** (np.finfo(dtype).maxexp // 4)
    if largest == 0 or 1 / edge <= largest <= edge:
        return 0
    return math.frexp(largest)[1] - 1


def scaled(x: Any, exponent: int) -> Any:
    """x 2^exponent, of a number or an array; in two steps, as 2^1060 is none. Subnormal ones are rounded."""
    if exponent == 0:
        return x
    half = exponent // 2
    first, second = 2.0**half, 2.0 ** (exponent - half)
    if isinstance(x, float):
        return x * first * second
    kind = x.dtype.type
    return x * kind(first) * kind(second)
