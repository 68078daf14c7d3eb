"""Convolutions by the device's library: one call each, results, gradients, training, what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import (
    CONVOLUTIONS,
    PRODUCT_WORKSPACE,
    ConvolutionNode,
    EventNode,
)
from magmadnn.compiler.cuda.library import gathered
from magmadnn.compiler.cuda.library.few_channels import sizes as few_channels
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda import algorithms
from magmadnn.runtime.cuda.measured import RecordsOf
from magmadnn.runtime.cuda.schedule import launches, small
from tests.ops.test_convolutions import draw
from tests.runtime.cuda.devices import DEVICES, distance, on
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler

RNG = np.random.default_rng(3)
# dtype of the operands, precision of the program, dtype whose digits results have
PRECISIONS = [
    ("float32", "float32", "float32"),
    ("float32", "tf32", "float32"),
    ("float32", "mixed_bf16", "bfloat16"),
    ("float32", "mixed_fp16", "float16"),
    ("float64", "float32", "float64"),
    ("bfloat16", "float32", "bfloat16"),
]


@pytest.fixture(autouse=True)
def stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(layout: Any, work: Any) -> Any:
        raise AssertionError(f"NumPy computes {work.region}")

    monkeypatch.setattr(launches, "host_call", called)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    monkeypatch.setattr(few_channels, "MOST_INPUTS", 0)  # see test_few_channels.py


def of(shape: tuple[Any, ...], dtype: str, name: str) -> Node:
    return placeholder(name, Spec(shape, as_dtype(dtype)))


def with_gradients(seed: int, dtype: str) -> tuple[list[Node], dict[Node, np.ndarray]]:
    """A random convolution and its gradients of small integers: all sums are exact."""
    x, w, settings = draw(seed)
    image, filters = (of(a.shape, dtype, name) for a, name in ((x, "x"), (w, "w")))
    y = md.ops.convolution(image, filters, **settings)
    assert isinstance(y, Node)
    g = np.random.default_rng(seed).integers(-3, 4, [int(n) for n in y.shape])
    outputs = of(g.shape, dtype, "g")
    arrays = {image: x, filters: w, outputs: g}
    made = [y, *gradient(md.ops.sum(y * outputs), [image, filters])]
    return made, {node: a.astype(as_dtype(dtype)) for node, a in arrays.items()}


def expected_of(seed: int, digits: str) -> list[np.ndarray]:
    """The same by NumPy in float64, rounded once."""
    made, feeds = with_gradients(seed, "float64")
    found = Executable(made, executor="reference").run(feeds)
    return [a.astype(as_dtype(digits)).astype(np.float64) for a in found]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "precision", "digits"), PRECISIONS)
def test_random_convolutions_are_exact(
    device: str, dtype: str, precision: str, digits: str
) -> None:
    """Of one to three axes, with any padding, strides, dilation and groups."""
    with on(device, CONVOLUTIONS):
        for seed in range(4 if device == "emulated" else 16):
            made, feeds = with_gradients(seed, dtype)
            run = Executable(
                made, executor="native", device="cuda", precision=precision, check=True
            )
            found = run.run(feeds)
            assert (
                sum(run.text({}).count(f"library {name}") for name in CONVOLUTIONS) == 6
            )  # three, as steps and as launches
            for one, other in zip(found, expected_of(seed, digits), strict=True):
                assert one.dtype == as_dtype(dtype)
                assert np.array_equal(one.astype(np.float64), other), (seed, run.text({}))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("strides", "places"), [((2, 2), (6, 10)), ((1, 3), (4, 9))])
@pytest.mark.parametrize("precision", ["tf32", "mixed_bf16"])
def test_gradients_of_filters_of_one_place_leave_out_what_lies_between_strides(
    device: str, strides: tuple[int, int], places: tuple[int, int], precision: str
) -> None:
    """Zeros lie there; the library computes the others, and what adds them finds them by index."""
    windows = tuple(n // s for n, s in zip(places, strides, strict=True))
    x, w = of((2, *places, 8), "float32", "x"), of((1, 1, 8, 16), "float32", "w")
    g, other = of((2, *windows, 16), "float32", "g"), of((2, *places, 8), "float32", "other")
    y = md.ops.convolution(x, w, strides=strides)
    (found,) = gradient(md.ops.sum(y * g) + md.ops.sum(x * other), [x])
    feeds = {node: RNG.integers(-3, 4, node.shape).astype(np.float32) for node in (x, w, g, other)}
    with on(device, CONVOLUTIONS):
        run = Executable([found], executor="native", device="cuda", precision=precision)
        (made,) = run.run(feeds)
    expected = feeds[other].copy()
    expected[:, :: strides[0], :: strides[1]] += feeds[g] @ feeds[w][0, 0].T
    np.testing.assert_array_equal(made, expected)
    assert f"library dgrad [2, {windows[0]}, {windows[1]}, 8]" in run.text({})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("precision", "rounding"), [("float32", 0.0), ("tf32", 2**-10), ("mixed_bf16", 2**-7)]
)
@pytest.mark.parametrize("first", [False, True], ids=["inner", "first"])
def test_results_are_near_those_of_float64_and_the_same_in_every_run(
    device: str, precision: str, rounding: float, first: bool
) -> None:
    """Of real numbers, by ||y - reference|| / ||reference||: an inner layer, and the first of ResNet.

    That of operands and result rounded, and of sums of k products in float32, where the gradient for filters
    has most: roundings are independent, so k of them make about eps sqrt(k).
    """
    sizes = (6, 13, 12, 16, 24) if device == "emulated" else (32, 28, 27, 64, 96)
    n, height, width, c, o = sizes
    k = 7 if first else 3
    c = 3 if first else c
    terms = n * -(-height // 2) * -(-width // 2)
    tolerance = rounding + 2**-24 * np.sqrt(terms)
    x = RNG.normal(size=(n, height, width, c)).astype(np.float32)
    w = (RNG.normal(size=(k, k, c, o)) / (k * np.sqrt(c))).astype(np.float32)
    image, filters = of(x.shape, "float32", "x"), of(w.shape, "float32", "w")
    y = md.ops.convolution(image, filters, strides=2, padding="same")
    made, feeds = [y, *gradient(md.ops.sum(y * y), [image, filters])], {image: x, filters: w}
    wide = {of(a.shape, "float64", n.name): a.astype(np.float64) for n, a in feeds.items()}
    exact = md.ops.convolution(*wide, strides=2, padding="same")
    graphs = [exact, *gradient(md.ops.sum(exact * exact), list(wide))]
    reference = Executable(graphs, executor="reference").run(wide)
    with on(device, CONVOLUTIONS):
        runs = [
            Executable(made, executor="native", device="cuda", precision=precision).run(feeds)
            for _ in range(2)
        ]
    for one, again, other in zip(*runs, reference, strict=True):
        assert np.array_equal(one, again)
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other)


# places, size, strides, padding, channels; how many blocks of a row are gathered beside each other
FEW_CHANNELS: list[tuple[Any, Any, Any, Any, int, int]] = [
    ((13, 12), (5, 4), (2, 3), ((1, 2), (0, 3)), 3, 2),
    ((11, 10), (4, 4), (4, 2), "same", 3, 2),
    ((9,), (3,), (2,), "valid", 1, 1),
    ((15, 15), (7, 7), (2, 2), 3, 3, 4),
    ((7, 8, 9), (3, 2, 3), (2, 2, 3), 1, 2, 1),
    ((12, 12), (2, 2), (2, 2), 0, 7, 1),
    ((13, 14), (7, 7), (2, 2), ((2, 0), (3, 1)), 3, 4),
    ((9, 8), (3, 3), (2, 2), 1, 8, 0),  # enough channels
    ((9, 8), (1, 3), (2, 2), 0, 3, 0),  # places that are not read
    ((9, 8), (3, 3), (2, 2), 1, 3, 2),
    ((19, 17), (11, 11), (4, 4), 2, 3, 1),  # more than 64
    ((9, 8), (3, 3), (1, 1), 1, 3, 0),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "tf32", "mixed_bf16"])
def test_images_of_few_channels_are_gathered(device: str, precision: str) -> None:
    batch, digits = Dim.symbol("batch"), "bfloat16" if precision == "mixed_bf16" else "float32"
    cases = FEW_CHANNELS if device == "gpu" or precision == "tf32" else FEW_CHANNELS[::3]
    with on(device, CONVOLUTIONS):
        for places, size, strides, padding, c, beside in cases:
            x = RNG.integers(-4, 5, (2, *places, c)).astype(np.float32)
            w = RNG.integers(-4, 5, (*size, c, 5)).astype(np.float32)
            y = np.asarray(md.ops.convolution(x, w, strides=strides, padding=padding))
            g = RNG.integers(-3, 4, y.shape).astype(np.float32)
            image, filters = of((batch, *places, c), "float32", "x"), of(w.shape, "float32", "w")
            outer = of((batch, *y.shape[1:]), "float32", "g")
            made = md.ops.convolution(image, filters, strides=strides, padding=padding)
            made = [made, *gradient(md.ops.sum(made * outer), [image, filters])]
            feeds = {image: x, filters: w, outer: g}
            run = Executable(
                made, executor="native", device="cuda", precision=precision, check=True
            )
            found = run.run(feeds)
            expected = Executable(made, executor="reference").run(feeds)
            for one, other in zip(found, expected, strict=True):
                assert np.array_equal(one, other.astype(as_dtype(digits)).astype(np.float32))
            line = next(s for s in run.text({"batch": 2}).splitlines() if "library wgrad [" in s)
            many = int(np.prod(strides)) * c if beside else c
            if beside and len(places) == 2:  # by one kernel, in whole loads
                many += -many % (8 if digits == "bfloat16" else 4)
                many *= 1 if precision == "float32" else beside
                calls = 2 if digits == "bfloat16" else 1  # halves for its gradient again
                assert run.text({"batch": 2}).count("library gathered [") == calls
            assert f", {many}] _convolution_filters_whole" in line


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("places", [(19, 23), (4, 40), (40, 4)])
def test_images_are_gathered_in_tiles(
    device: str, places: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "_MOST_BYTES", 400)
    monkeypatch.setattr(gathered, "_MOST_STORES", 40)
    x = RNG.integers(-4, 5, (3, *places, 3)).astype(np.float32)
    w = RNG.integers(-4, 5, (3, 3, 3, 5)).astype(np.float32)
    image, filters = of(x.shape, "float32", "x"), of(w.shape, "float32", "w")
    made, feeds = [md.ops.convolution(image, filters, strides=2, padding=1)], {image: x, filters: w}
    with on(device, CONVOLUTIONS):
        run = Executable(made, executor="native", device="cuda", precision="tf32", check=True)
        assert "library gathered [" in run.text({})
        (found,) = run.run(feeds)
    (expected,) = Executable(made, executor="reference").run(feeds)
    assert np.array_equal(found, expected)


@needs_compiler
def test_halves_are_seen_through_movements() -> None:
    """A value that is rounded before it is moved: the library gets halves."""
    x = RNG.integers(-4, 5, (2, 6, 5, 3)).astype(np.float32)
    w = RNG.integers(-4, 5, (2, 2, 3, 4)).astype(np.float32)
    image, filters = of(x.shape, "float32", "x"), of(w.shape, "float32", "w")
    inner = md.ops.relu(image)
    first = md.ops.convolution(inner, filters)
    made = [first, md.ops.convolution(md.ops.transpose(inner, (0, 2, 1, 3)), filters)]
    with emulated_device(functions=CONVOLUTIONS):
        run = Executable(made, executor="native", device="cuda", precision="mixed_bf16", check=True)
        found = run.run({image: x, filters: w})
        assert run.text({}).count("in bfloat16") == 2
    expected = Executable(made, executor="reference").run({image: x, filters: w})
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other.astype(ml_dtypes.bfloat16).astype(np.float32))


@needs_compiler
def test_a_device_without_the_library_computes_products() -> None:
    made, feeds = with_gradients(3, "float32")
    with emulated_device():
        run = Executable(made, executor="native", device="cuda")
        found = run.run(feeds)
        assert "library" not in run.text({}) and "gemm" in run.text({})
    with emulated_device(functions=CONVOLUTIONS):  # the plan of the other device is not taken
        run = Executable(made, executor="native", device="cuda")
        again = run.run(feeds)
        assert "library wgrad" in run.text({}) and "gemm" not in run.text({})
    for one, other in zip(found, again, strict=True):
        assert np.array_equal(one, other)
    assert "library" not in Executable(made, executor="native").text({})


@needs_compiler
def test_filters_are_turned_once_and_halves_are_stored_once() -> None:
    """The step forward and the gradient for inputs read the same filters; nothing is kept as float32."""
    x = of((Dim.symbol("batch"), 9, 8, 8), "float32", "x")
    first, second = of((3, 3, 8, 8), "float32", "w"), of((1, 1, 8, 5), "float32", "v")
    inner = md.ops.relu(md.ops.convolution(x, first, padding="same"))
    y = md.ops.convolution(inner, second)
    made = [*gradient(md.ops.sum(y * y), [first, second])]
    with emulated_device(functions=CONVOLUTIONS):
        run = Executable(made, executor="native", device="cuda", precision="mixed_bf16", check=True)
        text = run.text({"batch": 4})
    products = 2 * 4 * 9 * 8 * (3 * 3 * 8 * 8), 2 * 4 * 9 * 8 * (8 * 5)  # a product and a sum each
    for line, operations in (
        ("fprop [4, 9, 8, 8]", products[0]),
        ("wgrad [5, 1, 1, 8]", products[1]),
    ):
        place = text.splitlines().index(next(s for s in text.splitlines() if line in s))
        assert f"{operations} operations" in text.splitlines()[place + 3]
    steps = [line for line in text.splitlines() if line[:3].strip().isdigit()]
    assert sum("library" in line for line in steps) == 5  # no gradient for x
    assert sum("move [8, 3, 3, 8] transpose" in line for line in steps) == 1
    kept = [line for line in text.splitlines() if line.startswith("      keeps")]
    assert not any("float32[4, 9, 8, 8]" in line for line in kept), text


@pytest.mark.parametrize("device", DEVICES)
def test_no_images_give_zeros(device: str) -> None:
    batch = Dim.symbol("batch")
    x, w = of((batch, 5, 4, 3), "float32", "x"), of((2, 2, 3, 4), "float32", "w")
    y = md.ops.convolution(x, w)
    made = [y, *gradient(md.ops.sum(y * y), [x, w])]
    feeds = {x: np.ones((0, 5, 4, 3), np.float32), w: np.ones((2, 2, 3, 4), np.float32)}
    with on(device, CONVOLUTIONS):
        found = Executable(made, executor="native", device="cuda").run(feeds)
    assert [a.shape for a in found] == [(0, 4, 3, 4), (0, 5, 4, 3), (2, 2, 3, 4)]
    assert not found[2].any()


def network(**more: Any) -> Any:
    layers = md.layers
    return md.Model(
        [
            layers.Input((9, 8, 3)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(8, (3, 1), strides=(2, 1), padding="same", activation="tanh"),
            layers.BatchNorm(),
            layers.Flatten(),
            layers.Dense(4),
        ],
        loss="cross_entropy",
        optimizer=md.optim.SGD(0.05, momentum=0.9),
        seed=2,
        **more,
    )


@pytest.fixture
def data() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(11)
    yield rng.normal(size=(30, 9, 8, 3)).astype(np.float32), rng.integers(0, 4, 30)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("mixed_bf16", marks=pytest.mark.long)]
)
def test_training_takes_the_reference_s_steps(device: str, precision: str, data: Any) -> None:
    """With a last batch that is smaller, and several steps in one graph.

    In mixed precision the library's results are rounded too, which may change no more than that operands are.
    """
    exact = network(executor="reference")
    exact.fit(*data, batch_size=8, epochs=3, verbose=0)
    with on(device, CONVOLUTIONS):
        model = network(device="cuda", precision=precision)
        model.fit(*data, batch_size=8, epochs=3, verbose=0)
        assert [model.plan().count(f"library {n}") for n in ("fprop", "dgrad", "wgrad")] == [
            4,
            2,
            4,
        ]
        other = network(executor="reference", precision=precision)
        other.fit(*data, batch_size=8, epochs=3, verbose=0)
        assert distance(model, other) < max(1e-4, distance(exact, other))
        again = network(device="cuda", precision=precision)
        again.fit(*data, batch_size=8, epochs=3, verbose=0)
        assert distance(model, again) == 0
        assert "library fprop" in str(model.profile(data[0][:8], data[1][:8]))


@needs_compiler
def test_a_smaller_last_batch_is_planned_before_the_first_step(data: Any) -> None:
    """With its graph and the library's algorithms: none of them is asked for once steps run."""
    seen: list[bool] = []

    class Looks(md.callbacks.Callback):
        def on_batch_end(self, fit: Any) -> None:
            runner = fit.step._executable.cuda
            seen.append(runner.has_run({"batch": 6}))
            if len(seen) == 1:
                asked.clear()

    asked: list[Any] = []
    known = Emulator.algorithms
    with pytest.MonkeyPatch.context() as patch, emulated_device(functions=CONVOLUTIONS):
        patch.setattr(
            Emulator, "algorithms",
            lambda self, node, most=1: asked.append(node) or known(self, node, most),
        )  # fmt: skip
        network(device="cuda").fit(*data, batch_size=8, epochs=1, verbose=0, callbacks=[Looks()])
    assert seen and all(seen) and not [n for n in asked if isinstance(n, ConvolutionNode)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("augment", ["standard", "mixed"])
def test_images_are_changed_on_the_host(device: str, augment: str, data: Any) -> None:
    """Though they would have room on the device; the steps are those on the processor."""
    ways: Any = "standard"
    if augment == "mixed":
        ways = [md.data.augment.RandomFlip(), md.data.augment.Mixup(0.4)]
    x, y = data
    exact = network(executor="reference")
    exact.fit(x, y, batch_size=8, epochs=2, verbose=0, augment=ways)
    with on(device, CONVOLUTIONS):
        model = network(device="cuda")
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, augment=ways, validation_data=(x, y))
        assert distance(model, exact) < 1e-4
        plain = network(device="cuda")
        plain.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert distance(model, plain) > 1e-3


