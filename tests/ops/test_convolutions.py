"""Random convolutions against loops over windows: values, gradients, threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.op import REGISTRY
from magmadnn.graph.program import Program
from magmadnn.ops.images import _phases, _products
from magmadnn.runtime import Executable
from magmadnn.runtime.threads import thread_count

REFERENCE = REGISTRY["convolution"].reference


def draw(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
    """Small integers, whose convolutions are exact, and settings; all ways of padding occur."""
    rng = np.random.default_rng((7, seed))
    axes = int(rng.choice([1, 2, 2, 3]))
    size, dilation = rng.integers(1, 4, axes), rng.integers(1, 3, axes)
    reach = (size - 1) * dilation + 1
    pads = rng.integers(0, 4, (axes, 2)) * rng.integers(0, 2)
    places = np.maximum(reach - pads.sum(1), 1) + rng.integers(0, 5 if axes < 3 else 2, axes)
    groups, c, o = (int(n) for n in rng.integers(1, 4, 3))
    if rng.random() < 0.2:
        groups, c, o = groups + 1, 1, 1
    padding: Any = tuple(map(tuple, pads.tolist()))
    if rng.random() < 0.3:
        padding = "same"
    settings = {
        "strides": tuple(rng.integers(1, 4, axes).tolist()),
        "padding": padding,
        "dilation": tuple(dilation.tolist()),
        "groups": groups,
    }
    x = rng.integers(-4, 5, (rng.integers(1, 4), *places, groups * c)).astype(np.float64)
    w = rng.integers(-4, 5, (*size, c, groups * o)).astype(np.float64)
    return x, w, settings


@pytest.mark.parametrize("block", range(4))
def test_random_convolutions(block: int) -> None:
    """Sums of products of small integers are exact: no bit may differ."""
    for seed in range(500 * block, 500 * (block + 1)):
        x, w, settings = draw(seed)
        expected = REFERENCE(x, w, **settings)
        assert np.array_equal(ops.convolution(x, w, **settings), expected), seed


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(k, marks=pytest.mark.long) for k in range(20, 60))]
)
def test_gradients_of_random_convolutions_in_native_code(seed: int) -> None:
    """Of a product with the result: each gradient is the transpose of a linear map, hence exact too."""
    x, w, settings = draw(seed)
    y = REFERENCE(x, w, **settings)
    g = np.random.default_rng(seed).integers(-3, 4, y.shape).astype(np.float64)
    image, filters = md.variable("x", x), md.variable("w", w)
    made = ops.convolution(image, filters, **settings)
    total = ops.sum(made * g)
    by_x, by_w = md.grad(total, [image, filters])
    assert np.array_equal(made.numpy(), y)
    rng = np.random.default_rng(seed)
    for found, operand, change in (
        (by_x, x, lambda d: REFERENCE(d, w, **settings)),
        (by_w, w, lambda d: REFERENCE(x, d, **settings)),
    ):
        direction = rng.integers(-3, 4, operand.shape).astype(np.float64)
        assert np.sum(found.numpy() * direction) == np.sum(change(direction) * g)
    # the gradient's gradient: of the sum over squares of the gradient for w, along one direction
    (second,) = md.grad(ops.sum(by_w * by_w), [image])
    step = rng.integers(-3, 4, x.shape).astype(np.float64)
    dw = by_w.numpy()
    (along,) = md.grad(ops.sum(ops.convolution(step, filters, **settings) * g), [filters])
    assert np.sum(second.numpy() * step) == 2 * np.sum(dw * along.numpy())


@pytest.mark.long
@pytest.mark.parametrize("block", range(4))
def test_2000_random_convolutions_in_native_code(block: int) -> None:
    """Values and both gradients, also of more channels than a vector has lanes; sums are exact in float32."""
    for seed in range(500 * block, 500 * (block + 1)):
        x, w, settings = draw(seed)
        rng = np.random.default_rng((8, seed))
        dtype = str(rng.choice(["float32", "float64"]))
        more_c, more_o = (int(n) for n in rng.choice([1, 1, 7, 16], 2))
        x = rng.integers(-4, 5, (*x.shape[:-1], x.shape[-1] * more_c)).astype(dtype)
        w = rng.integers(-4, 5, (*w.shape[:-2], w.shape[-2] * more_c, w.shape[-1] * more_o))
        w = w.astype(dtype)
        y = REFERENCE(x.astype(np.float64), w.astype(np.float64), **settings)
        g = rng.integers(-3, 4, y.shape).astype(dtype)
        image, filters = md.variable("x", x), md.variable("w", w)
        made = ops.convolution(image, filters, **settings)
        by_x, by_w = (v.numpy() for v in md.grad(ops.sum(made * g), [image, filters]))
        assert made.dtype == by_x.dtype == by_w.dtype == dtype, seed
        assert np.array_equal(made.numpy(), y), seed
        for found, operand, change in (
            (by_x, x, lambda d: REFERENCE(d, w, **settings)),  # noqa: B023  # called at once
            (by_w, w, lambda d: REFERENCE(x, d, **settings)),  # noqa: B023
        ):
            direction = rng.integers(-3, 4, operand.shape).astype(np.float64)
            there = np.sum(found.astype(np.float64) * direction)
            assert there == np.sum(change(direction) * g), seed


def test_the_transpose_and_its_sizes() -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-3, 4, (3, 4, 2)).astype(np.float64)  # [size, outputs, channels]
    for padding, strides, places in (("valid", 2, 11), ("same", 2, 10), (1, 2, 9), (0, 1, 7)):
        x = rng.integers(-3, 4, (2, 5, 2)).astype(np.float64)
        y = ops.convolution_transposed(x, w, strides=strides, padding=padding)
        assert y.shape == (2, places, 4)
        back = rng.integers(-3, 4, y.shape).astype(np.float64)
        forward = ops.convolution(back, w, strides=strides, padding=padding)
        assert np.sum(forward * x) == np.sum(back * y)


def test_threads_do_not_change_bits() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(16, 12, 12, 8)).astype(np.float32)
    w = rng.normal(size=(3, 3, 8, 12)).astype(np.float32)
    found, before = [], thread_count()
    try:
        for threads in (1, 2, 3):
            md.set_threads(threads)
            image, filters = md.variable("x", x), md.variable("w", w)
            y = ops.convolution(image, filters, padding="same", strides=2)
            found.append([v.numpy() for v in (y, *md.grad(ops.sum(y * y), [image, filters]))])
    finally:
        md.set_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert np.array_equal(a, b)


X, W = np.zeros((2, 5, 6, 4)), np.zeros((3, 3, 4, 6))
MISTAKES: dict[str, Any] = {
    "convolution: x has 4 channels, but w takes 3: x (2, 5, 6, 4), w (3, 3, 3, 6)": (
        lambda: ops.convolution(X, W[:, :, :3])
    ),
    "convolution: x has 4 channels, but w takes 4 in each of 2 groups: x (2, 5, 6, 4), w (3, 3, 4, 6)": (
        lambda: ops.convolution(X, W, groups=2)
    ),
    "convolution: w must be [size, size, c / groups, o], got (3, 4, 6) for x (2, 5, 6, 4)": (
        lambda: ops.convolution(X, W[0])
    ),
    "convolution: x must be [n, places..., c], got (5, 6) with 2 axes; images without an axis of channels "
    "get one by expand_dims(x, -1)": lambda: ops.convolution(X[0, :, :, 0], W),
    "convolution: strides must be an integer from 1, or one for each of 2 axes of places, got 0": (
        lambda: ops.convolution(X, W, strides=0)
    ),
    "convolution_transposed: padding (3, 3) takes away all 5 outputs along axis 1 of x (2, 5, 6, 4): "
    "give less": (lambda: ops.convolution_transposed(X, W[:1, :1, :, :4], padding=(3, 1))),
    "convolution_transposed: padding (2, 4) takes away all 6 outputs along axis 2 of x (2, 5, 6, 4): "
    "give less": (
        lambda: ops.convolution_transposed(X, W[:1, :1, :, :4], padding=((1, 3), (2, 4)))
    ),
    "convolution_transposed: x has 4 channels, but w takes 6: x (2, 5, 6, 4), w (3, 3, 4, 6)": (
        lambda: ops.convolution_transposed(X, W)
    ),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_clear_line(words: str) -> None:
    with pytest.raises((ArgumentError, ShapeError)) as found:
        MISTAKES[words]()
    assert str(found.value) == words


def test_a_stride_along_an_unknown_axis_needs_padding_in_numbers() -> None:
    x = md.placeholder("x", (2, None, 3))
    with pytest.raises(ShapeError, match="declare it in Input, or give the padding in numbers"):
        ops.convolution(x, np.zeros((3, 3, 2), np.float32), strides=2, padding="same")


@pytest.mark.parametrize(("size", "strides"), [(3, 2), (1, 2), (7, 2), (11, 4), ((3, 2), (2, 3))])
def test_gradients_of_strided_convolutions_multiply_no_zeros(size: Any, strides: Any) -> None:
    """The gradient of the inputs takes about as many products as the convolution does."""
    x = md.variable("x", np.ones((2, 48, 48, 8), np.float32))
    kernel = size if isinstance(size, tuple) else (size, size)
    w = md.variable("w", np.ones((*kernel, 8, 8), np.float32))
    y = ops.convolution(x, w, strides=strides, padding="same")
    (dx,) = md.grad(ops.sum(y * y * y), [x])
    forward, both = (products(*made) for made in ([y], [y, dx]))
    assert forward < both < 2.7 * forward


def products(*made: Any) -> int:
    """Multiplications of the matrix products in a plan."""
    plan = native_plan(Program.of([m.node for m in made]))
    total = 0
    for work in plan.work:
        if work.region.kind is RegionKind.GEMM:
            node = work.region.nodes[0]
            total += math.prod(node.shape) * node.inputs[0].shape[-1]
    return total


@pytest.mark.parametrize(
    ("size", "strides", "padding"),
    [
        ((7, 7), 2, 3), ((11, 11), 4, 2), ((1, 1), 2, 0), ((4, 3), (2, 1), 1),
        ((2, 5), (3, 2), ((2, 0), (0, 4))),
    ],
)  # fmt: skip
def test_phases_as_one_product_have_the_bits_of_each(
    size: Any, strides: Any, padding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros among the products of an element change nothing; places that no tap meets are zero."""
    rng, found = np.random.default_rng(6), []
    x = md.variable("x", np.zeros((2, 13, 12, 3), np.float32))
    w = md.variable("w", rng.standard_normal((*size, 3, 5)).astype(np.float32))
    y = ops.convolution(x, w, strides=strides, padding=padding)
    given = rng.standard_normal(y.shape).astype(np.float32)
    for joint in (False, True):
        monkeypatch.setattr(_phases, "pay_together", lambda *_, joint=joint, **__: joint)
        made = md.variable(f"made_{joint}", np.ones(x.shape, np.float32))
        gradient = md.grad(y, [x], given)[0]
        program = Executable([], [(made.node, gradient.node)], executor="native")
        program.run({})
        found.append(made.value.read())
        assert ("_interleave" in program.text({})) != joint
    np.testing.assert_array_equal(found[1].view(np.uint32), found[0].view(np.uint32))


