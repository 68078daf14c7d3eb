"""Convolutions of few channels with max pooling as one kernel: exact sums, ties, what stays apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS
from magmadnn.compiler.cuda.library.few_channels import pooled, sizes
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.ops.images import _pooled
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running import planned
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import DEVICES, on

FORWARD, BACKWARD = ("few_pooled", "few_numbers"), ("few_inputs", "few_filters")


@pytest.fixture(autouse=True)
def no_small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


def of(shape: tuple[int, ...], dtype: str, name: str) -> Node:
    return placeholder(name, Spec(shape, as_dtype(dtype)))


def step(
    x: np.ndarray, w: np.ndarray, dtype: str, *, positive: bool = True, **told: Any
) -> tuple[list[Node], dict[Node, np.ndarray]]:
    """Pooled values of a convolution with bias, and all gradients of a weighted sum of them."""
    rng = np.random.default_rng(x.size)
    b = rng.integers(-9, 9, w.shape[-1])
    image, filters, bias = (of(a.shape, dtype, n) for a, n in ((x, "x"), (w, "w"), (b, "b")))
    size = told.pop("size", 2)
    pooling = told.pop("pooling", {})
    y: Any = md.ops.convolution(image, filters, **told)
    y = y + bias
    pooled: Any = md.ops.max_pooling(md.ops.relu(y) if positive else y, size=size, **pooling)
    g = rng.integers(-3, 4, [int(n) for n in pooled.shape])
    outputs = of(g.shape, dtype, "g")
    results = [pooled, *gradient(md.ops.sum(pooled * outputs), [image, filters, bias])]
    feeds = {image: x, filters: w, bias: b, outputs: g}
    return results, {node: np.asarray(a).astype(dtype) for node, a in feeds.items()}


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Small integers, many of them equal, and places whose pooling windows share out the result."""
    rng = np.random.default_rng((23, seed))
    size = rng.integers(1, 6, 2)
    pool = [(2, 2), (1, 2), (3, 2), (2, 4), (1, 1), (2, 3), (2, 1)][seed % 7]
    pads = np.minimum(rng.integers(0, 4, (2, 2)), size[:, None])
    windows = np.multiply(pool, rng.integers(1, 6, 2))
    while min(windows + size - 1 - pads.sum(1)) < 1:
        windows = windows + pool
    places = windows + size - 1 - pads.sum(1)
    c, o = int(rng.integers(1, 9)), int(rng.integers(1, 17))
    x = rng.integers(-2, 3, (rng.integers(1, 7), *places, c)).astype(np.float64)
    w = rng.integers(-2, 3, (*size, c, o)).astype(np.float64)
    settings = {"padding": tuple(map(tuple, pads.tolist())), "size": pool}
    return x, w, {**settings, "positive": bool(rng.integers(0, 2))}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
def test_random_convolutions_with_pooling_are_exact(device: str, dtype: str) -> None:
    """Sums of products of small integers: no bit may differ."""
    joined = 0
    with on(device, FUSED_CONVOLUTIONS):
        for seed in range(14 if device == "emulated" else 42):
            x, w, told = drawn(seed)
            made, feeds = step(x, w, dtype, **told)
            expected = Executable(made, executor="reference").run(feeds)
            program = Executable(made, executor="native", device="cuda", check=True)
            found = program.run(feeds)
            for one, other in zip(found, expected, strict=True):
                assert np.array_equal(one, other), (seed, told)
            joined += "few_pooled" in program.text({})
    assert joined >= 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("positive", [True, False])
