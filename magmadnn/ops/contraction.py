"""Contractions: matmul and einsum.

matmul    x [..., m, k], w [..., k, n] -> y [..., m, n]; leading axes broadcast, one axis is a vector.
einsum    axes by letter, as NumPy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Shape, product
from magmadnn.graph.op import Array, Draw, Op, OpKind, Sample, promote
from magmadnn.graph.operators import public
from magmadnn.graph.signature import Attributes, OpWords, Signature, by_signature
from magmadnn.graph.spec import BFLOAT16, Spec

from .movement import broadcast_to, expand_dims, reshape, squeeze, swapaxes

# --- matmul ---------------------------------------------------------------------------------------


def _matmul_signature(x: int, w: int) -> str:
    left = "... m k" if x != 1 else "k"
    right = "... k n" if w != 1 else "k"
    result = [token for token in ("... m" if x != 1 else "", "n" if w != 1 else "") if token]
    if w != 1 and x == 1:
        result = ["...", "n"]
    return f"{left}, {right} -> {' '.join(result)}"


def _matmul_numpy(x: Array, w: Array) -> Array:
    if BFLOAT16 in (x.dtype, w.dtype) or np.float16 in (x.dtype, w.dtype):
        wide = np.result_type(x.dtype, w.dtype, np.float32)
        return np.matmul(
            x.astype(wide), w.astype(wide)
        )  # sums of half-precision products in float32
    return np.matmul(x, w)


def _matmul_vjp(g: Any, y: Any, x: Any, w: Any) -> tuple[Any, Any]:
    if x.ndim == 1:
        dx, dw = _matmul_vjp(_as_row(g, w), y, expand_dims(x, 0), w)
        return _summed_to_vector(dx, -2), dw
    if w.ndim == 1:
        dx, dw = _matmul_vjp(expand_dims(g, -1), y, x, expand_dims(w, -1))
        return dx, _summed_to_vector(dw, -1)
    dx = matmul(g, swapaxes(w, -1, -2))
    if (
        w.ndim == 2 and x.ndim > 2
    ):  # one contraction over all leading axes, instead of a batch and a sum
        x, g = _as_matrix(x), _as_matrix(g)
    return dx, matmul(swapaxes(x, -1, -2), g)


def _as_row(g: Any, w: Any) -> Any:
    """The gradient of a vector times w, as that of a matrix of one row times w."""
    return expand_dims(g, -1 if w.ndim == 1 else -2)


def _summed_to_vector(gradient: Any, axis: int) -> Any:
    """A gradient [..., 1, k] or [..., k, 1] as [..., k]; its leading axes are summed by the sweep."""
    return squeeze(gradient, axis)


def _as_matrix(x: Any) -> Any:
    return reshape(x, (product(x.shape[:-1]), x.shape[-1]))


def _matmul_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), draw(7, 3)))
    yield Sample((draw(2, 5, 7), draw(2, 7, 3)))
    yield Sample((draw(3, 2, 5, 7), draw(7, 3)))
    yield Sample((draw(5, 7), draw(3, 1, 7, 2)))
    yield Sample((draw(7), draw(7, 3)))
    yield Sample((draw(2, 5, 7), draw(7)))
    yield Sample((draw(7), draw(7)))
    yield Sample((draw(1, 1), draw(1, 1)))


matmul = Op(
    name="matmul",
    args=("x", "w"),
    formula="x @ w",
    kind=OpKind.CONTRACTION,
    shapes=by_signature(_matmul_signature),
    dtypes=promote,
    numpy=_matmul_numpy,
    vjp=lambda g, y, x, w: _matmul_vjp(g, y, x, w) if w.ndim > 1 or x.ndim > 1 else (g * w, g * x),
    reference=lambda x, w: (
        np.einsum("...k,...k->...", x, w)
        if w.ndim == 1
        else np.einsum("...k,...kn->...n" if x.ndim == 1 else "...mk,...kn->...mn", x, w)
    ),
    samples=_matmul_samples,
    contracts="sum",
    notes="x [..., m, k], w [..., k, n] -> [..., m, n]. Half-precision operands are summed in float32.",
)


# --- einsum ---------------------------------------------------------------------------------------


def _split(subscripts: str) -> tuple[list[str], str]:
    left, right = subscripts.split("->")
    return left.split(","), right


def _einsum_canonical(words: OpWords, specs: Sequence[Spec], subscripts: str) -> dict[str, Any]:
    """Explicit subscripts: the result is written out, `...` is spelled with capital letters."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(specs):
        raise ArgumentError(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(specs)}")
    spare = [c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in text]
    most = 0
    for number, (term, spec) in enumerate(zip(terms, specs, strict=True)):
        hidden = spec.ndim - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            raise ShapeError(
                f"einsum: {term!r} names {len(term.replace('...', ''))} axes, but "
                f"{words.operand(number)} has {spec.ndim}: {words.shapes(specs)}"
            )
        most = max(most, hidden)
        terms[number] = term.replace("...", "".join(spare[:hidden][::-1]))
    if not arrow:
        letters = "".join(terms)
        once = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in spare[:most])
        right = ("..." if "..." in left else "") + "".join(once)
    right = right.replace("...", "".join(spare[:most][::-1]))
    _check_letters(subscripts, terms, right)
    return {"subscripts": f"{','.join(terms)}->{right}"}


