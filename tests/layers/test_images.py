"""Layers of images in training: what is compiled, and whole channels that are dropped."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers

COMPILED: dict[str, Callable[[], layers.Layer]] = {
    "max": lambda: layers.MaxPooling2D(2),
    "max of windows that overlap": lambda: layers.MaxPooling2D(3, 2, "same"),
    "average": lambda: layers.AveragePooling2D(3, 2, 1),
    "global max": lambda: layers.GlobalMaxPooling2D(),
    "global average": lambda: layers.GlobalAveragePooling2D(),
    "adaptive max": lambda: layers.AdaptiveMaxPooling2D((4, 5)),
    "adaptive average": lambda: layers.AdaptiveAveragePooling2D((4, 3)),
    "nearest": lambda: layers.UpSampling2D((2, 3)),
    "bilinear": lambda: layers.UpSampling2D(2, "bilinear"),
    "padding": lambda: layers.ZeroPadding2D((1, 2)),
    "cropping": lambda: layers.Cropping2D((1, 0)),
    "spatial dropout": lambda: layers.SpatialDropout2D(0.25),
    "groups": lambda: layers.GroupNorm(2),
    "responses": lambda: layers.LocalResponseNormalization(),
}


@pytest.mark.parametrize("filters", [4, 34])  # rows of 32 elements and more are read otherwise
@pytest.mark.parametrize("name", COMPILED)
def test_training_is_compiled_and_agrees_with_numpy(name: str, filters: int) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 9, 7, 3)).astype("float32"), rng.normal(size=(12, 2))

    def fitted(executor: str) -> tuple[Any, str]:
        model = md.Model(
            [
                layers.Input((9, 7, 3)),
                layers.Conv2D(filters, 3, padding=1, activation="tanh"),
                COMPILED[name](),
                layers.Flatten(),
                layers.Dense(2),
            ],
            loss="mse",
            optimizer=md.optim.SGD(0.002),
            executor=executor,
            seed=5,
        )
        model.fit(x, y.astype("float32"), batch_size=4, epochs=2, verbose=False)
        return model, model.plan(x, y.astype("float32"), batch_size=4)

    (native, plan), (reference, _) = fitted("native"), fitted("reference")
    assert " 0 calls of NumPy" in plan
    # some ten roundings in each of 6 steps, of values below 2
    np.testing.assert_allclose(native.predict(x), reference.predict(x), rtol=0, atol=2e-5)


def test_whole_channels_are_dropped() -> None:
    for layer, shape in (
        (layers.SpatialDropout2D(0.3), (400, 3, 2, 5)),
        (layers.SpatialDropout1D(0.3), (400, 4, 5)),
    ):
        x = md.placeholder("x", (None, *shape[1:]), "float32")
        y = layer(x)
        values = 2.0 ** np.random.default_rng(0).integers(0, 4, shape).astype("float32")
        kept = np.asarray(y.eval({x: values}, training=True)) / values
        each = kept.reshape(shape[0], -1, shape[-1])
        np.testing.assert_array_equal(each, np.broadcast_to(each[:, :1], each.shape))
        assert set(np.round(each, 4).ravel().tolist()) == {
            0.0,
            np.float32(round(1 / 0.7, 4)).item(),
        }
        # 2000 draws: four standard deviations are 0.041
        assert abs((each[:, 0] == 0).mean() - 0.3) < 0.041
        again = np.asarray(y.eval({x: values}, training=True)) / values
        assert (again != kept).any()
        np.testing.assert_array_equal(np.asarray(y.eval({x: values}, training=False)), values)


def test_a_convolution_with_batch_norm_and_relu_is_one_pass_at_prediction() -> None:
    model = md.Model(
        [
            layers.Input((9, 7, 3)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNorm(),
            layers.Activation("relu"),
        ]
    )
    plan = model.plan(np.ones((4, 9, 7, 3), np.float32), batch_size=4)
    (product,) = (line for line in plan.splitlines() if " gemm [" in line)
    assert "direct subtract multiply add relu" in product
    assert plan.count("float32[4, 7, 5, 4]") == 1  # what the product keeps


@pytest.mark.parametrize("algorithm", ["direct", "winograd", "winograd_2x2", "fft", "auto"])
def test_the_plan_says_by_which_way_a_convolution_and_its_gradient_are_computed(
    algorithm: str,
) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 8, 8, 128)).astype("float32"), np.arange(2)
    model = md.Model(
        [
            layers.Input((8, 8, 128)),
            layers.Conv2D(128, 3, padding="same", algorithm=algorithm, name="first"),
            layers.Conv2D(4, 1, groups=2, name="second"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ],
        loss="cross_entropy",
        optimizer="sgd",
    )
    lines = model.plan(x, y, batch_size=2).splitlines()
    way = "winograd" if algorithm == "auto" else algorithm
    for scope in ("first", "first/gradient"):
        titles = [line for line in lines if line.endswith(f"# {scope}")]
        assert any(re.search(rf" gemm \[.*\] {way}\b", line) for line in titles), scope
    for other in {"direct", "winograd", "winograd_2x2", "fft"} - {way}:
        assert not any(re.search(rf"\b{other}\b.*# first", line) for line in lines), other
    assert any(re.search(r" gemm \[.*\] groups\b.*# second$", line) for line in lines)


@pytest.mark.parametrize("pooling", ["GlobalAveragePooling2D", "GlobalMaxPooling2D"])
def test_pooling_of_a_single_place_calls_no_numpy(pooling: str) -> None:
    """As behind the last block of a network for larger images."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(6, 2, 2, 3)).astype("float32"), np.arange(6) % 2

    def fitted(executor: str) -> Any:
        model = md.Model(
            [
                layers.Input((2, 2, 3)),
                layers.Conv2D(5, 2),
                getattr(layers, pooling)(),
                layers.Dense(2),
            ],
            loss="cross_entropy",
            optimizer=md.optim.SGD(0.1),
            executor=executor,
            seed=5,
        )
        model.fit(x, y, batch_size=3, epochs=2, verbose=False)
        return model

    native = fitted("native")
    assert " 0 calls of NumPy" in native.plan(x, y, batch_size=3)
    np.testing.assert_allclose(native.predict(x), fitted("reference").predict(x), atol=2e-6)


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("precision", ["mixed_bf16", "mixed_fp16"])
@pytest.mark.parametrize("least", [False, True])
def test_the_gradient_of_the_largest_place_in_mixed_precision(
    precision: str, executor: str, least: bool
) -> None:
    """A product reads it in halves; the place whose gradient it is has its own digits."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 5, 4, 3)).astype("float32"), np.arange(12) % 2
    pooled = layers.Activation(lambda x: md.ops.min(x, axis=(1, 2)))

    def fitted(precision: str) -> Any:
        model = md.Model(
            [
                layers.Input((5, 4, 3)),
                layers.Conv2D(4, 3),
                pooled if least else layers.GlobalMaxPooling2D(),
                layers.Dense(2),
            ],
            loss="cross_entropy",
            optimizer=md.optim.SGD(0.1),
            executor=executor,
            precision=precision,
            seed=5,
        )
        history = model.fit(x, y, batch_size=12, epochs=4, verbose=False)
        return history["loss"], model.layers[0].kernel.numpy()

    (halves, kernel), (exact, expected) = fitted(precision), fitted("float32")
    # halves have 8 digits or more; a step that is left out for NaN would repeat its loss
    np.testing.assert_allclose(halves, exact, rtol=2e-2)
    assert len(set(halves)) == len(halves)
    np.testing.assert_allclose(kernel, expected, atol=2e-2)
