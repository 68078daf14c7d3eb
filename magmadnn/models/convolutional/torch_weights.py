"""Weights of a torchvision state dict, in safetensors form, into a model whose layers have its names."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, shown
from magmadnn.memory.dtypes import is_floating
from magmadnn.storage.formats.tensor_file import tensors_from_bytes
from magmadnn.storage.input_files import check_room, input_path, opened
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
_WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
# How files of torch.save begin, now and before 1.6; as lengths of a safetensors header, which they would be,
# too large for one.
_PICKLED = (b"PK\x03\x04", b"\x80\x02\x8a\x0a")
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

    What DataParallel or torch.compile put before all names is left out.

    Raises:
        DataError: the file holds weights of another network, naming the first layer that differs; values
            that are integers, NaN, infinite or negative variances; or it was written by `torch.save`.
        FileError, CheckpointError: it cannot be read.
    """
    path = input_path("weights: the file", file)
    where = shown(path)
    found = tensors_from_bytes(_bytes_of(path), where)
    given = {name: a for name, a in _unwrapped(found).items() if not name.endswith(_NO_VALUES)}
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
        _check_values(f"{where}: {key}", array, local)
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


def _bytes_of(path: Path) -> bytes:
    """What a file holds, also behind a link, as in the folders of downloads."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise DataError(f"{shown(path)}: expected at most {_MOST_BYTES:,} bytes, got {size:,}")
        check_room(path, 2 * size, "use a machine with more")
        with io.BufferedReader(file) as reader:
            data = reader.read()
    if data.startswith(_PICKLED):
        raise DataError(
            f"{shown(path)}: was written by torch.save, which is not read since it may hold programs: write "
            "it by safetensors.torch.save_file(net.state_dict(), file)"
        )
    return data


def _unwrapped(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """The same without the names of wrappers before all names."""
    for before in _WRAPPERS:
        if tensors and all(name.startswith(before) for name in tensors):
            return _unwrapped({name.removeprefix(before): a for name, a in tensors.items()})
    return tensors


def _check_values(what: str, array: Array, local: str) -> None:
    """Refuse what no network has learnt.

    Raises:
        DataError: see `load_torch_weights`.
    """
    if not is_floating(array.dtype):
        raise DataError(
            f"{what} holds {array.dtype}, expected floating point numbers: quantised networks are not read"
        )
    if not np.isfinite(array).all():
        raise DataError(f"{what} holds NaN or infinity: the network that it is from has diverged")
    if local == "running_variance" and (array < 0).any():
        raise DataError(f"{what} holds {array.min():g}, but a variance is never below 0")


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
