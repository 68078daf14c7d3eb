"""Contractions: matmul and einsum.

matmul    x [..., m, k], w [..., k, n] -> y [..., m, n]; leading axes broadcast, one axis is a vector.
einsum    axes by letter, as NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from string import ascii_letters, ascii_uppercase
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Shape, product
from magmadnn.graph.op import Array, Draw, Op, OpKind, Sample, promote
from magmadnn.graph.operators import public
from magmadnn.graph.placing.axes import Axes
from magmadnn.graph.signature import Attributes, OpWords, Signature, axes_text, by_signature
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall
from magmadnn.memory.dtypes import BFLOAT16

from .along_axes.reductions import sum
from .arithmetic import add
from .movement import broadcast_to, expand_dims, reshape, squeeze, swapaxes, transpose

_HALF = frozenset((BFLOAT16, np.dtype(np.float16)))

# --- matmul ---------------------------------------------------------------------------------------


def _matmul_signature(x: int, w: int) -> str:
    left, right = "k" if x == 1 else "... m k", "k" if w == 1 else "... k n"
    result = ["..."] if x != 1 or w != 1 else []
    result += ["m"] if x != 1 else []
    result += ["n"] if w != 1 else []
    return f"{left}, {right} -> {' '.join(result)}"


def _matmul_numpy(x: Array, w: Array) -> Array:
    x, w = wide(x, w)
    found: Array = np.matmul(x, w)
    return found


_by_stacks: list[Callable[[Array, Array], Array | None]] = []


def compute_stacks_by(function: Callable[[Array, Array], Array | None]) -> None:
    """Compute products of arrays that are there by a function of a higher layer, where it gives any."""
    _by_stacks[:] = [function]


def _matmul_at_once(x: Array, w: Array) -> Array | None:
    if max(x.ndim, w.ndim) < 3:
        return None
    return next((function(x, w) for function in _by_stacks), None)


def wide(*xs: Array) -> tuple[Array, ...]:
    """The operands in float32 or wider where one is of half precision: products are summed there."""
    dtypes = [x.dtype for x in xs]
    if _HALF.isdisjoint(dtypes):
        return xs
    larger = np.result_type(*dtypes, np.float32)
    return tuple(x.astype(larger) for x in xs)


def _matmul_vjp(g: Any, y: Any, x: Any, w: Any) -> tuple[Any, Any]:
    """Vectors count as matrices of one row or column; the sweep sums leading axes."""
    if x.ndim == w.ndim == 1:
        return g * w, g * x
    if x.ndim == 1:
        dx, dw = _matmul_vjp(expand_dims(g, -2), y, expand_dims(x, 0), w)
        return squeeze(dx, -2), dw
    if w.ndim == 1:
        dx, dw = _matmul_vjp(expand_dims(g, -1), y, x, expand_dims(w, -1))
        return dx, squeeze(dw, -1)
    turned = _is_turned(x), _is_turned(w)  # what turns a gradient back undoes this: rows stay rows
    dx = _turned(matmul(w, _turned(g))) if turned[0] else matmul(g, _turned(w))
    if w.ndim == 2 and x.ndim > 2:  # one contraction over all leading axes, not a batch and a sum
        x, g = _as_matrix(x), _as_matrix(g)
    return dx, _turned(matmul(_turned(g), x)) if turned[1] else matmul(_turned(x), g)


def _turned(x: Any) -> Any:
    return swapaxes(x, -1, -2)


def _is_turned(x: Any) -> bool:
    """Whether an operand is a stack of matrices whose columns were rows before axes were reordered."""
    return x.ndim > 2 and x.op is transpose and x.attributes["axes"][-2] == x.ndim - 1


def _as_matrix(x: Any) -> Any:
    return reshape(x, (product(x.shape[:-1]), x.shape[-1]))


def _matmul_nodes(x: Any, w: Any) -> Any:
    """The same by products of matrices, or of stacks of them; None where it is one already."""
    rows, columns = expand_dims(x, 0) if x.ndim == 1 else x, expand_dims(w, 1) if w.ndim == 1 else w
    flat = columns.ndim == 2 and rows.ndim > 2
    if not flat and rows is x and columns is w:
        return None
    y = matmul(_as_matrix(rows) if flat else rows, columns)
    leading = rows.shape[:-2] if flat else y.shape[:-2]
    kept = (*rows.shape[-2:-1],) if x.ndim > 1 else ()
    return reshape(y, (*leading, *kept, *(columns.shape[-1:] if w.ndim > 1 else ())))


def _matmul_stacked(call: StackedCall) -> Any:
    """Products of stacks; a vector is a matrix of one row or column meanwhile."""
    x, w = call.operands
    of_x, of_w = call.ndim(0), call.ndim(1)
    if of_x == 1:
        x = expand_dims(x, -2)
    if of_w == 1:
        w = expand_dims(w, -1)
    ndim = max(of_x, of_w, 2)
    y = matmul(_behind_models(call, 0, x, ndim), _behind_models(call, 1, w, ndim))
    if of_x == 1:
        y = squeeze(y, -1 if of_w == 1 else -2)
    return squeeze(y, -1) if of_w == 1 else y


def _behind_models(call: StackedCall, number: int, x: Any, ndim: int) -> Any:
    """An operand with `ndim` axes behind that of the models, if it has that."""
    missing = ndim + 1 - x.ndim
    if not call.is_stacked[number] or not missing:
        return x
    return reshape(x, (call.count, *(1,) * missing, *x.shape[1:]))


def _matmul_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), draw(7, 3)))
    yield Sample((draw(2, 5, 7), draw(2, 7, 3)))
    yield Sample((draw(3, 2, 5, 7), draw(7, 3)))
    yield Sample((draw(5, 7), draw(3, 1, 7, 2)))
    yield Sample((draw(7), draw(7, 3)))
    yield Sample((draw(2, 5, 7), draw(7)))
    yield Sample((draw(7), draw(7)))
    yield Sample((draw(1, 1), draw(1, 1)))


matmul: Op = Op(
    name="matmul",
    args=("x", "w"),
    formula="x @ w",
    kind=OpKind.CONTRACTION,
    shapes=by_signature(_matmul_signature),
    dtypes=promote,
    numpy=_matmul_numpy,
    vjp=_matmul_vjp,
    reference=lambda x, w: (
        np.einsum("...k,...k->...", x, w)
        if w.ndim == 1
        else np.einsum("...k,...kn->...n" if x.ndim == 1 else "...mk,...kn->...mn", x, w)
    ),
    samples=_matmul_samples,
    contracts="add",
    at_once=_matmul_at_once,
    on_gpu=True,
    decompose=_matmul_nodes,
    stacked=_matmul_stacked,
    any_size=True,
    notes="x [..., m, k], w [..., k, n] -> [..., m, n]. Half-precision operands are summed in float32.",
)


# --- einsum ---------------------------------------------------------------------------------------

_USUAL_SIZE = 100  # of a batch, where only its symbol is known: to compare orders of products with


def _split(subscripts: str) -> tuple[list[str], str]:
    left, right = subscripts.split("->")
    return left.split(","), right


def _einsum_canonical(words: OpWords, specs: Sequence[Spec], subscripts: str) -> dict[str, Any]:
    """Explicit subscripts: the result is written out, `...` is spelled with capital letters."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not set(text.replace("->", "").replace("...", "")) <= {*ascii_letters, ","}:
        raise ArgumentError(f"einsum: {subscripts!r} may hold letters, commas, '...' and '->'")
    if len(terms) != len(specs):
        raise ArgumentError(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(specs)}")
    spare = [c for c in reversed(ascii_uppercase) if c not in text]
    hidden = [_hidden(words, specs, i, term) for i, term in enumerate(terms)]
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        right = "..." * ("..." in left) + "".join(once)
    spelled = ["".join(reversed(spare[:count])) for count in (*hidden, max(hidden))]
    *terms, right = [
        term.replace("...", letters) for term, letters in zip([*terms, right], spelled, strict=True)
    ]
    _check_letters(subscripts, terms, right)
    return {"subscripts": f"{','.join(terms)}->{right}"}


