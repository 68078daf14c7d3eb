"""Files of spread arrays, as the client sees them: names, headers, and that a file is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.dmath.client.combining import home
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.errors import ArgumentError, DataError, DTypeError, shown
from magmadnn.memory.dtypes import as_dtype
from magmadnn.storage.disk import as_path, worded
from magmadnn.storage.formats.npy_header import NpyHeader, npy_header_bytes, read_npy_header
from magmadnn.storage.input_files import input_path, opened

_WAY_OUT = "write it with numpy.save or md.dmath.save"


def stored_array(file: str | os.PathLike[str]) -> tuple[Path, NpyHeader]:
    """The absolute path of an .npy file, and its header, if the file is as long as that says.

    Raises:
        FileError: it cannot be read.
        DataError: it holds no array, or is damaged.
        DTypeError: elements that are no numbers.
    """
    path = input_path("load: the file", file).absolute()
    where = shown(path)
    with opened(path) as stream:
        header = read_npy_header(stream, where, _WAY_OUT, halves=True)
        size = stream.seek(0, os.SEEK_END)
    if header.begin + header.nbytes != size:
        raise DataError(
            f"{where}: is damaged (the shape {shown(header.shape, 80)} needs {header.begin + header.nbytes} "
            f"bytes, got {size}): write or fetch it again"
        )
    return path, header


def stored_dtype(header: NpyHeader, dtype: Any) -> tuple[str, np.dtype[Any]]:
    """How elements are stored, and which dtype the array gets; `dtype` None: as they are stored.

    Raises:
        DTypeError: elements that spread arrays do not have, or bfloat16 that is not said to be.
    """
    if header.dtype.kind == "V":
        if dtype is None or as_dtype(dtype).name != "bfloat16":
            raise DTypeError(
                "load: elements are of two bytes without a name: if they are bfloat16, give "
                'dtype="bfloat16", and convert them then'
            )
        return "bfloat16", as_dtype(dtype)
    if header.dtype.kind not in "biufc":
        raise DTypeError(f"load: elements are of type {header.dtype}, expected numbers")
    known = as_dtype(header.dtype.newbyteorder("=") if dtype is None else dtype)
    if header.dtype.kind == "c" and known.kind != "c":
        raise DTypeError(
            f"load: elements are complex, got dtype={known.name!r}: leave it out, and take md.dmath.real"
        )
    return header.dtype.str, known


def save(file: str | os.PathLike[str], x: Matrix, /) -> None:
    """Write an array to an .npy file, which `numpy.load` and `load` of workers read.

    Each worker writes its own blocks, so that nothing passes the client; workers are processes of this
    machine or share its disk. The file is put in place once it is whole. bfloat16 is stored as two bytes that
    NumPy has no name for: `w.load(file, dtype="bfloat16")`. Waits for the workers.

    Raises:
        FileError: it cannot be written.
        ArgumentError: for a file that is no path, or within `explain`.
    """
    session = home("save", x)
    path = as_path("save: the file", file).absolute()
    if session._foretold is not None:
        raise ArgumentError("explain: a file is written inside it, and nothing is computed there")
    header = npy_header_bytes(x.dtype.str, x.shape)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with worded("save: cannot write", path), part.open("wb") as stream:
            stream.write(header)
            _reserve(stream.fileno(), len(header) + x.size * x.dtype.itemsize)
        session._ask("save", [x], path=str(part), begin=len(header))
        with worded("save: cannot write", path):
            _flushed(part)
            part.replace(path)
            _flushed(path.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _reserve(descriptor: int, size: int) -> None:
    """Make a file as large, with room on the disk: a worker that found none while it writes would end."""
    if hasattr(os, "posix_fallocate") and size:
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _flushed(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FUNCTIONS: dict[str, Callable[..., Any]] = {"save": save}
