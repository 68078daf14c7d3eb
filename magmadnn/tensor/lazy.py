"""A Tensor whose initial values are drawn when they are first read.

A layer makes its parameters before a Model gives it a final name and a seed. Initial values depend on
both, so they wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.graph.op import Array

from .init import Initializer
from .tensor import Tensor


class LazyTensor:
    """Storage of a variable: shape, dtype and initialiser now, values at the first use.

    Attributes:
        name: str(name) is the stream of the random numbers.
        seed: of the random numbers; may be set until the first use.
    """

    def __init__(
        self, name: object, shape: tuple[int, ...], dtype: np.dtype[Any], init: Initializer
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.init = init
        self.seed = 0
        self._tensor: Tensor | None = None

    @property
    def drawn(self) -> bool:
        """Whether the values exist already."""
        return self._tensor is not None

    @property
    def tensor(self) -> Tensor:
        """The values, drawn now if they were not yet."""
        if self._tensor is None:
            self._tensor = Tensor(
                self.shape, self.init, self.dtype, seed=self.seed, name=str(self.name)
            )
        return self._tensor

    def read(self) -> Array:
        """The values on the host."""
        return self.tensor.read()

    def write(self, value: Array) -> None:
        """Set the values."""
        self.tensor.write(value)
