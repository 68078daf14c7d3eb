"""Draws random cases: graphs of all ops over placeholders, variables and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import magmadnn as md
from magmadnn import Operation, ops
from magmadnn.errors import MagmaDNNError
from magmadnn.graph import Spec
from magmadnn.graph.body import is_loop
from magmadnn.graph.dim import Dim, bind_shape, product
from magmadnn.graph.node import CONSTANT, Node, constant, placeholder
from magmadnn.graph.op import Op
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.images.windows import windows

from .native_graphs import BATCH, LARGEST, RUNS, Array, Case, Updates, bound, evaluate

SHAPES: list[tuple[Any, ...]] = [
    (5, 7), (7,), (1, 7), (5, 1), (7, 5), (3, 5, 7), (1,), (), (7, 7), (3, 1, 7), (1, 1), (35,),
    (BATCH, 7), (BATCH, 5), (BATCH, 1), (BATCH,), (BATCH, 3, 7), (3, BATCH),
]  # fmt: skip
FLOATS = ["float32"] * 8 + ["float64"] * 2
OTHERS = ["int64", "int32", "bool", "uint8", "float16", "bfloat16", "int8"]
FIRST = 5  # the batch that a graph is drawn with
Rng = np.random.Generator
Rule = Callable[["Draft"], Node | None]


@dataclass
class Draft:
    """A graph in the making.

    Attributes:
        nodes: what there is to build on.
        exact: each value in float64,
        disturbed: and with disturbances.
        special: whether NaN and infinities are fed.
    """

    rng: Rng
    special: bool
    nodes: list[Node] = field(default_factory=list)
    leaves: list[Node] = field(default_factory=list)
    feeds: dict[Node, Array] = field(default_factory=dict)
    exact: dict[Node, Array] = field(default_factory=dict)
    disturbed: list[dict[Node, Array]] = field(default_factory=lambda: [{} for _ in range(RUNS)])

    def one(self, wanted: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """One of the nodes, the later ones more often."""
        fitting = [n for n in self.nodes if wanted(n)]
        if not fitting:
            return None
        return fitting[-1 - int(len(fitting) * self.rng.random() ** 1.5)]

    def number(self) -> Node | None:
        return self.one(lambda n: is_floating(n.dtype))

    def pair(self, same: bool = True) -> tuple[Node, Node] | None:
        """Two that broadcast to something small, mostly of one dtype."""
        a = self.one(lambda n: n.dtype != np.bool_)
        mixed = not same or self.rng.random() < 0.1
        b = self.one(lambda n: n.dtype != np.bool_ and (mixed or a is None or n.dtype == a.dtype))
        return (a, b) if a is not None and b is not None else None

    def add(self, node: Node) -> bool:
        """Take a node in, if it is small and stands on firm ground."""
        if node in self.exact or not isinstance(node.op, Op):
            return False
        if np.prod(bind_shape(node.shape, {"batch": FIRST})) > LARGEST:
            return False
        for values, rng in self._runs():
            fresh = _below(node, values)
            values.update(evaluate(fresh, self.feeds, values, rng))
        below = [n for n in _below(node, {}) if n not in self.nodes and not is_loop(n)]
        if any(self._shaky(n) for n in below):
            return False
        self.nodes.append(node)
        return True

    def _shaky(self, node: Node) -> bool:
        return bound(node, self.exact[node], [d[node] for d in self.disturbed]) is None

    def _runs(self) -> list[tuple[dict[Node, Array], Rng | None]]:
        seeds = [np.random.default_rng([k, len(self.exact)]) for k in range(RUNS)]
        return [(self.exact, None), *zip(self.disturbed, seeds, strict=True)]


def _below(node: Node, known: Any) -> list[Node]:
    """What a node needs that is not known, in order."""
    order: list[Node] = []
    seen: set[Node] = set()

    def visit(n: Node) -> None:
        if n in seen or n in known:
            return
        seen.add(n)
        for i in n.inputs:
            visit(i)
        order.append(n)

    visit(node)
    return order


# --- leaves ---------------------------------------------------------------------------------------


def values(rng: Rng, shape: Sequence[int], dtype: Any, special: bool = False) -> Array:
    """Numbers that are neither 0 nor large; with `special`, some NaN, infinities and zeros."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if not is_floating(dtype):
        return np.asarray(rng.integers(1, 7, shape)).astype(dtype)
    made = np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.3, 1.7, shape))
    if special:
        strange = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], shape)
        made = np.where(rng.random(shape) < 0.08, strange, made)
    return made.astype(dtype)


