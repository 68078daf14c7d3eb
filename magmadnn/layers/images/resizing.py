"""Images made larger by repetition or interpolation, framed with zeros, or cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from magmadnn.graph.dim import product
from magmadnn.graph.signature import OpWords, is_integer, shape_text
from magmadnn.layers.checks import check_places
from magmadnn.layers.layer import Layer
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.images.windows import counts_of
from magmadnn.tensor import Operation

Edges = int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]
_PLACES = ("height", "width")
_WAYS = ("nearest", "bilinear")


class UpSampling2D(Layer):
    """Images made larger: [n, height, width, c] -> [n, height * size, width * size, c].

    "nearest" repeats each place. "bilinear" takes place i of the result at `(i + 1/2) / size - 1/2` between
    the places of x, and the outermost place beyond the edge, as TensorFlow does, and PyTorch with
    `align_corners=False`.

    Attributes:
        size: factors of height and width; one number for both.
        interpolation: "nearest" or "bilinear".
    """

    size: int | tuple[int, int] = 2
    interpolation: str = "nearest"

    def __post_init__(self) -> None:
        counts_of(OpWords(str(self), ("x",), ""), "size", self.size, 2)
        if self.interpolation not in _WAYS:
            raise UnknownNameError.of(f"{self}: interpolation", self.interpolation, _WAYS)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, _PLACES)
        if self.interpolation == "bilinear" and not is_floating(x.dtype):
            raise DTypeError(f"{self}: x must be floating-point, got {x.dtype.name}; cast it")
        factors = counts_of(OpWords(str(self), ("x",), ""), "size", self.size, 2)
        for axis, factor in zip((1, 2), factors, strict=True):
            if factor > 1:
                x = self._along(x, axis, factor)
        return x

    def _along(self, x: Operation, axis: int, factor: int) -> Operation:
        """One axis made larger."""
        # [outer, n, 1, inner], so that the gradient sums over rows of matrices
        outer, n, inner = product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :])
        if self.interpolation == "nearest":
            seen = ops.expand(ops.reshape(x, (outer, n, 1, inner)), (outer, n, factor, inner))
        else:
            first, last = (slice(0, 1), slice(-1, None))
            before = (slice(None),) * axis
            framed = ops.concat([x[(*before, first)], x, x[(*before, last)]], axis)
            framed = ops.reshape(framed, (outer, n + 2, 1, inner))
            weights = _weights(factor, x.dtype)
            seen = sum(framed[:, k : k + n] * weights[k] for k in range(3))
        y: Operation = ops.reshape(seen, (*x.shape[:axis], n * factor, *x.shape[axis + 1 :]))
        return y


def _weights(factor: int, dtype: Any) -> Any:
    """What the place before, the place itself and the one behind count: [3, 1, 1, factor, 1]."""
    places = (np.arange(factor) + 0.5) / factor - 0.5
    before, behind = np.maximum(-places, 0), np.maximum(places, 0)
    weights = np.stack([before, 1 - before - behind, behind])
    return weights.reshape(3, 1, 1, factor, 1).astype(dtype)


class ZeroPadding2D(Layer):
    """Zeros around images: [n, height, width, c] -> [n, top + height + bottom, left + width + right, c].

    Attributes:
        padding: a number for all sides, (vertical, horizontal), or ((top, bottom), (left, right)).
    """

    padding: Edges = 1

    def __post_init__(self) -> None:
        _edges(self, "padding", self.padding)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, _PLACES)
        y: Operation = ops.pad(x, ((0, 0), *_edges(self, "padding", self.padding), (0, 0)))
        return y


class Cropping2D(Layer):
    """Images without their edges: [n, height, width, c] -> [n, height', width', c].

    height' is `height - top - bottom`, width' is `width - left - right`.

    Attributes:
        cropping: a number for all sides, (vertical, horizontal), or ((top, bottom), (left, right)).
    """

    cropping: Edges

    def __post_init__(self) -> None:
        _edges(self, "cropping", self.cropping)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, _PLACES)
        rows, columns = _edges(self, "cropping", self.cropping)
        for name, n, pair in zip(_PLACES, x.shape[1:-1], (rows, columns), strict=True):
            if isinstance(n, int) and n <= sum(pair):
                raise ShapeError(
                    f"{self}: cropping {pair[0]} and {pair[1]} of the {name} {n} leaves nothing: x "
                    f"{shape_text(x.shape)}"
                )
        (top, bottom), (left, right) = rows, columns
        y: Operation = x[:, top : -bottom or None, left : -right or None]
        return y


def _edges(layer: Layer, argument: str, value: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, bottom), (left, right)).

    Raises:
        ArgumentError: if it is something else.
    """
    each = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    pairs = [tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in each]
    whole = all(len(p) == 2 and all(is_integer(n) and n >= 0 for n in p) for p in pairs)
    if len(pairs) != 2 or not whole:
        raise ArgumentError(
            f"{layer}: {argument} must be an integer from 0, (vertical, horizontal), or ((top, bottom), "
            f"(left, right)), got {value!r}"
        )
    (top, bottom), (left, right) = (tuple(map(int, p)) for p in pairs)
    return (top, bottom), (left, right)
