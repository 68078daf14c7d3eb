"""Transforms and convolutions: NumPy's values, gradients of both orders, at once and in programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, DTypeError, MagmaDNNError, ShapeError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable

RNG = np.random.default_rng(31)
EXECUTORS = ("native", "reference")
REAL = RNG.normal(size=(3, 5, 8))
COMPLEX = REAL + 1j * RNG.normal(size=(3, 5, 8))
CALLS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2")),
    *((name, {"norm": "ortho"}) for name in ("fftn", "ifftn", "rfftn", "irfftn")),
    ("fft", {"n": 11, "axis": 1}),
    ("ifft", {"n": 3, "axis": 0, "norm": "forward"}),
    ("rfft", {"n": 7}),
    ("irfft", {"n": 9, "axis": -2, "norm": "forward"}),
    ("rfft2", {"s": (4, 9), "axes": (0, 2)}),
    ("irfftn", {"s": (4, 5), "axes": (2, 1)}),
    ("fftn", {"axes": (-1, 0)}),
]


def node(name: str, array: np.ndarray) -> Node:
    return placeholder(name, Spec(array.shape, array.dtype))


def given(name: str) -> np.ndarray:
    return REAL if name.startswith("rfft") else COMPLEX


@pytest.mark.parametrize(("name", "options"), CALLS, ids=str)
def test_values_are_those_of_numpy(name: str, options: dict[str, Any]) -> None:
    """To some eps log n of the largest; single precision stays single."""
    small = "float32" if name.startswith("rfft") else "complex64"
    for x in (given(name), given(name).astype(small)):
        expected = getattr(np.fft, name)(x, **options)
        symbol = node("x", x)
        outputs = [getattr(md.fft, name)(symbol, **options)]
        found = [np.asarray(getattr(md.fft, name)(x, **options))]
        found += [
            Executable(outputs, executor=e, check=True).run({symbol: x})[0] for e in EXECUTORS
        ]
        for one in found:
            assert one.shape == expected.shape
            bound = 30 * np.finfo(one.dtype).eps * np.abs(expected).max()
            assert np.abs(one - expected).max() <= bound
            wider = 2.0 if name.startswith("rfft") else 0.5 if name.startswith("irfft") else 1.0
            assert one.dtype.itemsize == x.dtype.itemsize * wider


@pytest.mark.parametrize(("name", "options"), CALLS, ids=str)
def test_gradients_are_those_of_finite_differences(name: str, options: dict[str, Any]) -> None:
    """A quadratic form of the result, whose gradient is the transpose; PyTorch's convention."""
    x = given(name)
    direction = RNG.normal(size=x.shape) + (1j * RNG.normal(size=x.shape) if name[0] != "r" else 0)
    symbol = node("x", x)
    y = getattr(md.fft, name)(symbol, **options)
    weights = RNG.normal(size=y.shape)
    total = md.ops.sum(md.ops.real(y) * md.ops.imag(y * (1 + 2j)) * weights)
    (slope,) = gradient(total, [symbol])
    turned = md.ops.sum(md.ops.real(md.ops.conj(slope) * direction))
    (second,) = gradient(turned, [symbol])
    run = Executable([total, turned, second], executor="native")
    up, down = (run.run({symbol: x + sign * 1e-5 * direction}) for sign in (1, -1))
    _, first, hessian = run.run({symbol: x})
    scale = np.abs(hessian).sum()
    assert abs((up[0] - down[0]) / 2e-5 - first) < 1e-8 * scale
    assert abs((up[1] - down[1]) / 2e-5 - (np.conj(hessian) * direction).real.sum()) < 1e-8 * scale


