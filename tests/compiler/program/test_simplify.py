"""simplify: what it takes out, what it must leave, and graphs before and after as text."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.program.simplify import LARGEST_CONSTANT, simplify
from magmadnn.compiler.program.verify import verify
from magmadnn.graph import Node, scope, show
from magmadnn.graph import node as nodes
from magmadnn.graph.program import Program
from magmadnn.memory.dtypes import BFLOAT16
from magmadnn.runtime import Executable
from tests.compiler.sample_programs import BATCH
from tests.graph.bare_nodes import F32, placed, variable

ZERO, ONE = np.float32(0), np.float32(1)


def simplified(*outputs: Node) -> tuple[Node, ...]:
    before = Program.of(outputs)
    after = simplify(before)
    verify(before=before, after=after, name="simplify")
    again = simplify(after)
    assert str(again) == str(after)  # once is enough
    return after.outputs


X = placed("x", 5, 3)
I = placed("i", 5, 3, dtype=np.int32)  # noqa: E741
S = placed("s", BATCH, 3)

GONE: dict[str, tuple[Node, Node]] = {  # what becomes what
    "x * 1": (X * ONE, X),
    "1 * x": (ONE * X, X),
    "x * [1 1 1]": (X * np.ones(3, F32), X),
    "x / 1": (X / ONE, X),
    "x + -0.0": (X + -ZERO, X),
    "-0.0 + x": (-ZERO + X, X),
    "x - 0.0": (X - ZERO, X),
    "i + 0": (I + 0, I),
    "i * 1": (I * 1, I),
    "--x": (ops.negative(-X), X),
    "----x": (ops.negative(ops.negative(ops.negative(-X))), X),
    "cast to the same": (ops.cast(X, F32), X),
    "reshape to the same": (ops.reshape(X, (5, 3)), X),
    "reshape there and back": (ops.reshape(ops.reshape(X, (15,)), (5, 3)), X),
    "broadcast to the same": (ops.broadcast_to(X, (5, 3)), X),
    "transpose twice": (X.T.T, X),
    "transpose of nothing": (ops.transpose(X, (0, 1)), X),
    "all of it": (X[:, :], X),
    "all of unknown size": (S[:], S),
    "pad with nothing": (ops.pad(X, ((0, 0), (0, 0))), X),
    "a list of one": (ops.concat([X]), X),
    "stop_gradient": (ops.stop_gradient(X), X),
    "reshape of unknown size": (ops.reshape(S, (BATCH, 3)), S),
    "of several": (ops.negative(-(ops.reshape(X.T.T, (15,)) * ONE)), ops.reshape(X, (15,))),
}  # fmt: skip


@pytest.mark.parametrize("name", GONE)
def test_taken_out(name: str) -> None:
    before, after = GONE[name]
    (got,) = simplified(before)
    assert show(got) == show(after)


KEPT: dict[str, Node] = {
    "x + 0.0": X + ZERO,  # -0.0 + 0.0 is 0.0
    "0.0 + x": ZERO + X,
    "x - -0.0": X - -ZERO,
    "0.0 - x": ZERO - X,
    "1 / x": ONE / X,
    "x * 0": X * ZERO,  # NaN * 0 is NaN
    "x - x": X - X,
    "x / x": X / X,
    "x * 1.0 in float64": X * np.float64(1),  # another dtype
    "i * 1.0": I * 1.0,
    "x * [1 2 1]": X * np.array([1, 2, 1], F32),
    "x * ones that broadcast": X * np.ones((2, 1, 1), F32),
    "-x": -X,
    "reverse": X[::-1],
    "transpose": X.T,
    "sum over nothing": ops.sum(X, axis=()),  # adds 0.0
    "cast there and back": ops.cast(ops.cast(X, "float16"), F32),
    "square transpose": ops.transpose(placed("q", 3, 3)),
}


@pytest.mark.parametrize("name", KEPT)
def test_left_as_it_is(name: str) -> None:
    (got,) = simplified(KEPT[name])
    assert show(got) == show(KEPT[name])


FORMS: dict[str, Callable[[], Node]] = {
    "one reshape": lambda: ops.reshape(ops.reshape(ops.reshape(X, (15,)), (3, 5)), (15, 1)),
    "one transpose": lambda: ops.transpose(
        ops.transpose(placed("y", 2, 3, 5), (1, 2, 0)), (2, 1, 0)
    ),
    "one broadcast": lambda: ops.broadcast_to(
        ops.broadcast_to(placed("y", 1, 3), (5, 3)), (2, 5, 3)
    ),
    "constants are computed": lambda: X * (nodes.constant(np.float32(2)) * np.float32(3) - ONE),
    "and then vanish": lambda: X * (nodes.constant(np.float32(2)) - ONE),
    "common parts": lambda: ops.tanh(X * 2.0) + ops.tanh(X * 2.0),
    "common parts after a rewrite": lambda: ops.exp(X * ONE) + ops.exp(ops.negative(-X)),
}
AFTER = """
one reshape
    %0 = placeholder x: float32[5, 3]
    %1 = reshape(%0, shape=(15, 1)): float32[15, 1]
    return %1
