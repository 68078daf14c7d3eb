"""How a pointwise op is written, one row, and the rules that replace a node by another of the same value.

The formula is a Python function over scalars (`graph.scalar`): it computes with NumPy, and the emitters
print it as vector code. Operands broadcast; the dtype is what the formula gives for those of its operands.
Half-precision operands are computed with in float32, and the result is rounded once.

Rules are parts of `Op.rewrites` and `Op.stable`. One gets a node of its op and gives the new node, or None.
Those of `rewrites` give a simpler one, bit for bit; the pass `simplify` applies them. Those of `stable` give
one that keeps more digits; the pass `stabilise` applies them, and so does the gradient before it
differentiates. They stand for what users write by hand; layers and losses are built of the stable forms from
the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, DTypeError
from magmadnn.graph.node import CONSTANT, Node, topological
from magmadnn.graph.op import (
    REGISTRY,
    REQUIRED,
    Array,
    Draw,
    DTypeRule,
    Op,
    OpKind,
    Sample,
    promote,
)
from magmadnn.graph.scalar import trace
from magmadnn.graph.signature import Attributes, OpWords, elementwise
from magmadnn.graph.transforms.stacking import elementwise as stacked_elementwise
from magmadnn.memory.dtypes import BFLOAT16, as_dtype, is_floating

Rewrite = Callable[[Node], Node | None]


def same(node: Node, operand: Node) -> Node | None:
    """`operand` in place of `node`, where it has its shape and dtype."""
    return operand if operand.spec == node.spec else None


def drop_unchanged(node: Node) -> Node | None:
    """The operand, where its Spec says that the op changed nothing (a cast to the same dtype)."""
    return same(node, node.inputs[0])


def drop_round_trip(node: Node) -> Node | None:
    """What a value was before it was widened, where it is rounded again to halves."""
    (inner,) = node.inputs
    halves = node.dtype.itemsize == 2 and is_floating(node.dtype)
    if not halves or inner.op is not node.op or not is_floating(inner.dtype):
        return None
    return same(node, inner.inputs[0])


def drop_pair(node: Node) -> Node | None:
    """f(f(x)) is x, for an op that undoes itself."""
    (inner,) = node.inputs
    return same(node, inner.inputs[0]) if inner.op is node.op else None


def drop_neutral(value: Any, *, right_only: bool = False) -> Rewrite:
    """The rule that f(x, value) is x, and f(value, x) too unless `right_only`.

    `value` is given with its sign: x + 0.0 is not x where x is -0.0, but x + -0.0 is.
    """

    def rule(node: Node) -> Node | None:
        left, right = node.inputs
        if holds_only(right, value):
            return same(node, left)
        if not right_only and holds_only(left, value):
            return same(node, right)
        return None

    return rule


def holds_only(node: Node, value: Any) -> bool:
    """Whether a node is a constant whose elements all have the bits of `value` in its dtype."""
    if node.op is not CONSTANT or not node.value.size:
        return False
    if node.dtype.kind == "c":
        return False
    bits = np.dtype(f"u{node.dtype.itemsize}")
    expected = np.asarray(value).astype(node.dtype).view(bits)
    found = node.value.view(bits)
    return bool(found.flat[0] == expected and (found == expected).all())


def _is(node: Node, name: str) -> bool:
    """Whether a node is of the op of that name."""
    return isinstance(node.op, Op) and node.op is REGISTRY.get(name)


def _ops() -> Any:
    """All ops: these rules name some that are defined after those whose rules they are."""
    return import_module(__package__)


def _is_one(node: Node) -> bool:
    return node.op is CONSTANT and bool(node.value.size) and bool(np.all(node.value == 1))


def _beside_one(node: Node) -> Node | None:
    """The other operand of `x + 1` or `1 + x`, where it has the result's shape."""
    if not _is(node, "add"):
        return None
    left, right = node.inputs
    other = left if _is_one(right) else right if _is_one(left) else None
    return other if other is not None and other.spec == node.spec else None


def log_of(node: Node) -> Node | None:
    """log of softmax, sigmoid, exp, 1 + x and a sum of exponentials, without a number near 0 or infinity."""
    (x,), ops = node.inputs, _ops()
    found: Node | None = None
    if _is(x, "softmax"):
        found = ops.log_softmax(x.inputs[0], **x.attributes)
    elif _is(x, "sigmoid"):
        found = -1.0 * ops.softplus(-1.0 * x.inputs[0])
    elif _is(x, "exp"):
        found = x.inputs[0]
    elif _is(x, "subtract") and _is_one(x.inputs[0]) and _is(x.inputs[1], "sigmoid"):
        found = -1.0 * ops.softplus(x.inputs[1].inputs[0])
    elif (other := _beside_one(x)) is not None:
        found = ops.softplus(other.inputs[0]) if _is(other, "exp") else ops.log1p(other)
    elif _is(x, "sum") and _is(x.inputs[0], "exp") and _has_elements(x):
        inner = x.inputs[0].inputs[0]
        if not _is_centred(inner):
            found = ops.logsumexp(inner, **x.attributes)
    return found


def log1p_of(node: Node) -> Node | None:
    """log1p(exp(x)) is softplus(x), also where exp(x) is infinite."""
    (x,) = node.inputs
    found: Node | None = _ops().softplus(x.inputs[0]) if _is(x, "exp") else None
    return found


def difference_of(node: Node) -> Node | None:
    """exp(x) - 1 is expm1(x), where the two are nearly equal."""
    left, right = node.inputs
    found: Node | None = None
    if _is_one(right) and _is(left, "exp"):
        found = _ops().expm1(left.inputs[0])
    return found


def share_of(node: Node) -> Node | None:
    """exp(x) / sum(exp(x)) along an axis is softmax(x), also where exp(x) is infinite."""
    part, whole = node.inputs
    if not (_is(part, "exp") and _is(whole, "sum") and whole.inputs[0] is part):
        return None
    axes = whole.attributes["axis"]
    if len(axes) != 1 or not whole.attributes["keepdims"] or _is_centred(part.inputs[0]):
        return None
    found: Node = _ops().softmax(part.inputs[0], axis=axes[0])
    return found


def _has_elements(total: Node) -> bool:
    """Whether a reduction surely has something to choose a largest from."""
    sizes = [total.inputs[0].shape[axis] for axis in total.attributes["axis"]]
    return all(isinstance(size, int) and size > 0 for size in sizes)


def _is_centred(x: Node) -> bool:
    """Whether the largest was taken out already: `x - max(x)`."""
    if not _is(x, "subtract"):
        return False
    inner, taken = x.inputs
    return any(_is(n, "max") and n.inputs[0] is inner for n in topological([taken]))


# --- rows of pointwise ops ------------------------------------------------------------------------


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
