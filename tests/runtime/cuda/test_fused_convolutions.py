"""Convolutions by the device's library with what follows them: sum, bias, ReLU, known statistics."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS
from magmadnn.compiler.cuda.library.few_channels import sizes as few_channels
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import placeholder
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import launches, small
from tests.ops.test_convolutions import draw
from tests.runtime.cuda.devices import DEVICES, distance, on
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler

RNG = np.random.default_rng(17)
# dtype of the operands, precision of the program, dtype whose digits results have
PRECISIONS = [
    ("float32", "float32", "float32"), ("float32", "tf32", "float32"),
    ("float32", "mixed_bf16", "bfloat16"), ("float32", "mixed_fp16", "float16"),
    ("float64", "float32", "float64"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(layout: Any, work: Any) -> Any:
        raise AssertionError(f"NumPy computes {work.region}")

    monkeypatch.setattr(launches, "host_call", called)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    monkeypatch.setattr(few_channels, "MOST_INPUTS", 0)  # see test_few_channels.py


def of(shape: tuple[Any, ...], dtype: str, name: str) -> Node:
    return placeholder(name, Spec(shape, as_dtype(dtype)))


class Case:
    """A convolution of small integers, of which all sums are exact, and vectors for its filters.

    Attributes:
        y: the convolution.
        bias, scale: vectors; scales are powers of two.
        z: of the shape of y, with these digits.
        feeds: arrays for all placeholders.
    """

    def __init__(self, seed: int, dtype: str, digits: str) -> None:
        x, w, settings = draw(seed)
        rng = np.random.default_rng(seed)
        image, filters = (of(a.shape, dtype, name) for a, name in ((x, "x"), (w, "w")))
        y = md.ops.convolution(image, filters, **settings)
        shape = tuple(int(n) for n in y.shape)
        self.y: Any = y
        self.bias: Any = of(shape[-1:], dtype, "bias")
        self.scale: Any = of(shape[-1:], dtype, "scale")
        z = of(shape, dtype, "z")
        self.z: Any = md.ops.cast(md.ops.cast(z, digits), dtype)
        arrays = {
            image: x, filters: w, self.bias: rng.integers(-4, 5, shape[-1:]),
            self.scale: 2.0 ** rng.integers(-1, 2, shape[-1:]), z: rng.integers(-9, 10, shape),
        }  # fmt: skip
        self.feeds = {node: a.astype(as_dtype(dtype)) for node, a in arrays.items()}

    def ways(self) -> dict[str, Any]:
        """Graphs, by how they end, and whether an array of the size of the result is added."""
        y, bias, scale, z, relu = self.y, self.bias, self.scale, self.z, md.ops.relu
        return {
            "bias, cut at 0": relu(y + bias),
            "bias": md.ops.transpose(y + bias, tuple(range(y.ndim))[::-1]),
            "sum, bias, cut at 0": relu((y - bias) * scale + bias + z),
            "sum, bias": z + (bias + y),
            "cut at 0": relu(y),
        }


def expected_of(graph: Node, feeds: dict[Node, np.ndarray], digits: str) -> np.ndarray:
    """By NumPy, rounded once."""
    (found,) = Executable([graph], executor="reference").run(feeds)
    return found.astype(as_dtype(digits)).astype(np.float64)


def run(graph: Node, feeds: dict[Node, np.ndarray], precision: str) -> tuple[np.ndarray, str]:
    made = Executable([graph], executor="native", device="cuda", precision=precision, check=True)
    used = {node: a for node, a in feeds.items() if node in made.plan.program.placeholders}
    (found,) = made.run(used)
    return found, made.text({})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "precision", "digits"), PRECISIONS)
@pytest.mark.parametrize("fused", [True, False])
def test_what_follows_is_exact(
    device: str, dtype: str, precision: str, digits: str, fused: bool, monkeypatch: Any
) -> None:
    """In one call, or by a kernel behind it where the library has none; of one to three axes."""
    if not fused and device != "emulated":
        pytest.skip("the library has these")
    if not fused:
        known = Emulator.algorithms
        monkeypatch.setattr(
            Emulator, "algorithms",
            lambda self, node, most=1: [] if getattr(node, "bias", 0) else known(self, node, most),
        )  # fmt: skip
    with on(device, FUSED_CONVOLUTIONS):
        for seed in range(2 if device == "emulated" else 8):
            case = Case(seed, dtype, digits)
            for way, graph in case.ways().items():
                feeds = {n: a for n, a in case.feeds.items() if n in _placeholders(graph)}
                found, text = run(graph, feeds, precision)
                expected = expected_of(graph, feeds, digits)
                assert np.array_equal(found.astype(np.float64), expected), (seed, way, text)
                if all(n == 1 for n in case.y.shape[:-1]):
                    continue  # what is added is a vector, and so part of the bias
                call = next(s for s in text.splitlines() if "library fprop of" in s)
                ends = way if way.startswith(("sum", "bias")) else f"bias, {way}"
                assert (f" with {ends}; " in f"{call.rstrip()}; ") is fused, (way, call)
                behind = text.split("library fprop_fused [", 1)[1].split("# outputs are known")[0]
                assert not re.search(r"rows \[.*(add|relu|multiply)", behind), text


def _placeholders(graph: Node) -> set[Node]:
    found, seen = [graph], set()
    while found:
        node = found.pop()
        if node not in seen:
            seen.add(node)
            found += node.inputs
    return {n for n in seen if not n.inputs}


@needs_compiler
def test_nothing_is_computed_in_the_call_that_others_read() -> None:
    """Outputs, statistics of the result, activations that the library has not."""
    x, w = of((3, 6, 5, 4), "float32", "x"), of((2, 3, 4, 6), "float32", "w")
    bias = of((6,), "float32", "bias")
    y = md.ops.convolution(x, w)
    graphs = {
        "an output": [y, md.ops.relu(y + bias)],
        "a mean of it": [md.ops.relu(y - md.ops.mean(y, (0, 1, 2)))],
        "tanh": [md.ops.tanh(y + bias)],
        "itself": [md.ops.relu(y + y)],
        "subtracted from": [md.ops.relu(bias - y)],
    }
    feeds = {n: RNG.normal(size=n.shape).astype(np.float32) for n in (x, w, bias)}
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        for why, made in graphs.items():
            one = Executable(made, executor="native", device="cuda", check=True)
            assert "library fprop [" in one.text({}) and "fprop_fused" not in one.text({}), why
            found = one.run(feeds)
            for a, b in zip(found, Executable(made, executor="reference").run(feeds), strict=True):
                assert np.allclose(a, b, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_what_is_added_has_the_digits_of_halves_or_stays_outside() -> None:
    x, w = of((2, 5, 5, 4), "float32", "x"), of((1, 1, 4, 4), "float32", "w")
    y, z = md.ops.convolution(x, w), of((2, 5, 5, 4), "float32", "z")
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        wide = Executable(
            [md.ops.relu(y + z)], executor="native", device="cuda", precision="mixed_bf16"
        )
        assert "fprop_fused" not in wide.text({})
        half = md.ops.cast(md.ops.cast(z, "bfloat16"), "float32")
        # another convolution's result that something else reads too: it stays in float32
        other = md.ops.convolution(z, w) + of((4,), "float32", "bias")
        made = [md.ops.relu(y + other), md.ops.tanh(other)]
        both = Executable(made, executor="native", device="cuda", precision="mixed_bf16")
        feeds = {
            n: RNG.normal(size=n.shape).astype(np.float32) for n in both.plan.program.placeholders
        }
        assert "fprop_fused" not in both.text({})
        for one, exact in zip(
            both.run(feeds), Executable(made, executor="reference").run(feeds), strict=True
        ):
            assert np.abs(one - exact).max() <= 2**-6 * np.abs(exact).max()
        narrow = Executable(
            [md.ops.relu(y + half)], executor="native", device="cuda", precision="mixed_bf16"
        )
        assert "fprop_fused" in narrow.text({})


@pytest.mark.parametrize("device", DEVICES)
def test_no_images_and_nothing_to_sum(device: str) -> None:
    """No images; and no channels, of which the bias remains."""
    batch = Dim.symbol("batch")
    x, w = of((batch, 5, 4, 3), "float32", "x"), of((2, 2, 3, 4), "float32", "w")
    bias = of((4,), "float32", "bias")
    graph = md.ops.relu(md.ops.convolution(x, w) + bias)
    weights = {w: np.ones((2, 2, 3, 4), np.float32), bias: np.float32([1, -2, 3, 0])}
    with on(device, FUSED_CONVOLUTIONS):
        made = Executable([graph], executor="native", device="cuda")
        (found,) = made.run({x: np.ones((0, 5, 4, 3), np.float32), **weights})
        assert found.shape == (0, 4, 3, 4)
        (found,) = made.run({x: np.ones((2, 5, 4, 3), np.float32), **weights})
        assert np.array_equal(found[1, 3, 2], [13, 10, 15, 12])


def residual(**more: Any) -> md.Model:
    """A stem, a block with a shortcut that is a convolution, and one without."""
    layers = md.layers
    x = inputs = layers.Input((9, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu", name="stem")(x)
    for number, filters in enumerate((8, 16)):
        y = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"a{number}")(x)
        y = layers.Activation("relu")(layers.BatchNorm()(y))
        y = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"b{number}")(y)
        y = layers.BatchNorm()(y)
        if number:
            x = layers.Conv2D(filters, 1, use_bias=False, name="c")(x)
            x = layers.BatchNorm()(x)
        x = layers.Activation("relu")(layers.Add()(y, x))
    outputs = layers.Dense(4)(layers.GlobalAveragePooling2D()(x))
    return md.Model(
        inputs=inputs, outputs=outputs, loss="cross_entropy",
        optimizer=md.optim.SGD(0.05, momentum=0.9), seed=2, **more,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("mixed_bf16", marks=pytest.mark.long)]
)
def test_a_residual_network_predicts_in_one_call_for_each_convolution(
    device: str, precision: str
) -> None:
    """With running statistics in the filters; in training, which has the batch's, the stem alone."""
    x = RNG.normal(size=(19, 9, 8, 3)).astype(np.float32)
    y = RNG.integers(0, 4, 19)
    exact = residual(executor="reference")
    exact.fit(x, y, batch_size=8, epochs=2, verbose=0)
    with on(device, FUSED_CONVOLUTIONS):
        model = residual(device="cuda", precision=precision)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        text = model.plan()
        assert (text.count("library fprop_fused ["), text.count("library fprop [")) == (1, 5), text
        other = residual(executor="reference", precision=precision)
        other.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert distance(model, other) < max(1e-4, 2 * distance(exact, other))
        found = model.predict(x, batch_size=8)
        predictor = model._predictor()
        text = predictor.text({"batch": 8})
        assert (text.count("library fprop_fused ["), text.count("library fprop [")) == (6, 0), text
        assert text.count("sum, bias, cut at 0") == 2 and text.count("with bias, cut at 0") == 3
        (reference,) = Executable(
            list(predictor.plan.program.outputs), executor="reference", precision="float32"
        ).run({model.inputs[0].node: x})
    # a scale that is rounded with the filters is another rounding of each layer's
    tolerance = 1e-5 if precision == "float32" else 2**-6
    assert np.abs(found - reference).max() <= tolerance * np.abs(reference).max()
