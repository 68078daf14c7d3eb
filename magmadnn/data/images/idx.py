"""MNIST, and other data in its format: four IDX files, plain or .gz.

An IDX file is a magic number (2051 for images, 2049 for labels), one big-endian 32-bit size per
axis, then unsigned bytes. Source: LeCun, Cortes, Burges, "The MNIST database of handwritten
digits", section "File formats for the MNIST database".
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data._find import find_file, places_of
from magmadnn.data._packed import SMALLER, Unpacked, unpacked
from magmadnn.errors import DataError, FileError, shown
from magmadnn.storage.input_files import check_room, input_path, reading

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


@checked_call
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
            f"{', '.join(map(shown, places))}: put it into one of these folders{other} "
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
    place = input_path("idx_folder: the folder", folder)
    with reading(place):
        is_there = place.is_dir()
    if not is_there:
        raise FileError(f"{shown(place)}: expected a folder with IDX files, which is not there")
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
            f"{shown(folder)}: training images are {_by(train[0].shape[1:3])} but test images are "
            f"{_by(test[0].shape[1:3])}: both sets need the same size"
        )
    return train, test


def _read_pair(folder: Path, images: str, labels: str, sha256: Mapping[str, str]) -> Pair:
    pixels = _read(folder, images, _IMAGES, sha256.get(images))
    numbers = _read(folder, labels, _LABELS, sha256.get(labels))
    if len(pixels) != len(numbers):
        raise DataError(
            f"{shown(folder)}: {images} holds {len(pixels)} images but {labels} holds {len(numbers)} "
            "labels: the files belong to different sets"
        )
    if pixels.size == 0:
        raise DataError(f"{shown(folder)}: {images} is empty: its shape is {pixels.shape}")
    x = np.divide(pixels[..., np.newaxis], np.float32(255.0), dtype=np.float32)
    return x, numbers.astype(np.int64)


def _read(folder: Path, name: str, kind: _Kind, sha256: str | None) -> NDArray[np.uint8]:
    path = _path(folder, name)
    if path is None:
        raise DataError(
            f"{shown(folder)}: {name} (plain or .gz) is missing: the folder needs the four files "
            f"{', '.join(IDX_FILES)}"
        )
    with unpacked(path) as source:
        head = source.read(4 + 4 * kind.axes)
        array = _values(path, source, len(head), _shape(path, head, kind), kind)
    if sha256 is not None:
        digest = hashlib.sha256(head)
        digest.update(array.data)
        if (got := digest.hexdigest()) != sha256:
            raise DataError(
                f"{shown(path)}: is not MNIST's file: the content's SHA-256 is {got}, expected {sha256}: "
                "fetch it again, or read other data in this format with md.data.idx_folder"
            )
    return array


def _shape(path: Path, head: bytearray, kind: _Kind) -> list[int]:
    """The sizes in the file's first bytes."""
    if len(head) < 4 + 4 * kind.axes:
        raise DataError(
            f"{shown(path)}: is cut short: expected a header of {4 + 4 * kind.axes} bytes, got "
            f"{len(head)} bytes"
        )
    magic, *shape = struct.unpack(f">{1 + kind.axes}I", head)
    if magic != kind.magic:
        other = _LABELS if kind is _IMAGES else _IMAGES
        hint = (
            f"these are {other.name}, so two files are swapped"
            if magic == other.magic
            else "it is not an IDX file of bytes"
        )
        raise DataError(
            f"{shown(path)}: the magic number is {magic}, expected {kind.magic} ({kind.name}): {hint}"
        )
    return shape


def _values(
    path: Path, source: Unpacked, header: int, shape: list[int], kind: _Kind
) -> NDArray[np.uint8]:
    """All bytes behind the header, which are as many as it says."""
    size, total = math.prod(shape), header + math.prod(shape)
    got: int | str = source.most
    if source.is_packed and total > source.most:
        raise source.too_much(f"{total:,}")
    if source.is_packed or total == source.most:
        check_room(path, 5 * size, SMALLER)  # as bytes, and as float32
        array = np.empty(size, np.uint8)
        got = header + source.read_into(array.data)
        if got == total and not source.at_end():
            got = "more"
        elif got == total and source.is_whole:
            return array.reshape(shape)
    what = "is too long" if got == "more" or int(got) > total else "is cut short"
    raise DataError(
        f"{shown(path)}: {what}: {shape[0]} {kind.name} need {total} bytes, got {got}: "
        "fetch the file again"
    )


def _by(shape: tuple[Any, ...]) -> str:
    return " x ".join(map(str, shape))
