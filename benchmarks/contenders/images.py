"""Images, filters and gradients of a layer, the same for all contenders."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def layer_data(
    size: tuple[int, ...], kernel: int, filters: int, stride: int, padding: int
) -> tuple[Array, Array, Array]:
    """x [n, height, width, c], w [kernel, kernel, c, filters] and the gradient of the outputs, in float32."""
    n, *places, c = size
    rng = np.random.default_rng(7)
    windows = [(p + 2 * padding - kernel) // stride + 1 for p in places]
    shapes = (size, (kernel, kernel, c, filters), (n, *windows, filters))
    x, w, g = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return x, w, g