@needs_compiler
def test_calls_that_want_more_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = PRODUCT_WORKSPACE + 8
    monkeypatch.setattr(Emulator, "workspace", lambda self, node: wanted)
    made, feeds = with_gradients(5, "float32")
    with emulated_device(functions=CONVOLUTIONS) as engine:
        Executable(made, executor="native", device="cuda").run(feeds)
        calls = [n for g in engine.graphs for n in g.nodes if isinstance(n, ConvolutionNode)]
        assert engine.memory is not None
        (room,) = {n.workspace for n in calls}
        (span,) = [s for s in engine.memory.spans() if s[0] <= room < s[1]]
        assert span[1] - room >= wanted and len(calls) == 3


@needs_compiler
def test_the_fastest_algorithm_is_measured_once_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With what else the choice depends on in its words."""
    monkeypatch.setattr(Emulator, "proposals", (b"cuDNN 9 0 engine 5", b"cuDNN 9 1 engine 7"))
    monkeypatch.setattr(algorithms, "_frozen", {})
    monkeypatch.setattr(algorithms, "_wanted", {})
    monkeypatch.setattr(algorithms, "records_of", lambda n: RecordsOf(n, tmp_path))
    times = {b"cuDNN 9 0 engine 5": 3e-6, b"cuDNN 9 1 engine 7": 2e-6}

    def seconds(self: Any) -> float:
        return times[self._graph.nodes[1].algorithm]

    monkeypatch.setattr(algorithms._Timed, "seconds", seconds)
    made, feeds = with_gradients(5, "float32")
    for _ in range(2):
        with emulated_device(functions=CONVOLUTIONS) as engine:
            found = Executable(made, executor="native", device="cuda").run(feeds)
            timed = [g for g in engine.graphs if any(isinstance(n, EventNode) for n in g.nodes)]
            run = [g for g in engine.graphs if g not in timed]
            calls = [n for g in run for n in g.nodes if isinstance(n, ConvolutionNode)]
        assert {n.algorithm for n in calls} == {b"cuDNN 9 1 engine 7"}
        chosen = algorithms.frozen()
        assert len(chosen) == 3 and set(chosen.values()) == {b"cuDNN 9 1 engine 7".hex()}
        assert all("emulated, cuDNN 9: library" in words for words in chosen)
        for one, other in zip(found, expected_of(5, "float32"), strict=True):
            assert np.array_equal(one, other)
        monkeypatch.setattr(algorithms, "_frozen", {})  # as another process, which finds the file
        times[b"cuDNN 9 0 engine 5"] = 1e-6


def test_halves_are_rounded_once() -> None:
    """What the exact test relies on: a sum of integers up to 2^24, rounded to halves."""
    assert float(ml_dtypes.bfloat16(np.float32(257))) == 256
