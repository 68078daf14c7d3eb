"""Every layer: values, dtypes, sizes, gradients, phases, parameters, and the way to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from magmadnn import grad, layers, ops, placeholder
from magmadnn.layers import Layer, Parameter
from magmadnn.layers.activations import ACTIVATIONS as NAMED
from magmadnn.tensor import Placeholder
from magmadnn.training.model.plain.codec import Custom, decode, encode
from tests.layers.layer_cases import ACTIVATIONS, CASES, Array, Case, gated, halves

EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
STEP = 2.0**-17

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def placeholders_for(case: Case, dtype: str, batch: int | None = None) -> list[Placeholder]:
    dtype = "int64" if case.integers else dtype
    samples = enumerate((case.sample, *case.others))
    return [placeholder(f"x{number}", (batch, *sample), dtype) for number, sample in samples]


def built(case: Case, dtype: str, batch: int | None = None) -> tuple[Layer, list[Placeholder], Any]:
    """A layer that was called, with parameters that tell mistakes apart."""
    layer = case.make()
    if isinstance(layer, layers.Embedding):
        layer.dtype = dtype
    inputs = placeholders_for(case, dtype, batch)
    y = layer(inputs)
    rng = np.random.default_rng(5)
    for p in layer.parameters():
        if p.dtype.kind != "i":
            p.assign(rng.uniform(0.3, 1.2, p.shape))
    return layer, inputs, y


def fed_to(inputs: list[Placeholder], values: list[Array]) -> dict[Any, Array]:
    return dict(zip(inputs, values, strict=True))


def local(layer: Layer, p: Parameter) -> str:
    """A parameter's name within the layer."""
    return str(p.node.name).removeprefix(f"{layer.path}/")


def values(layer: Layer) -> dict[str, Array]:
    return {local(layer, p): np.asarray(p.value, np.float64) for p in layer.parameters()}


@every_case
@pytest.mark.parametrize(  # one of the halves
    "dtype", [d if d != "float16" else pytest.param(d, marks=pytest.mark.long) for d in EPS]
)
def test_values_of_any_batch_in_one_graph(case: Case, dtype: str) -> None:
    layer, inputs, y = built(case, dtype)
    parameters = values(layer)
    assert y.shape == (inputs[0].shape[0], *case.result)
    assert y.dtype.name == dtype
    for batch in (1, 5, 7):
        fed = [x if case.integers else x.astype(y.dtype) for x in case.draw(batch)]
        got = y.numpy(fed_to(inputs, fed))
        exact = [x if case.integers else x.astype(np.float64) for x in fed]
        expected = case.expected(exact, parameters, training=False)
        assert got.shape == (batch, *case.result)
        assert got.dtype == y.dtype
        # sums of up to 15 products of order 1, in some ten operations
        np.testing.assert_allclose(
            got.astype(np.float64),
            expected,
            rtol=0,
            atol=32 * EPS[dtype] * (1 + np.abs(expected).max()),
        )


@every_case
def test_training(case: Case) -> None:
    """What a layer gives in training; random ones have tests of their own."""
    layer, inputs, y = built(case, "float64")
    parameters = values(layer)
    fed = case.draw(7)
    got = np.asarray(y.eval(fed_to(inputs, fed), training=True))
    if case.random:
        assert got.shape == (7, *case.result)
        return
    expected = case.expected(fed, parameters, training=True)
    np.testing.assert_allclose(
        got, expected, rtol=0, atol=64 * EPS["float64"] * np.abs(expected).max()
    )
    if case.training:
        assert not np.allclose(got, case.expected(fed, parameters, training=False))


def phases() -> Iterator[Any]:
    """Each case in training, which is another graph than prediction's for few of them."""
    for case in CASES:
        for training, name in ((False, "prediction"), (True, "training")):
            usual = training or case.training or case.random
            marks = () if usual else pytest.mark.long
            yield pytest.param(case, training, id=f"{name}-{case.name}", marks=marks)


