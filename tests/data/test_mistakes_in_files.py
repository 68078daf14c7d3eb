"""Mistakes with files of arrays: each with its class of error and its text.

In the messages `{p}` stands for the folder of the test.
"""

from __future__ import annotations

import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.errors import (
    DataError,
    FileError,
    ShapeError,
)
from tests.data.mistakes import Mistake, bytes_of

KEYS = "x and y, or x_train and y_train (and x_test and y_test)"


def images(rows: int, height: int = 2, width: int = 3) -> bytes:
    return struct.pack(">4I", 2051, rows, height, width) + bytes(rows * height * width)


def labels(rows: int) -> bytes:
    return struct.pack(">2I", 2049, rows) + bytes(i % 2 for i in range(rows))


def idx(**changes: bytes | None) -> Callable[[Path], Any]:
    """Reads a folder of IDX files, of which some are changed or left out."""

    def read(p: Path) -> Any:
        files: dict[str, bytes | None] = {
            "train_images_idx3_ubyte": images(7),
            "train_labels_idx1_ubyte": labels(7),
            "t10k_images_idx3_ubyte": images(5),
            "t10k_labels_idx1_ubyte": labels(5),
        }
        for name, content in {**files, **changes}.items():
            if content is not None:
                packed = content[:2] == b"\x1f\x8b"
                (p / (name.replace("_", "-") + ".gz" * packed)).write_bytes(content)
        return data.idx_folder(p)

    return read


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]


IDX: dict[str, Mistake] = {
    "no folder": Mistake(
        lambda p: data.idx_folder(p / "none"),
        FileError,
        "{p}/none: expected a folder with IDX files, which is not there",
    ),
    "a file is missing": Mistake(
        idx(t10k_labels_idx1_ubyte=None),
        DataError,
        "{p}: t10k-labels-idx1-ubyte (plain or .gz) is missing: the folder needs the four files "
        "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
        "t10k-labels-idx1-ubyte",
    ),
    "images cut short": Mistake(
        idx(train_images_idx3_ubyte=images(7)[:-5]),
        DataError,
        "{p}/train-images-idx3-ubyte: is cut short: 7 images need 58 bytes, got 53: "
        "fetch the file again",
    ),
    "packed images cut short": Mistake(
        idx(train_images_idx3_ubyte=gzip.compress(images(7), 0)[:50]),
        DataError,
        "{p}/train-images-idx3-ubyte.gz: is cut short: 7 images need 58 bytes, got 35: "
        "fetch the file again",
    ),
    "the end of a packed file is missing": Mistake(
        idx(train_images_idx3_ubyte=gzip.compress(images(7))[:-8]),
        DataError,
        "{p}/train-images-idx3-ubyte.gz: is cut short: 7 images need 58 bytes, got 58: "
        "fetch the file again",
    ),
    "labels cut short": Mistake(
        idx(t10k_labels_idx1_ubyte=labels(5)[:-1]),
        DataError,
        "{p}/t10k-labels-idx1-ubyte: is cut short: 5 labels need 13 bytes, got 12: "
        "fetch the file again",
    ),
    "header cut short": Mistake(
        idx(train_images_idx3_ubyte=images(7)[:9]),
        DataError,
        "{p}/train-images-idx3-ubyte: is cut short: expected a header of 16 bytes, got 9 bytes",
    ),
    "an empty file": Mistake(
        idx(train_images_idx3_ubyte=b""),
        DataError,
        "{p}/train-images-idx3-ubyte: is cut short: expected a header of 16 bytes, got 0 bytes",
    ),
    "too long": Mistake(
        idx(train_labels_idx1_ubyte=labels(7) + b"x"),
        DataError,
        "{p}/train-labels-idx1-ubyte: is too long: 7 labels need 15 bytes, got 16: "
        "fetch the file again",
    ),
    "images and labels swapped": Mistake(
        idx(train_images_idx3_ubyte=labels(70), train_labels_idx1_ubyte=images(7)),
        DataError,
        "{p}/train-images-idx3-ubyte: the magic number is 2049, expected 2051 (images): "
        "these are labels, so two files are swapped",
    ),
    "images in place of labels": Mistake(
        idx(train_labels_idx1_ubyte=images(7)),
        DataError,
        "{p}/train-labels-idx1-ubyte: the magic number is 2051, expected 2049 (labels): "
        "these are images, so two files are swapped",
    ),
    "another kind of file": Mistake(
        idx(train_images_idx3_ubyte=b"\x89PNG\r\n\x1a\n" + bytes(20)),
        DataError,
        "{p}/train-images-idx3-ubyte: the magic number is 2303741511, expected 2051 (images): "
        "it is not an IDX file of bytes",
    ),
    "labels of the other set": Mistake(
        idx(train_labels_idx1_ubyte=labels(5)),
        DataError,
        "{p}: train-images-idx3-ubyte holds 7 images but train-labels-idx1-ubyte holds 5 labels: "
        "the files belong to different sets",
    ),
    "no images": Mistake(
        idx(train_images_idx3_ubyte=images(0), train_labels_idx1_ubyte=labels(0)),
        DataError,
        "{p}: train-images-idx3-ubyte is empty: its shape is (0, 2, 3)",
    ),
    "images of two sizes": Mistake(
        idx(t10k_images_idx3_ubyte=images(5, 3, 3)),
        DataError,
        "{p}: training images are 2 x 3 but test images are 3 x 3: both sets need the same size",
    ),
    "damaged gzip": Mistake(
        idx(train_labels_idx1_ubyte=flipped(gzip.compress(labels(7)), -6)),
        DataError,
        "{p}/train-labels-idx1-ubyte.gz: the gzip data is damaged (incorrect data check): "
        "fetch the file again",
    ),
}


