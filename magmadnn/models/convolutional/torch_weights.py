"""Weights of a torchvision state dict, in safetensors form, into a model whose layers have its names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, shown
from magmadnn.storage.durable import read_file
from magmadnn.storage.formats.tensor_file import tensors_from_bytes
from magmadnn.storage.input_files import input_path
from magmadnn.training import Model

Array = NDArray[Any]

_ENDINGS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
}
_NO_VALUES = "num_batches_tracked"  # PyTorch's count of steps, which nothing here depends on
_MOST_BYTES = 4 << 30


def load_torch_weights(
    model: Model, file: str | os.PathLike[str], flattened: Mapping[str, tuple[int, ...]]
) -> None:
    """Give a model the weights in a file.

    Kernels of convolutions go from [out, in, height, width] to [height, width, in, out], those of dense
    layers from [out, in] to [in, out]; behind a Flatten their inputs go from channels first to channels
    last.

    Args:
        model: whose layers are named as torchvision names its modules.
        file: as `safetensors.torch.save_file(net.state_dict(), file)` writes it.
        flattened: dense layers behind a Flatten, with the shape [height, width, channels] before it.

    Raises:
        DataError: the file holds weights of another network; names the first layer that differs.
        FileError, CheckpointError: it cannot be read.
    """
    path = input_path("weights: the file", file)
    where = shown(path)
    found = tensors_from_bytes(read_file(path, _MOST_BYTES), where)
    given = {name: a for name, a in found.items() if not name.endswith(_NO_VALUES)}
    values: dict[str, Array] = {}
    for name, parameter in model.named().items():
        layer, _, local = name.rpartition("/")
        if local not in _ENDINGS:  # such as dropout's counter
            values[name] = np.array(parameter.value.read())
            continue
        layer = layer.replace("/", ".")
        key = f"{layer}.{_ENDINGS[local]}"
        if key not in given:
            raise DataError(
                f"{where}: holds weights of another network: {key} is missing, which layer {layer} needs"
            )
        array = _ours(given.pop(key), flattened.get(layer))
        if array.shape != parameter.shape:
            raise DataError(
                f"{where}: holds weights of another network: layer {layer} differs first: {key} would be "
                f"{list(array.shape)} here, expected {list(parameter.shape)}"
            )
        values[name] = array.astype(parameter.dtype)
    if given:
        raise DataError(
            f"{where}: holds weights of another network: {next(iter(given))} is not in this one"
        )
    model.assign(values)


def _ours(array: Array, flattened: tuple[int, ...] | None) -> Array:
    """A tensor of PyTorch in our order of axes."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    if array.ndim != 2:
        return array
    if flattened is not None:
        height, width, channels = flattened
        if array.shape[1] == height * width * channels:
            first = array.reshape(len(array), channels, height, width)
            return first.transpose(2, 3, 1, 0).reshape(-1, len(array))
    return np.ascontiguousarray(array.T)