@pytest.mark.parametrize(("case", "training"), list(phases()))
def test_gradients_agree_with_differences(case: Case, training: bool) -> None:
    layer, inputs, y = built(case, "float64", batch=3)
    drawn = case.draw(3, seed=1)
    weights = np.random.default_rng(6).uniform(0.5, 1.5, y.shape)
    loss = ops.sum(y * weights)
    trained = [p for p in layer.parameters() if p.trained]
    start = {p: np.array(p.value) for p in layer.parameters()}

    def value(fed: list[Array]) -> float:
        for p, kept in start.items():  # a step moves states on: counters, statistics
            if not p.trained:
                p.assign(kept)
        return float(loss.eval(fed_to(inputs, fed), training=training))

    def check(found: Array, numeric: Array) -> None:
        # third derivatives are below 100; a sum of less than 100 terms of order 1 rounds
        bound = 100 * STEP**2 + 64 * EPS["float64"] * (1 + abs(value(drawn))) / STEP
        np.testing.assert_allclose(found, numeric, rtol=0, atol=bound)

    for number, x in enumerate([] if case.integers else inputs):
        found = grad(loss, x, training=training).numpy(fed_to(inputs, drawn))
        before, after = drawn[:number], drawn[number + 1 :]
        check(
            found,
            differences(
                lambda at, before=before, after=after: value([*before, at, *after]), drawn[number]
            ),
        )
    for p, g in zip(trained, grad(loss, trained, training=training), strict=True):
        found = g.numpy(fed_to(inputs, drawn))

        def moved(at: Array, p: Parameter = p) -> float:
            p.assign(at)
            return value(drawn)

        check(found, differences(moved, start[p]))
        p.assign(start[p])


def differences(function: Any, at: Array) -> Array:
    """Central differences of a scalar function."""
    slopes = np.empty(at.shape)
    for place in np.ndindex(at.shape):
        move = np.zeros(at.shape)
        move[place] = STEP
        slopes[place] = (function(at + move) - function(at - move)) / (2 * STEP)
    return slopes


@every_case
def test_parameters_have_names_shapes_and_counts(case: Case) -> None:
    layer, _, _ = built(case, "float32")
    trained = {local(layer, p): p.value.shape for p in layer.parameters() if p.trained}
    states = {local(layer, p): p.value.shape for p in layer.parameters() if not p.trained}
    assert list(trained.items()) == list(case.parameters.items())
    assert list(states.items()) == list(case.states.items())
    count = sum(int(np.prod(shape)) for shape in case.parameters.values())
    assert sum(np.asarray(p.value).size for p in layer.parameters() if p.trained) == count


@every_case
def test_a_second_call_shares_parameters(case: Case) -> None:
    layer, inputs, y = built(case, "float64")
    before = list(layer.parameters())
    again = layer(*inputs)
    assert all(a is b for a, b in zip(before, layer.parameters(), strict=True))
    fed = fed_to(inputs, case.draw(5))
    np.testing.assert_array_equal(again.numpy(fed), y.numpy(fed))


@every_case
def test_settings_survive_json(case: Case) -> None:
    layer, inputs, y = built(case, "float64")  # calling a layer may complete its settings
    for name, value in (("name", layer.name or "again"), ("trainable", False)):
        setattr(layer, name, value)
    copy = decode(json.loads(json.dumps(encode(layer))), Custom([halves, gated]))
    assert encode(copy) == encode(layer)
    assert type(copy) is type(layer)
    assert (copy.name, copy.trainable) == (layer.name, False)
    y_copy = copy(inputs)
    copied: Mapping[str, Parameter] = {local(copy, p): p for p in copy.parameters()}
    for p in layer.parameters():
        copied[local(layer, p)].assign(p.value)
    fed = fed_to(inputs, case.draw(5))
    np.testing.assert_array_equal(y_copy.numpy(fed), y.numpy(fed))


@every_case
def test_it_can_be_shown(case: Case) -> None:
    layer = case.make()
    assert repr(layer).startswith(type(layer).__name__ + "(")
    assert "object at" not in repr(layer)


def test_every_layer_and_activation_is_tried() -> None:
    public = {
        c for c in vars(layers).values()
        if isinstance(c, type) and issubclass(c, Layer) and c is not Layer
    }  # fmt: skip
    assert public == {type(case.make()) for case in CASES}
    assert ACTIVATIONS.keys() == NAMED.keys()
