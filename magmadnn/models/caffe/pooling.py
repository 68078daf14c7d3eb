"""Pooling with as many windows as Caffe has, which rounds up."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.errors import ShapeError
from magmadnn.layers import AveragePooling2D, Layer, MaxPooling2D, ZeroPadding2D

from .description import Described


@dataclass(frozen=True)
class Axis:
    """Windows along one axis of an image.

    Attributes:
        count: how many there are.
        pad: places that are added at the beginning, as the file says.
        after: places beyond the image that the last window reaches over; of `pad` there are as many at the
            end, and what is beyond these counts neither as a value nor in a mean.
    """

    count: int
    pad: int
    after: int


def windows(layer: Described, places: int, size: int, stride: int, pad: int, up: bool) -> Axis:
    """The windows of Caffe's pooling: `ceil((places + 2 pad - size) / stride) + 1`.

    With padding, a last window that begins beyond the image is left out.

    Args:
        layer: for errors.
        places: of the image along the axis.
        size: of a window.
        stride: from one window to the next.
        pad: places that are added at both ends.
        up: whether their number is rounded up; Caffe's default.

    Raises:
        ShapeError: a window holds no place of the image.
    """
    sizes = f"{places} places, windows of {size} with stride {stride} and pad {pad}"
    if pad >= size:
        raise ShapeError(f"{layer.where}: pad must be smaller than the window, got {sizes}")
    free = places + 2 * pad - size
    count = (-(-free // stride) if up else free // stride) + 1
    if count < 1:
        raise ShapeError(f"{layer.where}: the image has no window, got {sizes}")
    if pad and (count - 1) * stride >= places + pad:
        count -= 1
    after = max(0, (count - 1) * stride + size - places - pad)
    if after >= size:
        raise ShapeError(
            f"{layer.where}: the last of {count} windows lies beyond the image, where Caffe has no value for "
            f"it: {sizes}; choose round_mode: FLOOR, or a smaller stride"
        )
    return Axis(count, pad, after)


def max_pooling(
    name: str | None, size: tuple[int, int], stride: tuple[int, int], axes: tuple[Axis, Axis]
) -> list[Layer]:
    """The largest value of each window; what is beyond the image counts as less than anything."""
    padding = tuple((axis.pad, axis.after) for axis in axes)
    return [MaxPooling2D(size, stride, padding, name=name)]


def average_pooling(
    name: str | None, size: tuple[int, int], stride: tuple[int, int], axes: tuple[Axis, Axis]
) -> list[Layer]:
    """The mean of each window: zeros of the padding count in it, places beyond the padding do not."""
    rows, columns = (axis.pad for axis in axes)
    beyond = tuple((0, max(0, axis.after - axis.pad)) for axis in axes)
    before: list[Layer] = [ZeroPadding2D((rows, columns))] if rows or columns else []
    return [*before, AveragePooling2D(size, stride, beyond, name=name)]
