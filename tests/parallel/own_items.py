"""A layer, an op, a loss and a regulariser of a user's, which workers import by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.graph import scalar

bent = md.ops.pointwise(
    "user_bent",
    "x + sin(a x)",
    lambda x, a: x + scalar.sin(a * x),
    vjp=lambda g, y, x, a: g * (1 + a * md.ops.cos(a * x)),
    attributes={"a": 1.0},
)  # fmt: skip


class Whitened(md.layers.Layer):
    """`A^-1 x`, with a trained A that is positive definite."""

    a: float = 1.0

    def build(self, x: Any) -> None:
        size = x.shape[-1]
        self.root = self.parameter("root", (size, size), md.init.normal(), x.dtype)

    def forward(self, x: Any) -> Any:
        a = self.root @ self.root.T + np.eye(x.shape[-1], dtype=x.dtype)
        return bent(md.linalg.solve(a, x.T).T, a=self.a)


@dataclass(frozen=True)
class Cubes:
    """A regulariser."""

    rate: float

    def __call__(self, kernel: Any) -> Any:
        return self.rate * (md.ops.abs(kernel) ** 3).sum()


def own_loss(scores: Any, targets: Any) -> Any:
    return md.losses.cross_entropy(scores, targets) * 0.5


def twice(x: Any) -> Any:
    return 2.0 * x


def network(seed: int = 1, extra: Any = twice) -> md.Model:
    layers = [
        md.layers.Input((6,)), md.layers.Dense(5, kernel_regularizer=Cubes(0.01)), Whitened(0.5),
        md.layers.Lambda(extra), md.layers.Dense(3),
    ]  # fmt: skip
    return md.Model(layers, loss=own_loss, optimizer="adam", seed=seed)
