"""The reverse sweep: what it does once for all ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.errors import DTypeError, GraphError, ShapeError
from magmadnn.graph import Dim, Node, NoGradient, Op, OpKind, Sample, Spec, scope
from magmadnn.graph import node as nodes
from magmadnn.graph.op import promote
from magmadnn.graph.signature import elementwise
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable

Array = NDArray[Any]
F64 = np.dtype(np.float64)


def placed(name: str, *shape: Any, dtype: Any = F64) -> Node:
    return nodes.placeholder(name, Spec(shape, np.dtype(dtype)))


def values(outputs: list[Node], feeds: dict[Node, Any] | None = None) -> list[Array]:
    return Executable(outputs, check=True).run(feeds or {})


# --- broadcasting ---------------------------------------------------------------------------------


def random_pair(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, of primes and ones, of up to four axes."""
    full = [int(rng.choice([2, 3, 5, 7])) for _ in range(rng.integers(0, 5))]
    pair = []
    for _ in range(2):
        shape = [1 if rng.random() < 0.4 else n for n in full]
        pair.append(tuple(shape[rng.integers(0, len(full) + 1) :]))
    return pair[0], pair[1]


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """x added up over what a value of `shape` was repeated along, one element at a time."""
    out = np.zeros(shape)
    for place, value in np.ndenumerate(x):
        back = place[len(place) - len(shape) :]
        out[tuple(0 if n == 1 else i for i, n in zip(back, shape, strict=True))] += value
    return out


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_broadcasts_are_undone(first: int) -> None:
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        shape_a, shape_b = random_pair(rng)
        a, b = placed("a", *shape_a), placed("b", *shape_b)
        both = np.broadcast_shapes(shape_a, shape_b)
        weights = rng.uniform(-1, 1, both)
        fed = {a: rng.uniform(-1, 1, shape_a), b: rng.uniform(-1, 1, shape_b)}
        found = gradient(ops.sum(a * b * weights), [a, b])
        assert [g.shape for g in found] == [shape_a, shape_b]
        got = values(found, fed)
        for g, mine, other in zip(got, (a, b), (b, a), strict=True):
            expected = summed_to(weights * np.broadcast_to(fed[other], both), mine.shape)
            np.testing.assert_allclose(g, expected, rtol=1e-13, atol=1e-13, err_msg=f"seed {seed}")


# --- fan-out --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "factor", "sums_of_products"),
    [
        ((5,), (5,), 0), ((1, 1, 5), (1, 1, 5), 0), ((1, 3, 5), (1, 3, 5), 0), ((3, 5), (5,), 0),
        ((5,), (3, 5), 1), ((5,), (7, 1, 1), 1), ((7, 1, 1), (5,), 1), ((5,), (), 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_factor_that_is_constant_along_summed_axes_follows_the_sum(
    shift: tuple[int, ...], factor: tuple[int, ...], sums_of_products: int, dtype: str
) -> None:
    # y = (x - shift) * factor: the shift gets -sum(g * factor) over what it was broadcast along
    x, s, f, g = (
        placed(n, *z, dtype=dtype)
        for n, z in (("x", (7, 3, 5)), ("s", shift), ("f", factor), ("g", (7, 3, 5)))
    )
    (made,) = gradient((x - s) * f, [s], seed=g)
    summed = [n for n in nodes.topological([made]) if isinstance(n.op, Op) and n.op is ops.sum]
    found = [n for n in summed if n.inputs[0] is not g]
    assert len(summed) == 1 and len(found) == (1 if dtype == "float16" else sums_of_products)
    rng = np.random.default_rng(3)
    fed = {n: rng.standard_normal(n.shape).astype(dtype) for n in (x, s, f, g)}
    wide = {n: v.astype(np.float64) for n, v in fed.items()}
    expected = -summed_to(wide[g] * np.broadcast_to(wide[f], (7, 3, 5)), shift)
    rounding = 2.0**-11 if dtype == "float16" else 2.0**-53
    size = summed_to(np.abs(wide[g] * wide[f]), shift)
    (value,) = values([made], fed)
    assert (np.abs(value - expected) <= (4 + 105 / 8) * rounding * size + 1e-300).all()


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 7, 50])
def test_every_reader_adds_its_part(readers: int) -> None:
    x = placed("x", 3)
    y = x * 1.5
    total = ops.sum(y * 1.0)
    for k in range(2, readers + 1):
        total = total + ops.sum(y * float(k))
    point = np.array([0.3, -0.7, 2.0])
    expected = 1.5 * readers * (readers + 1) / 2
    assert values(gradient(total, [x]), {x: point})[0].tolist() == pytest.approx(
        [expected] * 3, rel=1e-14
    )