def strided(rng: Rng, array: Array) -> Array:
    """The same values, maybe not one after the other in memory."""
    way = rng.integers(4)
    if way == 0 and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if way == 1 and array.ndim > 1:
        return np.array(array.T, order="C").T
    return array


def leaf(draft: Draft) -> None:
    """A placeholder, a variable or a constant."""
    rng = draft.rng
    shape = SHAPES[rng.integers(len(SHAPES))]
    dtype = str(rng.choice(FLOATS)) if rng.random() < 0.8 else str(rng.choice(OTHERS))
    known = not any(isinstance(s, Dim) for s in shape)
    kind = rng.integers(4) if known else 0
    name = f"x{len(draft.leaves)}"
    special = draft.special and rng.random() < 0.5
    if kind <= 1:
        node = placeholder(name, Spec(shape, np.dtype(md.memory.as_dtype(dtype))))
        drawn = values(rng, bind_shape(shape, {"batch": FIRST}), node.dtype, special)
        draft.feeds[node] = strided(rng, drawn)
    else:
        array = values(rng, shape, md.memory.as_dtype(dtype), special)
        node = md.variable(name, array).node if kind == 2 else constant(array)
    for known_values, _ in draft._runs():
        known_values.update(evaluate([node], draft.feeds, known_values, None))
    draft.nodes.append(node)
    draft.leaves.append(node)


# --- rules ----------------------------------------------------------------------------------------


def unary(*functions: Callable[..., Any]) -> Rule:
    def make(draft: Draft) -> Node | None:
        a = draft.number()
        return None if a is None else functions[draft.rng.integers(len(functions))](a)

    return make


def binary(*functions: Callable[..., Any]) -> Rule:
    def make(draft: Draft) -> Node | None:
        pair = draft.pair()
        return None if pair is None else functions[draft.rng.integers(len(functions))](*pair)

    return make


def with_number(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.dtype != np.bool_)
    if a is None:
        return None
    number = draft.rng.choice([0.5, -0.0, 0.0, 1.0, 2.0, -1.5]) if is_floating(a.dtype) else 2
    value = float(number) if is_floating(a.dtype) else int(number)
    made = [
        lambda: a * value, lambda: a + value, lambda: value - a, lambda: ops.maximum(a, value),
        lambda: ops.less(a, value), lambda: ops.where(ops.greater(a, value), a, value),
    ]  # fmt: skip
    return made[draft.rng.integers(len(made))]()


def integers(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.dtype.kind in "iu")
    b = draft.one(lambda n: a is not None and n.dtype == a.dtype)
    if a is None or b is None:
        return None
    functions = [ops.add, ops.multiply, ops.maximum, ops.floor_divide, ops.remainder, ops.power]
    return functions[draft.rng.integers(len(functions))](a, b)


def truths(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.dtype == np.bool_)
    b = draft.one(lambda n: n.dtype == np.bool_)
    if a is None or b is None:
        return None
    functions = [ops.logical_and, ops.logical_or, ops.equal, lambda x, y: ops.logical_not(x)]
    return functions[draft.rng.integers(len(functions))](a, b)


def chosen(draft: Draft) -> Node | None:
    c, pair = draft.one(lambda n: n.dtype == np.bool_), draft.pair()
    return None if c is None or pair is None else ops.where(c, *pair)


def converted(draft: Draft) -> Node | None:
    a = draft.one()
    if a is None:
        return None
    if not np.isfinite(draft.exact[a].astype(np.float64)).all():
        return ops.cast(a, "float64")
    return ops.cast(a, str(draft.rng.choice(["float32"] * 4 + ["float64"] * 2 + OTHERS)))