def cifar(**changes: bytes | None) -> Callable[[Path], Any]:
    """Reads a folder of CIFAR-10 batches; `_` in a name stands for `.` once."""

    def read(p: Path) -> Any:
        record = bytes(3073)
        files: dict[str, bytes | None] = {"data_batch_1": record * 3, "test_batch": record * 2}
        for name, content in {**files, **changes}.items():
            if content is not None:
                packed = content[:4] == b"\xfd7zX"
                (p / (f"{name}.bin" + ".xz" * packed)).write_bytes(content)
        return data.cifar10(p)

    return read


def class_names(text: str) -> Callable[[Path], Any]:
    def read(p: Path) -> Any:
        (p / "batches.meta.txt").write_text(text)
        return data.cifar10_classes(p)

    return read


CIFAR: dict[str, Mistake] = {
    "no folder": Mistake(
        lambda p: data.cifar10(p / "none"),
        FileError,
        "{p}/none: cannot be read (No such file or directory): check the path and its permissions",
    ),
    "no training batch": Mistake(
        cifar(data_batch_1=None),
        DataError,
        "{p}: data_batch_1.bin (plain, .gz, .xz or .bz2) is missing: CIFAR-10 needs test_batch.bin and "
        "at least one data_batch_<number>.bin",
    ),
    "no test batch": Mistake(
        cifar(test_batch=None),
        DataError,
        "{p}: test_batch.bin (plain, .gz, .xz or .bz2) is missing: CIFAR-10 needs test_batch.bin and "
        "at least one data_batch_<number>.bin",
    ),
    "cut short": Mistake(
        cifar(data_batch_1=bytes(3073 * 2 + 100)),
        DataError,
        "{p}/data_batch_1.bin: is cut short or no CIFAR-10 batch: expected a multiple of 3073 "
        "bytes, got 6246: fetch the file again",
    ),
    "packed file cut short": Mistake(
        cifar(test_batch=lzma.compress(bytes(3073))[:-8]),
        DataError,
        "{p}/test_batch.bin.xz: the packed data is cut short after 3073 bytes: fetch the file again",
    ),
    "damaged xz": Mistake(
        cifar(test_batch=flipped(lzma.compress(bytes(3073)), 25)),
        DataError,
        "{p}/test_batch.bin.xz: the xz data is damaged (Corrupt input data): fetch the file again",
    ),
    "empty": Mistake(
        cifar(data_batch_1=b""),
        DataError,
        "{p}/data_batch_1.bin: is cut short or no CIFAR-10 batch: expected a multiple of 3073 "
        "bytes, got 0: fetch the file again",
    ),
    "label outside": Mistake(
        cifar(data_batch_1=bytes(3073) + b"\x0a" + bytes(3072)),
        DataError,
        "{p}/data_batch_1.bin: record 1 has the label 10, outside the classes 0..9: "
        "it is no CIFAR-10 batch",
    ),
    "class names": Mistake(
        class_names("cat\ndog\n"),
        DataError,
        "{p}/batches.meta.txt: expected 10 different class names, got 2",
    ),
}