def test_a_value_with_itself() -> None:
    x = placed("x", 2)
    point = np.array([3.0, -5.0])
    assert values(gradient(ops.sum(x * x), [x]), {x: point})[0].tolist() == [6, -10]
    assert values(gradient(ops.sum(x + x + x), [x]), {x: point})[0].tolist() == [3, 3]
    assert values(gradient(ops.sum(ops.where(x > 0, x, x)), [x]), {x: point})[0].tolist() == [1, 1]


@pytest.mark.parametrize("depth", [10, 40, 200])
def test_a_residual_chain_is_computed_once(depth: int) -> None:
    """x + f(x), over and over: 2**depth paths, but a number of steps in proportion to depth."""
    x = placed("x", 5)
    y = x
    for _ in range(depth):
        y = y + ops.tanh(y) * 0.01
    (slope,) = gradient(ops.sum(y), [x])
    run = Executable([slope], check=True)
    assert len(run.plan.steps) <= 12 * depth + 10
    calls: list[Node] = []
    point = np.linspace(-1, 1, 5)
    (got,) = run.run({x: point}, watch=lambda node, value, operands: calls.append(node))
    assert len(calls) == len(set(calls)) == len(run.plan.steps)
    expected, z = np.ones(5), point
    for _ in range(depth):
        expected, z = expected * (1 + 0.01 * (1 - np.tanh(z) ** 2)), z + 0.01 * np.tanh(z)
    np.testing.assert_allclose(got, expected, rtol=depth * 1e-15)


def test_deep_graphs_do_not_overflow_the_stack() -> None:
    x = placed("x")
    y = x
    for _ in range(3000):
        y = y + 1.0
    assert values(gradient(y, [x]), {x: 2.0})[0] == 1


# --- seeds, zeros, higher derivatives -------------------------------------------------------------


def test_an_unrelated_variable_gets_zeros() -> None:
    x, other = placed("x", 3), placed("other", 2, 5, dtype=np.float32)
    open_size = placed("open", Dim.symbol("batch"), 3, dtype=np.float32)
    found = gradient(ops.sum(x), [x, other, open_size])
    got = values(found, {x: np.ones(3), open_size: np.ones((4, 3))})
    assert [(g.shape, g.dtype.name, float(g.sum())) for g in got] == [
        ((3,), "float64", 3.0),
        ((2, 5), "float32", 0.0),
        ((4, 3), "float32", 0.0),
    ]


def test_the_gradient_of_a_value_by_itself() -> None:
    x = placed("x")
    assert values(gradient(x, [x]), {x: 3.0})[0] == 1
    v = placed("v", 3)
    assert values(gradient(v, [v], nodes.constant(np.array([1.0, 2.0, 3.0]))), {})[0].tolist() == [
        1,
        2,
        3,
    ]


def test_a_target_in_the_middle() -> None:
    x = placed("x", 3)
    y = ops.exp(x)
    z = ops.sum(y * y)
    point = np.array([0.5, 1.0, -1.0])
    dy, dx = values(gradient(z, [y, x]), {x: point})
    np.testing.assert_allclose(dy, 2 * np.exp(point), rtol=1e-15)
    np.testing.assert_allclose(dx, 2 * np.exp(point) ** 2, rtol=1e-15)


def test_a_seed_weighs_the_elements() -> None:
    x = placed("x", 2, 3)
    seed = placed("seed", 2, 3, dtype=np.float32)  # another dtype is converted
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = gradient(x * x, [x], seed)
    assert found.dtype == F64
    point = np.linspace(1, 2, 6).reshape(2, 3)
    np.testing.assert_array_equal(
        values([found], {x: point, seed: weights})[0], 2 * point * weights
    )