def reduced(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0), draft.rng
    if a is None:
        return None
    count = int(rng.integers(1, a.ndim + 1))
    axes = tuple(int(x) for x in rng.permutation(a.ndim)[:count])
    axis = [None, -1, axes, 0, axes][rng.integers(5)]
    name = str(rng.choice(["sum", "sum", "mean", "max", "min", "var", "logsumexp", "norm", "prod"]))
    if a.dtype == np.bool_ and name != "sum":
        return None
    return getattr(ops, name)(a, axis, keepdims=bool(rng.integers(2)))


def placed(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.ndim > 0)
    if a is None:
        return None
    axis = int(draft.rng.integers(a.ndim))
    function = [ops.argmax, ops.argmin, ops.cumsum][draft.rng.integers(3)]
    return function(a, axis) if a.dtype != np.bool_ else None


def softmaxed(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.ndim > 0 and n.dtype != np.bool_)
    if a is None:
        return None
    axis = -1 if draft.rng.random() < 0.7 else int(draft.rng.integers(a.ndim))
    return [ops.softmax, ops.log_softmax][draft.rng.integers(2)](a, axis)


def classes(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.ndim > 0 and is_floating(n.dtype) and n.shape[-1] in range(1, 99))
    if a is None:
        return None
    shape = bind_shape(a.shape[:-1], {"batch": FIRST})
    if a.shape[:-1] == shape:
        drawn = constant(draft.rng.integers(0, a.shape[-1], shape))
    else:
        drawn = ops.argmax(a, -1)
    if draft.rng.integers(2):
        return ops.take_class(a, drawn)
    return ops.one_hot(drawn, a.shape[-1])


def taken(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0), draft.rng
    if a is None:
        return None
    axis = int(rng.integers(a.ndim))
    if not isinstance(a.shape[axis], int) or not a.shape[axis]:
        return None
    kind = str(rng.choice(["int64", "int64", "int32", "uint8"]))
    numbers = rng.integers(0, a.shape[axis], (3, 2)[: rng.integers(3)])
    return ops.take(a, constant(np.asarray(numbers, kind)), axis=axis)


def scattered(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0 and n.dtype != np.bool_), draft.rng
    if a is None:
        return None
    axis = int(rng.integers(a.ndim))
    if not isinstance(a.shape[axis], int):
        return None
    count = int(rng.integers(1, 6))
    numbers = rng.integers(0, count, a.shape[axis])
    return ops.scatter_add(a, constant(numbers), axis=axis, count=count)


def product_of_two(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.ndim > 0 and is_floating(n.dtype))
    if a is None:
        return None
    fits = [
        (x, y)
        for b in draft.nodes
        if b.ndim and b.dtype == a.dtype
        for x in (a, ops.swapaxes(a, -1, -2) if a.ndim > 1 else a)
        for y in (b, ops.swapaxes(b, -1, -2) if b.ndim > 1 else b)
        if x.shape[-1] == (y.shape[-2] if y.ndim > 1 else y.shape[0])
    ]
    return ops.matmul(*fits[draft.rng.integers(len(fits))]) if fits else None


def ended(draft: Draft) -> Node | None:
    """A product of matrices, or of a stack of them, and after it what repeats itself or lies another way."""
    rng = draft.rng
    a = draft.one(lambda n: n.ndim > 2 and is_floating(n.dtype) and isinstance(n.shape[-1], int))
    if a is None or not a.shape[-1]:
        return None
    columns = int(rng.integers(1, 9))
    shape = (a.shape[-1], columns)
    if rng.random() < 0.3 and isinstance(a.shape[0], int):
        shape = (a.shape[0], *shape)
    made = ops.matmul(a, constant(values(rng, shape, a.dtype)))
    other = ops.matmul(a, constant(values(rng, shape[-2:], a.dtype)))
    ways: list[Callable[[], Node]] = [
        lambda: other[:, :1], lambda: other[..., :1, :1], lambda: other[0], lambda: other[:, ::-1],
        lambda: ops.transpose(ops.tanh(ops.transpose(other, (1, 0, 2))), (1, 0, 2)),
        lambda: ops.concat([other, other], -1)[..., 1 : columns + 1],
    ]  # fmt: skip
    function = [ops.add, ops.multiply, ops.maximum, ops.subtract][rng.integers(4)]
    found: Node = function(made, ways[rng.integers(len(ways))]())
    return found


