"""Regularisers: what weights add to the loss, the lambda * Omega(w) of the papers.

Nichols et al., "MagmaDNN: towards high-performance deep learning using Magma", 2019, algorithms 1 and 2.
A regulariser is a function of a parameter that gives a scalar; any function of your own will do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from magmadnn import ops
from magmadnn.errors import ArgumentError

from .checks import is_finite


@dataclass(frozen=True)
class _Factors:
    """Factors of at least 0."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_finite(value) or value < 0:
                raise ArgumentError(
                    f"{type(self).__name__}: {field.name} must be a finite number of at least 0, "
                    f"got {value!r}"
                )


@dataclass(frozen=True)
class L1(_Factors):
    """`factor * sum(|w|)`: makes weights that do not matter 0."""

    factor: float = 0.01

    def __call__(self, weight: Any) -> Any:
        """A scalar."""
        return self.factor * ops.sum(ops.abs(weight))


@dataclass(frozen=True)
class L2(_Factors):
    """`factor * sum(w**2)`, without 1/2: plain SGD shrinks w by 2 * learning_rate * factor a step."""

    factor: float = 0.01

    def __call__(self, weight: Any) -> Any:
        """A scalar."""
        return self.factor * ops.sum(ops.square(weight))


@dataclass(frozen=True)
class L1L2(_Factors):
    """`l1 * sum(|w|) + l2 * sum(w**2)`."""

    l1: float = 0.01
    l2: float = 0.01

    def __call__(self, weight: Any) -> Any:
        """A scalar."""
        return L1(self.l1)(weight) + L2(self.l2)(weight)