@pytest.mark.parametrize(
    ("size", "channels", "strides", "joint"),
    [
        (7, 3, 2, True), (11, 3, 4, True), (3, 3, 2, True),
        (3, 16, 2, False), (7, 16, 2, False), (1, 3, 2, False), (3, 64, 2, False),
    ],
)  # fmt: skip
def test_phases_are_one_product_where_images_have_few_channels(
    size: int, channels: int, strides: int, joint: bool
) -> None:
    settled = {"strides": (strides,) * 2, "dilation": (1, 1), "groups": 1}
    parts = list(_phases.phases_of((size, size), (48, 48), padding=((1, 1),) * 2, **settled))
    assert _phases.pay_together(parts, (size, size), channels, **settled) == joint
    for other in ({"groups": 3}, {"dilation": (2, 1)}):
        assert not _phases.pay_together(parts, (size, size), channels, **settled | other)


@pytest.mark.parametrize(
    ("places", "size", "filters", "block"),
    [
        (14, 5, 6, 2), (24, 3, 3, 4), (25, 3, 3, 5), (12, 2, 8, 2),
        (13, 3, 3, 1), (14, 3, 16, 1), (14, 1, 4, 1),
    ],
)  # fmt: skip
def test_few_filters_stand_side_by_side_with_the_same_bits(
    places: int, size: int, filters: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring windows are columns of one row, where that fills vectors: the sums are the same."""
    rng, found = np.random.default_rng(7), []
    x = md.variable("x", rng.standard_normal((2, 9, places + size - 1, 5)).astype(np.float32))
    w = md.variable("w", rng.standard_normal((4, size, 5, filters)).astype(np.float32))
    rule = _products.beside
    plain = {"strides": (2, 1), "dilation": (1, 1)}
    assert rule(w.shape, places, plain) == block
    assert rule(w.shape, places, plain | {"strides": (1, 2)}) == 1
    assert rule(w.shape, places, plain | {"dilation": (1, 2)}) == 1
    assert rule((1, size, 1, filters), places, plain) == 1  # too few steps
    for way in (lambda *_: 1, rule):
        monkeypatch.setattr(_products, "beside", way)
        y = ops.convolution(x, w, strides=(2, 1))
        made = md.variable(f"made_{len(found)}", np.ones(y.shape, np.float32))
        program = Executable([], [(made.node, y.node)], executor="native")
        program.run({})
        found.append(made.value.read())
    assert f"{y.shape[2] // block * 6}, {block * filters}]" in program.text({})
    np.testing.assert_array_equal(found[1].view(np.uint32), found[0].view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("places", "size", "filters"), [(14, 5, 6), (25, 3, 3), (12, 2, 8)])
def test_gradients_of_few_filters_side_by_side(
    places: int, size: int, filters: int, dtype: str
) -> None:
    """Sums of small integers are exact; halves, which would be rounded twice, stay one sum."""
    rng = np.random.default_rng(8)
    shapes = {
        "x": (2, 9, places + size - 1, 5),
        "w": (4, size, 5, filters),
        "g": (2, 3, places, filters),
    }
    data = {name: rng.integers(-2, 3, shape).astype(dtype) for name, shape in shapes.items()}
    x, w, g = (md.variable(name, data[name]) for name in shapes)
    gradient = md.grad(ops.convolution(x, w, strides=(2, 1)), [w], g)[0]
    made = md.variable("made", np.ones(w.shape, dtype))
    program = Executable([], [(made.node, gradient.node)], executor="native")
    program.run({})
    expected = np.zeros(w.shape)
    for i, j in np.ndindex(4, size):
        seen = data["x"][:, i : i + 5 : 2, j : j + places].astype(np.float64)
        expected[i, j] = np.einsum("nyxc,nyxo->co", seen, data["g"].astype(np.float64))
    np.testing.assert_array_equal(made.value.read(), expected)
    assert (f", {filters}] direct" in program.text({})) == (dtype == "float16")
