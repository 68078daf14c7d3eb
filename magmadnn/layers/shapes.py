"""Layers that change the shape of a sample and nothing else."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.tensor import Operation

from .layer import Layer


class Flatten(Layer):
    """All axes of a sample in one, in row-major order: `[batch, a, b, ...] -> [batch, a * b * ...]`."""

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y: Operation = ops.flatten(x)
        return y


class Reshape(Layer):
    """Each sample in another shape, in row-major order: `[batch, ...] -> [batch, *shape]`.

    Attributes:
        shape: of one sample, without the batch; one size may be -1 and follows from the others.
    """

    shape: Sequence[int]

    def __post_init__(self) -> None:
        given = self.shape
        try:
            sizes = tuple(map(operator.index, (given,) if isinstance(given, int) else given))
        except TypeError as error:
            raise ArgumentError(f"{self}: shape must hold integers, got {given!r}") from error
        if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
            raise ArgumentError(
                f"{self}: shape must hold sizes of at least 1, one of them may be -1, got {given!r}"
            )
        self.shape = sizes

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y: Operation = ops.reshape(x, (*x.shape[:1], *self.shape))
        return y
