"""Convolution and pooling: many shapes against loops, and mistakes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers
from magmadnn.errors import ArgumentError, ShapeError
from tests.layers.layer_cases import convolved, pooled


def pads_of(padding, sizes, windows, strides) -> tuple[int, int, int, int]:
    if padding == "same":
        totals = [
            max((math.ceil(n / s) - 1) * s + k - n, 0)
            for n, k, s in zip(sizes, windows, strides, strict=True)
        ]
        return tuple(p for total in totals for p in (total // 2, total - total // 2))
    one = 0 if padding == "valid" else padding
    return (one,) * 4


@pytest.mark.parametrize("seed", range(60))
def test_random_windows(seed):
    rng = np.random.default_rng(seed)
    size, window, strides = (tuple(map(int, rng.integers(*r, 2))) for r in ((5, 9), (1, 5), (1, 4)))
    padding = [0, 1, "valid", "same"][rng.integers(4)]
    channels, filters = map(int, rng.integers(1, 4, 2))
    x = layers.Input((*size, channels), "float64")
    conv = layers.Conv2D(filters, window, strides=strides, padding=padding)
    outputs = [conv(x)]
    largest = padding if min(window) > 1 or padding != 1 else 0
    outputs.append(layers.MaxPooling2D(window, strides=strides, padding=largest)(x))
    outputs.append(layers.AveragePooling2D(window, strides=strides)(x))
    model = md.Model(inputs=x, outputs=outputs, executor="reference")
    values = rng.normal(size=(3, *size, channels))
    found = model.predict(values)
    pads = pads_of(padding, size, window, strides)
    kernel = np.asarray(conv.kernel.value.read())
    expected = [
        convolved(values, kernel, strides, pads),
        pooled(values, window, strides, pads_of(largest, size, window, strides), np.max),
        pooled(values, window, strides, (0, 0, 0, 0), np.mean),
    ]
    for ours, loops in zip(found, expected, strict=True):
        # A sum of at most 4 * 4 * 3 products, each rounded to 2**-53.
        np.testing.assert_allclose(ours, loops, atol=48 * 2.0**-53 * 20)


def image() -> md.Operation:
    return layers.Input((5, 6, 2))


MISTAKES = {
    "conv2d: kernel_size must be an integer from 1, or one for each of 2 axes of places, got 0": (
        lambda: layers.Conv2D(3, 0)
    ),
    "conv2d: strides must be an integer from 1, or one for each of 2 axes of places, got (1, 0)": (
        lambda: layers.Conv2D(3, 2, strides=(1, 0))
    ),
    "conv1d: dilation must be an integer from 1, or one for each of 1 axis of places, got 1.5": (
        lambda: layers.Conv1D(3, 2, dilation=1.5)
    ),
    'conv2d: padding must be "valid", "same", an integer from 0, or an integer or a pair (before, after) for '
    "each of 2 axes of places, got 'full'": lambda: layers.Conv2D(3, 2, padding="full"),
    "conv2d: groups must be an integer from 1, got 0": lambda: layers.Conv2D(3, 2, groups=0)(image()),
    "conv2d: 2 channels do not divide into 3 groups": lambda: layers.Conv2D(3, 2, groups=3)(image()),
    "conv2d: 3 filters do not divide into 2 groups": lambda: layers.Conv2D(3, 2, groups=2)(image()),
    "convolution: a window reaches over 7 along axis 1, but x has 5 places there: use a smaller window, or "
    "more padding (in conv2d)": lambda: layers.Conv2D(3, 7)(image()),
    "convolution: a window reaches over 9 along axis 2, but x has 6 places there, 8 with padding: use a "
    "smaller window, or more padding (in conv2d)": (
        lambda: layers.Conv2D(3, (3, 5), padding=(0, 1), dilation=2)(image())
    ),
    "conv2d: x must be [n, height, width, channels], got (batch, 5) with 2 axes": (
        lambda: layers.Conv2D(3, 2)(layers.Input((5,)))
    ),
    "conv2d: x must be [n, height, width, channels], got (batch, 5, 6) with 3 axes; images without an axis "
    "of channels get one by md.layers.Reshape((..., 1))": (
        lambda: layers.Conv2D(3, 2)(layers.Input((5, 6)))
    ),
    "max_pooling2d: padding must be smaller than the window 2 x 2, or some windows hold no place of x, got "
    "2": (
        lambda: layers.MaxPooling2D(2, padding=2)
    ),
    "max_pooling: a window reaches over 7 along axis 1, but x has 5 places there: use a smaller window, or "
    "more padding (in max_pooling2d)": lambda: layers.MaxPooling2D((7, 2))(image()),
    "average_pooling: a window reaches over 9 along axis 2, but x has 6 places there, 8 with padding: use a "
    "smaller window, or more padding (in average_pooling2d)": (
        lambda: layers.AveragePooling2D((2, 9), padding=1)(image())
    ),
    "average_pooling2d: strides must be an integer from 1, or one for each of 2 axes of places, got 0": (
        lambda: layers.AveragePooling2D(2, strides=0)
    ),
    "max_pooling3d: pool_size must be an integer from 1, or one for each of 3 axes of places, got (2, 2)": (
        lambda: layers.MaxPooling3D((2, 2))
    ),
    "AveragePooling1D: count_padding must be True or False, got 1": (
        lambda: layers.AveragePooling1D(2, count_padding=1)
    ),
    "max_pooling1d: x must be [n, time, channels], got (batch, 5, 6, 2) with 4 axes": (
        lambda: layers.MaxPooling1D(2)(image())
    ),
    "max_pooling2d: x must be [n, height, width, channels], got (batch, 5, 6) with 3 axes; images without an "
    "axis of channels get one by md.layers.Reshape((..., 1))": (
        lambda: layers.MaxPooling2D(2)(layers.Input((5, 6)))
    ),
    "adaptive_max_pooling2d: output_size must be an integer from 1, or one for each of 2 axes of places, got "
    "0": lambda: layers.AdaptiveMaxPooling2D(0),
    "up_sampling2d: size must be an integer from 1, or one for each of 2 axes of places, got 1.5": (
        lambda: layers.UpSampling2D(1.5)
    ),
    "zero_padding2d: padding must be an integer from 0, (vertical, horizontal), or ((top, bottom), (left, "
    "right)), got -1": lambda: layers.ZeroPadding2D(-1),
    "cropping2d: cropping 3 and 2 of the height 5 leaves nothing: x (batch, 5, 6, 2)": (
        lambda: layers.Cropping2D(((3, 2), (0, 0)))(image())
    ),
    "group_norm: 2 channels do not divide into 3 groups": lambda: layers.GroupNorm(3)(image()),
    "group_norm: groups must be an integer of at least 1, got 0": lambda: layers.GroupNorm(0),
    "local_response_normalization: k must be a finite number above 0, got 0": (
        lambda: layers.LocalResponseNormalization(k=0)
    ),
    "spatial_dropout2d: x must be [n, height, width, channels], got (batch, 5) with 2 axes": (
        lambda: layers.SpatialDropout2D()(layers.Input((5,)))
    ),
    "global_average_pooling2d: x must be [n, height, width, channels], got (batch, 5) with 2 axes": (
        lambda: layers.GlobalAveragePooling2D()(layers.Input((5,)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_clear_line(words):
    with pytest.raises((ArgumentError, ShapeError)) as found:
        MISTAKES[words]()
    assert str(found.value) == words