def assembled(draft: Draft) -> Node | None:
    """Several values side by side, or one with an edge, and what is done to each element of that."""
    rng = draft.rng
    a = draft.one(lambda n: n.ndim > 0 and is_floating(n.dtype))
    if a is None:
        return None
    alike = [
        n for n in draft.nodes if n.dtype == a.dtype and n.shape[:-1] == a.shape[:-1] and n.ndim
    ]
    if rng.integers(2):
        parts = [alike[k] for k in rng.integers(0, len(alike), rng.integers(1, 4))]
        made = ops.concat([ops.tanh(a) if rng.integers(2) else a, *parts], -1)
    else:
        edges = rng.integers(0, 3, (a.ndim, 2))
        edges[-1] += rng.integers(0, 2) * rng.integers(12, 30, 2)  # short rows are copied
        made = ops.pad(a, tuple((int(x), int(y)) for x, y in edges), float(rng.choice([0.0, 0.5])))
    if rng.integers(2):
        made = ops.add(made, made[..., :1])
    return ops.maximum(made, 0.25) if rng.integers(2) else made


def windowed(draft: Draft) -> Node | None:
    """A product of which a factor is the matrix of windows over a value, which lies there as several axes."""
    rng = draft.rng
    a = draft.one(
        lambda n: (
            n.ndim == 3
            and n.dtype.name in ("float32", "float64")
            and all(isinstance(s, int) and s > 2 for s in n.shape[1:])
            and n.op is not CONSTANT
        )
    )
    if a is None:
        return None
    size, stride = int(rng.integers(2, a.shape[1])), 1 if rng.random() < 0.8 else 2
    seen = windows(a, size=(size,), strides=(stride,), dilation=(1,))
    rows = ops.reshape(seen, (product(seen.shape[:2]), product(seen.shape[2:])))
    inner, count = int(product(rows.shape[1:])), int(rng.integers(1, 20))
    ways: list[Callable[[], Node]] = [
        lambda: rows @ constant(values(rng, (inner, count), a.dtype)),
        lambda: constant(values(rng, (count, inner), a.dtype)) @ ops.transpose(rows),
        lambda: ops.transpose(rows) @ rows,
        lambda: ops.sum(rows, 0),
    ]
    return ways[rng.choice([0, 0, 1, 1, 1, 2, 3])]()


def einsums(draft: Draft) -> Node | None:
    """Of one operand or two, which share some axes: common, summed, or of one only."""
    a, rng = draft.one(lambda n: 0 < n.ndim < 4 and is_floating(n.dtype)), draft.rng
    b = draft.one(lambda n: a is not None and 0 < n.ndim < 4 and n.dtype == a.dtype)
    if a is None or b is None:
        return None
    left, right, spare = "abc"[: a.ndim], "", list("def")
    for size in b.shape:
        equal = [c for c, s in zip(left, a.shape, strict=True) if s == size and c not in right]
        shared = equal and rng.random() < 0.7
        right += equal[rng.integers(len(equal))] if shared else spare.pop()
    if rng.random() < 0.2:
        right = ""
    letters = list(dict.fromkeys(left + right))
    kept = [c for c in rng.permutation(letters) if rng.random() < 0.6]
    terms, operands = ([left, right], (a, b)) if right else ([left], (a,))
    return ops.einsum(f"{','.join(terms)}->{''.join(kept)}", *operands)


def reshaped(draft: Draft) -> Node | None:
    a = draft.one()
    if a is None:
        return None
    total = product(a.shape)
    shapes = [s for s in [*SHAPES, (total,), (*a.shape, 1), (1, *a.shape)] if product(s) == total]
    return ops.reshape(a, shapes[draft.rng.integers(len(shapes))])


