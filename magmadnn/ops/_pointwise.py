"""How a pointwise op is written: one row.

The formula is a Python function over scalars (`graph.scalar`): it computes with NumPy, and the emitters
print it as vector code. Operands broadcast; the dtype is what the formula gives for those of its operands.
Half-precision operands are computed with in float32, and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError
from magmadnn.graph.op import REQUIRED, Array, Draw, DTypeRule, Op, OpKind, Sample, promote
from magmadnn.graph.scalar import trace
from magmadnn.graph.signature import Attributes, OpWords, elementwise
from magmadnn.graph.transforms.stacking import elementwise as stacked_elementwise
from magmadnn.memory.dtypes import BFLOAT16, as_dtype

from ._rewrites import Rewrite

Formula = Callable[..., Any]
HALF = (np.dtype(np.float16), BFLOAT16)


def pointwise(
    name: str,
    formula: str,
    scalar: Formula,
    *,
    vjp: Callable[..., Any],
    reference: Callable[..., Any] | None = None,
    args: tuple[str, ...] = ("x",),
    samples: Callable[[Draw], Iterable[Sample]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    canonical: Callable[..., Attributes] | None = None,
    rewrites: tuple[Rewrite, ...] = (),
    stable: tuple[Rewrite, ...] = (),
    integers: tuple[str, ...] = (),
    notes: str = "",
) -> Op:
    """A new op that computes element by element; it is then `magmadnn.ops.NAME`'s equal in all things.

    Args:
        name: its name in graphs and errors; unique.
        formula: what it computes, as text.
        scalar: what it computes, as a function of numbers made of operators and of the functions of
            `magmadnn.graph.scalar`; operands first, then the attributes by name.
        vjp: the gradient, written in ops: `vjp(g, y, *operands, **attributes)` gives one gradient for
            each operand. Broadcasting is undone elsewhere.
        reference: the same as `scalar`, written in another way, in float64, for tests. Left out, it is
            `scalar` itself: then tests compare precisions and layouts, but cannot find a wrong formula.
        args: names of the operands.
        samples: operands to try it on; left out, matrices of real numbers and, for several operands,
            broadcasts.
        attributes: names and defaults of settings, such as a slope.
        canonical: brings attributes to one hashable form, given the operands' specs.
        rewrites: simpler forms, see `Op.rewrites`.
        stable: forms that keep more digits, see `Op.stable`.
        integers: operands whose dtype does not matter to the others, see `Op.integers`.
        notes: more for the documentation.

    Raises:
        ArgumentError: if `scalar` uses anything else than operators and those functions, or the name is
            taken.
    """
    _check_formula(name, scalar, len(args), attributes or {})
    return Op(
        name=name,
        args=args,
        formula=formula,
        kind=OpKind.POINTWISE,
        shapes=elementwise,
        dtypes=dtype_of_formula(scalar),
        numpy=in_float32(scalar),
        vjp=vjp,
        reference=reference or scalar,
        samples=samples or default_samples(len(args)),
        attributes=attributes or {},
        canonical=canonical,
        scalar=scalar,
        rewrites=rewrites,
        stable=stable,
        integers=integers,
        stacked=stacked_elementwise,
        any_size=str(scalar.__module__).startswith("magmadnn."),
        notes=notes,
    )


def _check_formula(
    name: str, scalar: Formula, operands: int, attributes: Mapping[str, Any]
) -> None:
    """Write the formula down once, so that a mistake shows here and not when it is compiled."""
    if REQUIRED in attributes.values():
        return
    try:
        trace(scalar, operands, **attributes)
    except (TypeError, AttributeError, ArgumentError) as error:
        raise ArgumentError(
            f"op {name!r}: its formula may use operators and the functions of magmadnn.graph.scalar: {error}"
        ) from error


def in_float32(scalar: Formula) -> Formula:
    """The formula, computed in float32 where operands are of half precision, and so rounded once."""

    @wraps(scalar)
    def compute(*operands: Any, **attributes: Any) -> Any:
        return scalar(*map(widened, operands), **attributes)

    return compute


def sum_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> Any:
    """The dtype of sums: int64 of integers and bools, else that of the operand."""
    return np.dtype(np.int64) if dtypes[0].kind in "iub" else dtypes[0]


def widened(x: Array) -> Array:
    """An array of half precision in float32, any other as it is."""
    return x.astype(np.float32) if x.dtype in HALF else x


def dtype_of_formula(scalar: Formula) -> DTypeRule:
    """The dtype rule that tries the formula on empty arrays.

    NumPy's own rules do not know bfloat16 well (a Python float beside it gives float32), so that float16
    stands in for it.
    """

    @lru_cache(maxsize=1024, typed=True)  # typed: a slope of 1 and one of 1.0 give different dtypes
    def of(brain: type, *dtypes: np.dtype[Any], **attributes: Any) -> np.dtype[Any]:
        tried = [np.dtype(brain) if d == BFLOAT16 else d for d in dtypes]
        return np.asarray(scalar(*(np.empty(0, d) for d in tried), **attributes)).dtype

    known: dict[tuple[np.dtype[Any], ...], np.dtype[Any]] = {}  # of calls without attributes

    def rule(
        words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes
    ) -> np.dtype[Any]:
        if attributes:
            return found(words, dtypes, attributes)
        key = tuple(dtypes)
        if key not in known:
            known[key] = found(words, dtypes, attributes)
        return known[key]

    def found(
        words: OpWords, dtypes: Sequence[np.dtype[Any]], attributes: Attributes
    ) -> np.dtype[Any]:
        meeting = [d for i, d in enumerate(dtypes) if words.operand(i) not in words.integers]
        brain = BFLOAT16 in meeting and promote(words, meeting) == BFLOAT16
        try:
            result = as_dtype(of(np.float16, *dtypes, **attributes))
            if (
                brain and result == np.float16
            ):  # of the stand-in, unless the formula itself makes it
                brain = of(np.float32, *dtypes, **attributes) != np.float16
        except (TypeError, DTypeError) as error:
            given = ", ".join(f"{words.operand(i)} {d.name}" for i, d in enumerate(dtypes))
            raise DTypeError(
                f"{words.name}: does not take {given}; cast to a type it takes"
            ) from error
        return BFLOAT16 if brain and result == np.float16 else result

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