def _hidden(words: OpWords, specs: Sequence[Spec], number: int, term: str) -> int:
    """How many axes of an operand `...` stands for."""
    named, ndim = len(term.replace("...", "")), specs[number].ndim
    if ndim < named or (ndim > named and "..." not in term):
        raise ShapeError(
            f"einsum: {term!r} names {axes_text(named)}, but {words.operand(number)} has {ndim}: "
            f"{words.shapes(specs)}"
        )
    return ndim - named


def _check_letters(subscripts: str, terms: list[str], right: str) -> None:
    for term in [*terms, right]:
        if len(set(term)) != len(term):
            raise ArgumentError(
                f"einsum: {subscripts!r} repeats an axis in {term!r}; diagonals are not taken: "
                "multiply by an identity matrix instead"
            )
    if unknown := set(right) - set("".join(terms)):
        raise ArgumentError(f"einsum: {subscripts!r} names {min(unknown)!r} in the result only")


def _einsum_shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    terms, right = _split(attributes["subscripts"])
    text = f"{', '.join(' '.join(t) for t in terms)} -> {' '.join(right)}"
    return Signature.parse(text).bind(words, specs)[0]


def _einsum_axes(specs: Sequence[Spec], attributes: Attributes) -> Axes:
    terms, right = _split(attributes["subscripts"])
    return Axes(tuple(tuple(term) for term in terms), tuple(right), adds=True)