def moved(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0), draft.rng
    if a is None:
        return None
    axis = int(rng.integers(a.ndim))
    whole = (slice(None),) * axis
    made = [
        lambda: ops.transpose(a, tuple(int(i) for i in rng.permutation(a.ndim))),
        lambda: a[(*whole, slice(1, None))], lambda: a[(*whole, slice(None, None, -1))],
        lambda: a[(*whole, slice(None, None, 2))], lambda: a[(*whole, 0)],
        lambda: a[(*whole, slice(0, 1))], lambda: a[(*whole, None)],
        lambda: ops.concat([a, a], axis), lambda: ops.stack([a, a], axis),
        lambda: ops.pad(a, tuple((1, 0) for _ in range(a.ndim)), 0.5 if is_floating(a.dtype) else 1),
        lambda: ops.flip(a, axis), lambda: ops.squeeze(a),
        lambda: ops.tile(a, tuple(2 if i == axis else 1 for i in range(a.ndim))),
    ]  # fmt: skip
    return made[rng.integers(len(made))]()


def widened(draft: Draft) -> Node | None:
    a = draft.one()
    if a is None:
        return None
    fitting = []
    for shape in SHAPES:
        try:
            fitting.append(ops.broadcast_to(a, shape))
        except MagmaDNNError:
            continue
    return fitting[draft.rng.integers(len(fitting))] if fitting else None


def dropped(draft: Draft) -> Node | None:
    a = draft.number()
    return None if a is None else ops.dropout(a, 0.3, np.int64(draft.rng.integers(99)), seed=3)


def looped(draft: Draft) -> Node | None:
    """A result of a loop over the rows of a value, with a loop in its body now and then."""
    rng = draft.rng
    x = draft.one(lambda n: n.ndim > 0 and n.dtype.name in ("float32", "float64"))
    h = draft.one(lambda n: x is not None and n.dtype == x.dtype and 0 < n.ndim < 3)
    same = draft.one(lambda n: x is not None and n.dtype == x.dtype and n.ndim < 3)
    if x is None or h is None or same is None or any(isinstance(s, Dim) for s in h.shape):
        return None
    width = h.shape[-1]
    w = md.variable("w", values(rng, (width, width), h.dtype) * 0.5)

    def inner(total: Any, row: Any) -> Any:
        return ops.sin(total + 0.5 * row), total

    def body(carried: Any, part: Any) -> Any:
        h, count = carried
        ways: list[Callable[[], Any]] = [
            lambda: 0.5 * h + ops.mean(part),
            lambda: h @ w + ops.sum(ops.tanh(part)) * 0.1,
            lambda: h + ops.reshape(part, (-1,))[:1],
            lambda: ops.flip(h, 0) * ops.tanh(ops.mean(same)) + ops.max(part),
            lambda: h[..., ::-1] + ops.cumsum(md.scan(inner, h[0], h)[1], axis=0) * 0.1,
        ]
        fresh = ops.tanh(ways[rng.integers(len(ways))]())
        return (fresh, count + 1), (fresh * 2.0, part, h @ w)[rng.integers(3)]

    begin = (Operation(h), np.int64(0))
    (last, count), kept = md.scan(body, begin, Operation(x), reverse=bool(rng.integers(2)))
    return (last, kept, kept, last * ops.cast(count, last.dtype))[rng.integers(4)].node


def factored(draft: Draft) -> Node | None:
    """What a library computes of a square matrix, or of a stack of them."""
    rng = draft.rng
    a = draft.one(
        lambda n: (
            n.ndim > 1
            and n.dtype.name in ("float32", "float64")
            and n.shape[-1] == n.shape[-2]
            and not isinstance(n.shape[-1], Dim)
        )
    )
    if a is None:
        return None
    own = np.eye(a.shape[-1]).astype(a.dtype) * 4.0
    factor = md.linalg.cholesky(a @ ops.swapaxes(a, -1, -2) + own)
    if rng.integers(2):
        return factor
    return md.linalg.solve_triangular(factor, a, lower=True, trans=int(rng.integers(2)))


