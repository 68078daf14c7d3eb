"""Windows that move over images: what convolution and pooling have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.tensor import Operation

from .layer import Layer

Pair = int | tuple[int, int]
Padding = str | int | tuple[int, int]


def as_pair(layer: Layer, argument: str, value: Any, least: int = 1) -> tuple[int, int]:
    """Height and width from one number or two.

    Raises:
        ArgumentError: if it is something else, or below `least`.
    """
    given = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in given)
    if len(given) != 2 or not whole or min(given) < least:
        raise ArgumentError(
            f"{layer}: {argument} must be a whole number of at least {least}, or two for height and width, "
            f"got {value!r}"
        )
    return int(given[0]), int(given[1])


def check_padding(layer: Layer, padding: Any) -> None:
    """Look at a padding.

    Raises:
        ArgumentError: if it is none.
    """
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise ArgumentError(
                f'{layer}: padding must be "valid", "same", or pixels on each side, got {padding!r}'
            )
    else:
        as_pair(layer, "padding", padding, 0)


def shifted(
    layer: Layer, x: Operation, size: Any, strides: Any, padding: Any, value: float
) -> list[Operation]:
    """For each place in the window, row by row, what all windows have there.

    Args:
        layer: that asks, for messages.
        x: [batch, height, width, channels].
        size: of the window.
        strides: pixels between windows.
        padding: see `Conv2D`.
        value: what stands beyond the edge.

    Raises:
        ShapeError: if x is none of images of known size, or the window is larger than a padded image.
    """
    known = [n for n in x.shape[1:3] if isinstance(n, int)]
    if x.ndim != 4 or len(known) != 2:
        raise ShapeError(
            f"{layer}: x must be images [batch, height, width, channels] of known size, got "
            f"{shape_text(x.shape)}"
        )
    sizes, steps = as_pair(layer, "kernel_size", size), as_pair(layer, "strides", strides)
    pads = [
        _around(padding, axis, n, k, s)
        for axis, (n, k, s) in enumerate(zip(known, sizes, steps, strict=True))
    ]
    room = [n + sum(pad) for n, pad in zip(known, pads, strict=True)]
    if any(n < k for n, k in zip(room, sizes, strict=True)):
        raise ShapeError(
            f"{layer}: the window {sizes[0]} x {sizes[1]} is larger than the padded image "
            f"{room[0]} x {room[1]}; "
            'give a smaller one, or padding="same"'
        )
    if any(map(any, pads)):
        x = ops.pad(x, ((0, 0), *pads, (0, 0)), value)
    spans = [(n - k) // s * s + 1 for n, k, s in zip(room, sizes, steps, strict=True)]
    (down, across), (step_down, step_across) = spans, steps
    return [
        x[:, i : i + down : step_down, j : j + across : step_across]
        for i in range(sizes[0])
        for j in range(sizes[1])
    ]


def _around(padding: Any, axis: int, size: int, window: int, stride: int) -> tuple[int, int]:
    """Pixels before and behind, along one axis."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
        return total // 2, total - total // 2
    pixels = padding[axis] if isinstance(padding, (tuple, list)) else padding
    return pixels, pixels