def _einsum_numpy(*xs: Array, subscripts: str) -> Array:
    return np.asarray(np.einsum(subscripts, *wide(*xs), optimize=len(xs) > 1))


def _einsum_vjp(g: Any, y: Any, *xs: Any, subscripts: str) -> tuple[Any, ...]:
    terms, right = _split(subscripts)
    gradients = []
    for number, (term, x) in enumerate(zip(terms, xs, strict=True)):
        others = [k for k in range(len(xs)) if k != number]
        letters = set(right).union(*(terms[k] for k in others))
        kept = "".join(c for c in term if c in letters)
        left = ",".join([right, *(terms[k] for k in others)])
        part = _einsum(f"{left}->{kept}", [g, *(xs[k] for k in others)])
        for axis, letter in enumerate(term):
            if letter not in letters:  # only x has this axis: it was summed, its gradient is even
                part = expand_dims(part, axis)
        gradients.append(broadcast_to(part, x.shape) if part.shape != x.shape else part)
    return tuple(gradients)


def _einsum_nodes(*xs: Any, subscripts: str) -> Any:
    """One operand: a sum and a transpose. Two: a product of (stacks of) matrices. More: pair by pair."""
    terms, right = _split(subscripts)
    dtypes = {x.dtype for x in xs}
    if len(dtypes) > 1 or not dtypes <= {np.dtype("float32"), np.dtype("float64")}:
        return None
    if len(xs) > 2:
        return _pair_by_pair(list(zip(xs, terms, strict=True)), right)
    others = [{*right}.union(*terms[:k], *terms[k + 1 :]) for k in range(len(terms))]
    kept = [_summed(x, t, o) for x, t, o in zip(xs, terms, others, strict=True)]
    if len(kept) == 1:
        (x, term), order = kept[0], right
    else:
        if _is_stacked_last(kept[0][1], kept[1][1], right):
            kept.reverse()  # so that rows of the product are rows of the result
        x, order = _product_of_two(*kept[0], *kept[1], right), right
        term = "".join(c for c in kept[0][1] if c in kept[1][1] and c in right)
        term += "".join(c for c in kept[0][1] if c not in kept[1][1])
        term += "".join(c for c in kept[1][1] if c not in kept[0][1])
    return x and transpose(x, tuple(term.index(c) for c in order))


def _is_stacked_last(left: str, right: str, result: str) -> bool:
    """Whether the last axis of a stack of matrices is one that only the left operand has."""
    stacked = any(c in left and c in right for c in result)
    return stacked and result[-1] not in right and any(c not in left for c in right)


def _pair_by_pair(parts: list[tuple[Any, str]], result: str) -> Any:
    """The pair of operands that takes the fewest products first, and so on; None where one pair cannot."""
    while len(parts) > 2:
        one, other = min(
            combinations(range(len(parts)), 2), key=lambda pair: _products(parts, pair)
        )
        rest = [part for k, part in enumerate(parts) if k not in (one, other)]
        wanted = {*result}.union(*(term for _, term in rest))
        (x, left), (w, right) = parts[one], parts[other]
        kept = "".join(c for c in dict.fromkeys(left + right) if c in wanted)
        made = _einsum_nodes(x, w, subscripts=f"{left},{right}->{kept}")
        if made is None:
            return None
        parts = [*rest, (made, kept)]
    (x, left), (w, right) = parts
    return _einsum_nodes(x, w, subscripts=f"{left},{right}->{result}")


def _products(parts: list[tuple[Any, str]], pair: tuple[int, int]) -> int:
    """How many products two operands take; sizes that are not known count as usual ones."""
    sizes: dict[str, int] = {}
    for x, term in (parts[k] for k in pair):
        for letter, size in zip(term, x.shape, strict=True):
            sizes[letter] = size if isinstance(size, int) else _USUAL_SIZE
    return math.prod(sizes.values())


def _summed(x: Any, term: str, wanted: set[str]) -> tuple[Any, str]:
    """An operand without the axes that only it has."""
    axes = tuple(k for k, c in enumerate(term) if c not in wanted)
    return (sum(x, axis=axes) if axes else x), "".join(c for c in term if c in wanted)


