"""CIFAR-10 and CIFAR-100 in their binary versions: records of label bytes and 3 x 32 x 32 bytes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; layout from the
data sets' page, section "Binary version".
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data._find import find_file, list_folder
from magmadnn.data._packed import SMALLER, unpacked
from magmadnn.errors import DataError, UnknownNameError, shown
from magmadnn.storage.input_files import check_room, input_path, opened, reading

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]
Labels = Literal["fine", "coarse"]

_SHAPE = (3, 32, 32)  # channel, height, width in the file
_PIXELS = 3 * 32 * 32
_TRAIN = re.compile(r"data_batch_([1-9][0-9]{0,8})\.bin(?:\.gz|\.xz|\.bz2)?")
_NAMES_BYTES = 10_000  # of a file of class names, which has a short line for each


@dataclass(frozen=True)
class _Format:
    """What a record begins with.

    Attributes:
        name: of the data set.
        classes: for each label byte, how many there are.
        label: the byte that is taken.
    """

    name: str
    classes: tuple[int, ...]
    label: int

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return len(self.classes) + _PIXELS


_TEN = _Format("CIFAR-10", (10,), 0)
_HUNDRED = {
    "coarse": _Format("CIFAR-100", (20, 100), 0),
    "fine": _Format("CIFAR-100", (20, 100), 1),
}


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
    return _read([path for path in training if path is not None], _TEN), _read([test], _TEN)


@checked_call
def cifar100(folder: str | os.PathLike[str], *, labels: Labels = "fine") -> tuple[Pair, Pair]:
    """((x_train, y_train), (x_test, y_test)): small colour images of 100 classes, in 20 groups.

    Images are float32 in 0..1, shape [rows, 32, 32, 3]; labels are int64. The folder holds `train.bin` and
    `test.bin`; plain, .gz, .xz or .bz2.

    Args:
        folder: where the files are.
        labels: "fine" for the 100 classes, "coarse" for the 20 groups.

    Raises:
        DataError: a file is missing, cut short or not of CIFAR-100.
        FileError: a file or the folder cannot be read.
        UnknownNameError: labels of another name.
    """
    if labels not in _HUNDRED:
        raise UnknownNameError.of("cifar100: labels", labels, _HUNDRED)
    place = input_path("cifar100: the folder", folder)
    found = []
    for name in ("train.bin", "test.bin"):
        path = find_file(place, [name])
        if path is None:
            raise DataError(
                f"{shown(place)}: {name} (plain, .gz, .xz or .bz2) is missing: CIFAR-100 needs train.bin and "
                "test.bin"
            )
        found.append(_read([path], _HUNDRED[labels]))
    return found[0], found[1]


@checked_call
def cifar10_classes(folder: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """The ten class names from `batches.meta.txt`, in the order of the labels; None without it.

    Raises:
        DataError: the file does not hold ten names, one a line.
        FileError: it cannot be read.
    """
    return _names(input_path("cifar10_classes: the folder", folder) / "batches.meta.txt", 10)


@checked_call
def cifar100_classes(
    folder: str | os.PathLike[str], *, labels: Labels = "fine"
) -> tuple[str, ...] | None:
    """The names from `fine_label_names.txt` or `coarse_label_names.txt`; None without it.

    Raises:
        DataError: the file does not hold 100 or 20 names, one a line.
        FileError: it cannot be read.
        UnknownNameError: labels of another name.
    """
    if labels not in _HUNDRED:
        raise UnknownNameError.of("cifar100_classes: labels", labels, _HUNDRED)
    place = input_path("cifar100_classes: the folder", folder)
    kind = _HUNDRED[labels]
    return _names(place / f"{labels}_label_names.txt", kind.classes[kind.label])


def has_cifar10_files(folder: Path) -> bool:
    """Whether `folder` holds a training or the test batch of CIFAR-10."""
    return find_file(folder, ["test_batch.bin"]) is not None or bool(_train_numbers(folder))


def has_cifar100_files(folder: Path) -> bool:
    """Whether `folder` holds the training or the test file of CIFAR-100."""
    return find_file(folder, ["train.bin", "test.bin"]) is not None


def _names(path: Path, classes: int) -> tuple[str, ...] | None:
    """The names in a file, one a line; None without the file."""
    with reading(path):
        if not path.exists():
            return None
    with opened(path) as file:
        names = file.read(_NAMES_BYTES).decode("utf-8", "replace").split()
    if len(set(names)) != classes or len(names) != classes:
        raise DataError(
            f"{shown(path)}: expected {classes} different class names, got {len(names)}"
        )
    return tuple(names)


def _train_numbers(folder: Path) -> list[int]:
    matches = (_TRAIN.fullmatch(name) for name in list_folder(folder))
    return sorted({int(match[1]) for match in matches if match})


def _read(paths: Sequence[Path], kind: _Format) -> Pair:
    records = [_records(path, kind) for path in paths]
    rows = sum(map(len, records))
    channels, height, width = _SHAPE
    check_room(paths[0].parent, 4 * kind.record * rows, SMALLER)  # as float32
    x = np.empty((rows, height, width, channels), np.float32)
    y = np.empty(rows, np.int64)
    low = 0
    for batch in records:
        high = low + len(batch)
        y[low:high] = batch[:, kind.label]
        images = batch[:, len(kind.classes) :].reshape(-1, *_SHAPE)
        np.divide(images.transpose(0, 2, 3, 1), np.float32(255.0), out=x[low:high])
        low = high
    return x, y


def _records(path: Path, kind: _Format) -> NDArray[np.uint8]:
    with unpacked(path) as source:
        data = source.read_all()
    size = kind.record
    if data and not len(data) % size and not source.is_whole:
        raise DataError(
            f"{shown(path)}: the packed data is cut short after {len(data)} bytes: fetch the file again"
        )
    if not data or len(data) % size:
        raise DataError(
            f"{shown(path)}: is cut short or no {kind.name} batch: expected a multiple of {size} bytes, "
            f"got {len(data)}: fetch the file again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    for byte, classes in enumerate(kind.classes):
        if (wrong := records[:, byte] >= classes).any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"{shown(path)}: record {row} has the label {records[row, byte]}, outside the classes "
                f"0..{classes - 1}: it is no {kind.name} batch"
            )
    return records
