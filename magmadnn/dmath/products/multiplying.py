"""The product of two spread matrices or vectors: shapes, the plan, and its run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.functions.factors import as_column
from magmadnn.dmath.functions.views import squeezed
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import running
from magmadnn.dmath.products.arithmetic import Arithmetic, arithmetic_of, travelling_size, wire_of
from magmadnn.dmath.products.choosing import Predicted, ranked
from magmadnn.dmath.products.rates import Rates
from magmadnn.errors import ShapeError

_MEASURED_FROM = 1 << 24  # multiplications from which it pays to measure rates first


def product_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Shape of `a @ b` for matrices and vectors.

    Raises:
        ShapeError: if sizes do not fit.
    """
    if not (1 <= len(a) <= 2 and 1 <= len(b) <= 2):
        raise ShapeError(
            f"matmul: operands are matrices or vectors, got shapes {tuple(a)} and {tuple(b)}"
        )
    if a[-1] != b[0]:
        raise ShapeError(f"matmul: axis k is {a[-1]} in a {tuple(a)} but {b[0]} in b {tuple(b)}")
    return (*a[:-1], *b[1:])


def worth_measuring(a: Parts, b: Parts) -> bool:
    """Whether a product is so large that rates are measured before it is planned."""
    return a.layout.shape[0] * a.layout.shape[-1] * b.layout.shape[-1] >= _MEASURED_FROM


def chosen(
    a: Parts,
    b: Parts,
    target: Layout | None,
    rates: Rates | None,
    fixed: bool,
    how: Arithmetic,
    wire: np.dtype[Any] | None = None,
) -> Predicted:
    """The plan for two matrices, from where they lie or where kept copies of them lie."""
    kept, best = a.team.kept, None
    lies_a, lies_b = [a.layout], [b.layout]
    itemsize = travelling_size([a.dtype, b.dtype], how, wire)
    if kept is not None:
        lies_a = lies_a + kept.better(a, wire_of(a.dtype, how, wire))
        lies_b = lies_b + kept.better(b, wire_of(b.dtype, how, wire))
    for at_a in lies_a:
        for at_b in lies_b:
            one = ranked(at_a, at_b, target, itemsize, rates or Rates(), not fixed)[0]
            if best is None or one.seconds < best.seconds:
                best = one
    assert best is not None
    return best


def matmul(
    a: Parts,
    b: Parts,
    target: Layout | None = None,
    rates: Rates | None = None,
    dtype: np.dtype[Any] | None = None,
    wire: np.dtype[Any] | None = None,
    keep: bool = False,
    fixed: bool = False,
    compute: str | None = None,
) -> Parts:
    """`a @ b`: any layouts, to any layout.

    Args:
        a: matrix or vector.
        b: matrix or vector.
        target: where the result lies; None leaves it to the planner.
        rates: that the planner predicts from.
        dtype: of the result; None for what NumPy gives.
        wire: dtype in which operands travel.
        keep: whether to keep what other workers sent.
        fixed: whether bits may not depend on layouts and workers.
        compute: the arithmetic of local products; see `arithmetic_of`.
    """
    shape = product_shape(a.shape, b.shape)
    dtype = dtype or np.result_type(a.dtype, b.dtype)
    left = a if a.ndim == 2 else as_column(a).transposed()
    right = b if b.ndim == 2 else as_column(b)
    if target is None or target.shape != (left.shape[0], right.shape[1]):
        within = None
    else:
        within = target
    how = arithmetic_of(a.dtype, b.dtype, dtype, compute)
    best = chosen(left, right, within, rates, fixed, how, wire)
    if rates is not None:
        a.team.count.predicted_seconds += best.seconds
    made = running.run(left, right, best.plan, dtype, how, wire, keep, fixed)
    if a.ndim == 2 and b.ndim == 2:
        return made
    lost = [axis for axis, x in ((0, a), (1, b)) if x.ndim == 1]
    made = squeezed(made, lost)
    return remap(made, target or resolve("auto", shape, made.team.size), share=True)