def _check_letters(subscripts: str, terms: list[str], right: str) -> None:
    for term in [*terms, right]:
        if len(set(term)) != len(term):
            raise ArgumentError(
                f"einsum: {subscripts!r} repeats an axis in {term!r}; diagonals are not taken: "
                "multiply by an identity matrix instead"
            )
        if not all(c.isalpha() for c in term):
            raise ArgumentError(f"einsum: {subscripts!r} may hold letters, commas, '...' and '->'")
    if unknown := set(right) - set("".join(terms)):
        raise ArgumentError(f"einsum: {subscripts!r} names {min(unknown)!r} in the result only")


def _einsum_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    terms, right = _split(attributes["subscripts"])
    text = f"{', '.join(' '.join(t) for t in terms)} -> {' '.join(right)}"
    return Signature.parse(text).bind(words, specs)[0]


def _einsum_numpy(*xs: Array, subscripts: str) -> Array:
    if any(x.dtype in (BFLOAT16, np.float16) for x in xs):
        wide = np.result_type(*(x.dtype for x in xs), np.float32)
        xs = tuple(x.astype(wide) for x in xs)
    return np.asarray(np.einsum(subscripts, *xs, optimize=len(xs) > 2))


def _einsum_vjp(g: Any, y: Any, *xs: Any, subscripts: str) -> tuple[Any, ...]:
    terms, right = _split(subscripts)
    gradients = []
    for number, (term, x) in enumerate(zip(terms, xs, strict=True)):
        others = [k for k in range(len(xs)) if k != number]
        letters = set(right).union(*(terms[k] for k in others))
        kept = "".join(c for c in term if c in letters)
        left = ",".join([right, *(terms[k] for k in others)])
        part = _einsum(f"{left}->{kept}", [g, *(xs[k] for k in others)])
        for axis, letter in enumerate(
            term
        ):  # an axis that only x has was summed: its gradient is even
            if letter not in letters:
                part = expand_dims(part, axis)
        gradients.append(broadcast_to(part, x.shape) if part.shape != x.shape else part)
    return tuple(gradients)


def _einsum_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), draw(7, 3)), {"subscripts": "ij,jk->ik"})
    yield Sample((draw(2, 5, 7), draw(2, 3, 7)), {"subscripts": "...ij,...kj->...ik"})
    yield Sample((draw(5, 7),), {"subscripts": "ij->j"})
    yield Sample((draw(5, 7),), {"subscripts": "ij->ji"})
    yield Sample((draw(3), draw(5), draw(3, 5)), {"subscripts": "i,j,ij"})


def _einsum_reference(*xs: Array, subscripts: str) -> Array:
    """Every product in one large array, then summed."""
    text = subscripts.replace(" ", "")
    if "..." in text:
        text = text.replace("...", "b")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    letters = sorted(set(left) - {","})
    right = right if arrow else "".join(c for c in letters if left.count(c) == 1)
    total = np.ones((1,) * len(letters))
    for term, x in zip(terms, xs, strict=True):
        axes = sorted(term)
        moved = x.transpose([term.index(c) for c in axes])
        total = total * moved.reshape(
            [moved.shape[axes.index(c)] if c in axes else 1 for c in letters]
        )
    summed = total.sum(axis=tuple(i for i, c in enumerate(letters) if c not in right))
    kept = [c for c in letters if c in right]
    return summed.transpose([kept.index(c) for c in right])


_einsum_op = Op(
    name="_einsum",
    args=("*xs",),
    formula="the sum over every axis that the result does not name, of the product of xs",
    kind=OpKind.CONTRACTION,
    shapes=_einsum_shapes,
    dtypes=promote,
    numpy=_einsum_numpy,
    vjp=_einsum_vjp,
    reference=_einsum_reference,
    samples=_einsum_samples,
    attributes={"subscripts": ""},
    canonical=_einsum_canonical,
    contracts="sum",
)


def _einsum(subscripts: str, xs: Sequence[Any]) -> Any:
    return _einsum_op(list(xs), subscripts=subscripts)


@public
def einsum(subscripts: str, *xs: Any) -> Any:
    """The sum over products that `subscripts` says, as `numpy.einsum`: `"ij,jk->ik"` is matmul.

    `...` stands for axes that all operands share. An axis may not be repeated within one operand.

    Raises:
        ArgumentError, ShapeError: if subscripts and operands do not fit.
    """
    if not isinstance(subscripts, str):
        raise ArgumentError(
            f"einsum: the first argument must be text, got {type(subscripts).__name__}"
        )
    return _einsum(subscripts, xs)


@public
def dense(x: Any, w: Any, b: Any = None) -> Any:
    """`x @ w + b`: x [..., k], w [k, n], b [n] -> [..., n]."""
    y = matmul(x, w)
    return y if b is None else y + b