def positive(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(ops.abs(x) + 0.5)


RULES: list[tuple[float, Rule]] = [
    (5, unary(ops.tanh, ops.sigmoid, ops.relu, ops.sin, ops.cos, ops.negative, ops.abs, ops.square,
              ops.elu, ops.softplus, ops.gelu, ops.erf, ops.swish, ops.softsign, ops.leaky_relu,
              ops.sign, ops.floor, ops.ceil, ops.isnan, lambda x: ops.clip(x, -0.4, 0.7),
              positive(ops.log), positive(ops.sqrt), positive(ops.log1p), positive(ops.reciprocal),
              lambda x: ops.exp(ops.tanh(x)), lambda x: ops.expm1(ops.sin(x)))),
    (6, binary(ops.add, ops.subtract, ops.multiply, ops.maximum, ops.minimum, ops.add, ops.multiply,
               ops.less, ops.greater_equal, ops.equal, ops.not_equal, ops.remainder,
               ops.floor_divide, ops.prelu, lambda a, b: ops.divide(a, ops.abs(b) + 1),
               lambda a, b: ops.power(ops.abs(a) + 1, b))),
    (2, with_number), (1, integers), (1, truths), (1.5, chosen), (1.5, converted), (4, reduced),
    (1, placed), (2, softmaxed), (1, classes), (1, taken), (0.7, scattered), (3, product_of_two),
    (1, einsums), (2, reshaped), (3, moved), (1.5, widened), (0.5, dropped), (1, looped),
    (1.5, factored), (1.5, ended), (1.5, assembled), (2, windowed),
]  # fmt: skip


# --- cases ----------------------------------------------------------------------------------------


def draw(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    draft = Draft(rng, special=bool(rng.random() < 0.2))
    for _ in range(int(rng.integers(2, 6))):
        leaf(draft)
    weights = np.array([w for w, _ in RULES])
    wanted = len(draft.nodes) + int(rng.integers(3, 41))
    for _ in range(6 * wanted):
        if len(draft.nodes) >= wanted:
            break
        rule = RULES[rng.choice(len(RULES), p=weights / weights.sum())][1]
        try:
            made = rule(draft)
            if made is not None:
                draft.add(made)
        except MagmaDNNError:
            continue  # it does not fit
    return Case(*_results(draft), _feeds(draft))


def _results(draft: Draft) -> tuple[list[Node], Updates]:
    """Outputs, gradients and updates."""
    rng = draft.rng
    outputs = [draft.nodes[-1]]
    outputs += [draft.nodes[rng.integers(len(draft.nodes))] for _ in range(rng.integers(3))]
    variables = [n for n in draft.leaves if n.op.name == "variable"]
    updates: Updates = []
    if rng.random() < 0.5 and (found := _gradients(draft)):
        leaves, grads = found
        outputs += [g for g in grads if rng.random() < 0.5]
        updates += [(x, x - 0.1 * g) for x, g in zip(leaves, grads, strict=True) if x in variables]
    taken = {t for t, _ in updates}
    for target in variables:
        fitting = [n for n in draft.nodes if n.spec == target.spec and n is not target]
        if target not in taken and fitting and rng.random() < 0.7:
            updates.append((target, fitting[rng.integers(len(fitting))]))
    return outputs, updates


def _gradients(draft: Draft) -> tuple[list[Node], list[Node]] | None:
    """Leaves and the gradients of some sum for them."""
    at = [n for n in draft.nodes if is_floating(n.dtype) and isinstance(n.op, Op)]
    leaves = [n for n in draft.leaves if is_floating(n.dtype) and n.op is not CONSTANT]
    if not at or not leaves:
        return None
    try:
        grads = gradient(ops.sum(at[-1]), leaves)
    except MagmaDNNError:
        return None
    return (
        (leaves, grads)
        if all(g in draft.exact or draft.add(g) or g in draft.nodes for g in grads)
        else None
    )


def _feeds(draft: Draft) -> list[dict[Node, Array]]:
    """Feeds for some sizes of the batch."""
    sizes = [FIRST]
    if any(isinstance(s, Dim) for n in draft.feeds for s in n.shape):
        sizes += [int(n) for n in draft.rng.permutation([1, 0, 2, 13])[:2]]
    runs = [draft.feeds]
    for size in sizes[1:]:
        runs.append({
            n: strided(draft.rng, values(draft.rng, bind_shape(n.shape, {"batch": size}), n.dtype))
            for n in draft.feeds
        })  # fmt: skip
    return runs


__all__ = ["NDArray", "draw"]
