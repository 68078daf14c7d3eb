"""What is known of a value before it is computed: shape and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .dim import Dim, Shape


@dataclass(frozen=True)
class Spec:
    """Shape (ints and symbolic dimensions) and dtype of a value."""

    shape: Shape
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the dimensions that are not known yet."""
        return frozenset().union(*(d.symbols for d in self.shape if isinstance(d, Dim)))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"
