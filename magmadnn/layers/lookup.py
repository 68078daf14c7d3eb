"""Embedding: a trained vector for each of a set of numbered things."""

from __future__ import annotations

from magmadnn import ops
from magmadnn.errors import DTypeError
from magmadnn.tensor import Operation, init
from magmadnn.tensor.init import Initializer

from .checks import positive
from .layer import Layer, Regularizer


class Embedding(Layer):
    """`table[x]`: x [...] of integers 0 ... count - 1, table [count, units] -> [..., units].

    A number outside is an error when the graph runs.

    Attributes:
        count: how many things there are.
        units: length of each one's vector.
        table_init: initial vectors; uniform from -0.05 to 0.05.
        table_regularizer: adds to the loss, for instance `md.layers.L2(1e-4)`.
        dtype: of the vectors.
    """

    count: int
    units: int
    table_init: Initializer | str = init.uniform(-0.05, 0.05)
    table_regularizer: Regularizer | None = None
    dtype: str = "float32"

    def build(self, x: Operation) -> None:
        """The table."""
        if x.dtype.kind not in "iu":
            raise DTypeError(
                f"{self}: x must be integers, got {x.dtype.name}; "
                'give the Input dtype="int64", or cast x'
            )
        shape = (positive(self, "count", self.count), positive(self, "units", self.units))
        self.table = self.parameter(
            "table", shape, self.table_init, self.dtype, regularizer=self.table_regularizer
        )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y: Operation = ops.embedding(x, self.table)
        return y