def test_frequencies_shifts_and_convolutions() -> None:
    for n in (1, 2, 7, 8):
        assert np.array_equal(md.fft.fftfreq(n, 0.25), np.fft.fftfreq(n, 0.25))
        assert np.array_equal(md.fft.rfftfreq(n), np.fft.rfftfreq(n))
    for axes in (None, 1, (0, -1)):
        assert np.array_equal(md.fft.fftshift(REAL, axes), np.fft.fftshift(REAL, axes))
        assert np.array_equal(md.fft.ifftshift(REAL, axes), np.fft.ifftshift(REAL, axes))
    a, v = RNG.normal(size=31), RNG.normal(size=6) * (1 + 1j)
    for one in (a, a + 1j):
        for other in (v, v.real):
            for mode in ("full", "same", "valid"):
                found = np.asarray(md.fft.convolve(one, other, mode))
                np.testing.assert_allclose(found, np.convolve(one, other, mode), atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_transformed_in_single(dtype: str) -> None:
    """The values as they were rounded, transformed in complex64: its rounding is the only further one."""
    x = md.asarray(REAL).astype(dtype)
    exact = np.asarray(x.astype("float64"))
    assert (
        np.abs(exact - REAL).max() > 1e-5
    )  # the input lost digits, the result none of what is left
    for name in ("fft", "ifft2", "rfft", "fftn"):
        found = np.asarray(getattr(md.fft, name)(x))
        expected = getattr(np.fft, name)(exact)
        assert found.dtype == np.complex64
        bound = 30 * np.finfo(np.float32).eps * np.abs(expected).max()
        assert np.abs(found - expected).max() <= bound


def test_without_scipy_numpy_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from magmadnn.fft import _records

    monkeypatch.setattr(_records, "_library", lambda: (np.fft, {}))
    np.testing.assert_allclose(
        np.asarray(md.fft.irfftn(COMPLEX)), np.fft.irfftn(COMPLEX), atol=1e-14
    )


def test_complex_numbers_have_gradients_and_refuse_what_means_nothing() -> None:
    z, w = COMPLEX[0], COMPLEX[1].T
    x, y, r = node("x", z), node("y", w), node("r", REAL[2])
    o = md.ops
    product = o.matmul(x * r + 2j, y) * o.exp(o.matmul(x, y) * 0.1) + o.sin(x[:, :5]) / (
        y[:5] + 3.0
    )
    total = o.sum(o.abs(product) * o.real(product)) + o.sum(o.angle(x)) + o.sum(o.imag(x * x) * r)
    total = (
        total + o.sum(o.real(o.conj(x) * o.sqrt(x) * o.log(x))) + o.sum(o.real(o.mean(x, axis=0)))
    )
    slopes = gradient(total, [x, y, r])
    feeds = {x: z, y: w, r: REAL[2]}
    for executor in EXECUTORS:
        run = Executable([total, *slopes], executor=executor)
        for k, (symbol, value) in enumerate(feeds.items()):
            step = 1e-6 * RNG.normal(size=value.shape) * (1 if symbol is r else 1 + 0.5j)
            up, down = (run.run({**feeds, symbol: value + sign * step})[0] for sign in (1, -1))
            found = run.run(feeds)[1 + k]
            assert found.dtype == value.dtype
            expected = (np.conj(found) * step).real.sum()
            assert abs((up - down) / 2 - expected) < 1e-7 * np.abs(found).sum() * 1e-6
    for call in (
        lambda: o.maximum(z, 0),
        lambda: o.relu(md.asarray(z)),
        lambda: o.cast(z, "float32"),
        lambda: o.max(x),
        lambda: md.linalg.solve(np.eye(5), z[:, :5], method="refine"),
    ):
        with pytest.raises(MagmaDNNError, match="complex"):
            call()
    assert (md.asarray(z) * 2 - 1j).dtype == np.complex128
    assert (md.asarray(z.astype("complex64")) * 2.5).dtype == np.complex64


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_norms_of_complex_numbers_are_real(dtype: str) -> None:
    rng = np.random.default_rng(6)
    z = (rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))).astype(dtype)
    v, eps = md.variable("z", z), np.finfo(dtype).eps
    for axis in (None, 0, 1):
        expected = np.sqrt((np.abs(z.astype(complex)) ** 2).sum(axis))
        for found in (np.asarray(md.ops.norm(z, axis=axis)), md.ops.norm(v, axis=axis).numpy()):
            assert found.dtype == np.empty(0, dtype).real.dtype
            np.testing.assert_allclose(found, expected, rtol=20 * eps)
    slope = md.grad(md.ops.norm(v), v).numpy()
    np.testing.assert_allclose(slope, z / np.linalg.norm(z), atol=20 * eps)
    with pytest.raises(DTypeError, match=r"clip: x is complex.*; give its real, imag or abs"):
        md.ops.clip(z, 0, 1)


