"""Running plans: feeds, values that share no memory, float64, and what happens at mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from magmadnn import errors, ops
from magmadnn.compiler import compile_program
from magmadnn.compiler.program.call_plan import plan_of
from magmadnn.graph import Dim, Node, NoGradient, Op, OpKind, Sample, Spec, scope
from magmadnn.graph import node as nodes
from magmadnn.graph.op import promote
from magmadnn.graph.program import Program
from magmadnn.graph.signature import elementwise
from magmadnn.memory.dtypes import BFLOAT16
from magmadnn.runtime import Executable
from magmadnn.runtime.reference import run
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import F32, Cell, placed, variable

Array = NDArray[Any]


# --- feeds ----------------------------------------------------------------------------------------

X = placed("x", BATCH, 3)
Y = placed("y", BATCH)
I = placed("labels", 3, dtype=np.int8)  # noqa: E741
D = placed("double", 2 * BATCH)
FITTING = {X: np.ones((2, 3)), Y: np.ones(2), I: np.array([1, 2, 3]), D: np.ones(4)}

REFUSED: dict[str, tuple[Mapping[Node, Any], type[Exception], str]] = {
    "nothing": ({}, errors.GraphError, "placeholder x (batch, 3) is not fed: give {x: array}"),
    "axes": (
        {X: np.ones(3)}, errors.ShapeError,
        "placeholder x: expected 2 axes, got 1: expected (batch, 3), got (3,)",
    ),
    "a size": (
        {X: np.ones((2, 4))}, errors.ShapeError,
        "placeholder x: axis 1 must be 3, got 4: expected (batch, 3), got (2, 4)",
    ),
    "two sizes of a batch": (
        {Y: np.ones(5)}, errors.ShapeError,
        "placeholder y: axis 0 (batch) is 5, but 2 in x; make them equal",
    ),
    "a composed size": (
        {D: np.ones(5)}, errors.ShapeError,
        "placeholder double: axis 0 must be 2*batch = 4, got 5: expected (2*batch,), got (5,)",
    ),
    "real for whole": (
        {I: np.array([1.0, 2.0, 3.0])}, errors.DTypeError,
        "placeholder labels: expected int8, got float64; cast it",
    ),
    "text": (
        {X: np.array([["a"] * 3] * 2)}, errors.DTypeError,
        "placeholder x: expected float32, got <U1; cast it",
    ),
    "a large whole number": (
        {I: np.array([1, 2, 300])}, errors.DataError, "placeholder labels: 300 does not fit into int8",
    ),
    "a complex number": (
        {Y: np.array([1j, 2])}, errors.DTypeError, "placeholder y: expected float32, got complex128; cast it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_feeds_that_do_not_fit(name: str) -> None:
    feeds, kind, message = REFUSED[name]
    y = ops.sum(X) + ops.sum(Y) + ops.sum(ops.cast(I, F32)) + ops.sum(D)
    with pytest.raises(kind) as info:
        Executable([y]).run({**FITTING, **feeds} if feeds else {})
    assert str(info.value) == message


def test_the_first_that_gave_a_size_is_named() -> None:
    a, b, c = (placed(name, BATCH) for name in "abc")
    with pytest.raises(errors.ShapeError) as info:
        Executable([a + b + c]).run({a: np.ones(2), b: np.ones(2), c: np.ones(3)})
    assert str(info.value) == "placeholder c: axis 0 (batch) is 3, but 2 in a; make them equal"


def test_only_placeholders_are_fed() -> None:
    y = X * 2.0
    with pytest.raises(errors.GraphError) as info:
        Executable([y]).run({X: np.ones((2, 3)), y: np.ones((2, 3))})
    assert str(info.value) == "only placeholders can be fed, got <multiply: float32[batch, 3]>"


def test_feeds_are_converted_within_their_kind() -> None:
    x, b, half = placed("x", 3), placed("b", 3, dtype=BFLOAT16), placed("h", 3, dtype=np.float16)
    run_ = Executable([x * 1.0, b + 0.0, half + 0.0], check=True)
    got = run_.run({x: [1, 2, 3], b: np.float64([1, 2, 1e39]), half: np.ones(3, BFLOAT16)})
    assert [v.dtype for v in got] == [F32, BFLOAT16, np.float16]
    assert got[1].astype(float).tolist() == [1, 2, np.inf]
    flags = placed("flags", 2, dtype=bool)
    assert Executable([ops.logical_not(flags)]).run({flags: [True, False]})[0].tolist() == [
        False,
        True,
    ]


def test_a_feed_that_the_graph_lost_still_gives_sizes() -> None:
    zeros = ops.broadcast_to(nodes.constant(np.float32(0)), (BATCH, 3))
    run_ = Executable([zeros], check=True)
    assert run_.run({X: np.ones((4, 3))})[0].shape == (4, 3)
    with pytest.raises(errors.GraphError) as info:
        run_.run({})
    assert str(info.value) == (
        "the size of dimension batch is not known: feed a placeholder that has it"
    )


def test_sizes_as_numbers() -> None:
    rows = nodes.size(BATCH * 3 + 1, np.float32)
    (got,) = Executable([rows], check=True).run({X: np.ones((4, 3))})
    assert (got, got.dtype) == (13, F32)
    assert nodes.size(7, np.int64).op is nodes.CONSTANT


# --- memory ---------------------------------------------------------------------------------------


def shares(a: Array, b: Array) -> bool:
    return np.shares_memory(a, b)


VIEWS: dict[str, Callable[[Node], Node]] = {
    "itself": lambda x: x,
    "stop_gradient": ops.stop_gradient,
    "reshape": lambda x: ops.reshape(x, (15,)),
    "transpose": ops.transpose,
    "slice": lambda x: x[1:, ::2],
    "broadcast": lambda x: ops.broadcast_to(x, (2, 5, 3)),
    "several": lambda x: ops.flip(ops.reshape(x.T, (15,)), 0),
    "cast": lambda x: ops.cast(x, F32),
    "concat": lambda x: ops.concat([x]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_outputs_share_no_memory_with_variables_or_feeds(name: str) -> None:
    view = VIEWS[name]
    value = ramp(5, 3)
    fed = np.asarray(ramp(5, 3), F32)
    v, x = variable("v", value), placed("x", 5, 3)
    constant = nodes.constant(value)
    program = Program.of([view(v), view(x), view(v), view(constant)])
    for plan in (compile_program(program, check=True), plan_of(program)):
        outputs = run(plan, {x: fed}, check=True)
        for k, output in enumerate(outputs):
            assert not shares(output, v.value.read())
            assert not shares(output, fed)
            assert not shares(output, constant.value)
            assert not any(shares(output, other) for other in outputs[:k])
            output += 1  # they are the caller's


def test_an_output_given_twice_is_two_arrays() -> None:
    x = placed("x", 3)
    y = x * 2.0
    a, b = Executable([y, y]).run({x: np.ones(3)})
    assert not shares(a, b)


def test_variables_are_swapped() -> None:
    a, b = variable("a", ramp(3)), variable("b", ramp(3) * 10)
    run_ = Executable([a + b], [(a, b), (b, a)], check=True)
    for _ in range(3):
        before = a.value.read().copy(), b.value.read().copy()
        run_.run({})
        assert np.array_equal(a.value.read(), before[1])
        assert np.array_equal(b.value.read(), before[0])
        assert not shares(a.value.read(), b.value.read())


def test_updates_take_place_after_everything_is_computed() -> None:
    v = variable("v", ramp(3))
    before = v.value.read().copy()
    doubled, reversed_ = Executable([v * 2.0, v[::-1]], [(v, v * v)], check=True).run({})
    assert np.array_equal(doubled, before * 2)
    assert np.array_equal(reversed_, before[::-1])
    assert np.array_equal(v.value.read(), before * before)


def test_outputs_and_updates_share_no_memory() -> None:
    v = variable("v", ramp(3))
    fresh = v + 1.0
    (out,) = Executable([fresh], [(v, fresh)]).run({})
    out += 100
    assert v.value.read().max() < 10


def test_nothing_is_written_when_a_run_fails() -> None:
    v, i = variable("v", ramp(3)), placed("i", 2, dtype=np.int64)
    before = v.value.read().copy()
    run_ = Executable([ops.take(v, i)], [(v, v + 1.0)])
    with pytest.raises(errors.DataError):
        run_.run({i: [0, 9]})
    assert np.array_equal(v.value.read(), before)
    run_.run({i: [0, 1]})
    assert np.array_equal(v.value.read(), before + 1)


# --- precision, checks, mistakes ------------------------------------------------------------------


def test_everything_in_float64() -> None:
    x, w = placed("x", 5, 7), variable("w", ramp(7, 3))
    counter = variable("counter", np.int64(3))
    with scope("net"):
        kept = ops.dropout(ops.tanh(x @ w), 0.5, counter, seed=1)
        y = ops.cast(kept, np.float16) * 3.0
    plan = compile_program(Program.of([y]))
    value = np.linspace(-1, 1, 35).reshape(5, 7)
    (exact,) = run(plan, {x: value}, float64=True)
    (real,) = run(plan, {x: value})
    mask = ops.random_uniform(np.int64(3), (5, 3), "float32", seed=1) >= 0.5
    expected = np.tanh(value.astype(F32).astype(float) @ ramp(7, 3).astype(float)) * 2 * mask * 3
    np.testing.assert_allclose(exact, expected, rtol=1e-14)  # the same mask, more digits
    assert (exact.dtype, real.dtype) == (np.float64, np.float16)
    np.testing.assert_allclose(real.astype(float), expected, rtol=4 * 2.0**-11)


def user_op(name: str, numpy: Callable[..., Any]) -> Op:
    return Op(
        name=name, args=("x",), formula="x", kind=OpKind.OTHER, shapes=elementwise, dtypes=promote,
        numpy=numpy, vjp=NoGradient("not needed here"), reference=lambda x: x,
        samples=lambda draw: [Sample((draw(3),))],
    )  # fmt: skip


def test_an_op_that_lies_about_its_shape_is_found() -> None:
    liar = user_op("user_liar", lambda x: x[:2])
    x = placed("x", 3)
    with pytest.raises(errors.GraphError) as info:
        Executable([liar(x)], check=True).run({x: np.ones(3)})
    assert str(info.value) == "user_liar gave float32[2], but its op said float32[3]"


def test_an_unknown_executor() -> None:
    with pytest.raises(
        errors.UnknownNameError, match=r"^executor 'nativ' is not known: did you mean 'native'"
    ):
        Executable([placed("x", 3)], executor="nativ")


def test_a_plan_is_made_once() -> None:
    x = placed("x", 3)
    run_ = Executable([x * 2.0])
    assert run_.plan is run_.plan
    assert [run_.run({x: np.full(3, k)})[0].tolist() for k in (1, 2)] == [[2] * 3, [4] * 3]


def test_any_batch_with_one_plan() -> None:
    symbol = Dim.symbol("rows")
    x = nodes.placeholder("x", Spec((symbol, 2), F32))
    run_ = Executable([ops.mean(x, axis=0), ops.flip(x, 0)], check=True)
    for rows in (1, 2, 7):
        value = ramp(rows, 2)
        mean, flipped = run_.run({x: value})
        np.testing.assert_allclose(mean, value.mean(0), atol=1e-7)
        assert np.array_equal(flipped, value[::-1])


def test_storage_is_read_at_every_run() -> None:
    cell = Cell(ramp(3))
    v = nodes.variable("v", Spec((3,), F32), cell)
    run_ = Executable([v * 1.0])
    cell.write(np.float32([5, 6, 7]))
    assert run_.run({})[0].tolist() == [5, 6, 7]
