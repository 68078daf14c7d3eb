"""Products of all elements of a row but one, in memory that grows with the row: the gradient of `prod`.

They are never found by dividing, so they are exact where elements are 0; and they are made of ops whose
gradients are exact there too, so second derivatives are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from magmadnn.graph.dim import Dim
from magmadnn.graph.op import Array, Draw, Op, OpKind, Sample, promote_floating
from magmadnn.graph.signature import by_signature
from magmadnn.graph.transforms.stacking import elementwise
from magmadnn.ops._pointwise import widened
from magmadnn.ops.arithmetic import cast, equal
from magmadnn.ops.movement import broadcast_to, concat
from magmadnn.ops.slicing import flip, pad

from .accumulation import arange


def others(rows: Any) -> Any:
    """The product of all other elements of its row, for each element of a node [..., n] of numbers."""
    n = rows.shape[-1]
    return _of_unknown_length(rows) if isinstance(n, Dim) else _by_halves(rows, n)


def _by_halves(rows: Any, n: int) -> Any:
    """The first half is multiplied with the second until one element is left, and the way back is taken."""
    levels = [rows]
    while levels[-1].shape[-1] > 1:
        whole = levels[-1]
        half = whole.shape[-1] // 2
        both = whole[..., :half] * whole[..., half : 2 * half]
        rest = [whole[..., 2 * half :]] if whole.shape[-1] % 2 else []
        levels.append(concat([both, *rest], -1) if rest else both)
    found = broadcast_to(cast(1, rows.dtype), levels.pop().shape)
    for whole in reversed(levels):
        half = whole.shape[-1] // 2
        above, rest = found[..., :half], [found[..., half:]] if whole.shape[-1] % 2 else []
        pair = [above * whole[..., half : 2 * half], above * whole[..., :half]]
        found = concat([*pair, *rest], -1)
    return found


def _of_unknown_length(rows: Any) -> Any:
    """What stands before an element times what stands behind it."""
    first = cast(equal(arange(rows.shape[-1]), 0), rows.dtype)
    first, last = (broadcast_to(x, rows.shape) for x in (first, flip(first, 0)))
    before = _recurrence(_moved(rows, 1), first, False)
    behind = _recurrence(_moved(rows, -1), last, True)
    return before * behind


def _moved(x: Any, by: int) -> Any:
    """The elements of each row moved by one place; 0 takes the one that gets free."""
    rest = ((0, 0),) * (x.ndim - 1)
    return pad(x, (*rest, (1, 0)))[..., :-1] if by > 0 else pad(x, (*rest, (0, 1)))[..., 1:]


# --- linear recurrences ---------------------------------------------------------------------------


def _recurrence_numpy(factor: Array, term: Array, reverse: bool) -> Array:
    """Step by step along the last axis."""
    factor, term = widened(factor), widened(term)
    dtype = np.result_type(factor, term)
    found = np.empty(
        np.broadcast_shapes(factor.shape, term.shape), dtype if dtype.kind == "f" else np.float64
    )
    state = np.zeros(found.shape[:-1], found.dtype)
    for k in reversed(range(term.shape[-1])) if reverse else range(term.shape[-1]):
        found[..., k] = state = factor[..., k] * state + term[..., k]
    return found


def _recurrence_vjp(g: Any, h: Any, factor: Any, term: Any, reverse: bool) -> tuple[Any, Any]:
    """The same the other way round, each factor with the state that it comes to."""
    back = 1 if reverse else -1
    adjoint = _recurrence(_moved(factor, back), g, not reverse)
    return adjoint * _moved(h, -back), adjoint


def _recurrence_reference(factor: Array, term: Array, reverse: bool = False) -> Array:
    """The sum of all terms so far, each with the product of the factors after it."""
    if reverse:
        return np.flip(_recurrence_reference(np.flip(factor, -1), np.flip(term, -1)), -1)
    n, found = term.shape[-1], np.zeros(term.shape)
    for k in range(n):
        for i in range(k + 1):
            found[..., k] += term[..., i] * np.prod(factor[..., i + 1 : k + 1], axis=-1)
    return found


def _recurrence_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), draw(5, 7)))
    yield Sample((draw(3, 2, 5), draw(3, 2, 5)), {"reverse": True})
    yield Sample((draw(1), draw(1)))


_recurrence = Op(
    name="_recurrence",
    args=("factor", "term"),
    formula="h[k] = factor[k] * h[k - 1] + term[k] along the last axis; with reverse, from its end",
    kind=OpKind.OTHER,
    shapes=by_signature(lambda factor, term, reverse: "... n, ... n -> ... n"),
    dtypes=promote_floating,
    numpy=_recurrence_numpy,
    vjp=_recurrence_vjp,
    reference=_recurrence_reference,
    samples=_recurrence_samples,
    attributes={"reverse": False},
    stacked=elementwise,
)
