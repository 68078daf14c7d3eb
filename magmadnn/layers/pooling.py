"""Pooling: the largest value or the mean of each window of an image, channel by channel."""

from __future__ import annotations

from functools import reduce

from magmadnn import ops
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.tensor import Operation

from .layer import Layer
from .windows import Padding, Pair, as_pair, check_padding, shifted


class MaxPooling2D(Layer):
    """The largest value of each window, channel by channel; x is [batch, height, width, channels].

    Sizes are as for `Conv2D`; what is beyond the edge does not count. Where several values of a window are
    equally large, the gradient is shared among them.

    Attributes:
        pool_size: height and width of the window; one number for both.
        strides: pixels between windows; the size of the window unless given.
        padding: as for `Conv2D`; less than the window on each side.
    """

    pool_size: Pair = 2
    strides: Pair | None = None
    padding: Padding = "valid"

    def __post_init__(self) -> None:
        size = as_pair(self, "pool_size", self.pool_size)
        as_pair(self, "strides", self.pool_size if self.strides is None else self.strides)
        check_padding(self, self.padding)
        if not isinstance(self.padding, str):
            pads = as_pair(self, "padding", self.padding, 0)
            if any(pad >= n for pad, n in zip(pads, size, strict=True)):
                raise ArgumentError(
                    f"{self}: padding must be smaller than the window {size[0]} x {size[1]}, or some windows "
                    f"hold no pixel, got {self.padding!r}"
                )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        strides = self.pool_size if self.strides is None else self.strides
        windows = shifted(self, x, self.pool_size, strides, self.padding, float("-inf"))
        y: Operation = reduce(ops.maximum, windows)
        return y


class AveragePooling2D(Layer):
    """The mean of each window: [batch, height, width, channels] -> [batch, height', width', channels].

    Attributes:
        pool_size: height and width of the window; one number for both.
        strides: pixels between windows; the size of the window unless given.
    """

    pool_size: Pair = 2
    strides: Pair | None = None

    def __post_init__(self) -> None:
        as_pair(self, "pool_size", self.pool_size)
        as_pair(self, "strides", self.pool_size if self.strides is None else self.strides)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        strides = self.pool_size if self.strides is None else self.strides
        windows = shifted(self, x, self.pool_size, strides, "valid", 0.0)
        total: Operation = reduce(ops.add, windows)
        mean: Operation = total * (1 / len(windows))
        return mean


class GlobalAveragePooling2D(Layer):
    """The mean of all pixels: [batch, height, width, channels] -> [batch, channels]."""

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        if x.ndim != 4:
            raise ShapeError(
                f"{self}: x must be images [batch, height, width, channels], got {shape_text(x.shape)}"
            )
        y: Operation = ops.mean(x, (1, 2))
        return y
