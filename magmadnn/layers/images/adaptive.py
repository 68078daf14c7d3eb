"""Pooling to a given number of results, whatever the size of the image."""

from __future__ import annotations

from typing import Any

from magmadnn import ops
from magmadnn.errors import ShapeError
from magmadnn.graph.dim import Size
from magmadnn.graph.signature import OpWords, shape_text
from magmadnn.layers.checks import check_places
from magmadnn.layers.layer import Layer
from magmadnn.ops.images.windows import counts_of
from magmadnn.tensor import Operation

_PLACES = ("height", "width")


class _AdaptivePooling(Layer):
    """Bins that cover the image."""

    output_size: int | tuple[int, int]

    def __post_init__(self) -> None:
        counts_of(OpWords(str(self), ("x",), ""), "output_size", self.output_size, 2)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, _PLACES)
        sizes = x.shape[1:-1]
        if not all(isinstance(n, int) for n in sizes):
            raise ShapeError(
                f"{self}: the bins depend on the size of the image, which is not known: x "
                f"{shape_text(x.shape)}; declare it in Input"
            )
        wanted = counts_of(OpWords(str(self), ("x",), ""), "output_size", self.output_size, 2)
        if all(n % count == 0 for n, count in zip(sizes, wanted, strict=True)):
            size = tuple(n // count for n, count in zip(sizes, wanted, strict=True))
            even: Operation = self._pooled(x, size)
            return even
        for axis in (2, 1):  # so the first of the largest counts row by row
            x = self._along(x, axis, wanted[axis - 1])
        return x

    def _along(self, x: Operation, axis: int, count: int) -> Operation:
        """Bins along one axis: bin i from floor(i n / count) up to ceil((i + 1) n / count)."""
        n, found = x.shape[axis], []
        for i in range(count):
            begin, end = i * n // count, -(-(i + 1) * n // count)
            size = tuple(end - begin if a == axis else 1 for a in (1, 2))
            found.append(self._pooled(x[:, begin:end] if axis == 1 else x[:, :, begin:end], size))
        y: Operation = ops.concat(found, axis)
        return y

    def _pooled(self, x: Operation, size: tuple[Size, ...]) -> Any:
        return ops.max_pooling(x, size)


class AdaptiveMaxPooling2D(_AdaptivePooling):
    """The largest value of each of rows x columns bins: [n, height, width, c] -> [n, rows, columns, c].

    Along an axis of n places, bin i of k begins at place `floor(i n / k)` and ends before place
    `ceil((i + 1) n / k)`, as in PyTorch: neighbours may share a place. The gradient goes to the first of the
    largest values of a bin, row by row.

    Attributes:
        output_size: rows and columns of the result; one number for both.
    """


class AdaptiveAveragePooling2D(_AdaptivePooling):
    """The mean of each of rows x columns bins: [n, height, width, c] -> [n, rows, columns, c].

    Bins are those of `AdaptiveMaxPooling2D`.

    Attributes:
        output_size: rows and columns of the result; one number for both.
    """

    def _pooled(self, x: Operation, size: tuple[Size, ...]) -> Any:
        return ops.average_pooling(x, size)
