"""Training steps of a transformer block: layer normalisation, attention of several heads, two dense layers.

python -m benchmarks.attention [--device cuda] [--sequences 64] [--length 128] [--heads 8] [--depth 64]

Microseconds of a step of a long fit, the difference of fits of few and of many epochs, the least of several,
for each way to write the heads: three projections and transposes, one projection and slices, sums by letters.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import magmadnn as md
from magmadnn import ops
from magmadnn.tensor import Operation

WAYS = ("separate", "joint", "einsum")
BATCHES, EPOCHS, RUNS = 4, 15, 3


class Attention(md.layers.Layer):
    """softmax(q k^T / sqrt(depth)) v of [batch, time, heads * depth], and a projection; without a mask."""

    heads: int = 8
    way: str = "separate"

    def build(self, x: Operation) -> None:
        """Weights, without biases."""
        width, init = x.shape[-1], md.init.glorot_uniform()
        names = {"qkv": 3} if self.way == "joint" else dict.fromkeys("qkv", 1)
        self.weights = [
            self.parameter(name, (width, times * width), init, x.dtype)
            for name, times in names.items()
        ]
        self.merging = self.parameter("o", (width, width), init, x.dtype)

    def forward(self, x: Operation) -> Operation:
        """[batch, time, heads * depth]."""
        _, time, width = x.shape
        depth = width // self.heads
        if self.way == "joint":
            made = ops.reshape(x @ self.weights[0], (-1, time, 3, self.heads, depth))
            q, k, v = (made[:, :, i] for i in range(3))
        else:
            shape = (-1, time, self.heads, depth)
            q, k, v = (ops.reshape(x @ w, shape) for w in self.weights)
        scale = float(np.sqrt(depth))
        if self.way == "einsum":
            p = ops.softmax(ops.einsum("bthd,bshd->bhts", q, k) / scale)
            y = ops.einsum("bhts,bshd->bthd", p, v)
        else:
            q, k, v = (ops.transpose(part, (0, 2, 1, 3)) for part in (q, k, v))
            p = ops.softmax(q @ ops.swapaxes(k, -1, -2) / scale)
            y = ops.transpose(p @ v, (0, 2, 1, 3))
        merged: Operation = ops.reshape(y, (-1, time, width)) @ self.merging
        return merged


def block(length: int, width: int, heads: int, way: str, precision: str, device: str) -> md.Model:
    """The network."""
    layers = md.layers
    x = layers.Input((length, width))
    y = layers.Add()(x, Attention(heads, way)(layers.LayerNorm()(x)))
    wide = layers.Dense(4 * width, activation="relu")(layers.LayerNorm()(y))
    out = layers.Add()(y, layers.Dense(width)(wide))
    how = {"precision": precision, "device": device, "seed": 1}
    return md.Model(inputs=x, outputs=out, loss="mse", optimizer=md.optim.SGD(0.01), **how)


def microseconds(model: md.Model, shape: tuple[int, int, int]) -> float:
    """Of a step with batches of a shape."""
    rng = np.random.default_rng(0)
    size = (BATCHES * shape[0], *shape[1:])
    x, y = (rng.standard_normal(size, dtype=np.float32) for _ in range(2))

    def fitted(epochs: int) -> float:
        began = time.perf_counter()
        model.fit(x, y, batch_size=shape[0], epochs=epochs, verbose=False)
        return time.perf_counter() - began

    fitted(2)
    found = [fitted(3 * EPOCHS) - fitted(EPOCHS) for _ in range(RUNS)]
    return 1e6 * min(found) / (2 * EPOCHS * BATCHES)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    for name, usual in (("sequences", 64), ("length", 128), ("heads", 8), ("depth", 64)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    width = options.heads * options.depth
    shape = (options.sequences, options.length, width)
    for precision in ("mixed_bf16", "tf32", "float32"):
        for way in WAYS:
            model = block(options.length, width, options.heads, way, precision, options.device)
            print(f"{precision:12}{way:10}{microseconds(model, shape):9.0f} us a step", flush=True)


if __name__ == "__main__":
    main()
