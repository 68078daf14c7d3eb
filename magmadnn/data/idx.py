"""MNIST, and other data in its format: four IDX files, plain or .gz.

An IDX file is a magic number (2051 for images, 2049 for labels), one big-endian 32-bit size per
axis, then unsigned bytes. Source: LeCun, Cortes, Burges, "The MNIST database of handwritten
digits", section "File formats for the MNIST database".
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._find import find_file, places_of, read_bytes
from magmadnn.errors import DataError, FileError
from magmadnn.storage.places import expanded

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

# SHA-256 of MNIST's files as published (.gz) and unpacked. The unpacked one is compared, so that
# files packed anew are as good as the originals.
MNIST_GZ_SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


@dataclass(frozen=True)
class _Kind:
    """What one of the two kinds of file begins with."""

    name: str
    magic: int
    axes: int


_IMAGES = _Kind("images", 2051, 3)
_LABELS = _Kind("labels", 2049, 1)


def mnist(folder: str | os.PathLike[str] | None = None) -> tuple[Pair, Pair]:
    """((x_train, y_train), (x_test, y_test)): handwritten digits, 60,000 and 10,000 of them.

    Images are float32 in 0..1, shape [rows, 28, 28, 1]; labels are int64, 0..9. The four files
    are looked for in `folder`, or without one in `$MAGMADNN_DATA`, `./data` and the user's cache
    (`~/.cache/magmadnn`), in each also in the subfolder `mnist`; plain or .gz. Nothing is
    downloaded. The content's SHA-256 is checked.

    Raises:
        DataError: a file is missing (says where it was looked for and its SHA-256), cut short,
            swapped with another or not MNIST's.
        FileError: a file is there and cannot be read.
    """
    places = places_of("mnist", folder)
    here = max(places, key=lambda place: sum(_path(place, name) is not None for name in IDX_FILES))
    missing = [name for name in IDX_FILES if _path(here, name) is None]
    if missing:
        more = f" (and {len(missing) - 1} more of the four files)" if len(missing) > 1 else ""
        other = "" if folder else ", or set MAGMADNN_DATA to the one it is in"
        raise DataError(
            f"MNIST: {missing[0]}.gz is missing{more}, looked in "
            f"{', '.join(map(str, places))}: put it into one of these folders{other} "
            f"(SHA-256 {MNIST_GZ_SHA256[missing[0]]})"
        )
    return _read_folder(here, MNIST_SHA256)


def idx_folder(folder: str | os.PathLike[str]) -> tuple[Pair, Pair]:
    """((x_train, y_train), (x_test, y_test)) from a folder with MNIST's file names.

    For data sets in MNIST's format, Fashion-MNIST for instance; content is not compared with
    MNIST's. Images are float32 in 0..1, shape [rows, height, width, 1]; labels are int64.

    Raises:
        DataError: a file is missing, cut short or swapped with another.
        FileError: a file or the folder cannot be read.
    """
    place = expanded(folder)
    if not place.is_dir():
        raise FileError(f"{place}: expected a folder with IDX files, which is not there")
    return _read_folder(place, {})


def has_idx_files(folder: Path) -> bool:
    """Whether any of the four files stands in `folder`."""
    return any(_path(folder, name) is not None for name in IDX_FILES)


def _path(folder: Path, name: str) -> Path | None:
    # Some copies are named train-images.idx3-ubyte.
    return find_file(folder, (name, name.replace("-idx", ".idx")))


def _read_folder(folder: Path, sha256: Mapping[str, str]) -> tuple[Pair, Pair]:
    train, test = (_read_pair(folder, *names, sha256) for names in (IDX_FILES[:2], IDX_FILES[2:]))
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(
            f"{folder}: training images are {_by(train[0].shape[1:3])} but test images are "
            f"{_by(test[0].shape[1:3])}: both sets need the same size"
        )
    return train, test


def _read_pair(folder: Path, images: str, labels: str, sha256: Mapping[str, str]) -> Pair:
    pixels = _read(folder, images, _IMAGES, sha256.get(images))
    numbers = _read(folder, labels, _LABELS, sha256.get(labels))
    if len(pixels) != len(numbers):
        raise DataError(
            f"{folder}: {images} holds {len(pixels)} images but {labels} holds {len(numbers)} "
            "labels: the files belong to different sets"
        )
    if pixels.size == 0:
        raise DataError(f"{folder}: {images} is empty: its shape is {pixels.shape}")
    x = np.divide(pixels[..., np.newaxis], np.float32(255.0), dtype=np.float32)
    return x, numbers.astype(np.int64)


def _read(folder: Path, name: str, kind: _Kind, sha256: str | None) -> NDArray[np.uint8]:
    path = _path(folder, name)
    if path is None:
        raise DataError(
            f"{folder}: {name} (plain or .gz) is missing: the folder needs the four files "
            f"{', '.join(IDX_FILES)}"
        )
    data, complete = read_bytes(path)
    array = _parse(path, data, complete, kind)
    if sha256 is not None and (got := hashlib.sha256(data).hexdigest()) != sha256:
        raise DataError(
            f"{path}: is not MNIST's file: the content's SHA-256 is {got}, expected {sha256}: "
            "fetch it again, or read other data in this format with md.data.idx_folder"
        )
    return array


def _parse(path: Path, data: bytes, complete: bool, kind: _Kind) -> NDArray[np.uint8]:
    header = 4 + 4 * kind.axes
    if len(data) < header:
        raise DataError(
            f"{path}: is cut short: expected a header of {header} bytes, got {len(data)} bytes"
        )
    magic, *shape = struct.unpack(f">{1 + kind.axes}I", data[:header])
    if magic != kind.magic:
        other = _LABELS if kind is _IMAGES else _IMAGES
        hint = (
            f"these are {other.name}, so two files are swapped"
            if magic == other.magic
            else "it is not an IDX file of bytes"
        )
        raise DataError(
            f"{path}: the magic number is {magic}, expected {kind.magic} ({kind.name}): {hint}"
        )
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected or not complete:
        what = "is cut short" if len(data) < expected or not complete else "is too long"
        raise DataError(
            f"{path}: {what}: {shape[0]} {kind.name} need {expected} bytes, "
            f"got {len(data)}: fetch the file again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _by(shape: tuple[Any, ...]) -> str:
    return " x ".join(map(str, shape))
