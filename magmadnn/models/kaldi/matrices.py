"""Matrices in files of Kaldi, as text (`[`, rows of numbers, `]`) and binary; and that of a cosine transform.

Binary: a zero byte and B, the name of the form (FM for float32, DM for float64) and a space, rows and columns
as the number of their bytes (4) and that many, little-endian, then the values, row by row.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, shown
from magmadnn.storage.input_files import opened

_MOST_BYTES: Final = 1 << 28
_BINARY: Final[dict[bytes, np.dtype[Any]]] = {b"FM ": np.dtype("<f4"), b"DM ": np.dtype("<f8")}
_SIZES: Final = struct.Struct("<bibi")


def read_matrix(path: Path) -> NDArray[np.float64]:
    """The matrix in a file.

    Raises:
        FileError: it cannot be read.
        DataError: it holds no matrix of finite numbers.
    """
    with opened(path) as stream:
        data = stream.read(_MOST_BYTES + 1) or b""
    where = shown(path)
    if len(data) > _MOST_BYTES:
        raise DataError(f"{where}: has more than {_MOST_BYTES:,} bytes, expected a matrix of Kaldi")
    found = _binary(data, where) if data[:2] == b"\0B" else _text(data, where)
    if not found.size or not np.isfinite(found).all():
        raise DataError(f"{where}: expected a matrix of finite numbers, got shape {found.shape}")
    return found


def _binary(data: bytes, where: str) -> NDArray[np.float64]:
    dtype, start = _BINARY.get(data[2:5]), 5 + _SIZES.size
    if dtype is None or len(data) < start:
        raise DataError(
            f"{where}: is no matrix of Kaldi's (FM or DM) in binary form; compressed ones are not read: "
            "write it with copy-matrix --binary=false"
        )
    of_rows, rows, of_columns, columns = _SIZES.unpack_from(data, 5)
    sizes_fit = (of_rows, of_columns) == (4, 4) and rows >= 0 and columns >= 0
    if not sizes_fit or len(data) != start + rows * columns * dtype.itemsize:
        raise DataError(f"{where}: is damaged: a matrix of {rows} x {columns} has another length")
    flat: NDArray[Any] = np.frombuffer(data, dtype, -1, start)
    return flat.reshape(rows, columns).astype(np.float64)


def _text(data: bytes, where: str) -> NDArray[np.float64]:
    words = data.decode("latin-1").strip()
    if not (words.startswith("[") and words.endswith("]")):
        raise DataError(
            f"{where}: expected a matrix of Kaldi, `[` rows of numbers `]`, got {shown(words[:40])}"
        )
    rows = [line.split() for line in words[1:-1].split("\n") if line.strip()]
    if len({len(row) for row in rows}) > 1:
        raise DataError(f"{where}: rows of the matrix differ in length")
    try:
        return np.array([[float(one) for one in row] for row in rows], np.float64, ndmin=2)
    except ValueError as error:
        raise DataError(f"{where}: {error}: expected a matrix of numbers") from None


def inverse_cosines(features: int, size: int, lifter: float) -> NDArray[np.float64]:
    """From cepstra to the energies that they were made of: [size, features].

    The inverse of the orthonormal discrete cosine transform (type II), of cepstra that were multiplied by
    1 + lifter / 2 sin(pi k / lifter).
    """
    k, n = np.arange(features), np.arange(size)
    made: NDArray[np.float64] = np.sqrt(2 / size) * np.cos(np.pi / size * (n[:, None] + 0.5) * k)
    made[:, 0] = np.sqrt(1 / size)
    if lifter:
        made /= 1 + 0.5 * lifter * np.sin(np.pi * k / lifter)
    return made
