"""A function of one's own as a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.tensor import Operation

from .layer import Layer


class Lambda(Layer):
    """`function(x)`, or `function(a, b, ...)` of several inputs: operators and `md.ops`, without parameters.

    It is saved by the function's name and handed over for loading: `md.load(folder, custom=[function])`.
    A function without a name, a `lambda`, trains and predicts, but cannot be saved. What has parameters is
    a layer of its own, see `Layer`.

    Attributes:
        function: takes Operations and gives one; called once for each call of the layer.
    """

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if isinstance(self.function, type) or not callable(self.function):
            raise ArgumentError(
                f"{self}: function must be a function of Operations, got {self.function!r}; "
                "give for instance lambda x: 2 * x"
            )

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        try:
            y: Operation = self.function(*inputs)
        except TypeError as error:
            raise ArgumentError(
                f"{self}: the function failed on {len(inputs)} Operations: {error}"
            ) from error
        return y
