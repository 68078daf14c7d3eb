"""Epochs of `fit` of a small convolutional network, by magmadnn."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import magmadnn as md
from tests.models.formula_weights import classes, images, weight

ENDINGS = {"kernel": "weight", "bias": "bias"}


class Training:
    """One run is an epoch of SGD with momentum, over images in memory."""

    def __init__(self, network: str, size: int, channels: int, rows: int, batch: int) -> None:
        make = getattr(md.models, network)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "weights.safetensors"
            save_file(_weights(make((size, size, channels), 10)), file)
            self._model = make(
                (size, size, channels), 10, weights=file, loss="cross_entropy",
                optimizer=md.optim.SGD(0.01, momentum=0.9),
            )  # fmt: skip
        self._x, self._y, self._batch = images(rows, size, channels), classes(rows, 10), batch

    def run(self) -> Any:
        return self._model.fit(
            self._x, self._y, batch_size=self._batch, epochs=1, shuffle=False, verbose=0
        )

    def check(self) -> dict[str, Any]:
        return {"loss": np.array([self.run().rows[-1]["loss"]])}


def _weights(model: md.Model) -> dict[str, Any]:
    """A state dict as PyTorch has it, by the formula."""
    state = {}
    for name, value in model.values().items():
        layer, _, local = name.rpartition("/")
        shape = value.shape
        of_torch = (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]
        key = f"{layer.replace('/', '.')}.{ENDINGS[local]}"
        state[key] = np.ascontiguousarray(weight(key, of_torch))
    return state
