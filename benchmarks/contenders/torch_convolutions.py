"""A convolution of images with its two gradients, by PyTorch: oneDNN on channels-last tensors."""

from __future__ import annotations

import os
from typing import Any

import torch

from benchmarks.contenders.images import layer_data

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


class Layer:
    """One run computes the outputs, the gradient of the inputs and that of the filters."""

    def __init__(
        self, size: tuple[int, ...], kernel: int, filters: int, stride: int, padding: int
    ) -> None:
        x, w, g = layer_data(size, kernel, filters, stride, padding)
        last = torch.channels_last
        self._x, self._g = (
            torch.from_numpy(a).permute(0, 3, 1, 2).contiguous(memory_format=last) for a in (x, g)
        )
        self._w = torch.from_numpy(w).permute(3, 2, 0, 1).contiguous(memory_format=last)
        self._geometry = ([stride] * 2, [padding] * 2, [1, 1])
        self._made: Any = None

    def run(self) -> None:
        with torch.no_grad():
            y = torch.nn.functional.conv2d(self._x, self._w, None, *self._geometry)
            found = torch.ops.aten.convolution_backward(
                self._g,
                self._x,
                self._w,
                None,
                *self._geometry,
                False,
                [0, 0],
                1,
                [True, True, False],
            )
        self._made = (y, *found[:2])

    def check(self) -> dict[str, Any]:
        self.run()
        y, dx, dw = self._made
        return {
            "forward": y.permute(0, 2, 3, 1).numpy(),
            "inputs": dx.permute(0, 2, 3, 1).numpy(),
            "filters": dw.permute(2, 3, 1, 0).numpy(),
        }
