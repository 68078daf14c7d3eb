"""ResNet-50 forward on images in memory: by magmadnn, by PyTorch (channels last) and by onnxruntime.

All have the weights that PyTorch draws from the seed 0; onnxruntime has the graph that PyTorch exports.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.oracles.torchvision_networks import ResNet

SIZE, CLASSES = 224, 1000
THREADS = int(os.environ["OMP_NUM_THREADS"])
torch.set_num_threads(THREADS)


def network() -> Any:
    """The network as torchvision builds it, for prediction."""
    torch.manual_seed(0)
    return ResNet([3, 4, 6, 3], True, CLASSES).eval()


def images(rows: int) -> Any:
    """Images [rows, height, width, channels], float32."""
    return np.random.default_rng(5).standard_normal((rows, SIZE, SIZE, 3), np.float32)


class Ours:
    """By `Model.predict`."""

    def __init__(self, rows: int) -> None:
        from safetensors.torch import save_file

        import magmadnn as md

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "weights.safetensors"
            save_file(network().state_dict(), file)
            self._model = md.models.resnet50((SIZE, SIZE, 3), CLASSES, weights=file, device="cpu")
        self._x = images(rows)

    def run(self) -> Any:
        return self._model.predict(self._x)

    def check(self) -> dict[str, Any]:
        return {"outputs": self.run()}


class Torch:
    """By PyTorch."""

    def __init__(self, rows: int, compiled: bool) -> None:
        model = network().to(memory_format=torch.channels_last)
        self._model = torch.compile(model) if compiled else model
        x = torch.from_numpy(images(rows)).permute(0, 3, 1, 2)
        self._x = x.contiguous(memory_format=torch.channels_last)

    def run(self) -> Any:
        with torch.inference_mode():
            return self._model(self._x)

    def check(self) -> dict[str, Any]:
        return {"outputs": self.run().numpy()}


class Onnx:
    """By onnxruntime, with all of its optimisations."""

    def __init__(self, rows: int) -> None:
        import onnxruntime

        self._x = np.ascontiguousarray(images(rows).transpose(0, 3, 1, 2))
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "resnet50.onnx")
            torch.onnx.export(
                network(), (torch.from_numpy(self._x),), file, input_names=["x"], dynamo=False
            )
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
            self._session = onnxruntime.InferenceSession(
                file, options, providers=["CPUExecutionProvider"]
            )

    def run(self) -> Any:
        return self._session.run(None, {"x": self._x})[0]

    def check(self) -> dict[str, Any]:
        return {"outputs": self.run()}
