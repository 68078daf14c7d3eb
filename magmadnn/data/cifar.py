"""CIFAR-10 in its binary version: batches of records of one label byte and 3 x 32 x 32 bytes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; layout from the
data set's page, section "Binary version".
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data._find import find_file, list_folder
from magmadnn.data._packed import SMALLER, unpacked
from magmadnn.errors import DataError, shown
from magmadnn.storage.input_files import check_room, input_path, opened, reading

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]

_SHAPE = (3, 32, 32)  # channel, height, width in the file
_RECORD = 1 + 3 * 32 * 32
_CLASSES = 10
_TRAIN = re.compile(r"data_batch_([1-9][0-9]{0,8})\.bin(?:\.gz|\.xz|\.bz2)?")
_NAMES_BYTES = 10_000  # of batches.meta.txt, which has ten short lines


@checked_call
def cifar10(folder: str | os.PathLike[str]) -> tuple[Pair, Pair]:
    """((x_train, y_train), (x_test, y_test)): small colour images of 10 classes.

    Images are float32 in 0..1, shape [rows, 32, 32, 3]; labels are int64, 0..9. The folder holds
    `test_batch.bin` and any number of `data_batch_<number>.bin`, which are put together in the
    order of their numbers; plain, .gz, .xz or .bz2.

    Raises:
        DataError: a batch is missing, cut short or no CIFAR-10 batch.
        FileError: a file or the folder cannot be read.
    """
    place = input_path("cifar10: the folder", folder)
    training = [find_file(place, [f"data_batch_{n}.bin"]) for n in _train_numbers(place)]
    test = find_file(place, ["test_batch.bin"])
    if not training or test is None:
        missing = "test_batch.bin" if training else "data_batch_1.bin"
        raise DataError(
            f"{shown(place)}: {missing} (plain, .gz, .xz or .bz2) is missing: CIFAR-10 needs test_batch.bin "
            "and at least one data_batch_<number>.bin"
        )
    return _read([path for path in training if path is not None]), _read([test])


def cifar10_classes(folder: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """The ten class names from `batches.meta.txt`, in the order of the labels; None without it.

    Raises:
        DataError: the file does not hold ten names, one a line.
        FileError: it cannot be read.
    """
    path = input_path("cifar10_classes: the folder", folder) / "batches.meta.txt"
    with reading(path):
        if not path.exists():
            return None
    with opened(path) as file:
        names = file.read(_NAMES_BYTES).decode("utf-8", "replace").split()
    if len(set(names)) != _CLASSES or len(names) != _CLASSES:
        raise DataError(
            f"{shown(path)}: expected {_CLASSES} different class names, got {len(names)}"
        )
    return tuple(names)


def has_cifar_files(folder: Path) -> bool:
    """Whether `folder` holds a training or the test batch."""
    return find_file(folder, ["test_batch.bin"]) is not None or bool(_train_numbers(folder))


def _train_numbers(folder: Path) -> list[int]:
    matches = (_TRAIN.fullmatch(name) for name in list_folder(folder))
    return sorted({int(match[1]) for match in matches if match})


def _read(paths: list[Path]) -> Pair:
    records = [_records(path) for path in paths]
    rows = sum(map(len, records))
    channels, height, width = _SHAPE
    check_room(paths[0].parent, 4 * _RECORD * rows, SMALLER)  # as float32
    x = np.empty((rows, height, width, channels), np.float32)
    y = np.empty(rows, np.int64)
    low = 0
    for batch in records:
        high = low + len(batch)
        y[low:high] = batch[:, 0]
        channels_last = batch[:, 1:].reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)
        np.divide(channels_last, np.float32(255.0), out=x[low:high])
        low = high
    return x, y


def _records(path: Path) -> NDArray[np.uint8]:
    with unpacked(path) as source:
        data = source.read_all()
    if data and not len(data) % _RECORD and not source.is_whole:
        raise DataError(
            f"{shown(path)}: the packed data is cut short after {len(data)} bytes: fetch the file again"
        )
    if not data or len(data) % _RECORD:
        raise DataError(
            f"{shown(path)}: is cut short or no CIFAR-10 batch: expected a multiple of {_RECORD} bytes, "
            f"got {len(data)}: fetch the file again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    if (wrong := records[:, 0] >= _CLASSES).any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{shown(path)}: record {row} has the label {records[row, 0]}, outside the classes "
            f"0..{_CLASSES - 1}: it is no CIFAR-10 batch"
        )
    return records
