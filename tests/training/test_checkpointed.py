"""Blocks whose values are computed again for the gradient: the same bits from less memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, GraphError
from magmadnn.graph.node import topological
from magmadnn.ops.repeated.checkpoints import recomputed
from magmadnn.tensor import Operation

L = md.layers
RANDOM = np.random.default_rng(29)
X = RANDOM.normal(size=(192, 20)).astype(np.float32)
Y = RANDOM.integers(0, 3, 192)
IMAGES = RANDOM.normal(size=(40, 8, 8, 3)).astype(np.float32)
CLASSES = RANDOM.integers(0, 4, 40)
Block = Callable[..., Any]


def unit(width: int = 24) -> list[Any]:
    return [L.Dense(width), L.BatchNorm(), L.Activation("tanh"), L.Dropout(0.2)]


def deep(block: Block, **more: Any) -> md.Model:
    """Blocks of three units."""
    layers = [L.Input((20,)), *(block([x for _ in range(3) for x in unit()]) for _ in range(3))]
    return model_of([*layers, L.Dense(3)], **more)


def nested(block: Block, **more: Any) -> md.Model:
    """Blocks within a block, and a residual one."""
    inner = [block([*unit(), L.Residual(unit())]), block(unit())]
    return model_of([L.Input((20,)), block([*inner, L.Dense(24)]), L.Dense(3)], **more)


def shared(block: Block, **more: Any) -> md.Model:
    """A layer twice in a block, and the block twice in the network."""
    dense, x = L.Dense(20, activation="tanh", kernel_regularizer=L.L2(1e-3)), L.Input((20,))
    twice = block([dense, L.Dropout(0.2), dense])
    return model_of(inputs=x, outputs=L.Dense(3)(twice(twice(x) + x)), **more)


def branched(block: Block, **more: Any) -> md.Model:
    """A block of two inputs, one of which is needed elsewhere too; nothing before it is trained."""
    x, other = L.Input((20,), name="x"), L.Input((4,), "int64", name="other")
    codes = L.Flatten()(L.Embedding(11, 3)(other))
    y = L.Dense(3)(block([L.Concatenate(), *unit(20)])(x, codes) + x)
    return model_of(inputs=[x, other], outputs=y, **more)


def convolutions(block: Block, **more: Any) -> md.Model:
    way = [L.Conv2D(6, 3, padding="same"), L.BatchNorm(), L.Activation("relu")]
    layers = [L.Input((8, 8, 3)), block([*way, L.MaxPooling2D(2)]), L.Flatten(), L.Dense(4)]
    return model_of(layers, **more)


def model_of(layers: Any = None, **more: Any) -> md.Model:
    return md.Model(layers, **({"loss": "cross_entropy", "optimizer": "adam", "seed": 5} | more))


def plainly(parts: Any) -> Any:
    """In place of `Checkpointed`: the same layer that keeps all."""
    found = L.Checkpointed(parts)
    object.__setattr__(found, "forward", lambda *x: _in_a_row(found.parts, x))
    return found


def _in_a_row(parts: Any, x: tuple[Operation, ...]) -> Operation:
    y = parts[0](*x)
    for part in parts[1:]:
        y = part(y)
    return y


NETWORKS = {"deep": deep, "nested": nested, "shared": shared, "convolutions": convolutions}


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_bit_changes(name: str, executor: str) -> None:
    """Nor the masks of dropout, nor how often running statistics are updated."""
    made = [NETWORKS[name](b, executor=executor) for b in (plainly, L.Checkpointed)]
    x, y = (IMAGES, CLASSES) if name == "convolutions" else (X, Y)
    for model in made:
        model.fit(x, y, batch_size=24, epochs=2, verbose=False)
    without, with_blocks = (model.values() for model in made)
    assert without.keys() == with_blocks.keys()
    for key, value in without.items():
        assert (with_blocks[key] == value).all(), key
    assert (made[0].predict(x) == made[1].predict(x)).all()
    counters = [v for k, v in with_blocks.items() if k.endswith("counter")]
    assert all(v & 0xFFFFFFFF in (16, 32) for v in counters), "once for each call in a step"


def test_of_several_inputs() -> None:
    """Of which one is used after the block too, and one is integers."""
    codes = RANDOM.integers(0, 11, (192, 4))
    made = [branched(b) for b in (plainly, L.Checkpointed)]
    for model in made:
        model.fit({"x": X, "other": codes}, Y, batch_size=24, epochs=2, verbose=False)
    without, with_blocks = (model.values() for model in made)
    assert all((with_blocks[k] == v).all() for k, v in without.items())


def stack(block: Block, blocks: int, units: int) -> md.Model:
    layers = [L.Input((20,))]
    for _ in range(blocks):
        layers += [block([L.Dense(64, activation="tanh") for _ in range(units)])]
    return model_of([*layers, L.Dense(3)])


def test_memory_of_a_deep_network() -> None:
    """36 equal layers: what six blocks keep, and one computes, in place of all."""
    value = 4 * 64 * 1024
    with_blocks, without = (
        stack(b, 6, 6).memory(X, Y, batch_size=1024) for b in (L.Checkpointed, plainly)
    )
    kept, all_kept = (m.activations + m.gradients for m in (with_blocks, without))
    # tanh and its derivative of each layer
    assert 72 * value <= all_kept <= 75 * value
    assert (
        kept <= 6 * value + 2 * 6 * value + 5 * value
    )  # outputs, one block, gradients on their way
    assert with_blocks.parameters == without.parameters


def test_blocks_of_one_layer_and_of_all_save_nothing_but_are_right() -> None:
    for blocks, units in ((4, 1), (1, 4)):
        made = [stack(b, blocks, units) for b in (plainly, L.Checkpointed)]
        for model in made:
            model.fit(X, Y, batch_size=64, verbose=False)
        without, with_blocks = (model.values() for model in made)
        assert all((with_blocks[k] == v).all() for k, v in without.items())


def test_computed_again_are_products_too() -> None:
    """Equal nodes of the two computations do not become one, in no pass."""
    found = []
    for block in (plainly, L.Checkpointed):
        plan = stack(block, 2, 3).plan(X, Y, batch_size=64)
        found.append(len(re.findall(r"^ *\d+ gemm", plan, re.MULTILINE)))
    assert found[1] - found[0] == 2 * 2  # what the last layer of a block gives is there already


def test_second_gradients() -> None:
    """Of a sum of squares of gradients, in float64, against those without blocks."""
    found = []
    for block in (plainly, L.Checkpointed):
        x = L.Input((5,), "float64")
        layer = block([L.Dense(7, activation="tanh"), L.Dense(6, activation="softplus")])
        model = md.Model(inputs=x, outputs=layer(x), seed=3)
        parameters = model.parameters()
        first = md.grad(md.ops.sum(model.outputs[0] ** 2), parameters)
        penalty = sum(md.ops.sum(g * g) for g in first)
        second = md.grad(penalty, parameters)
        values = np.linspace(-1, 1, 15).reshape(3, 5)
        found.append([np.asarray(g.eval({x: values})) for g in second])
    for one, other in zip(*found, strict=True):
        assert np.abs(one - other).max() <= 1e-13 * np.abs(one).max()
        assert np.abs(one).max() > 0.01


def test_mixed_precision() -> None:
    made = [
        deep(b, precision=p)
        for p in ("mixed_bf16", "mixed_fp16")
        for b in (plainly, L.Checkpointed)
    ]
    for model in made:
        model.fit(X, Y, batch_size=64, verbose=False)
    for one, other in (made[:2], made[2:]):
        assert all((other.values()[k] == v).all() for k, v in one.values().items())


def test_a_model_with_blocks_is_saved_and_loaded(tmp_path: Any) -> None:
    model = nested(L.Checkpointed)
    model.fit(X, Y, batch_size=64, verbose=False)
    model.save(tmp_path / "model")
    again = md.load(tmp_path / "model")
    assert (again.predict(X) == model.predict(X)).all()
    assert isinstance(again.layers[0], L.Checkpointed)


@pytest.mark.parametrize("parts, message", [
    ([], "needs at least one layer, got an empty list"),
    ([L.Dense(3), np.tanh], "must be a layer, got"),
    ("dense", "parts must be a list of layers, got 'dense'"),
])  # fmt: skip
def test_what_is_no_layer_is_refused(parts: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        L.Checkpointed(parts)


def test_what_it_takes_from_elsewhere_is_refused() -> None:
    """It would get no gradient."""
    x, w = L.Input((5,)), md.variable("w", np.ones((5, 5), np.float32))
    with pytest.raises(GraphError, match="uses the variable w, which is not the layer's"):
        L.Checkpointed([L.Lambda(lambda a: a @ w)])(x)
    y = Operation(recomputed(x @ w, [x], []))
    with pytest.raises(GraphError, match="recomputed: depends on w, which is none of its operands"):
        md.grad(md.ops.sum(y), [w])
    assert len(topological([y.node])) == 4
