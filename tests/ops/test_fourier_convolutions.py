"""Convolutions by Fourier transforms, against direct sums in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.graph.dim import Dim
from magmadnn.runtime import Executable
from magmadnn.runtime.threads import thread_count

Array = np.ndarray[Any, np.dtype[Any]]


def graphs(x: Array, w: Array, g: Array, padding: Any, algorithm: str, dtype: str) -> list[Any]:
    """A convolution and both gradients, for a batch of unknown size; and their values."""
    batch = Dim.symbol("batch")
    image = md.placeholder("x", (batch, *x.shape[1:]), dtype)
    outer = md.placeholder("g", (batch, *g.shape[1:]), dtype)
    filters = md.variable("w", w.astype(dtype))
    y = ops.convolution(image, filters, padding=padding, algorithm=algorithm)
    made = [y, *md.grad(ops.sum(y * outer), [image, filters])]
    run = Executable([one.node for one in made], executor="native")
    text = run.text({"batch": len(x)})
    assert ("_frequencies" in text) is (algorithm == "fft"), text
    return run.run({image.node: x.astype(dtype), outer.node: g.astype(dtype)})


CASES: list[Any] = [
    ((9,), (4,), "same"), ((12, 11), (5, 7), ((2, 1), (0, 3))), ((8, 13), (1, 9), "valid"),
    ((6, 5, 7), (3, 2, 3), 1), ((5, 5), (5, 5), "valid"), ((4, 3), (3, 3), 4),
]  # fmt: skip


@pytest.mark.parametrize(("places", "size", "padding"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_direct_sums(places: Any, size: Any, padding: Any, dtype: str) -> None:
    """Errors of transforms are relative to the largest numbers: eps times logarithms of their lengths."""
    rng = np.random.default_rng(len(places))
    x = rng.normal(size=(3, *places, 5)).astype(np.float32)
    w = rng.normal(size=(*size, 5, 4)).astype(np.float32)
    y = np.asarray(ops.convolution(x.astype(float), w.astype(float), padding=padding))
    g = rng.normal(size=y.shape).astype(np.float32)
    found = graphs(x, w, g, padding, "fft", dtype)
    exact = graphs(x, w, g, padding, "direct", "float64")
    assert np.allclose(exact[0], y, atol=1e-12)
    bound = 32 * np.finfo(dtype).eps
    for one, other, (a, b) in zip(found, exact, ((x, w), (g, w), (x, g)), strict=True):
        assert one.dtype == dtype and one.shape == other.shape
        size_of_sums = np.linalg.norm(a) * np.linalg.norm(b) / np.sqrt(a.shape[-1] * b.shape[-1])
        assert np.abs(one - other).max() <= bound * size_of_sums


def test_threads_do_not_change_bits() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 20, 21, 6)).astype(np.float32)
    w = rng.normal(size=(9, 7, 6, 10)).astype(np.float32)
    g = rng.normal(size=(5, 20, 21, 10)).astype(np.float32)
    found, before = [], thread_count()
    try:
        for threads in (1, 2, 3):
            md.set_threads(threads)
            found.append(graphs(x, w, g, "same", "fft", "float32"))
    finally:
        md.set_threads(before)
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_layer_trains_by_it() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(24, 12, 12, 2)).astype(np.float32), rng.integers(0, 3, 24)

    def trained(algorithm: str) -> list[float]:
        layers = md.layers
        model = md.Model(
            [
                layers.Input((12, 12, 2)),
                layers.Conv2D(6, 9, padding="same", activation="relu", algorithm=algorithm),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3),
            ],
            loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=1,
        )  # fmt: skip
        assert model.plan(x, y).count("_frequencies") >= 3 * (algorithm == "fft")
        return [row["loss"] for row in model.fit(x, y, batch_size=8, epochs=3, verbose=0).rows]

    assert np.allclose(trained("fft"), trained("direct"), rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strides": 2}, "strides (2, 2)"), ({"dilation": 3}, "dilation (3, 3)"), ({"groups": 2}, "2 groups"),
    ],
)  # fmt: skip
def test_what_it_does_not_take_is_said(settings: dict[str, Any], words: str) -> None:
    x = md.placeholder("x", (2, 9, 9, 4), "float32")
    w = md.variable("w", np.ones((3, 3, 4 // settings.get("groups", 1), 2), np.float32))
    with pytest.raises(ArgumentError) as found:
        ops.convolution(x, w, algorithm="fft", **settings)
    assert str(found.value) == (
        'convolution: algorithm "fft" takes float32 and float64 without strides, dilation or groups, on '
        f'images of known sizes; got {words}; use "auto" or "direct"'
    )
    half = md.placeholder("h", (2, 9, 9, 4), "bfloat16")
    with pytest.raises(ArgumentError, match="got bfloat16; use"):
        ops.convolution(half, np.ones((3, 3, 4, 2), np.float32), algorithm="fft")