def test_the_first_of_equals_and_the_first_nan_get_the_gradient(
    device: str, positive: bool
) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-1, 2, (3, 6, 8, 2)).astype(np.float64)
    w = rng.integers(-1, 2, (3, 3, 2, 4)).astype(np.float64)
    x[0, 1, 1, 0] = np.nan
    told = {"padding": "same", "positive": positive}
    made, feeds = step(x, w, "float32", **told)
    expected = Executable(made, executor="reference").run(feeds)
    with on(device, FUSED_CONVOLUTIONS):
        program = Executable(made, executor="native", device="cuda", check=True)
        text = program.text({})
        assert all(f"library {name} " in text for name in (*FORWARD, *BACKWARD))
        assert "library pooled" not in text
        found = program.run(feeds)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_near_those_of_float64(device: str) -> None:
    """Of k products in float32, in parts: off by about eps sqrt(k) of the norm, the same in every run."""
    n, side = (9, 12) if device == "emulated" else (128, 28)
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(n, side, side, 3)), rng.normal(size=(5, 5, 3, 6)) / 9
    made, feeds = step(x, w, "float64", padding="same")
    exact = Executable(made, executor="reference").run(feeds)
    made, feeds = step(x, w, "float32", padding="same")
    with on(device, FUSED_CONVOLUTIONS):
        runs = [Executable(made, executor="native", device="cuda") for _ in range(2)]
        results = [run.run(feeds) for run in runs]
    for true, one, again in zip(exact, *results, strict=True):
        assert np.array_equal(one, again)
        tolerance = 4 * 2**-23 * np.sqrt(n * side * side)
        assert np.linalg.norm(one - true) <= tolerance * np.linalg.norm(true)


@pytest.mark.parametrize("device", DEVICES)
def test_lenet_trains_with_them(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the same whose pooling is apart; a last batch is smaller."""
    rng = np.random.default_rng(0)
    x, y = rng.random((14, 28, 28, 1), np.float32), rng.integers(0, 10, 14)
    losses = []
    for functions in (planned.OF_FEW_POOLED, frozenset()):
        monkeypatch.setattr(planned, "OF_FEW_POOLED", functions)
        with on(device, FUSED_CONVOLUTIONS):
            model = md.models.lenet5(
                (28, 28, 1), 10, device="cuda", loss="cross_entropy",
                optimizer=md.optim.SGD(0.05, momentum=0.9), seed=3,
            )  # fmt: skip
            history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
            text = model.plan(batch_size=8)
            assert ("library pooled " in text) == (not functions)
            losses.append([*history["loss"], float(np.asarray(model.predict(x)).sum())])
    assert np.allclose(*losses, rtol=1e-4)
    assert losses[0][1] < losses[0][0]


APART = {
    "windows that overlap": {"pooling": {"strides": 1}},
    "windows that leave places": {"size": 3},
    "padded windows": {"pooling": {"padding": 1}},
    "strides": {"strides": 2},
    "dilation": {"dilation": 2},
    "many filters": {"filters": 17},
    "many channels": {"channels": 9},
}


@pytest.mark.parametrize("case", APART)
def test_what_stays_apart(case: str) -> None:
    told = dict(APART[case])
    c, o = told.pop("channels", 2), told.pop("filters", 4)
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, (2, 10, 10, c)).astype(np.float64)
    w = rng.integers(-2, 3, (3, 3, c, o)).astype(np.float64)
    made, feeds = step(x, w, "float32", padding="same", **told)
    expected = Executable(made, executor="reference").run(feeds)
    with on("emulated", FUSED_CONVOLUTIONS):
        program = Executable(made, executor="native", device="cuda", check=True)
        assert not any(name in program.text({}) for name in FORWARD)
        for one, other in zip(program.run(feeds), expected, strict=True):
            assert np.array_equal(one, other)


def test_a_result_that_something_else_reads_stays() -> None:
    x, w = of((2, 8, 8, 2), "float32", "x"), of((3, 3, 2, 4), "float32", "w")
    y: Any = md.ops.relu(md.ops.convolution(x, w, padding="same") + np.ones(4, np.float32))
    pooled: Any = md.ops.max_pooling(y, size=2)
    with on("emulated", FUSED_CONVOLUTIONS):
        for outputs in ([pooled, y], [pooled, md.ops.sum(y)]):
            program = Executable(outputs, executor="native", device="cuda", check=True)
            assert "few_pooled" not in program.text({})
        alone = Executable([pooled], executor="native", device="cuda", check=True)
        assert "few_pooled" in alone.text({}) and "few_numbers" not in alone.text({})


@pytest.mark.parametrize("name", "INPUTS OUTPUTS WEIGHTS TAPS THREADS".split())
def test_ops_and_kernels_have_the_same_limits(name: str) -> None:
    assert getattr(_pooled, f"MOST_{name}") == getattr(sizes, f"MOST_{name}")
    assert _pooled.NOT_POSITIVE == pooled.NOT_POSITIVE
