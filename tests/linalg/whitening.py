"""A network with a factor and a solution in its step: inputs whitened by a covariance that is learnt."""

from __future__ import annotations

from typing import Any

import numpy as np

import magmadnn as md

RNG = np.random.default_rng(5)
X = RNG.normal(size=(211, 6)).astype(np.float32)
Y = (X @ RNG.normal(size=(6, 2))).astype(np.float32)
BATCH = 16


class Whiten(md.layers.Layer):
    """L^-1 x of samples, with L L^T = A A^T / 6 + 1/2, where A is learnt."""

    def build(self, x: Any) -> None:
        """A [n, n]."""
        n = x.shape[-1]
        self.root = self.parameter("root", (n, n), md.init.glorot_uniform(), x.dtype)

    def forward(self, x: Any) -> Any:
        """[batch, n] -> [batch, n]"""
        n = x.shape[-1]
        product = md.ops.matmul(self.root, md.ops.swapaxes(self.root, 0, 1)) / n
        factor = md.linalg.cholesky(product + 0.5 * np.eye(n, dtype=x.dtype))
        solved = md.linalg.solve_triangular(factor, md.ops.swapaxes(x, 0, 1), lower=True)
        return md.ops.swapaxes(solved, 0, 1)


def network(**options: Any) -> md.Model:
    layers = [md.layers.Input((6,)), Whiten(), md.layers.Dense(7, activation="tanh")]
    return md.Model(
        [*layers, md.layers.Dense(2)],
        loss="mse", optimizer=md.optim.Adam(0.01), seed=3, **options,
    )  # fmt: skip


def trained(model: md.Model, **options: Any) -> md.Model:
    model.fit(X, Y, batch_size=BATCH, epochs=3, verbose=False, **options)
    return model


def apart(one: md.Model, other: md.Model) -> float:
    """The largest difference of parameters."""
    left, right = one.values(), other.values()
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)
