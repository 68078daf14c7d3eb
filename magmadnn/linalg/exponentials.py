"""Exponentials of matrices: SciPy's, and on a GPU by scaling, Pade's approximation and squares."""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np

from magmadnn.calls import checked_call
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op, OpKind, Sample, promote_floating, takes_complex
from magmadnn.graph.signature import by_signature
from magmadnn.graph.transforms.stacking import last_axes
from magmadnn.memory.dtypes import is_complex
from magmadnn.ops import abs as abs_
from magmadnn.ops import broadcast_to, cast, concat, equal, expand_dims, greater, matmul, where
from magmadnn.ops import max as max_
from magmadnn.ops import sum as sum_
from magmadnn.tensor import Tensor
from magmadnn.tensor.eager.operands import lies_on_gpu
from magmadnn.tensor.known_values import known
from magmadnn.tensor.on_gpu import on_gpu

from ._at_once import is_finite
from ._matrices import computed, identity, in_single, refuse_unless_finite, transposed
from ._operands import operand, refuse_unless_square
from .equations import solved
from .orthogonal import scipy_linalg

# Orders of Pade's approximation, and norms up to which its backward error is below a unit in the last place:
# Higham, The scaling and squaring method for the matrix exponential revisited, 2005, table 2.3.
_ORDERS = {"float32": (7, 3.925724783138660), "float64": (13, 5.371920351148152)}
_MOST_SQUARES = 40  # exponentials of what wants more overflow, but for rare ones


def _exp_numpy(a: Array) -> Array:
    (a,) = computed(a)
    if not is_finite(a):
        refuse_unless_finite("expm", "a", a)
    if not a.size:
        return a.copy()
    with np.errstate(all="ignore"):  # what overflows is infinite
        return np.asarray(scipy_linalg("expm").expm(a))


def _exp_vjp(g: Any, y: Any, a: Any) -> Any:
    """The upper right block of exp [[A^T, g], [0, A^T]].

    As in Mathias, A chain rule for matrix functions, 1996, theorem 2.1. Where g has overflowed, as with
    mixed_fp16, whose step is left out then, it is NaN or infinity: no exponential of that is asked for.
    """
    n, turned = a.shape[-1], transposed(a)
    given = broadcast_to(g, a.shape)
    g = where(equal(given - given, 0), given, 0)
    lost = sum_(given - g, axis=(-2, -1), keepdims=True)  # 0 of finite numbers
    both = concat([concat([turned, g], axis=-1), concat([turned * 0, turned], axis=-1)], axis=-2)
    return exponential(both)[..., :n, n:] + lost


def _exp_reference(a: Array) -> Array:
    """By its series, of a matrix that is small enough."""
    total = term = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    for k in range(1, 60):
        term = term @ a / k
        total = total + term
    return np.asarray(total)


exponential: Op = Op(
    name="_expm",
    args=("a",),
    formula="the sum of a^k / k!",
    kind=OpKind.OTHER,
    stacked=last_axes,
    shapes=by_signature("... n n -> ... n n"),
    dtypes=promote_floating,
    numpy=_exp_numpy,
    vjp=_exp_vjp,
    reference=_exp_reference,
    samples=lambda draw: [Sample((draw(2, 3, 3),))],
)


takes_complex(exponential)


# --- on a GPU -------------------------------------------------------------------------------------


def _coefficients(order: int) -> list[float]:
    """Of the numerator of Pade's approximation, integers: that of the highest power is 1."""
    return [
        float(factorial(2 * order - k) // (factorial(order - k) * factorial(k)))
        for k in range(order + 1)
    ]


@on_gpu("a")
def _by_squares(a: Any, count: int) -> Any:
    """The exponential of nodes, where no matrix needs more than so many squares."""
    return _squared(a, count=count) if isinstance(a, Node) else exponential(a)


@in_single
def _squared(a: Any, count: int) -> Any:
    if a.dtype.kind in "iub":
        a = cast(a, "float64")
    order, limit = _order_of(a)
    sizes = expand_dims(expand_dims(_norms(a), -1), -1)
    # of a stack each matrix has as many squares as it needs: more would cost digits
    needed = [None if a.ndim == 2 else greater(sizes, limit * 2.0**k) for k in range(count)]
    for is_needed in needed:
        a = a * 0.5 if is_needed is None else where(is_needed, a * 0.5, a)
    odd, even = _pade(a, _coefficients(order))
    found = solved(even - odd, even + odd, of="expm")
    for is_needed in needed:
        square = matmul(found, found)
        found = square if is_needed is None else where(is_needed, square, found)
    return found


def _order_of(a: Any) -> tuple[int, float]:
    """The order of Pade's approximation in a dtype, and the largest norm that it takes."""
    is_double = a.dtype.kind in "iub" or a.dtype.itemsize == (16 if is_complex(a.dtype) else 8)
    return _ORDERS["float64" if is_double else "float32"]


def _pade(a: Any, c: list[float]) -> tuple[Any, Any]:
    """Odd and even terms of the numerator; those of the denominator are the same with other signs."""
    one = identity(a.shape[-1], a.dtype)
    second = matmul(a, a)
    fourth = matmul(second, second)
    powers = [one, second, fourth, matmul(second, fourth)]

    def terms(first: int) -> Any:
        low: Any = sum(powers[k] * c[2 * k + first] for k in range(4) if 2 * k + first < len(c))
        high = [powers[k - 3] * c[2 * k + first] for k in range(4, 7) if 2 * k + first < len(c)]
        return low + matmul(powers[3], sum(high[1:], high[0])) if high else low

    return matmul(a, terms(1)), terms(0)


def _norms(a: Any) -> Any:
    """The largest sum of a column of each matrix."""
    return max_(sum_(abs_(a), axis=-2), axis=-1)


@on_gpu("a")
def _largest(a: Any) -> Any:
    """The largest norm of all matrices."""
    return max_(_norms(a))


def _squares(a: Tensor) -> int | None:
    """How often the largest of matrices in a GPU's memory is halved; None for what the host computes."""
    if not a.size:
        return None
    largest, limit = float(_largest(a)), _order_of(a)[1]
    if not np.isfinite(largest):
        return None
    return next((k for k in range(_MOST_SQUARES) if largest <= limit * 2.0**k), None)


@checked_call
def expm(a: Any) -> Any:
    """The exponential of A [..., n, n], by SciPy (scaling, Pade, squaring); in programs a call of it.

    An eager call on a Tensor in a GPU's memory runs there, by products and equations, up to norms of 3e12.

    Raises:
        NumericError: if a matrix holds NaN or infinity.
        ShapeError: if it is not square.
        MissingExtraError: if SciPy is not installed.
    """
    if (at_once := known(a)) is not None and a.ndim > 1:
        refuse_unless_square("expm", "a", a)
        return at_once.given(_exp_numpy(at_once.arrays[0]))
    a = operand("expm", "a", a, 2)
    refuse_unless_square("expm", "a", a)
    if isinstance(a, Tensor) and lies_on_gpu(a.memory) and (count := _squares(a)) is not None:
        return _by_squares(a, count)
    return exponential(a)
