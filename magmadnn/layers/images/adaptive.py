"""Pooling to a given number of results, whatever the size of the image."""

from __future__ import annotations

from typing import Any, ClassVar

from magmadnn import ops
from magmadnn.errors import ShapeError
from magmadnn.graph.dim import Size
from magmadnn.graph.signature import OpWords, shape_text
from magmadnn.layers.checks import check_places
from magmadnn.layers.layer import Layer
from magmadnn.ops.images.windows import counts_of
from magmadnn.tensor import Operation


class _AdaptivePooling(Layer):
    """Bins that cover the image."""

    output_size: int | tuple[int, ...]

    _PLACES: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        self._counts()

    def _counts(self) -> tuple[int, ...]:
        words = OpWords(str(self), ("x",), "")
        return counts_of(words, "output_size", self.output_size, len(self._PLACES))

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, self._PLACES)
        sizes, wanted = x.shape[1:-1], self._counts()
        if not all(isinstance(n, int) for n in sizes):
            raise ShapeError(
                f"{self}: the bins depend on the size of the image, which is not known: x "
                f"{shape_text(x.shape)}; declare it in Input"
            )
        if all(n % count == 0 for n, count in zip(sizes, wanted, strict=True)):
            size = tuple(n // count for n, count in zip(sizes, wanted, strict=True))
            even: Operation = self._pooled(x, size)
            return even
        for axis in range(len(sizes), 0, -1):  # so the first of the largest counts row by row
            x = self._along(x, axis, wanted[axis - 1])
        return x

    def _along(self, x: Operation, axis: int, count: int) -> Operation:
        """Bins along one axis: bin i from floor(i n / count) up to ceil((i + 1) n / count)."""
        n, found = x.shape[axis], []
        for i in range(count):
            begin, end = i * n // count, -(-(i + 1) * n // count)
            size = tuple(end - begin if a == axis else 1 for a in range(1, x.ndim - 1))
            part = x[(*[slice(None)] * axis, slice(begin, end))]
            found.append(self._pooled(part, size))
        y: Operation = ops.concat(found, axis)
        return y

    def _pooled(self, x: Operation, size: tuple[Size, ...]) -> Any:
        return ops.max_pooling(x, size)


class _AdaptiveAverage(_AdaptivePooling):
    """Bins of which the mean is taken."""

    def _pooled(self, x: Operation, size: tuple[Size, ...]) -> Any:
        return ops.average_pooling(x, size)


class AdaptiveMaxPooling1D(_AdaptivePooling):
    """The largest value of each of so many bins: [n, time, c] -> [n, bins, c]; see `AdaptiveMaxPooling2D`.

    Attributes:
        output_size: bins of the result.
    """

    _PLACES = ("time",)


class AdaptiveMaxPooling2D(_AdaptivePooling):
    """The largest value of each of rows x columns bins: [n, height, width, c] -> [n, rows, columns, c].

    Along an axis of n places, bin i of k begins at place `floor(i n / k)` and ends before place
    `ceil((i + 1) n / k)`, as in PyTorch: neighbours may share a place. The gradient goes to the first of the
    largest values of a bin, row by row.

    Attributes:
        output_size: rows and columns of the result; one number for both.
    """

    _PLACES = ("height", "width")


class AdaptiveMaxPooling3D(_AdaptivePooling):
    """The largest value of each bin: `[n, depth, height, width, c] -> [n, *output_size, c]`.

    See `AdaptiveMaxPooling2D`.

    Attributes:
        output_size: bins along depth, height and width; one number for all.
    """

    _PLACES = ("depth", "height", "width")


class AdaptiveAveragePooling1D(_AdaptiveAverage):
    """The mean of each of so many bins: [n, time, c] -> [n, bins, c].

    Bins are those of `AdaptiveMaxPooling2D`.

    Attributes:
        output_size: bins of the result.
    """

    _PLACES = ("time",)


class AdaptiveAveragePooling2D(_AdaptiveAverage):
    """The mean of each of rows x columns bins: [n, height, width, c] -> [n, rows, columns, c].

    Bins are those of `AdaptiveMaxPooling2D`.

    Attributes:
        output_size: rows and columns of the result; one number for both.
    """

    _PLACES = ("height", "width")


class AdaptiveAveragePooling3D(_AdaptiveAverage):
    """The mean of each bin: `[n, depth, height, width, c] -> [n, *output_size, c]`.

    Bins are those of `AdaptiveMaxPooling2D`.

    Attributes:
        output_size: bins along depth, height and width; one number for all.
    """

    _PLACES = ("depth", "height", "width")
