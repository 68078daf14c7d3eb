"""How a pointwise op is written: one row.

The formula is a Python function over scalars (`graph.scalar`): it computes with NumPy, and the emitters
print it as vector code. Operands broadcast; the dtype is what the formula gives for those of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from magmadnn.errors import DTypeError
from magmadnn.graph.op import Draw, DTypeRule, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords, elementwise
from magmadnn.graph.spec import as_dtype

Formula = Callable[..., Any]


def pointwise(
    name: str,
    formula: str,
    scalar: Formula,
    *,
    vjp: Callable[..., Any],
    reference: Callable[..., Any],
    args: tuple[str, ...] = ("x",),
    samples: Callable[[Draw], Iterable[Sample]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    canonical: Callable[..., Attributes] | None = None,
    dtypes: DTypeRule | None = None,
    notes: str = "",
) -> Op:
    """The record of a pointwise op; samples default to a matrix and, for several operands, broadcasts."""
    return Op(
        name=name,
        args=args,
        formula=formula,
        kind=OpKind.POINTWISE,
        shapes=elementwise,
        dtypes=dtypes or dtype_of_formula(scalar),
        numpy=scalar,
        vjp=vjp,
        reference=reference,
        samples=samples or default_samples(len(args)),
        attributes=attributes or {},
        canonical=canonical,
        scalar=scalar,
        notes=notes,
    )


def dtype_of_formula(scalar: Formula) -> DTypeRule:
    """The dtype rule that tries the formula on empty arrays."""

    @cache
    def of(dtypes: tuple[np.dtype[Any], ...], attributes: tuple[tuple[str, Any], ...]) -> Any:
        arrays = [np.empty(0, d) for d in dtypes]
        return np.asarray(scalar(*arrays, **dict(attributes))).dtype

    def rule(
        words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes
    ) -> np.dtype[Any]:
        try:
            return as_dtype(of(tuple(dtypes), tuple(attributes.items())))
        except (TypeError, DTypeError) as error:
            given = ", ".join(f"{words.operand(i)} {d.name}" for i, d in enumerate(dtypes))
            raise DTypeError(
                f"{words.name}: does not take {given}; cast to a type it takes"
            ) from error

    return rule


def default_samples(operands: int) -> Callable[[Draw], Iterable[Sample]]:
    """A matrix of primes' sizes for each operand; with several, also broadcasts both ways."""

    def samples(draw: Draw) -> Iterable[Sample]:
        yield Sample(tuple(draw(5, 7) for _ in range(operands)))
        if operands > 1:
            yield Sample((draw(3, 1, 7), *(draw(5, 1) for _ in range(operands - 1))))
            yield Sample((draw(7), *(draw(2, 7) for _ in range(operands - 1))))

    return samples


def positive_samples(draw: Draw) -> Iterable[Sample]:
    """One operand above zero."""
    yield Sample((draw.positive(5, 7),))


def no_flow(*ignored: Any, **attributes: Any) -> tuple[None, ...]:
    """The gradient of a step function: zero almost everywhere, so nothing is sent back."""
    return (None,) * (len(ignored) - 2)


def elementwise_reference(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reference that calls a function of Python numbers on one element at a time."""
    return np.vectorize(function, otypes=[np.float64])
