"""Convolutions of few channels by kernels of our own: exact sums, what follows, training, what they leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import CONVOLUTIONS, FUSED_CONVOLUTIONS, ConvolutionNode
from magmadnn.compiler.cuda.library.few_channels import sizes as few_channels
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running import planned
from magmadnn.runtime.cuda.schedule import small
from magmadnn.runtime.cuda.schedule.library.convolutions import Convolutions
from tests.runtime.cuda.devices import DEVICES, on

NAMES = ("FewForward", "FewInputs", "FewFilters", "FewSums")


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the launches that convolutions become, and no call of NumPy."""
    made: list[str] = []
    before = Convolutions.of

    def of(self: Convolutions, *given: Any) -> Any:
        items = before(self, *given)
        for item in items:
            what = item.what
            kind = type(what) if isinstance(what, ConvolutionNode) else type(what.variant)
            made.append(kind.__name__)
        return items

    monkeypatch.setattr(Convolutions, "of", of)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    return made


def of(shape: tuple[int, ...], dtype: str, name: str) -> Node:
    return placeholder(name, Spec(shape, as_dtype(dtype)))


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Small integers, of one or two axes."""
    rng = np.random.default_rng((19, seed))
    axes = 1 if seed % 5 == 4 else 2
    size, dilation = rng.integers(1, 6, axes), rng.integers(1, 3, axes)
    pads = rng.integers(0, 4, (axes, 2))
    reach = (size - 1) * dilation + 1
    places = np.maximum(reach - pads.sum(1), 1) + rng.integers(0, 9, axes)
    c, o = int(rng.integers(1, 9)), int(rng.integers(1, 17))
    x = rng.integers(-4, 5, (rng.integers(1, 7), *places, c)).astype(np.float64)
    w = rng.integers(-4, 5, (*size, c, o)).astype(np.float64)
    settings = {
        "strides": tuple(rng.integers(1, 4, axes).tolist()),
        "padding": tuple(map(tuple, pads.tolist())),
        "dilation": tuple(dilation.tolist()),
    }
    return x, w, settings


def step(seed: int, dtype: str) -> tuple[list[Node], dict[Node, np.ndarray]]:
    """Bias, ReLU and all gradients of a convolution."""
    x, w, settings = drawn(seed)
    image, filters = of(x.shape, dtype, "x"), of(w.shape, dtype, "w")
    rng = np.random.default_rng(seed)
    b = rng.integers(-9, 9, w.shape[-1])
    bias = of(b.shape, dtype, "b")
    y = md.ops.convolution(image, filters, **settings)
    assert isinstance(y, Node)
    made = md.ops.relu(y + bias)
    g = rng.integers(-3, 4, [int(n) for n in y.shape])
    outputs = of(g.shape, dtype, "g")
    feeds = {image: x, filters: w, bias: b, outputs: g}
    results = [made, *gradient(md.ops.sum(made * outputs), [image, filters, bias])]
    return results, {node: np.asarray(a).astype(dtype) for node, a in feeds.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
def test_random_convolutions_are_exact(device: str, dtype: str, launches: list[str]) -> None:
    """Sums of products of small integers: no bit may differ."""
    seeds = range(8 if device == "emulated" else 60)
    with on(device, FUSED_CONVOLUTIONS):
        for seed in seeds:
            launches.clear()
            made, feeds = step(seed, dtype)
            expected = Executable(made, executor="reference").run(feeds)
            found = Executable(made, executor="native", device="cuda", check=True).run(feeds)
            for one, other in zip(found, expected, strict=True):
                assert np.array_equal(one, other), seed
            calls = set(launches)
            # images that are read with strides are gathered first, and have more channels then
            assert calls <= {*NAMES, "ConvolutionNode", "Ends"}
            if set(drawn(seed)[2]["strides"]) == {1}:
                assert calls == set(NAMES), seed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("wide", "dilation", "stride", "channels", "outputs"),
    [(13, 1, 1, 2, 4), (14, 1, 1, 1, 6), (14, 2, 1, 3, 16), (24, 1, 2, 1, 8)],
)
def test_rows_of_a_filter_that_a_thread_takes_in_parts(
    wide: int,
    dilation: int,
    stride: int,
    channels: int,
    outputs: int,
    device: str,
    launches: list[str],
) -> None:
    rng = np.random.default_rng(wide)
    x = rng.integers(-4, 5, (3, 4, 2 * dilation * wide + 5, channels)).astype(np.float64)
    w = rng.integers(-4, 5, (2, wide, channels, outputs)).astype(np.float64)
    image, filters = of(x.shape, "float32", "x"), of(w.shape, "float32", "w")
    y = md.ops.convolution(
        image, filters, strides=(1, stride), padding=((1, 0), (2, 3)), dilation=(1, dilation)
    )
    assert isinstance(y, Node)
    g = rng.integers(-3, 4, [int(n) for n in y.shape]).astype(np.float32)
    seed = of(g.shape, "float32", "g")
    made = [y, *gradient(md.ops.sum(y * seed), [image, filters])]
    feeds = {image: x.astype(np.float32), filters: w.astype(np.float32), seed: g}
    expected = Executable(made, executor="reference").run(feeds)
    with on(device, FUSED_CONVOLUTIONS):
        found = Executable(made, executor="native", device="cuda", check=True).run(feeds)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)
    if stride == 1:  # with strides images are gathered first
        assert set(launches) == set(NAMES)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_over_many_places_are_near_those_of_float64(device: str, launches: list[str]) -> None:
    """Of k products in float32, in parts: off by about eps sqrt(k) of the norm, and the same in every run."""
    n, side = (9, 12) if device == "emulated" else (128, 28)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, side, side, 3)).astype(np.float32)
    w = (rng.normal(size=(5, 5, 3, 6)) / 9).astype(np.float32)
    results = []
    for dtype in ("float64", "float32"):
        image, filters = of(x.shape, dtype, "x"), of(w.shape, dtype, "w")
        y = md.ops.convolution(image, filters, padding="same")
        made = [y, *gradient(md.ops.sum(y * y), [image, filters])]
        feeds = {image: x.astype(dtype), filters: w.astype(dtype)}
        if dtype == "float64":
            results.append(Executable(made, executor="reference").run(feeds))
            continue
        with on(device, CONVOLUTIONS):
            runs = [Executable(made, executor="native", device="cuda") for _ in range(2)]
            results += [run.run(feeds) for run in runs]
    assert set(launches) == set(NAMES)
    for exact, one, again in zip(*results, strict=True):
        assert np.array_equal(one, again)
        tolerance = 2**-23 * np.sqrt(n * side * side)
        assert np.linalg.norm(one - exact) <= tolerance * np.linalg.norm(exact)


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_trains_with_them(device: str, launches: list[str]) -> None:
    """LeNet-5, beside the same with the library's convolutions."""
    rng = np.random.default_rng(0)
    x = rng.random((24, 28, 28, 1), np.float32)
    y = rng.integers(0, 10, 24)
    losses = []
    for most in (few_channels.MOST_INPUTS, 0):
        with pytest.MonkeyPatch.context() as patch, on(device, FUSED_CONVOLUTIONS):
            patch.setattr(few_channels, "MOST_INPUTS", most)
            patch.setattr(planned, "OF_FEW_POOLED", frozenset())
            launches.clear()
            model = md.models.lenet5(
                (28, 28, 1), 10, device="cuda", loss="cross_entropy",
                optimizer=md.optim.SGD(0.05, momentum=0.9), seed=3,
            )  # fmt: skip
            history = model.fit(x, y, batch_size=8, epochs=3, verbose=0)
            losses.append(history["loss"])
            assert ("ConvolutionNode" in launches) == (most == 0)
    assert np.allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def call(c: int, o: int, size: int = 3, **changed: Any) -> ConvolutionNode:
    shapes = ((4, 9, 9, c), (o, size, size, c), (4, 9, 9, o))
    return ConvolutionNode(
        "fprop", **{"dtype": "float32", "stored": "float32", **changed}, tensor_float=False,
        shapes=shapes, strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), x=1, w=1, y=1,
        workspace=0, **{} if "groups" in changed else {"groups": 1},
    )  # fmt: skip


def test_what_is_left_to_the_library() -> None:
    assert few_channels.few_of(call(1, 6, 5)) and few_channels.few_of(call(8, 16))
    assert few_channels.few_of(call(9, 4)) is None
    assert few_channels.few_of(call(4, 17)) is None
    assert few_channels.few_of(call(8, 16, 7)) is None  # 6272 weights
    assert few_channels.few_of(call(4, 4, groups=2)) is None
    assert few_channels.few_of(call(4, 4, dtype="bfloat16", stored="bfloat16")) is None
