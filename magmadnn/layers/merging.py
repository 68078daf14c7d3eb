"""Layers of several inputs: one after the other along an axis, or element by element.

They are called with a list or with several arguments: `Add()([a, b])`, `Add()(a, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from magmadnn import ops
from magmadnn.errors import ArgumentError, DTypeError, ShapeError
from magmadnn.graph.signature import OpWords, axis_number, shape_text
from magmadnn.memory.dtypes import is_floating
from magmadnn.tensor import Operation

from .layer import Layer


def _of_one_dtype(layer: Layer, inputs: Sequence[Operation]) -> None:
    """Nothing, for two inputs or more of one dtype.

    Raises:
        ArgumentError: for a single input.
        DTypeError: naming the first that differs.
    """
    if len(inputs) < 2:
        raise ArgumentError(
            f"{layer}: needs two inputs or more, got 1; call it with a list: [a, b]"
        )
    for number, x in enumerate(inputs):
        if x.dtype != inputs[0].dtype:
            raise DTypeError(
                f"{layer}: input 0 is {inputs[0].dtype.name} but input {number} {x.dtype.name}; "
                f'make them equal: md.ops.cast(x, "{inputs[0].dtype.name}")'
            )


def _folded(layer: Layer, inputs: Sequence[Operation], op: Callable[[Any, Any], Any]) -> Any:
    """`op(op(inputs[0], inputs[1]), ...)` of inputs of one shape.

    Raises:
        ShapeError: naming the first whose shape differs.
    """
    _of_one_dtype(layer, inputs)
    for number, x in enumerate(inputs):
        if x.shape != inputs[0].shape:
            raise ShapeError(
                f"{layer}: input 0 is {shape_text(inputs[0].shape)} but input {number} "
                f"{shape_text(x.shape)}; make them equal, or write an operator, which broadcasts: a + b"
            )
    return reduce(op, inputs)


class Concatenate(Layer):
    """The inputs one after the other along an axis: `[batch, a], [batch, b] -> [batch, a + b]`.

    All other axes have one size, and all inputs one dtype.

    Attributes:
        axis: any but that of the batch, 0; the last one.
    """

    axis: int = -1

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        _of_one_dtype(self, inputs)
        axis = axis_number(OpWords(str(self), ("input 0",), ""), self.axis, inputs[0].ndim)
        if axis == 0:
            raise ArgumentError(
                f"{self}: axis must be one of a sample, got {self.axis!r} "
                f"for input 0 {shape_text(inputs[0].shape)}; axis 0 is the batch"
            )
        expected = list(inputs[0].shape)
        for number, x in enumerate(inputs):
            alike = x.ndim == len(expected) and all(
                size == expected[at] for at, size in enumerate(x.shape) if at != axis
            )
            if not alike:
                raise ShapeError(
                    f"{self}: input 0 is {shape_text(inputs[0].shape)} but input {number} "
                    f"{shape_text(x.shape)}; only axis {axis} may differ"
                )
        joined: Operation = ops.concat(list(inputs), axis=axis)
        return joined


class Add(Layer):
    """`a + b + ...`, element by element, of inputs of one shape and dtype."""

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        total: Operation = _folded(self, inputs, ops.add)
        return total


class Subtract(Layer):
    """`a - b`, element by element, of two inputs of one shape and dtype."""

    def forward(self, a: Operation, b: Operation) -> Operation:
        """The formula."""
        difference: Operation = _folded(self, (a, b), ops.subtract)
        return difference


class Multiply(Layer):
    """`a * b * ...`, element by element, of inputs of one shape and dtype."""

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        product: Operation = _folded(self, inputs, ops.multiply)
        return product


class Average(Layer):
    """`(a + b + ...) / how many`, element by element, of inputs of one shape and floating-point dtype.

    Half-precision values are added in float32.
    """

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        dtype = inputs[0].dtype
        if not is_floating(dtype):
            raise DTypeError(f"{self}: inputs must be floating-point, got {dtype.name}; cast them")
        narrow = dtype.itemsize < 4
        _of_one_dtype(self, inputs)
        wide = [ops.cast(x, "float32") for x in inputs] if narrow else inputs
        mean = _folded(self, wide, ops.add) / len(inputs)
        found: Operation = ops.cast(mean, dtype) if narrow else mean
        return found


class Maximum(Layer):
    """The largest of the inputs in each place, of one shape and dtype; NaN where one is NaN."""

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        largest: Operation = _folded(self, inputs, ops.maximum)
        return largest


class Minimum(Layer):
    """The smallest of the inputs in each place, of one shape and dtype; NaN where one is NaN."""

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        smallest: Operation = _folded(self, inputs, ops.minimum)
        return smallest