def npz(content: bytes | None = None, **arrays: Any) -> Callable[[Path], Any]:
    def read(p: Path) -> Any:
        if content is not None:
            (p / "a.npz").write_bytes(content)
        else:
            np.savez(p / "a.npz", **arrays)
        return data.read_npz(p / "a.npz")

    return read


X, Y = np.arange(6.0).reshape(3, 2) + 0.5, np.array([0, 1, 1])
STORED = bytes_of(np.savez, x=X, y=Y)

NPZ: dict[str, Mistake] = {
    "no file": Mistake(
        lambda p: data.read_npz(p / "none.npz"),
        FileError,
        "{p}/none.npz: cannot be read (No such file or directory): "
        "check the path and its permissions",
    ),
    "other keys": Mistake(
        npz(features=X, labels=Y),
        DataError,
        "{p}/a.npz: expected the keys " + KEYS + ", found features, labels",
    ),
    "no arrays": Mistake(npz(), DataError, "{p}/a.npz: expected the keys " + KEYS + ", found none"),
    "no targets": Mistake(
        npz(x=X),
        DataError,
        "{p}/a.npz: y is missing: expected the keys " + KEYS + ", found x",
    ),
    "no inputs": Mistake(
        npz(y=Y),
        DataError,
        "{p}/a.npz: x is missing: expected the keys " + KEYS + ", found y",
    ),
    "no test targets": Mistake(
        npz(x_train=X, y_train=Y, x_test=X),
        DataError,
        "{p}/a.npz: y_test is missing: expected the keys "
        + KEYS
        + ", found x_train, y_train, x_test",
    ),
    "a single array": Mistake(
        npz(bytes_of(np.save, X)),
        DataError,
        "{p}/a.npz: holds a single array, expected an .npz file of named ones: write it with "
        "numpy.savez(file, x=..., y=...)",
    ),
    "cut short": Mistake(
        npz(STORED[:-30]),
        DataError,
        "{p}/a.npz: is damaged (File is not a zip file): write or fetch it again",
    ),
    "a flipped bit": Mistake(
        npz(flipped(STORED, 200)),
        DataError,
        "{p}/a.npz: is damaged (Bad CRC-32 for file 'x.npy'): write or fetch it again",
    ),
    "rows differ": Mistake(
        npz(x=X, y=Y[:2]),
        ShapeError,
        "{p}/a.npz: x has the shape (3, 2) but y (2,): both need the same number of rows",
    ),
    "test rows of another shape": Mistake(
        npz(x_train=X, y_train=Y, x_test=X[:, :1], y_test=Y),
        ShapeError,
        "{p}/a.npz: rows of x_train have the shape (2,) but rows of x_test (1,): "
        "both need the same",
    ),
    "empty": Mistake(
        npz(x=X[:0], y=Y[:0]),
        DataError,
        "{p}/a.npz: x is empty: its shape is (0, 2), expected some rows",
    ),
}


ALL = {
    f"{place}: {mistake}": row
    for place, rows in {
        "IDX": IDX,
        "CIFAR-10": CIFAR,
        "npz": NPZ,
    }.items()
    for mistake, row in rows.items()
}


@pytest.mark.parametrize("mistake", ALL.values(), ids=ALL)
def test_a_mistake_is_one_clear_line(mistake: Mistake, expect_mistake: Callable[..., None]) -> None:
    expect_mistake(*mistake)
