"""Nodes: promotion of numbers, phases, updates, and graphs that are built again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.errors import ArgumentError, DTypeError, GraphError, ShapeError
from magmadnn.graph import Dim, Node, Op, OpKind, Sample, scope, show
from magmadnn.graph import node as nodes
from magmadnn.graph.op import REGISTRY, promote
from magmadnn.graph.signature import elementwise
from magmadnn.memory.dtypes import BFLOAT16, DTYPES
from magmadnn.runtime import Executable
from tests.graph.bare_nodes import F32, placed, variable

F64 = np.dtype(np.float64)
B = Dim.symbol("batch")


# --- promotion ------------------------------------------------------------------------------------

NUMPY_DTYPES = [d for d in DTYPES.values() if d != BFLOAT16]
NUMBERS = [True, 2, 2.5, np.float64(2.5), np.float32(2.5), np.int64(2), np.int8(2), np.bool_(True)]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: f"{type(n).__name__}")
def test_promotion_with_numbers_is_numpys(dtype: np.dtype[Any], number: Any) -> None:
    array = np.ones(3, dtype)
    for ours, theirs in [(ops.add, np.add), (ops.multiply, np.multiply), (ops.less, np.less)]:
        expected = theirs(array, number)
        assert ours(array, number).dtype == ours(number, array).dtype == expected.dtype
        x = placed("x", 3, dtype=dtype)
        assert ours(x, number).dtype == ours(number, x).dtype == expected.dtype


@pytest.mark.parametrize("first", NUMPY_DTYPES, ids=str)
def test_promotion_of_arrays_is_numpys(first: np.dtype[Any]) -> None:
    for second in NUMPY_DTYPES:
        expected = np.add(np.ones(3, first), np.ones(3, second)).dtype
        assert ops.add(np.ones(3, first), np.ones(3, second)).dtype == expected
        assert ops.add(placed("x", 3, dtype=first), placed("y", 3, dtype=second)).dtype == expected


BRAIN = [  # what stands beside bfloat16, and what comes out; None: there is no common dtype
    (2.5, "bfloat16"), (2, "bfloat16"), (True, "bfloat16"), ("bool", "bfloat16"), ("int8", "bfloat16"),
    ("uint8", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32"), ("float64", "float64"),
    ("float16", None), ("int16", None), ("int32", None), ("int64", None),
]  # fmt: skip


@pytest.mark.parametrize(("other", "expected"), BRAIN)
def test_promotion_of_bfloat16(other: Any, expected: str | None) -> None:
    x = placed("x", 3, dtype=BFLOAT16)
    y = placed("y", 3, dtype=DTYPES[other]) if isinstance(other, str) else other
    for op in (ops.add, ops.divide, ops.where):
        operands = (placed("c", 3, dtype=bool), x, y) if op is ops.where else (x, y)
        if expected is None:
            with pytest.raises(DTypeError, match="have no common dtype; cast one of them"):
                op(*operands)
        else:
            assert op(*operands).dtype.name == expected


def test_a_condition_does_not_decide_the_dtype_of_numbers() -> None:
    condition = np.array([True, False])
    assert ops.where(condition, np.float32([1, 2]), 0).dtype == F32
    assert ops.where(condition, np.int8([1, 2]), 0).dtype == np.int8
    assert ops.where(condition, 1, 0).dtype == np.int64
    assert ops.where(condition, 1, 0.5).dtype == F64


def test_numbers_that_count_stay_integers() -> None:
    assert ops.take(np.float32([10, 20, 30]), 2) == 30
    assert ops.take(placed("x", 3), 2).shape == ()


def test_arrays_on_the_left() -> None:
    x = placed("x", 3)
    feeds = {x: np.float32([1, 2, 3])}
    left = np.arange(3, dtype=np.float32)
    cases = [
        (left + x, [1, 3, 5]), (left - x, [-1, -1, -1]), (left * x, [0, 2, 6]),
        (left / x, [0, 0.5, 2 / 3]), (left @ x, 8), (left // x, [0, 0, 0]), (left % x, [0, 1, 2]),
        (left**x, [0, 1, 8]), (np.float32(2) * x, [2, 4, 6]), (np.float32(2) ** x, [2, 4, 8]),
        (2 - x, [1, 0, -1]), ([1.0, 1.0, 1.0] - x, [0, -1, -2]), (left < x, [True, True, True]),
        (left >= x, [False, False, False]),
    ]  # fmt: skip
    for node, expected in cases:
        assert isinstance(node, Node)
        (value,) = Executable([node], check=True).run(feeds)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_methods_and_operators() -> None:
    x = placed("x", 2, 3, dtype=F64)
    value = np.array([[1.0, -2.0, 3.5], [0.5, 4.0, -1.0]])
    pairs: list[tuple[Node, Any]] = [
        (-x, -value), (+x, value), (abs(x), abs(value)), (x**2, value**2), (x**3, value**3),
        (x.T, value.T), (x.sum(), value.sum()), (x.mean(0), value.mean(0)),
        (x.max(1, True), value.max(1, keepdims=True)),
        (x.min(), value.min()), (x.prod(1), value.prod(1)), (x.var(), value.var()), (x.std(1), value.std(1)),
        (x.argmax(1), value.argmax(1)), (x.argmin(0, keepdims=True), value.argmin(0, keepdims=True)),
        (x.cumsum(1), value.cumsum(1)), (x.clip(-1, 1), value.clip(-1, 1)),
        (x.clip(high=1), value.clip(max=1)),
        (x.astype("int32"), value.astype("int32")), (x.reshape(3, 2), value.reshape(3, 2)),
        (x.reshape((6,)), value.reshape(6)), (x.unsqueeze(1).squeeze(1), value), (x.transpose(1, 0), value.T),
        (x.transpose(), value.T), (x.swapaxes(0, 1), value.T), (x.dot(value.T), value @ value.T),
        (x[1], value[1]), (x[:, ::2], value[:, ::2]), (x[..., None], value[..., None]), (x % 2, value % 2),
        (x // 2, value // 2), (x > 0, value > 0), (x <= 1, value <= 1),
    ]  # fmt: skip
    got = Executable([node for node, _ in pairs], check=True).run({x: value})
    for result, (node, expected) in zip(got, pairs, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-15, err_msg=node.label)


def test_squaring_is_exact_as_in_numpy() -> None:
    x = placed("x", 3)
    assert (x**2).op is ops.square
    assert (x**2.0).op is ops.square
    assert (x ** np.float64(2)).dtype == F64  # NumPy's scalars promote
    assert (x**3).op is ops.power


# --- leaves ---------------------------------------------------------------------------------------


def test_constants_are_copies() -> None:
    array = np.ones(3)
    node = nodes.constant(array)
    array[0] = 5
    assert node.value.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        node.value[0] = 2


def test_nodes_are_compared_by_identity_and_cannot_be_changed() -> None:
    x = placed("x", 3)
    assert x != placed("x", 3)
    assert len({x, x}) == 1
    with pytest.raises(AttributeError):
        x.name = "y"  # type: ignore[misc]
    assert repr(x * 2.0) == "<multiply: float32[3]>"


# --- phases and updates ---------------------------------------------------------------------------


def test_phases_must_agree() -> None:
    with pytest.raises(ShapeError) as shape:
        nodes.phase(placed("a", 3), placed("b", 4))
    assert str(shape.value) == (
        "phase: training gives shape (3,) but prediction (4,); make them equal"
    )
    with pytest.raises(DTypeError) as dtype:
        nodes.phase(placed("a", 3), placed("b", 3, dtype=F64))
    assert str(dtype.value) == (
        "phase: training gives float32 but prediction float64; cast one of them"
    )


def test_updates_must_fit() -> None:
    x, v = placed("x", 3), variable("v", np.zeros(3, np.float32))
    with pytest.raises(GraphError) as graph:
        nodes.update(x, x, x)
    assert str(graph.value) == "update: expected a variable, got <x: float32[3]>"
    with pytest.raises(ShapeError) as shape:
        nodes.update(x, v, placed("y", 4))
    assert (
        str(shape.value)
        == "variable v: it has shape (3,), but its new value has (4,); make them equal"
    )
    with pytest.raises(DTypeError) as dtype:
        nodes.update(x, v, placed("y", 3, dtype=F64))
    assert str(dtype.value) == "variable v: it has float32, but its new value has float64; cast it"


def test_resolving_a_phase() -> None:
    x, v = placed("x", 3), variable("v", np.zeros(3, np.float32))
    trained, used = x * 2.0, x * 7.0
    y = nodes.update(nodes.phase(trained, used), v, nodes.phase(x + 1.0, x + 2.0))
    (train,), updates = nodes.resolve_phase([y * 1.5], training=True)
    assert "phase" not in show(train)
    assert train.inputs[0] is trained
    assert [(target, value.inputs[1].value.item()) for target, value in updates] == [(v, 1.0)]
    (predict,), none = nodes.resolve_phase([y * 1.5], training=False)
    assert predict.inputs[0] is used
    assert none == []


def test_the_later_update_counts() -> None:
    x, v = placed("x", 3), variable("v", np.zeros(3, np.float32))
    first = nodes.update(x, v, x + 1.0)
    second = nodes.update(first, v, x + 2.0)
    _, updates = nodes.resolve_phase([second], training=True)
    assert [value.inputs[1].value.item() for _, value in updates] == [2.0]


def test_what_has_no_phase_is_shared() -> None:
    y = placed("x", 3) * 2.0
    assert nodes.resolve_phase([y], training=True)[0][0] is y


# --- rebuilding -----------------------------------------------------------------------------------


def network() -> tuple[Node, Node]:
    """A model on any number of rows, whose graph holds that number in many places."""
    x = placed("x", B, 4, 3)
    w = variable("w", np.linspace(-1, 1, 24).reshape(12, 2).astype(np.float32))
    with scope("flatten"):
        flat = ops.flatten(x)
    with scope("dense_1"):
        h = ops.concat([flat @ w, ops.broadcast_to(ops.mean(x), (B, 1))], axis=1)
    with scope("centre"):
        y = h - ops.mean(h, axis=0)
        y = nodes.phase(ops.dropout(y, 0.5, np.int64(3)), y)
    return x, y[1:, :] + y[:-1, ::-1]


def test_a_model_on_another_input() -> None:
    x, y = network()
    values = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    (expected,) = Executable([y], check=True).run({x: values})
    small = placed("small", 5, 4, 3)
    renamed = placed("rows", Dim.symbol("rows"), 4, 3)
    computed = ops.reshape(placed("raw", 5, 12), (5, 4, 3)) * 1.0
    for fresh in (small, renamed, computed):
        (again,) = nodes.rebuild([y], {x: fresh})
        fed = next(n for n in nodes.topological([again]) if n.op is nodes.PLACEHOLDER)
        feed = values.reshape(5, 12) if fed is not fresh else values
        (got,) = Executable([again], check=True).run({fed: feed})
        assert got.tobytes() == expected.tobytes()
        assert "batch" not in show(again)
        scopes = {n.scope for n in nodes.topological([again])}
        assert {"flatten", "dense_1", "centre"} <= scopes


def test_untouched_parts_are_shared() -> None:
    x, z = placed("x", B, 3), placed("z", 3)
    other = ops.exp(z)
    (again,) = nodes.rebuild([x + other], {x: placed("x", 5, 3)})
    assert again.inputs[1] is other
    assert nodes.rebuild([other], {x: placed("x", 5, 3)})[0] is other


REBUILT = [
    ((B, 3), (5, 4), "x: axis 1 must be 3, got 4: expected (batch, 3), got (5, 4)"),
    ((B, 3), (5,), "x: expected 2 axes, got 1: expected (batch, 3), got (5,)"),
    ((B, B), (5, 4), "x: axis 1 must be 5, got 4: expected (batch, batch), got (5, 4)"),
    ((2 * B,), (6,), "x: axis 0 must be 2*batch, got 6: expected (2*batch,), got (6,)"),
]


@pytest.mark.parametrize(("shape", "fresh", "message"), REBUILT)
def test_inputs_that_do_not_fit(shape: Any, fresh: Any, message: str) -> None:
    x = placed("x", *shape)
    with pytest.raises(ShapeError) as info:
        nodes.rebuild([x * 2.0], {x: placed("y", *fresh)})
    assert str(info.value) == message


def test_two_inputs_with_one_symbol_must_agree() -> None:
    x, y = placed("x", B, 3), placed("y", B)
    with pytest.raises(ShapeError) as info:
        nodes.rebuild([x * 2.0], {x: placed("a", 5, 3), y: placed("b", 4)})
    assert str(info.value) == "y: axis 0 must be 5, got 4: expected (batch,), got (4,)"


def test_what_fits_no_longer_says_where() -> None:
    x = placed("x", B, 3)
    with scope("last_rows"):
        y = x[-3:]
    with pytest.raises(ShapeError) as info:
        nodes.rebuild([y], {x: placed("x", 2, 3)})
    assert str(info.value) == (
        "the size batch - 3 would be -1 with batch = 2; feed a larger one (in last_rows)"
    )


def test_another_dtype_is_inferred_again() -> None:
    x = placed("x", B, 3)
    y = ops.mean(x * 2.0)
    (again,) = nodes.rebuild([y], {x: placed("x", B, 3, dtype=np.float64)})
    assert again.dtype == F64


# --- records --------------------------------------------------------------------------------------


def record(name: str, numpy: Any = lambda x, scale: x * scale) -> Op:
    return Op(
        name=name, args=("x",), formula="x * scale", kind=OpKind.OTHER, shapes=elementwise, dtypes=promote,
        numpy=numpy, vjp=lambda g, y, x, scale: g * scale, reference=lambda x, scale: x * scale,
        samples=lambda draw: [Sample((draw(3),))], attributes={"scale": 2.0},
    )  # fmt: skip


def test_a_forgotten_field_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'vjp'"):
        Op(  # type: ignore[call-arg]
            name="user_forgotten", args=("x",), formula="", kind=OpKind.OTHER, shapes=elementwise,
            dtypes=promote, numpy=np.exp, reference=np.exp, samples=lambda draw: [],
        )  # fmt: skip
    assert "user_forgotten" not in REGISTRY


def test_names_are_taken_once() -> None:
    for taken in ("add", "mean"):  # an op, and a function made of ops
        with pytest.raises(ArgumentError) as info:
            record(taken)
        assert str(info.value) == f"op '{taken}' exists already; give yours another name"
    first = record("user_twice")
    again = record("user_twice")  # as when a cell of a notebook runs again
    assert REGISTRY["user_twice"] is again is not first
    foreign = lambda x, scale: x  # noqa: E731
    foreign.__module__ = "elsewhere"
    with pytest.raises(ArgumentError, match="exists already"):
        record("user_twice", foreign)


def test_lists_as_attributes_become_tuples() -> None:
    op = record("user_listed", lambda x, scale: x * np.asarray(scale))
    assert op(placed("x", 2), scale=[1, [2, 3]]).attributes == {"scale": (1, (2, 3))}
    assert op(np.ones(2), scale=[3, 5]).tolist() == [3, 5]


def test_documentation_of_an_op() -> None:
    assert ops.maximum.__doc__ == (
        "the larger of x and y\n\n"
        "NaN in either operand gives NaN. Where x equals y, each gets half of the gradient."
    )


# --- what is known of operands that came before ---------------------------------------------------


def test_what_operands_give_is_found_once_for_each_kind_of_them() -> None:
    asked: list[Any] = []

    def shapes(words: Any, specs: Any, attributes: Any) -> Any:
        asked.append(attributes["scale"])
        return specs[0].shape[: int(attributes["scale"])]

    op = replace(record("user_counted"), name="user_cut", shapes=shapes)
    x = placed("x", 3, 5)
    for scale in (1, 1, True, 2, 1.0, 1.0, 2, True):
        op(x, scale)
    assert [type(scale) for scale in asked] == [int, bool, int, float, float]
    assert op(placed("y", 3, 5), 1).shape == op(x, 1).shape == (3,)
    assert op(x, 2).shape == (3, 5)
    assert len(asked) == 5
    assert op(placed("y", B, 5), 1).shape == (B,)
    assert op(placed("y", 3, 5, dtype=F64), 1).dtype == F64
    assert len(asked) == 7
