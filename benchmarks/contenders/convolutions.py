"""A convolution of images with its two gradients, by magmadnn: what a layer costs in a training step."""

from __future__ import annotations

from typing import Any

import numpy as np

import magmadnn as md
from benchmarks.contenders.images import layer_data
from magmadnn.runtime import Executable

RESULTS = ("forward", "inputs", "filters")


class Layer:
    """One run writes the outputs, the gradient of the inputs and that of the filters into variables."""

    def __init__(
        self, size: tuple[int, ...], kernel: int, filters: int, stride: int, padding: int
    ) -> None:
        image, weights, gradient = layer_data(size, kernel, filters, stride, padding)
        x, w = md.variable("x", image), md.variable("w", weights)
        g = md.variable("g", gradient)
        y = md.ops.convolution(x, w, strides=stride, padding=padding)
        made = (y, *md.grad(y, [x, w], g))
        self.results = [
            md.variable(name, np.zeros(m.shape, np.float32))
            for name, m in zip(RESULTS, made, strict=True)
        ]
        updates = [(r.node, m.node) for r, m in zip(self.results, made, strict=True)]
        self.program = Executable([], updates, executor="native")

    def run(self) -> None:
        self.program.run({})

    def check(self) -> dict[str, Any]:
        self.run()
        return {
            name: np.array(r.value.read()) for name, r in zip(RESULTS, self.results, strict=True)
        }
