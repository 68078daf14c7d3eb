"""Random graphs of real arithmetic, and a bound for the error of every value in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.graph import Node, Op, OpKind, Spec
from magmadnn.graph.node import constant, placeholder

Array = NDArray[Any]
EPS = 2.0**-23
SHAPES = [(5, 7), (7,), (1, 7), (5, 1), (3, 5, 7), (1,), (), (7, 5), (3, 1, 7), (35,)]
LARGEST = 400

# --- steps ----------------------------------------------------------------------------------------
# Each takes two nodes that are there and makes one more, or gives None where they do not fit. Values stay
# between about -4 and 4: what could grow goes through tanh.

Step = Callable[[np.random.Generator, Node, Node], "Node | None"]


def fits(a: Node, b: Node) -> bool:
    try:
        return len(np.broadcast_shapes(a.shape, b.shape)) <= 3
    except ValueError:
        return False


def binary(op: Op) -> Step:
    return lambda rng, a, b: op(a, b) if fits(a, b) else None


def unary(function: Callable[[Any], Any]) -> Step:
    return lambda rng, a, b: function(a)


def mean(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    axis = int(rng.integers(a.ndim)) if a.ndim else None
    return ops.mean(a, axis, bool(rng.integers(2)))


def reshaped(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    shapes = [s for s in SHAPES if np.prod(s) == np.prod(a.shape)]
    return ops.reshape(a, shapes[rng.integers(len(shapes))]) if shapes else None


def widened(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    return ops.broadcast_to(a, np.broadcast_shapes(a.shape, b.shape)) if fits(a, b) else None


def transposed(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    return ops.transpose(a, tuple(int(i) for i in rng.permutation(a.ndim)))


def joined(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    return ops.concat([a, -a], axis=-1)[..., 1 : a.shape[-1] + 1] if a.ndim else None


def product(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        return None
    return ops.tanh(ops.matmul(a, b)) if b.ndim == 2 else None


def chosen(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    if not fits(a, b):
        return None
    shape = np.broadcast_shapes(a.shape, b.shape)
    return ops.where(rng.integers(0, 2, shape).astype(bool), a, b)


def neutral(rng: np.random.Generator, a: Node, b: Node) -> Node | None:
    """What simplify takes out, or must leave alone."""
    zero, one = np.float32(0), np.float32(1)
    forms: list[Callable[[], Node]] = [
        lambda: a * one, lambda: one * a, lambda: a / one, lambda: a + -zero, lambda: a + zero,
        lambda: a - zero, lambda: a - -zero, lambda: ops.negative(ops.negative(a)),
        lambda: ops.cast(a, "float32"),
        lambda: ops.reshape(a, a.shape), lambda: ops.broadcast_to(a, a.shape), lambda: a[...],
        lambda: ops.stop_gradient(a), lambda: a * np.ones(a.shape, np.float32),
        lambda: ops.transpose(ops.transpose(a)), lambda: ops.reshape(ops.reshape(a, (-1,)), a.shape),
        lambda: a + (constant(np.float32(0.25)) * np.float32(2) - np.float32(0.5)),
    ]  # fmt: skip
    return forms[rng.integers(len(forms))]()


STEPS: list[Step] = [
    binary(ops.add), binary(ops.subtract), binary(ops.maximum), binary(ops.minimum),
    lambda rng, a, b: ops.tanh(a * b) if fits(a, b) else None,
    product, mean, reshaped, widened, transposed, joined, chosen, neutral, neutral, neutral,
    unary(ops.tanh), unary(ops.sin), unary(ops.sigmoid), unary(ops.abs), unary(ops.relu),
    unary(lambda a: ops.exp(ops.tanh(a))), unary(lambda a: ops.tanh(a**2)),
    unary(lambda a: ops.softmax(a) if a.ndim else None),
    unary(lambda a: ops.max(a, axis=-1) if a.ndim else None),
    unary(lambda a: a[..., ::-1] if a.ndim else None),
    unary(lambda a: a[..., 0] if a.ndim else None),
]  # fmt: skip


def random_graph(seed: int) -> tuple[list[Node], dict[Node, Array]]:
    """The nodes of 5 to 40 steps, and values for the placeholders that they begin with."""
    rng = np.random.default_rng(seed)
    feeds: dict[Node, Array] = {}
    for number in range(int(rng.integers(2, 5))):
        shape = SHAPES[rng.integers(len(SHAPES))]
        node = placeholder(f"x{number}", Spec(shape, np.dtype(np.float32)))
        values = rng.uniform(-1.5, 1.5, shape).astype(np.float32)
        feeds[node] = np.where(
            np.abs(values) < 0.1, np.float32(-0.0), values
        )  # some zeros, with signs
    nodes = list(feeds)
    wanted = len(nodes) + int(rng.integers(5, 41))
    while len(nodes) < wanted:
        a, b = (nodes[rng.integers(len(nodes))] for _ in range(2))
        made = STEPS[rng.integers(len(STEPS))](rng, a, b)
        if made is not None and made not in nodes and np.prod(made.shape) <= LARGEST:
            nodes.append(made)
    return nodes[len(feeds) :], feeds


# --- errors ---------------------------------------------------------------------------------------
# How far the float32 value of a node may be from its value in float64: what its operands are off by goes
# through the op, and each rounding adds eps times the value. NumPy's tanh, sin and exp are good to 4 eps.

Error = Callable[[Node, Array, list[Array], list[Array]], Array]


def moved(node: Node, y: Array, xs: list[Array], es: list[Array]) -> Array:
    """Errors move as the elements do."""
    assert isinstance(node.op, Op)
    return np.asarray(node.op.numpy(*es, **node.attributes))


def smooth(slope: float, roundings: float) -> Error:
    """A function of one operand whose slope is bounded."""
    return lambda node, y, xs, es: slope * es[0] + roundings * EPS * (np.abs(y) + slope * es[0])


def of_sum(node: Node, y: Array, xs: list[Array], es: list[Array]) -> Array:
    count = xs[0].size / max(y.size, 1)
    return moved(node, y, xs, es) + count * EPS * moved(node, y, xs, [np.abs(xs[0]) + es[0]])


def of_matmul(node: Node, y: Array, xs: list[Array], es: list[Array]) -> Array:
    (a, b), (da, db) = (np.abs(x) for x in xs), es
    return (a + da) @ db + da @ b + (xs[0].shape[-1] + 1) * EPS * (a + da) @ (b + db)


def of_product(node: Node, y: Array, xs: list[Array], es: list[Array]) -> Array:
    (a, b), (da, db) = (np.abs(x) for x in xs), es
    return (a + da) * db + da * b + EPS * (a + da) * (b + db)


def of_softmax(node: Node, y: Array, xs: list[Array], es: list[Array]) -> Array:
    """dp = p (de - sum(p de)): at most twice the largest error, to first order; 16 roundings."""
    return y * (2.1 * np.max(es[0], -1, keepdims=True, initial=0) + 16 * EPS)


ERRORS: dict[str, Error] = {
    "add": lambda node, y, xs, es: es[0] + es[1] + EPS * (np.abs(y) + es[0] + es[1]),
    "subtract": lambda node, y, xs, es: es[0] + es[1] + EPS * (np.abs(y) + es[0] + es[1]),
    "multiply": of_product,
    "divide": lambda node, y, xs, es: (
        es[0] / np.abs(xs[1]) + EPS * (np.abs(y) + es[0])
    ),  # by constants
    "square": lambda node, y, xs, es: (2 * np.abs(xs[0]) + es[0]) * es[0] + 2 * EPS * np.abs(y),
    "maximum": lambda node, y, xs, es: np.maximum(*es),
    "minimum": lambda node, y, xs, es: np.maximum(*es),
    "max": moved,
    "sum": of_sum,
    "matmul": of_matmul,
    "softmax": of_softmax,
    "tanh": smooth(1, 4),
    "sin": smooth(1, 4),
    "sigmoid": smooth(0.25, 6),
    "exp": smooth(2.8, 4),  # of tanh
    **dict.fromkeys(("abs", "negative", "relu", "cast", "stop_gradient"), smooth(1, 0)),
    "where": lambda node, y, xs, es: np.where(xs[0] != 0, es[1], es[2]),
}


def error_bounds(order: list[Node], values: Mapping[Node, Array]) -> dict[Node, Array]:
    """The bound for each node, given all values in float64."""
    errors: dict[Node, Array] = {}
    for node in order:
        if not isinstance(node.op, Op):
            errors[node] = np.zeros(node.shape)  # float32 already
            continue
        xs, es = [values[i] for i in node.inputs], [errors[i] for i in node.inputs]
        rule = moved if node.op.kind is OpKind.MOVEMENT else ERRORS[node.op.name]
        errors[node] = np.broadcast_to(rule(node, values[node], xs, es), node.shape)
    return errors