one transpose
    %0 = placeholder y: float32[2, 3, 5]
    %1 = transpose(%0, axes=(0, 2, 1)): float32[2, 5, 3]
    return %1
one broadcast
    %0 = placeholder y: float32[1, 3]
    %1 = broadcast_to(%0, shape=(2, 5, 3)): float32[2, 5, 3]
    return %1
constants are computed
    %0 = placeholder x: float32[5, 3]
    %1 = constant 5.0: float32[]
    %2 = multiply(%0, %1): float32[5, 3]
    return %2
and then vanish
    %0 = placeholder x: float32[5, 3]
    return %0
common parts
    %0 = placeholder x: float32[5, 3]
    %1 = constant 2.0: float32[]
    %2 = multiply(%0, %1): float32[5, 3]
    %3 = tanh(%2): float32[5, 3]
    %4 = add(%3, %3): float32[5, 3]
    return %4
common parts after a rewrite
    %0 = placeholder x: float32[5, 3]
    %1 = exp(%0): float32[5, 3]
    %2 = add(%1, %1): float32[5, 3]
    return %2
"""


def test_before_and_after() -> None:
    text = "\n"
    for name, make in FORMS.items():
        (got,) = simplified(make())
        text += f"{name}\n{indent(show(got), '    ')}\n"
    assert text == AFTER


def test_attributes_that_are_equal_but_not_the_same() -> None:
    first, second = ops.pad(X, ((1, 0), (0, 0)), 0.0), ops.pad(X, ((1, 0), (0, 0)), -0.0)
    a, b = Executable(simplified(first, second)).run({X: np.ones((5, 3), F32)})
    assert not np.signbit(a[0, 0])
    assert np.signbit(b[0, 0])


def test_random_numbers_are_drawn_when_it_runs() -> None:
    (drawn,) = simplified(ops.random_uniform(nodes.constant(np.int64(3)), (2,)))
    assert drawn.op is ops.random_uniform


def test_equal_draws_are_one() -> None:
    a, b, c = (ops.random_uniform(nodes.constant(np.int64(k)), (2,)) for k in (3, 3, 4))
    first, second, third = simplified(a, b, c)
    assert first is second is not third


def test_variables_and_placeholders_stay_apart() -> None:
    values = [variable("v", np.zeros(3, F32)) for _ in range(2)]
    outputs = simplified(values[0] * 2.0, values[1] * 2.0)
    assert outputs[0] is not outputs[1]


def test_large_constants_are_not_made() -> None:
    one = nodes.constant(np.float32(1.5))
    small = ops.broadcast_to(one, (LARGEST_CONSTANT,))
    large = ops.broadcast_to(one, (LARGEST_CONSTANT + 1,))
    a, b = simplified(small, large)
    assert a.op is nodes.CONSTANT
    assert b.op is ops.broadcast_to


def test_symbolic_sizes_are_not_computed() -> None:
    (grown,) = simplified(ops.broadcast_to(nodes.constant(ZERO), (BATCH, 3)))
    assert grown.op is ops.broadcast_to


def test_a_mistake_in_constants_is_told_when_it_runs() -> None:
    with scope("lookup"):
        picked = ops.take(nodes.constant(np.ones(3)), nodes.constant(np.array(7)))
    (left,) = simplified(picked)
    assert left.op is ops.take


def test_computed_constants_have_the_ops_own_bits() -> None:
    for dtype in (np.float16, BFLOAT16, np.float64):
        x, y = np.asarray(1, dtype) / np.asarray(3, dtype), np.asarray(7, dtype)
        node = nodes.constant(x) * y + x
        (got,) = simplified(node)
        assert got.op is nodes.CONSTANT
        expected = ops.add(ops.multiply(x, y), x)
        assert got.value.tobytes() == np.asarray(expected).tobytes()


def test_new_nodes_belong_where_the_old_ones_did() -> None:
    with scope("encoder"):
        y = ops.reshape(ops.reshape(X, (15,)), (3, 5))
        z = nodes.constant(ONE) + ONE
    for got in simplified(y, z):
        assert got.scope == "encoder"


def test_updates_are_simplified_as_well() -> None:
    v = variable("v", np.ones(3, F32))
    before = Program.of([v * 2.0], [(v, v * 2.0 * ONE)])
    after = simplify(before)
    assert after.updates[0][1] is after.outputs[0]
    assert after.updates[0][0] is v


def test_unused_parts_disappear() -> None:
    x: Any = placed("x", 3)
    ops.exp(x)
    assert len(Program.of(simplified(x * 2.0)).nodes()) == 3