def _product_of_two(x: Any, left: str, w: Any, right: str, result: str) -> Any:
    """Axes [common to all, of x, of w], by one product; None where a size of 1 is broadcast."""
    both = [c for c in left if c in right]
    sizes = dict(zip(left, x.shape, strict=True)), dict(zip(right, w.shape, strict=True))
    if any(sizes[0][c] != sizes[1][c] for c in both):
        return None
    batch, summed = [c for c in both if c in result], [c for c in both if c not in result]
    own = [c for c in left if c not in right], [c for c in right if c not in left]
    rows = _grouped(x, left, batch, (own[0], summed))
    columns = _grouped(w, right, batch, (summed, own[1]))
    if not batch:
        rows, columns = _as_matrix(rows), _as_matrix(columns)
    shape = [sizes[0][c] for c in (*batch, *own[0])] + [sizes[1][c] for c in own[1]]
    return reshape(matmul(rows, columns), tuple(shape))


def _grouped(x: Any, term: str, batch: list[str], groups: tuple[list[str], ...]) -> Any:
    """The operand with its axes of the stack in front, and one axis for each group of the others."""
    order = tuple(term.index(c) for group in (batch, *groups) for c in group)
    sizes = tuple(product([x.shape[term.index(c)] for c in group]) for group in groups)
    return reshape(transpose(x, order), (*(x.shape[term.index(c)] for c in batch), *sizes))


def _einsum_stacked(call: StackedCall) -> Any:
    """The models are one letter more."""
    subscripts = str(call.attributes["subscripts"])
    terms, right = _split(subscripts)
    models = next(c for c in ascii_letters if c not in subscripts)
    left = [models * is_ + term for is_, term in zip(call.is_stacked, terms, strict=True)]
    return _einsum(f"{','.join(left)}->{models}{right}", call.operands)


def _einsum_samples(draw: Draw) -> Iterable[Sample]:
    yield Sample((draw(5, 7), draw(7, 3)), {"subscripts": "ij,jk->ik"})
    yield Sample((draw(2, 5, 7), draw(2, 3, 7)), {"subscripts": "...ij,...kj->...ik"})
    yield Sample((draw(5, 7),), {"subscripts": "ij->j"})
    yield Sample((draw(5, 7),), {"subscripts": "ij->ji"})
    yield Sample((draw(3), draw(5), draw(3, 5)), {"subscripts": "i,j,ij"})
    yield Sample((draw(2, 3, 5), draw(5)), {"subscripts": "...i, i"})
    yield Sample((draw(5, 7),), {"subscripts": "ij->"})


def _einsum_reference(*xs: Array, subscripts: str) -> Array:
    """Every product in one large array, then summed; `...` counts as axes Z, Y, ... from the right."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    named = [term.replace("...", "") for term in left.split(",")]
    most = max(x.ndim - len(term) for x, term in zip(xs, named, strict=True))
    front = "ABCDEFGHIJ"[10 - most :]
    terms = [
        term.replace("...", front[most + len(term.replace("...", "")) - x.ndim :])
        for x, term in zip(xs, left.split(","), strict=True)
    ]
    if not arrow:
        once = [c for c in sorted({*"".join(named)}) if "".join(named).count(c) == 1]
        right = "..." * ("..." in left) + "".join(once)
    right = right.replace("...", front)
    letters = sorted({*"".join(terms)})
    total = np.ones((1,) * len(letters))
    for term, x in zip(terms, xs, strict=True):
        moved = x.transpose([term.index(c) for c in sorted(term)])
        sizes = dict(zip(sorted(term), moved.shape, strict=True))
        total = total * moved.reshape([sizes.get(c, 1) for c in letters])
    summed = total.sum(axis=tuple(i for i, c in enumerate(letters) if c not in right))
    kept = [c for c in letters if c in right]
    return np.asarray(summed.transpose([kept.index(c) for c in right]))


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
    axes=_einsum_axes,
    canonical=_einsum_canonical,
    contracts="add",
    decompose=_einsum_nodes,
    stacked=_einsum_stacked,
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
    if not xs:
        raise ArgumentError("einsum: the operands are missing; give them after the subscripts")
    return _einsum(subscripts, xs)


@public
def linear(x: Any, w: Any, b: Any = None) -> Any:
    """`x @ w + b`: x [..., k], w [k, n], b [n] -> [..., n]."""
    y = matmul(x, w)
    return y if b is None else add(y, b)
