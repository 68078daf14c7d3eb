"""Parts of concatenations that are computed where they lie: what is placed so, and that no result changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, ops
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH

COLUMNS = 40  # of x: rows of fewer than 32 become one long row
Values = Callable[[Operation], list[Operation]]


def weights(x: Operation, columns: int, seed: int) -> Operation:
    """A product with small integers, whose sums are exact."""
    w = np.random.default_rng(seed).integers(-1, 2, (int(x.shape[-1]), columns))
    return ops.matmul(x, w.astype(np.float32))


def relu(x: Operation) -> Operation:
    return ops.relu(x - 1.0)


def inception(x: Operation) -> list[Operation]:
    parts = [relu(weights(x, 9, 1)), relu(weights(relu(weights(x, 8, 2)), 7, 3)), x * 2.0]
    return [weights(ops.concat(parts, -1), 5, 4)]


def dense_block(x: Operation) -> list[Operation]:
    for k in range(3):
        x = ops.concat([x, relu(weights(relu(x * 2.0), 6, k))], -1)
    return [ops.sum(x * 3.0, (0, 1))]


def plain_products(x: Operation) -> list[Operation]:
    """What is stored are matrices, of which the parts are views."""
    rows = ops.reshape(x, (-1, COLUMNS))
    y, z = (ops.reshape(weights(rows, n, n), (-1, 3, n)) for n in (7, 33))
    w = ops.reshape(weights(rows, 12, 4), (-1, 6, 6))  # another matrix than the one that is stored
    parts = [y, x * 2.0, z, ops.reshape(w, (-1, 3, 12))]
    return [ops.sum(ops.concat(parts, -1) * 3.0, (0, 1)), ops.sum(w, 1)]


def read_elsewhere(x: Operation) -> list[Operation]:
    y = relu(weights(x, 34, 1))
    whole = ops.concat([y, x * 3.0], -1)
    return [whole * 2.0, y + 1.0, ops.sum(y, (0, 1)), weights(y, 3, 2), y[..., 3:30] * 2.0]


def flattened_elsewhere(x: Operation) -> list[Operation]:
    y = relu(weights(x, 34, 1))
    whole = ops.concat([y, x * 3.0], -1)
    return [whole * 2.0, weights(ops.reshape(y, (-1, 3 * 34)), 2, 2)]


def an_output(x: Operation) -> list[Operation]:
    y = relu(weights(x, 9, 1))
    return [ops.concat([y, x * 3.0], -1) * 2.0, y]


def the_output(x: Operation) -> list[Operation]:
    return [ops.concat([relu(weights(x, 9, 1)), x * 3.0], -1)]


def twice(x: Operation) -> list[Operation]:
    y = relu(weights(x, 9, 1))
    return [weights(ops.concat([y, y, x * 2.0], -1), 4, 2)]


def in_two(x: Operation) -> list[Operation]:
    y, z = relu(weights(x, 9, 1)), x * 2.0
    return [weights(ops.concat([y, z], -1), 4, 2), weights(ops.concat([z, y], -1), 4, 3)]


def narrow(x: Operation) -> list[Operation]:
    y = relu(x[..., :5] + 0.0)
    return [weights(ops.concat([y * y, weights(x, 4, 1)], -1), 4, 2)]


def numbers_of_rows(x: Operation) -> list[Operation]:
    y = ops.sum(x, -1, keepdims=True)
    return [ops.concat([y * 2.0, weights(x, 1, 1), x * 2.0], -1) * 3.0]


def along_the_middle(x: Operation) -> list[Operation]:
    return [ops.concat([relu(weights(x, COLUMNS, 1)), x * 2.0], 1) * 3.0]


def one_after_the_other(x: Operation) -> list[Operation]:
    """Matrices, and sums of columns, as gradients lie in a bucket; the second begins at no round address."""
    rows = ops.reshape(x, (-1, 3 * COLUMNS))[:, :9]
    some = [ops.sum(relu(rows), 0), ops.matmul(ops.transpose(rows), rows), ops.sum(rows * 2.0, 0)]
    return [ops.concat([ops.reshape(value, (-1,)) for value in some], 0) * 3.0]


CASES: dict[Values, int] = {  # how many values are placed
    one_after_the_other: 3,
    inception: 3,
    dense_block: 5,  # two concatenations, within the next ones; x is fed
    plain_products: 3,  # not the one that is seen as another matrix too
    read_elsewhere: 2,
    flattened_elsewhere: 1,
    an_output: 1,
    the_output: 0,
    twice: 1,
    in_two: 2,
    narrow: 2,
    numbers_of_rows: 1,
    along_the_middle: 0,
}


def made(values: Values) -> tuple[Any, list[Any]]:
    x = placeholder("x", Spec((BATCH, 3, COLUMNS), np.dtype(np.float32)))
    return x, [y.node for y in values(Operation(x))]


def integers(batch: int) -> Any:
    rng = np.random.default_rng(batch)
    return rng.integers(-2, 4, (batch, 3, COLUMNS)).astype(np.float32)


def agree(x: Any, nodes: list[Any]) -> NativePlan:
    reference = Executable(nodes, executor="reference")
    run = Executable(nodes, executor="native", check=True)
    for batch in (11, 1, 200, 0):
        fed = {x: integers(batch)}
        for got, expected in zip(run.run(fed), reference.run(fed), strict=True):
            np.testing.assert_array_equal(got, expected)
    return native_plan(Program.of(nodes), check=True)


@pytest.mark.parametrize("values", CASES, ids=lambda v: v.__name__)
def test_values_and_gradients(values: Values) -> None:
    x, nodes = made(values)
    plan = agree(x, nodes)
    assert len(plan.inside) == CASES[values]
    loss = sum(
        (ops.sum(Operation(node)).node for node in nodes), start=Operation(nodes[0]).sum().node
    )
    agree(x, [loss, *gradient(loss, [x])])


def test_what_is_placed_is_not_moved() -> None:
    _, nodes = made(inception)
    plan = native_plan(Program.of(nodes), check=True)
    arrays = Instance(plan, {"batch": 7}).arrays
    (concat,) = (w.region.nodes[0] for w in plan.work if w.region.kind is RegionKind.MOVE)
    start = 0
    for part in concat.inputs:
        columns = part.shape[-1]
        assert arrays[part].ctypes.data == arrays[concat].ctypes.data + 4 * start
        assert arrays[part].strides == arrays[concat].strides
        start += columns
    text = Executable(nodes, executor="native").text({"batch": 7})
    assert "\n      0 operations, 0 bytes read, 0 written\n" in text


@pytest.mark.parametrize("seed", range(25))
def test_random_concatenations(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def values(x: Operation) -> list[Operation]:
        known = [x]
        for k in range(int(rng.integers(5, 14))):
            way, y = rng.integers(5), known[rng.integers(len(known))]
            columns = int(y.shape[-1])
            if way == 0 and columns < 300:
                several = [known[i] for i in rng.integers(0, len(known), rng.integers(2, 4))]
                y = ops.concat([y, *several], -1)
            elif way == 1:
                y = relu(weights(y, int(rng.integers(1, 40)), k)) * 0.125
            elif way == 2:
                y = ops.minimum(y, 3.0) - 1.0
            elif way == 3 and columns > 2:
                y = y[..., 1 : columns - 1]
            else:
                y = y + ops.max(y, -1, keepdims=True)
            known.append(y)
        return [ops.sum(ops.minimum(y, 4.0), (0, 1)) for y in known[-2:]] + [known[-1] * 2.0]

    x, nodes = made(values)
    reference, run = (Executable(nodes, executor=e, check=True) for e in ("reference", "native"))
    for batch in (6, 1):
        fed = {x: integers(batch)}
        for got, expected in zip(run.run(fed), reference.run(fed), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-3)


def test_a_network_trains_the_same_and_is_exported_whole() -> None:
    def fitted(executor: str) -> Any:
        inputs = layers.Input((6, 6, 3))
        x: Any = layers.Conv2D(8, 3, padding=1)(inputs)
        for _ in range(3):
            y = layers.Activation("relu")(layers.BatchNorm()(x))
            x = layers.Concatenate()([x, layers.Conv2D(4, 3, padding=1)(y)])
        y = layers.Dense(2)(layers.GlobalAveragePooling2D()(x))
        model = md.Model(
            inputs=inputs,
            outputs=y,
            loss="mse",
            optimizer=md.optim.SGD(0.01),
            executor=executor,
            seed=2,
        )
        rng = np.random.default_rng(0)
        a, b = rng.normal(size=(22, 6, 6, 3)), rng.normal(size=(22, 2))
        model.fit(a.astype("float32"), b.astype("float32"), batch_size=8, epochs=2, verbose=False)
        return model, a.astype("float32"), b.astype("float32")

    native, a, b = fitted("native")
    reference, _, _ = fitted("reference")
    np.testing.assert_allclose(native.predict(a), reference.predict(a), rtol=0, atol=1e-4)
    assert " inside %" in native.plan(a, b, batch_size=8)
    assert " inside %" in native.plan(a, batch_size=8)
