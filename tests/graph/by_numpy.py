"""An op that has no kernel on any device: NumPy computes it."""

from __future__ import annotations

from functools import cache
from typing import Any

from magmadnn.graph import Op, OpKind, Sample, by_signature, promote


@cache
def _op() -> Op:
    """Made within a test, after which its name is forgotten: tests of all ops do not meet it."""
    return Op(
        name="doubled_by_numpy",
        args=("x",),
        formula="2 x",
        kind=OpKind.OTHER,
        shapes=by_signature("... n -> ... n"),
        dtypes=promote,
        numpy=lambda x: x + x,
        vjp=lambda g, y, x: doubled(g),
        reference=lambda x: 2 * x,
        samples=lambda draw: [Sample((draw(3),))],
    )


def doubled(x: Any) -> Any:
    """2 x, by NumPy."""
    return _op()(x)