def test_mistakes() -> None:
    for call, error, text in [
        (
            lambda: md.fft.fft(np.ones((3, 0))),
            ShapeError,
            "fft: axis -1 has 0 numbers; a transform needs 1",
        ),
        (
            lambda: md.fft.fft(np.ones(3), axis=2),
            ShapeError,
            "fft: there is no axis 2: x has 1 axis",
        ),
        (
            lambda: md.fft.fft(np.ones(3), norm="all"),
            ArgumentError,
            "fft: norm must be one of backward, ortho",
        ),
        (
            lambda: md.fft.rfft(np.ones(3) * 1j),
            ArgumentError,
            "rfft: x must be real, got complex128",
        ),
        (
            lambda: md.fft.fft2(np.ones((3, 3)), s=(3,)),
            ShapeError,
            "fft2: s has 1 sizes for 2 axes",
        ),
        (
            lambda: md.fft.fftfreq(0),
            ArgumentError,
            "fftfreq: n must be an integer of at least 1, got 0",
        ),
        (
            lambda: md.fft.convolve([1], [2], "half"),
            ArgumentError,
            "convolve: mode must be one of full",
        ),
    ]:
        with pytest.raises(error, match=text):
            call()


def test_transforms_of_values_do_not_go_through_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones take less time than its checks; what is wrong is refused all the same."""
    from magmadnn.fft import _records

    x = md.asarray(np.random.default_rng(0).normal(size=(3, 8)) + 0j)
    expected = np.fft.fft(x.numpy()), np.fft.ifft2(x.numpy(), norm="ortho")
    monkeypatch.setattr(type(_records.transformed), "compute", None)
    found = md.fft.fft(x), md.fft.ifft2(x, norm="ortho")
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, md.Tensor) and one.kind is x.kind
        np.testing.assert_allclose(one, other, atol=1e-14)
    with pytest.raises(ShapeError, match="there is no axis 2"):
        md.fft.fft(x, axis=2)
    x[0, 0] = np.inf
    assert not np.isfinite(np.asarray(md.fft.fft(x))[0]).any()


@pytest.mark.parametrize("size", [3, 8, 11])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sizes_to_transform_may_differ_where_others_are_open(size: int, axis: int) -> None:
    """Zeros behind, or numbers cut, of batches of any size, and along an axis whose size is open itself."""
    x = md.placeholder("x", (None, 5, "time"), "float64")
    found = md.fft.rfft(x, n=size, axis=axis)
    np.testing.assert_allclose(
        found.eval({x: REAL}), np.fft.rfft(REAL, n=size, axis=axis), atol=1e-13
    )
    known = md.variable("known", REAL)
    loss = (md.ops.abs(md.fft.rfft(known, n=size, axis=axis)) ** 3).sum()
    open_loss = (md.ops.abs(found) ** 3).sum()
    slope = md.grad(open_loss, x).eval({x: REAL})
    np.testing.assert_allclose(slope, md.grad(loss, known).eval(), atol=1e-13)


def test_shifts_and_convolutions_of_batches_of_any_size() -> None:
    x, word = md.placeholder("x", (None, 5, 8), "float64"), RNG.normal(size=3)
    for name in ("fftshift", "ifftshift"):
        for axes in (None, 0, (0, 2)):
            shifted = getattr(md.fft, name)(x, axes=axes)
            for rows in (REAL, REAL[:2], REAL[:1], REAL[:0]):
                np.testing.assert_array_equal(
                    shifted.eval({x: rows}), getattr(np.fft, name)(rows, axes=axes)
                )
    for mode in ("full", "same", "valid"):
        expected = np.apply_along_axis(np.convolve, -1, REAL, word, mode)
        found = md.fft.convolve(x, word, mode).eval({x: REAL})
        np.testing.assert_allclose(found, expected, atol=1e-13)
    with pytest.raises(ShapeError, match="the size of axis -3 of a must be known, got batch"):
        md.fft.convolve(x, word[:, None, None], axis=-3)