def test_higher_derivatives() -> None:
    x = placed("x")
    y = x**5 - 2.0 * x**3 + ops.sin(x)
    slopes = [y]
    for _ in range(4):
        slopes.append(gradient(slopes[-1], [x])[0])
    at = 1.3
    got = [float(v) for v in values(slopes[1:], {x: at})]
    expected = [
        5 * at**4 - 6 * at**2 + np.cos(at),
        20 * at**3 - 12 * at - np.sin(at),
        60 * at**2 - 12 - np.cos(at),
        120 * at + np.sin(at),
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_second_derivatives_of_a_network() -> None:
    """Hessian of a two-layer network against differences of its gradient."""
    rng = np.random.default_rng(5)
    x, w = placed("x", 5, 3), placed("w", 3, 2)
    loss = ops.mean(ops.square(ops.log_softmax(ops.tanh(x @ w))))
    (slope,) = gradient(loss, [w])
    direction = rng.uniform(-1, 1, (3, 2))
    (bent,) = gradient(ops.sum(slope * direction), [w])
    fed = {x: rng.uniform(-1, 1, (5, 3)), w: rng.uniform(-1, 1, (3, 2))}
    run = Executable([slope])
    h = 1e-3
    coarse, fine = (
        (
            run.run({**fed, w: fed[w] + s * direction})[0]
            - run.run({**fed, w: fed[w] - s * direction})[0]
        )
        / (2 * s)
        for s in (h, h / 2)
    )
    np.testing.assert_allclose(values([bent], fed)[0], (4 * fine - coarse) / 3, atol=1e-10)


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_low_precision(dtype: str) -> None:
    """Each gradient has its operand's dtype, and is near the one in float64."""
    rng = np.random.default_rng(3)
    shapes = {"x": (5, 7), "w": (7, 3), "b": (3,)}
    exact = {n: rng.uniform(-1, 1, s) for n, s in shapes.items()}

    def slopes(kind: Any) -> list[Array]:
        x, w, b = (placed(n, *s, dtype=kind) for n, s in shapes.items())
        loss = ops.mean(ops.square(ops.sigmoid(x @ w + b)))
        fed = {n: exact[str(n.name)].astype(low).astype(kind) for n in (x, w, b)}
        found = gradient(loss, [x, w, b])
        assert all(g.dtype == kind for g in found)
        return values(found, fed)

    low = nodes.as_dtype(dtype)
    eps = float(ml_dtypes.finfo(low).eps)
    for got, expected in zip(slopes(low), slopes(F64), strict=True):
        # about 12 roundings on the way, sums of up to 35 terms in float32
        np.testing.assert_allclose(
            got.astype(np.float64), expected, atol=12 * eps * np.abs(expected).max()
        )


def test_mixed_dtypes_go_back_to_their_operands() -> None:
    x, y = placed("x", 3, dtype=np.float16), placed("y", 2, 3, dtype=np.float32)
    found = gradient(ops.sum(x * y), [x, y])
    assert [g.dtype.name for g in found] == ["float16", "float32"]
    fed = {x: np.array([0.5, 1, 2], np.float16), y: np.full((2, 3), 2.0**-13, np.float32)}
    assert values(found, fed)[0].tolist() == [2.0**-12] * 3  # summed before it is rounded


def test_integers_end_the_way_back() -> None:
    x, i = placed("x", 3), placed("i", 3, dtype=np.int64)
    (found,) = gradient(ops.sum(x * i + ops.cast(ops.cast(x, "int64"), "float64")), [x])
    assert values([found], {x: np.array([1.5, 2.5, 3.5]), i: np.array([1, 2, 3])})[0].tolist() == [
        1,
        2,
        3,
    ]


# --- phases and updates ---------------------------------------------------------------------------


class Cell:
    """Storage of a variable."""

    def __init__(self, value: Any) -> None:
        self.value = np.array(value)

    def read(self) -> Array:
        return self.value

    def write(self, value: Array) -> None:
        self.value = value


def test_the_phase_that_is_asked_for_is_differentiated() -> None:
    x = placed("x", 3)
    y = ops.sum(nodes.phase(x * 2.0, x * 7.0))
    point = {x: np.ones(3)}
    assert values(gradient(y, [x], training=True), point)[0].tolist() == [2, 2, 2]
    assert values(gradient(y, [x]), point)[0].tolist() == [7, 7, 7]


def test_a_target_beyond_a_phase() -> None:
    x = placed("x", 3)
    middle = nodes.phase(x * 2.0, x * 7.0)
    (found,) = gradient(ops.sum(middle * middle), [middle], training=True)
    assert values([found], {x: np.ones(3)})[0].tolist() == [4, 4, 4]


def test_a_seed_may_have_phases() -> None:
    x = placed("x", 3)
    seed = nodes.phase(x * 0.0 + 1.0, x * 0.0 + 5.0)
    assert values(gradient(x * 2.0, [x], seed, training=True), {x: np.ones(3)})[0].tolist() == [
        2,
        2,
        2,
    ]
    assert values(gradient(x * 2.0, [x], seed), {x: np.ones(3)})[0].tolist() == [10, 10, 10]


def test_updates_pass_gradients_through_and_take_place_in_training_only() -> None:
    cell = Cell(np.array([10.0, 20.0]))
    running = nodes.variable("running", Spec((2,), F64), cell)
    x = placed("x", 2)
    y = nodes.update(x * 3.0, running, running * 0.5 + x * 0.5)
    total = ops.sum(y)
    (slope,) = gradient(total, [x], training=True)
    run = Executable([total, slope], training=True, check=True)
    fed = {x: np.array([2.0, 4.0])}
    assert [v.tolist() for v in run.run(fed)] == [18, [3, 3]]
    assert cell.value.tolist() == [6, 12]
    assert Executable([total], check=True).run(fed)[0] == 18
    assert cell.value.tolist() == [6, 12]


# --- scopes and errors ----------------------------------------------------------------------------


def test_gradients_belong_to_their_layer() -> None:
    x = placed("x", 3)
    with scope("encoder"), scope("dense_1"):
        y = ops.sum(ops.tanh(x))
    with scope("optimiser"):
        (found,) = gradient(y, [x])
    assert found.scope == "encoder/dense_1/gradient"


def test_a_scope_is_named_when_text_is_made() -> None:
    class Layer:
        name = "unnamed"

        def __str__(self) -> str:
            return self.name

    layer = Layer()
    with scope("model"), scope(layer):
        made = placed("x") * 2.0
    assert made.scope == "model/unnamed"
    layer.name = "dense_1"
    assert made.scope == "model/dense_1"
    named = nodes.placeholder(layer, Spec((), F64))
    assert named.label == "dense_1"


def test_what_is_no_scalar_needs_a_seed() -> None:
    y = placed("x", Dim.symbol("batch"), 3) * 2.0
    with pytest.raises(GraphError) as info:
        gradient(y, [y])
    assert str(info.value) == (
        "grad: multiply has shape (batch, 3), expected a scalar; sum it, or give weights for its "
        "elements as seed"
    )
    with pytest.raises(ShapeError) as shape:
        gradient(y, [y], nodes.constant(np.ones(3)))
    assert str(shape.value) == "grad: seed has shape (3,), expected (batch, 3) as y has"


def test_integers_have_no_gradient() -> None:
    x, i = placed("x"), placed("i", dtype=np.int32)
    with pytest.raises(DTypeError) as info:
        gradient(i, [x])
    assert str(info.value) == "grad: i is int32, expected a floating-point value"
    with pytest.raises(DTypeError) as info:
        gradient(x, [x, i])
    assert str(info.value) == (
        "grad: i is int32, expected a floating-point value; there is no gradient with respect to it"
    )


def strange(name: str, vjp: Any) -> Op:
    """A user's op."""
    return Op(
        name=name, args=("x",), formula="x", kind=OpKind.OTHER, shapes=elementwise, dtypes=promote,
        numpy=lambda x: x + 0, vjp=vjp, reference=lambda x: x, samples=lambda draw: [Sample((draw(3),))],
    )  # fmt: skip


def test_an_op_without_gradient_says_why() -> None:
    blind = strange("user_blind", NoGradient("nobody knows it"))
    x = placed("x")
    with pytest.raises(GraphError) as info:
        gradient(blind(x), [x])
    assert str(info.value) == "grad: user_blind has no gradient: nobody knows it"
    y = placed("y")
    (found,) = gradient(x * blind(y), [x])  # it is not on the way
    assert values([found], {x: 2.0, y: 3.0})[0] == 3


def test_a_vjp_gives_one_gradient_for_each_operand() -> None:
    wrong = strange("user_wrong", lambda g, y, x: (g, g))
    x = placed("x")
    with pytest.raises(GraphError) as info:
        gradient(wrong(x), [x])
    assert str(info.value) == (
        "grad: the vjp of user_wrong gives 2 gradients for 1 operands; give one for each, None where "
        "there is none"
    )
