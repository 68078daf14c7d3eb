"""Draws random graphs over integers, truth values and halves whose results are exact, whoever computes them.

Each step rounds every element by itself, or adds up whole numbers that are small: so no order of summation
shows, and results of two executors must be equal. Operands are views, broadcast, transposed, backwards, or
have a size that is not known.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import MagmaDNNError
from magmadnn.graph import Spec
from magmadnn.graph.dim import Dim, bind_shape, bind_value
from magmadnn.graph.node import CONSTANT, VARIABLE, Node, constant, placeholder
from magmadnn.graph.op import Op
from magmadnn.memory.dtypes import DTYPES, is_floating

from .native_graphs import BATCH, LARGEST, Array, Case, Updates

Rng = np.random.Generator
Step = Callable[["Draft"], Node | None]

SHAPES: list[tuple[Any, ...]] = [
    (5, 7), (7,), (1, 7), (5, 1), (7, 5), (3, 5, 7), (1,), (), (7, 7), (3, 1, 7), (1, 1), (35,), (4, 64),
    (0, 7), (5, 0), (BATCH, 7), (BATCH, 1), (BATCH,), (BATCH, 3, 7), (3, BATCH), (1, BATCH),
]  # fmt: skip
KINDS = (
    "uint8 uint8 int32 int32 int64 int64 bool bool float16 bfloat16 float32 float32 float64 "
    "int8 int16".split()
)
BATCHES = (5, 0, 1, 64)  # a graph is drawn with the first
ON_X86 = platform.machine() in ("x86_64", "AMD64")


@dataclass
class Draft:
    """A graph in the making.

    Attributes:
        nodes: what there is to build on.
        leaves: those that are given.
        feeds: for each batch, arrays by placeholder.
        values: for each batch, that of every node.
    """

    rng: Rng
    nodes: list[Node] = field(default_factory=list)
    leaves: list[Node] = field(default_factory=list)
    feeds: list[dict[Node, Array]] = field(default_factory=lambda: [{} for _ in BATCHES])
    values: list[dict[Node, Array]] = field(default_factory=lambda: [{} for _ in BATCHES])

    def one(self, wanted: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """One of the nodes, the later ones more often."""
        fitting = [n for n in self.nodes if wanted(n)]
        return fitting[-1 - int(len(fitting) * self.rng.random() ** 1.5)] if fitting else None

    def pair(self) -> tuple[Node, Node] | None:
        a, b = self.one(), self.one()
        return None if a is None or b is None else (a, b)

    def choose(self, functions: Sequence[Callable[..., Node]]) -> Callable[..., Node]:
        return functions[self.rng.integers(len(functions))]

    def add(self, node: Node) -> None:
        """Take a node in if it is small and has a value for each batch."""
        if node in self.values[0] or not isinstance(node.op, Op):
            return
        if np.prod(bind_shape(node.shape, {"batch": BATCHES[0]})) > LARGEST:
            return
        found = [
            computed(node, known, {"batch": n})
            for known, n in zip(self.values, BATCHES, strict=True)
        ]
        for known, fresh in zip(self.values, found, strict=True):
            known.update(fresh)
        self.nodes.append(node)


def computed(
    node: Node, known: Mapping[Node, Array], sizes: Mapping[str, int]
) -> dict[Node, Array]:
    """The value of a node, and of what it needs that is not known."""
    made: dict[Node, Array] = {}
    for one in md.graph.node.topological([node], lambda n: () if n in known else n.inputs):
        if one in known:
            made[one] = known[one]
        elif isinstance(one.op, Op):
            attributes = {k: bind_value(v, sizes) for k, v in one.attributes.items()}
            made[one] = one.op.forward([made[i] for i in one.inputs], attributes, one.dtype)
        else:
            fixed = one.op in (CONSTANT, VARIABLE)
            made[one] = np.asarray(one.value) if fixed else md.graph.node.value_for(one, sizes)
    return made


# --- leaves ---------------------------------------------------------------------------------------


def values(rng: Rng, shape: Sequence[int], dtype: Any) -> Array:
    """Numbers near the ends of their range, small ones, and for floats some that are not numbers."""
    dtype = DTYPES[str(np.dtype(dtype).name)]
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if not is_floating(dtype):
        ends = np.iinfo(dtype)
        wide = rng.integers(ends.min, ends.max, shape, dtype=dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.5, wide, rng.integers(0, 9, shape).astype(dtype))
    made = np.asarray(rng.integers(-40, 40, shape) / 4 * rng.choice([1, 1, 32, 2.0**30], shape))
    strange = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0, 200.0, 255.0, 2.0**31], shape)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.1, strange, made).astype(dtype)


def viewed(rng: Rng, array: Array) -> Array:
    """The array, or a view of the same shape, not one element after the other."""
    way = rng.integers(6)
    if way == 0 and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if way == 1 and array.ndim > 1:
        return np.array(array.T, order="C").T
    if way == 2 and array.ndim:
        return np.flip(np.flip(array).copy())
    if way == 3 and array.ndim and array.shape[0]:
        return np.broadcast_to(array[:1], array.shape)
    if way == 4 and array.ndim and array.shape[-1]:
        return np.broadcast_to(array[..., :1], array.shape)
    return array


def leaf(draft: Draft) -> None:
    """A placeholder, a variable or a constant."""
    rng = draft.rng
    shape = SHAPES[rng.integers(len(SHAPES))]
    dtype = DTYPES[KINDS[rng.integers(len(KINDS))]]
    known = not any(isinstance(s, Dim) for s in shape)
    kind, name = rng.integers(4) if known else 0, f"x{len(draft.leaves)}"
    if kind <= 1:
        node = placeholder(name, Spec(shape, dtype))
        for size, feeds, found in zip(BATCHES, draft.feeds, draft.values, strict=True):
            drawn = values(rng, bind_shape(shape, {"batch": size}), dtype)
            feeds[node] = found[node] = viewed(rng, drawn)
    else:
        array = values(rng, shape, dtype)
        node = md.variable(name, array).node if kind == 2 else constant(array)
        for found in draft.values:
            found[node] = array
    draft.nodes.append(node)
    draft.leaves.append(node)


# --- steps ----------------------------------------------------------------------------------------


def small(a: Node) -> Node:
    """Whole numbers from -9 to 9, of which any sum is exact."""
    if is_floating(a.dtype):
        return ops.clip(ops.floor(a), -9, 9)
    return a if a.dtype == np.bool_ else ops.remainder(a, 7)


UNARY = [
    ops.abs, ops.square, ops.floor, ops.ceil, ops.isnan, ops.logical_not, ops.relu, ops.negative,
    ops.sign, ops.stop_gradient, ops.leaky_relu, ops.softsign, ops.reciprocal, ops.sqrt,
    lambda x: ops.clip(x, 1, 100), lambda x: ops.clip(x, None, 3), lambda x: ops.clip(x, 0),
]  # fmt: skip
BINARY = [
    ops.add, ops.subtract, ops.multiply, ops.divide, ops.floor_divide, ops.remainder, ops.maximum,
    ops.minimum, ops.equal, ops.not_equal, ops.less, ops.less_equal, ops.greater, ops.greater_equal,
    ops.logical_and, ops.logical_or, ops.prelu,
]  # fmt: skip
NUMBERS = (0, 1, 2, 3, 100, -1, 0.5, -0.0, 2.0, True, False)


def unary(draft: Draft) -> Node | None:
    a = draft.one()
    return None if a is None else draft.choose(UNARY)(a)


def binary(draft: Draft) -> Node | None:
    pair = draft.pair()
    return None if pair is None else draft.choose(BINARY)(*pair)


def with_number(draft: Draft) -> Node | None:
    a, number = draft.one(), NUMBERS[draft.rng.integers(len(NUMBERS))]
    if a is None:
        return None
    function = draft.choose(BINARY)
    return function(a, number) if draft.rng.integers(2) else function(number, a)


def raised(draft: Draft) -> Node | None:
    a, b = draft.one(), draft.one(lambda n: n.dtype.kind == "i")
    whole = a is not None and not is_floating(a.dtype)
    return ops.power(a, ops.remainder(b, 4)) if whole and b is not None else None


def chosen(draft: Draft) -> Node | None:
    c, pair = draft.one(), draft.pair()
    return None if c is None or pair is None else ops.where(c, *pair)


def converted(draft: Draft) -> Node | None:
    a = draft.one()
    if a is None:
        return None
    to = DTYPES[KINDS[draft.rng.integers(len(KINDS))]]
    if is_floating(a.dtype) and to.kind in "iu" and not ON_X86:
        a = small(a)  # what is out of range is not the same there
    return ops.cast(a, to)


def reduced(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0), draft.rng
    if a is None:
        return None
    axes = tuple(int(x) for x in rng.permutation(a.ndim)[: int(rng.integers(1, a.ndim + 1))])
    axis = [None, -1, axes, 0, axes][rng.integers(5)]
    keep = bool(rng.integers(2))
    name = str(rng.choice(["sum", "sum", "max", "min", "prod", "mean"]))
    if name == "prod":
        return ops.prod(ops.clip(small(a), -2, 2) if a.dtype != np.bool_ else a, axis, keep)
    whole = name == "sum" and not is_floating(a.dtype)  # which may wrap
    return getattr(ops, name)(a if whole or name in ("max", "min") else small(a), axis, keep)


def placed(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.ndim > 0)
    if a is None:
        return None
    axis = int(draft.rng.integers(a.ndim))
    return draft.choose([ops.argmax, ops.argmin, lambda x, k: ops.cumsum(small(x), k)])(a, axis)


def numbered(draft: Draft, count: int) -> Node | None:
    """Numbers from 0 to count - 1, some computed."""
    b = draft.one(lambda n: n.dtype in (np.int64, np.int32, np.uint8) and n.ndim < 3)
    return None if b is None or not count else ops.remainder(b, min(count, 100))


def taken(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0), draft.rng
    if a is None:
        return None
    axis = int(rng.integers(a.ndim))
    numbers = numbered(draft, a.shape[axis]) if isinstance(a.shape[axis], int) else None
    return None if numbers is None else ops.take(a, numbers, axis=axis)


def scattered(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0 and isinstance(n.shape[0], int)), draft.rng
    if a is None:
        return None
    return ops.scatter_add(small(a), rng.integers(0, 4, a.shape[0]), axis=0, count=4)


def encoded(draft: Draft) -> Node | None:
    numbers = numbered(draft, 6)
    return None if numbers is None else ops.one_hot(numbers, 6)


def product(draft: Draft) -> Node | None:
    a = draft.one(lambda n: n.ndim > 0)
    fitting = [n for n in draft.nodes if a is not None and n.ndim and a.shape[-1] == n.shape[0]]
    if a is None or not fitting:
        return None
    b = fitting[draft.rng.integers(len(fitting))]
    return ops.matmul(small(a), small(b)) if b.ndim < 3 else None


def moved(draft: Draft) -> Node | None:
    a, rng = draft.one(lambda n: n.ndim > 0), draft.rng
    if a is None:
        return None
    axis = int(rng.integers(a.ndim))
    whole = (slice(None),) * axis
    made: list[Callable[[], Node]] = [
        lambda: ops.transpose(a, tuple(int(i) for i in rng.permutation(a.ndim))),
        lambda: a[(*whole, slice(1, None))], lambda: a[(*whole, slice(None, None, -1))],
        lambda: a[(*whole, slice(None, None, 2))], lambda: a[(*whole, 0)],
        lambda: a[(*whole, slice(0, 1))], lambda: a[(*whole, None)], lambda: ops.flip(a, axis),
        lambda: ops.concat([a, a], axis), lambda: ops.stack([a, a], axis), lambda: ops.squeeze(a),
        lambda: ops.pad(a, tuple((1, 0) for _ in range(a.ndim)), 1),
        lambda: ops.tile(a, tuple(2 if i == axis else 1 for i in range(a.ndim))),
        lambda: ops.reshape(a, (-1,)), lambda: ops.reshape(a, (*a.shape[:-1], -1, 1)),
    ]  # fmt: skip
    return made[rng.integers(len(made))]()


def widened(draft: Draft) -> Node | None:
    a = draft.one()
    return None if a is None else ops.broadcast_to(a, SHAPES[draft.rng.integers(len(SHAPES))])


STEPS: list[tuple[float, Step]] = [
    (4, unary), (8, binary), (3, with_number), (0.7, raised), (2, chosen), (4, converted),
    (3, reduced), (1.5, placed), (1, taken), (0.7, scattered), (0.5, encoded), (1, product),
    (3, moved), (2, widened),
]  # fmt: skip


def draw(seed: int, longest: int = 40) -> Case:
    """The case of a seed, with up to so many steps."""
    rng = np.random.default_rng(seed)
    draft = Draft(rng)
    for _ in range(int(rng.integers(2, 7))):
        leaf(draft)
    weights = np.array([w for w, _ in STEPS])
    wanted = len(draft.nodes) + int(rng.integers(3, longest + 1))
    for _ in range(8 * wanted):
        if len(draft.nodes) >= wanted:
            break
        step = STEPS[rng.choice(len(STEPS), p=weights / weights.sum())][1]
        try:
            if (made := step(draft)) is not None:
                draft.add(made)
        except MagmaDNNError:
            continue  # it does not fit
    return Case(*_results(draft), _runs(draft))


def _results(draft: Draft) -> tuple[list[Node], Updates]:
    """Several outputs, and updates of variables by what fits."""
    rng = draft.rng
    outputs = [draft.nodes[-1]]
    outputs += [draft.nodes[rng.integers(len(draft.nodes))] for _ in range(rng.integers(5))]
    updates: Updates = []
    for target in (n for n in draft.leaves if n.op is VARIABLE):
        fitting = [n for n in draft.nodes if n.spec == target.spec and n is not target]
        if fitting and rng.random() < 0.7:
            updates.append((target, fitting[rng.integers(len(fitting))]))
    return outputs, updates


def _runs(draft: Draft) -> list[dict[Node, Array]]:
    """Feeds for each batch where there is one."""
    sized = any(isinstance(s, Dim) for n in draft.leaves for s in n.shape)
    return draft.feeds if sized else draft.feeds[:1]
