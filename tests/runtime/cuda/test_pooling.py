"""Max pooling of pictures by kernels of our own: values, numbers of places and gradients, in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import launches, small
from tests.runtime.cuda.devices import DEVICES, on

# places, channels, and what a call is given
CASES: list[tuple[tuple[int, int], int, dict[str, Any]]] = [
    ((7, 6), 5, {"size": 2}),
    ((8, 9), 8, {"size": 3, "strides": 2, "padding": 1}),
    ((5, 7), 16, {"size": 3, "strides": 1, "padding": 1}),
    ((6, 5), 12, {"size": (2, 4), "strides": (3, 1), "padding": ((1, 0), (2, 1))}),
    ((11, 3), 3, {"size": (5, 1), "strides": (2, 2), "padding": ((4, 3), (0, 0))}),
    ((4, 4), 2, {"size": 1, "strides": 3}),
    ((10, 9), 8, {"size": 4, "strides": 3, "padding": ((3, 1), (0, 2))}),
    ((30, 21), 4, {"size": (12, 9), "strides": (8, 5), "padding": ((9, 3), (4, 5))}),
    ((50, 3), 2, {"size": 2, "strides": (49, 1)}),
]
DTYPES = ["float32", "float64", "float16", "bfloat16"]


@pytest.fixture(autouse=True)
def stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(layout: Any, work: Any) -> Any:
        raise AssertionError(f"NumPy computes {work.region}")

    monkeypatch.setattr(launches, "host_call", called)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


def made(shape: tuple[int, ...], dtype: str, settings: dict[str, Any]) -> tuple[list[Any], Node]:
    """Values, numbers and the gradient of a weighted sum of pooled values."""
    x = placeholder("x", Spec(shape, as_dtype(dtype)))
    y, index = md.ops.max_pooling(x, **settings), md.ops.max_pooling_indices(x, **settings)
    weights = np.random.default_rng(1).integers(-3, 4, [int(n) for n in y.shape])
    weighted = md.ops.sum(y * weights.astype(as_dtype(dtype)))
    return [y, index, *gradient(weighted, [x])], x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_values_numbers_and_gradients_are_those_of_the_reference(case, dtype, device):
    places, channels, settings = CASES[case]
    shape = (3, *places, channels)
    # small integers: many are equal, and all sums are exact
    values = np.random.default_rng(case).integers(-2, 3, shape).astype(as_dtype(dtype))
    values[0, 0, 0, 0] = np.nan
    values[1, ..., 1] = -np.inf
    with on(device):
        outputs, x = made(shape, dtype, settings)
        program = Executable(outputs, executor="native", device="cuda:0", check=True)
        text = program.text({})
        assert [text.count(f"library {name} ") for name in ("pooled", "pooled_numbers")] == [1, 1]
        assert text.count("library pooled_inputs ") == 1
        assert " pad" not in text
        found = program.run({x: values})
    outputs, x = made(shape, "float64", settings)
    expected = Executable(outputs, executor="reference").run({x: values.astype(np.float64)})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.astype(np.float64), other.astype(np.float64))


def test_values_and_their_numbers_are_one_launch_that_reads_the_image_once():
    from tests.runtime.cuda.emulator import emulated_device

    with emulated_device() as engine:
        outputs, x = made((2, 8, 8, 8), "float32", {"size": 3, "strides": 2, "padding": 1})
        program = Executable(outputs, executor="native", device="cuda:0")
        image = np.random.default_rng(0).standard_normal((2, 8, 8, 8)).astype(np.float32)
        program.run({x: image})
        instance = next(iter(program.cuda._instances.values()))
        launches = [
            item.what.variant
            for work in program.cuda.plan.work
            for item in instance.items.of(work)
            if hasattr(item.what, "variant")
        ]
        pooled = [v for v in launches if type(v).__name__ == "Largest"]
        assert [(v.values, v.numbers) for v in pooled] == [(True, True)]
        assert engine is not None


@pytest.mark.parametrize("half", [pytest.param("mixed_bf16", marks=pytest.mark.long), "mixed_fp16"])
def test_mixed_precision_stores_what_is_pooled_in_halves(half):
    from tests.runtime.cuda.emulator import emulated_device

    layers: list[Any] = [
        md.layers.Input((12, 12, 3)),
        md.layers.Conv2D(8, 3, padding="same"),
        md.layers.BatchNorm(),
        md.layers.Activation("relu"),
        md.layers.MaxPooling2D(3, strides=2, padding=1),
        md.layers.Conv2D(8, 3, activation="relu"),
        md.layers.Flatten(),
        md.layers.Dense(4),
    ]
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((8, 12, 12, 3)).astype(np.float32), rng.integers(0, 4, 8)

    def model(**more: Any) -> md.Model:
        return md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=3, **more)

    with emulated_device():
        ours = model(device="cuda", precision=half)
        text = ours.plan(x, y, batch_size=8)
        name = {"mixed_bf16": "bfloat16", "mixed_fp16": "float16"}[half]
        pooled = text.split("library pooled_numbers")[1].split("operations")[0]
        assert f"{name}[8, 12, 12, 8]" in pooled
        ours.fit(x, y, batch_size=4, epochs=2, verbose=False)
    peer = model(precision=half)
    peer.fit(x, y, batch_size=4, epochs=2, verbose=False)
    least = {"mixed_bf16": 2.0**-8, "mixed_fp16": 2.0**-11}[half]
    for key, value in peer.values().items():
        np.testing.assert_allclose(ours.values()[key], value, atol=8 * least, rtol=8 * least)


def test_numbers_that_are_read_before_values_are_written_are_written_apart():
    """Where somebody reads the first result before the second is made, each has a launch of its own."""
    from tests.runtime.cuda.emulator import emulated_device

    rng = np.random.default_rng(3)
    image = rng.integers(-9, 10, (2, 6, 6, 4)).astype(np.float32)
    with emulated_device():
        x = placeholder("x", Spec(image.shape, as_dtype("float32")))
        index = md.ops.max_pooling_indices(x, size=2)
        later = md.ops.max_pooling(x + md.ops.sum(md.ops.cast(index, "float32")) * 0, size=2)
        first = md.ops.max_pooling(x, size=2)
        found = Executable([index, later, first], executor="native", device="cuda:0").run(
            {x: image}
        )
    np.testing.assert_array_equal(found[1], found[2])
    blocks = image.reshape(2, 3, 2, 3, 2, 4)
    np.testing.assert_array_equal(found[2], blocks.max((2, 4)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [1, 2, 3])
def test_relu_before_pooling_cuts_gradients_of_windows(case, dtype, device):
    """What is negative is told of the largest values, in the same launch, with the bits of the reference."""
    places, channels, settings = CASES[case]
    shape = (2, *places, channels)
    values = np.random.default_rng(case).integers(-4, 3, shape).astype(as_dtype(dtype))
    values[0, 0] = np.nan

    def gradients(dtype: str) -> tuple[list[Any], Node]:
        x = placeholder("x", Spec(shape, as_dtype(dtype)))
        y = md.ops.max_pooling(md.ops.relu(x), **settings)
        weights = np.random.default_rng(1).integers(-3, 4, [int(n) for n in y.shape])
        return [y, *gradient(md.ops.sum(y * weights.astype(as_dtype(dtype))), [x])], x

    with on(device):
        outputs, x = gradients(dtype)
        program = Executable(outputs, executor="native", device="cuda:0", check=True)
        assert "_where_positive" not in program.text({})
        assert "_max_pooling_positive_inputs_whole" in program.text({})
        found = program.run({x: values})
    outputs, x = gradients("float64")
    expected = Executable(outputs, executor="reference").run({x: values.astype(np.float64)})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.astype(np.float64), other)
    outputs, x = gradients(dtype)
    ours = Executable(outputs, executor="native").run({x: values})  # the same rule on the processor
    for one, other in zip(ours, found, strict=True):
        np.testing.assert_array_equal(one.astype(np.float64), other.astype(np.float64))


def test_branches_are_stored_in_halves_beside_each_other():
    """In mixed precision what is joined is rounded before: no copy in float32 of all branches."""
    from tests.runtime.cuda.emulator import emulated_device

    layers = md.layers
    x = layers.Input((6, 6, 8))
    branches = [
        layers.Activation("relu")(layers.BatchNorm()(layers.Conv2D(8, k, padding="same")(x)))
        for k in (1, 3)
    ]
    joined = layers.Concatenate()(branches)
    y = layers.Dense(3)(layers.Flatten()(layers.Conv2D(8, 3)(joined)))

    def model(**more: Any) -> md.Model:
        return md.Model(
            inputs=x, outputs=y, loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=1, **more
        )

    rng = np.random.default_rng(0)
    images, classes = rng.standard_normal((8, 6, 6, 8)).astype(np.float32), rng.integers(0, 3, 8)
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        ours = model(device="cuda", precision="mixed_bf16")
        text = ours.plan(images, classes, batch_size=8)
        assert "bfloat16[8, 6, 6, 16]" in text
        assert "float32[8, 6, 6, 16]" not in text.replace("bfloat16", "half")
        ours.fit(images, classes, batch_size=4, epochs=2, verbose=False)
    peer = model(precision="mixed_bf16")
    peer.fit(images, classes, batch_size=4, epochs=2, verbose=False)
    for key, value in peer.values().items():
        np.testing.assert_allclose(ours.values()[key], value, atol=2.0**-6, rtol=2.0**-6)
