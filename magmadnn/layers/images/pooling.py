"""Pooling of sequences, images and volumes: the largest value or the mean of each window."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.graph.signature import OpWords
from magmadnn.layers.checks import check_places
from magmadnn.layers.layer import Layer
from magmadnn.ops.images.windows import counts_of, pairs_of
from magmadnn.tensor import Operation

Count = int | tuple[int, ...] | list[int]
Padding = str | Count | tuple[tuple[int, int], ...] | list[tuple[int, int]]


class _Pooling(Layer):
    """What layers with windows share: their settings."""

    pool_size: Count = 2
    strides: Count | None = None
    padding: Padding = "valid"

    _PLACES: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        axes, words = len(self._PLACES), OpWords(str(self), ("x",), "")
        size = counts_of(words, "pool_size", self.pool_size, axes)
        if self.strides is not None:
            counts_of(words, "strides", self.strides, axes)
        if self.padding in ("valid", "same"):
            return
        pads = pairs_of(words, self.padding, axes)
        if any(max(pair) >= k for pair, k in zip(pads, size, strict=True)):
            raise ArgumentError(
                f"{self}: padding must be smaller than the window {' x '.join(map(str, size))}, or some "
                f"windows hold no place of x, got {self.padding!r}"
            )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, self._PLACES)
        size, strides, padding = self.pool_size, self.strides, self.padding
        y: Operation = self._pooled(x, {"size": size, "strides": strides, "padding": padding})
        return y

    def _pooled(self, x: Operation, geometry: dict[str, Any]) -> Any:
        return ops.max_pooling(x, **geometry)


class MaxPooling1D(_Pooling):
    """The largest value of each window, channel by channel: [n, time, c] -> [n, windows, c].

    What lies in the padding does not count. The gradient goes to the first of the largest values of a window.

    Attributes:
        pool_size: places of a window.
        strides: from one window to the next; the size of a window unless given.
        padding: "valid" for none, "same" for as many windows as places divided by the stride, rounded up (as
            TensorFlow defines it), or places that are added at both ends, fewer than a window has.
    """

    _PLACES = ("time",)


class MaxPooling2D(_Pooling):
    """The largest value of each window, channel by channel: [n, height, width, c] -> [n, rows, columns, c].

    What lies in the padding does not count. The gradient goes to the first of the largest values of a window,
    row by row.

    Attributes:
        pool_size: height and width of a window; one number for both.
        strides: from one window to the next; the size of a window unless given.
        padding: "valid" for none, "same" for as many windows as places divided by the stride, rounded up (as
            TensorFlow defines it), or places that are added on all sides: a number, one for each axis, or
            pairs (before, after); fewer than a window has.
    """

    _PLACES = ("height", "width")


class MaxPooling3D(_Pooling):
    """The largest value of each window: [n, depth, height, width, c]; settings as of `MaxPooling2D`."""

    _PLACES = ("depth", "height", "width")


class _AveragePooling(_Pooling):
    _: KW_ONLY
    count_padding: bool = False

    def _pooled(self, x: Operation, geometry: dict[str, Any]) -> Any:
        return ops.average_pooling(x, **geometry, count_padding=self.count_padding)


class AveragePooling1D(_AveragePooling):
    """The mean of each window, channel by channel: [n, time, c] -> [n, windows, c].

    Attributes:
        pool_size: places of a window.
        strides: from one window to the next; the size of a window unless given.
        padding: as of `MaxPooling1D`.
        count_padding: whether places in the padding count as zeros; else only places of x count.
    """

    _PLACES = ("time",)


class AveragePooling2D(_AveragePooling):
    """The mean of each window, channel by channel: [n, height, width, c] -> [n, rows, columns, c].

    Attributes:
        pool_size: height and width of a window; one number for both.
        strides: from one window to the next; the size of a window unless given.
        padding: as of `MaxPooling2D`.
        count_padding: whether places in the padding count as zeros, as PyTorch does unless told otherwise;
            else only places of x count, as in TensorFlow.
    """

    _PLACES = ("height", "width")


class AveragePooling3D(_AveragePooling):
    """The mean of each window of volumes [n, depth, height, width, c]; settings as of `AveragePooling2D`."""

    _PLACES = ("depth", "height", "width")


class _GlobalPooling(Layer):
    """One window that has all places."""

    _PLACES: ClassVar[tuple[str, ...]]

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, self._PLACES)
        y: Operation = self._pooled(x, tuple(range(1, x.ndim - 1)))
        return y

    def _pooled(self, x: Operation, axes: tuple[int, ...]) -> Any:
        return ops.max(x, axes)


class GlobalMaxPooling1D(_GlobalPooling):
    """The largest value of all places: [n, time, c] -> [n, c]; equal ones share the gradient."""

    _PLACES = ("time",)


class GlobalMaxPooling2D(_GlobalPooling):
    """The largest value of all places: [n, height, width, c] -> [n, c]; equal ones share the gradient."""

    _PLACES = ("height", "width")


class GlobalMaxPooling3D(_GlobalPooling):
    """The largest value of all places: [n, depth, height, width, c] -> [n, c]; see `GlobalMaxPooling2D`."""

    _PLACES = ("depth", "height", "width")


class _GlobalAveragePooling(_GlobalPooling):
    def _pooled(self, x: Operation, axes: tuple[int, ...]) -> Any:
        return ops.mean(x, axes)


class GlobalAveragePooling1D(_GlobalAveragePooling):
    """The mean of all places: [n, time, c] -> [n, c]."""

    _PLACES = ("time",)


class GlobalAveragePooling2D(_GlobalAveragePooling):
    """The mean of all places: [n, height, width, c] -> [n, c]."""

    _PLACES = ("height", "width")


class GlobalAveragePooling3D(_GlobalAveragePooling):
    """The mean of all places: [n, depth, height, width, c] -> [n, c]."""

    _PLACES = ("depth", "height", "width")
