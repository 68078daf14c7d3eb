"""Epochs of a small convolutional network by PyTorch: channels last, as it is or compiled."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from benchmarks.oracles.zoo_training_torch import CifarCNN, LeNet5
from tests.models.formula_weights import classes, images, weight

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


class Training:
    """One run is an epoch of SGD with momentum, over images in memory."""

    def __init__(
        self, network: str, size: int, channels: int, rows: int, batch: int, compiled: bool
    ) -> None:
        model: Any = {"lenet5": LeNet5, "cifar_cnn": CifarCNN}[network](size)
        with torch.no_grad():
            for key, tensor in model.state_dict().items():
                tensor.copy_(torch.from_numpy(weight(key, tuple(tensor.shape))))
        last = torch.channels_last
        self._model = model.to(memory_format=last).train()
        x = torch.from_numpy(images(rows, size, channels)).permute(0, 3, 1, 2)
        self._x = x.contiguous(memory_format=last)
        self._y, self._batch = torch.from_numpy(classes(rows, 10)), batch
        self._optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        self._loss = torch.compile(self._loss_of) if compiled else self._loss_of

    def _loss_of(self, x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(self._model(x), y)

    def run(self) -> float:
        total = torch.zeros(())
        for k in range(0, len(self._x), self._batch):
            loss = self._loss(self._x[k : k + self._batch], self._y[k : k + self._batch])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total += loss.detach()
        return float(total) / (len(self._x) // self._batch)

    def check(self) -> dict[str, Any]:
        return {"loss": np.array([self.run()])}
