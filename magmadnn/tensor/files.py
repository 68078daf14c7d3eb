"""Tensors in CSV and npz files, without losing a digit.

Floating-point numbers are written with as few digits as give the same number back, at most 17 for
float64 and 9 for float32; float16 and bfloat16 are written as the float32 that they are. A NaN is `nan`,
whatever its payload. Files are written under a temporary name and renamed when they are whole.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from magmadnn.errors import ArgumentError, DataError, FileError, ShapeError, shown
from magmadnn.memory import BFLOAT16, as_dtype, is_floating
from magmadnn.storage.input_files import check_room, input_path, opened

from .conversion import asarray
from .tensor import Tensor

Array = NDArray[Any]
PathLike = str | os.PathLike[str]

_SINGLE = "tensor"  # the name of a Tensor that is saved alone
_BFLOAT16 = ".bfloat16"  # ends the name of an array of 16-bit patterns in an npz
_BYTES_A_BYTE = 20  # of memory, for each of the file, while a text is read
_TRUTH = {"0": False, "1": True, "false": False, "true": True}


def save_csv(tensor: Any, path: PathLike, delimiter: str = ",") -> None:
    """Write a Tensor of one axis as a column, or of two axes as rows and columns.

    Args:
        tensor: the Tensor, or an array.
        path: of the file, which is replaced.
        delimiter: between the numbers of a row.

    Raises:
        ShapeError: if it has other axes, or no elements.
        FileError: if the file cannot be written.
    """
    array = asarray(tensor).read()
    if array.ndim not in (1, 2) or not array.size:
        raise ShapeError(
            f"save_csv: expected one or two axes and at least one element, got shape {array.shape}; "
            "reshape it, or use save_npz"
        )
    text = _writer_of(array.dtype)
    with _new_file("save_csv", path) as file:
        for row in array.reshape(len(array), -1):
            file.write((delimiter.join(map(text, row)) + "\n").encode())


def load_csv(path: PathLike, dtype: DTypeLike = "float32", delimiter: str = ",") -> Tensor:
    """Read a file of numbers: one column gives one axis, more give rows and columns.

    Empty lines are left out. `md.data` reads tables with headers, text and missing values.

    Args:
        path: of the file.
        dtype: of the Tensor.
        delimiter: between the numbers of a row.

    Raises:
        FileError: if the file cannot be read.
        DataError: if it is empty, its rows differ in length, or a value is none of the dtype; names the
            line and the column, counted from 1.
    """
    file, dtype = input_path("load_csv: the file", path), as_dtype(dtype)
    where = f"load_csv: {shown(file)}"
    with opened(file, where) as stream:
        check_room(where, _BYTES_A_BYTE * os.fstat(stream.fileno()).st_size, "read it in parts")
        with io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", newline="") as text:
            rows = _rows_of(where, csv.reader(text, delimiter=delimiter, strict=True), dtype)
        array = np.array(rows, np.float64 if is_floating(dtype) else dtype)
    array = _converted(where, array, dtype)
    return Tensor.wrap(array[:, 0].copy() if array.shape[1] == 1 else array)


def save_npz(tensors: Any, path: PathLike) -> None:
    """Write one Tensor, or a mapping of names to Tensors, of any shapes and dtypes.

    NumPy reads the file; bfloat16 is there as 16-bit patterns under a name that ends with `.bfloat16`.

    Raises:
        ArgumentError: if a name is not plain.
        FileError: if the file cannot be written.
    """
    import zipfile  # takes milliseconds to load

    named = tensors if isinstance(tensors, Mapping) else {_SINGLE: tensors}
    arrays: dict[str, Array] = {}
    for name, tensor in named.items():
        if not isinstance(name, str) or not name or "/" in name or name.endswith(_BFLOAT16):
            raise ArgumentError(
                f"save_npz: a name must be text without / that does not end with {_BFLOAT16}, "
                f"got {name!r}"
            )
        array = asarray(tensor).read()
        if array.dtype == BFLOAT16:
            name, array = name + _BFLOAT16, array.view(np.uint16)
        arrays[name] = array
    with _new_file("save_npz", path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load_npz(path: PathLike) -> dict[str, Tensor]:
    """The Tensors of an npz file by name; one that was saved alone is called `tensor`.

    Raises:
        FileError: if the file cannot be read.
        DataError: if it is damaged, no npz file, holds something other than numbers, or is packed to less
            than a hundredth.
        DTypeError: if magmadnn has no such dtype.
        OutOfMemoryError: if the arrays are larger than the memory that is free.
    """
    from magmadnn.storage.formats.npz_file import opened_npz  # loads zipfile

    file = input_path("load_npz: the file", path)
    with opened_npz(file, f"load_npz: {shown(file)}") as stored:
        arrays = {name: stored.read(name) for name in stored.names}
    tensors: dict[str, Tensor] = {}
    for label, array in arrays.items():
        name = label.removesuffix(_BFLOAT16)
        if name in tensors or (name != label and array.dtype != np.uint16):
            raise DataError(
                f"load_npz: {shown(file)}: expected 16-bit patterns of one array under "
                f"{shown(name + _BFLOAT16, 80)!r}, got {array.dtype} or another array of that name"
            )
        tensors[name] = asarray(array if name == label else array.view(BFLOAT16))
    return tensors


# --- numbers as text -------------------------------------------------------------------------


def _writer_of(dtype: np.dtype[Any]) -> Callable[[Any], str]:
    if dtype == np.float64:
        return lambda x: repr(float(x))
    if is_floating(dtype):
        return _text_of_float32
    return lambda x: str(int(x))


def _text_of_float32(x: Any) -> str:
    """The shortest text; with 9 digits where reading that by way of float64 would round it twice."""
    value = np.float32(x)
    text = str(value)
    return text if np.isnan(value) or np.float32(float(text)) == value else f"{float(value):.9g}"


def _parser_of(dtype: np.dtype[Any]) -> Callable[[str], Any]:
    if is_floating(dtype):
        return _float
    if dtype == np.bool_:
        return lambda text: _TRUTH[text.strip().lower()]
    return int


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value) and "n" not in text.lower():  # neither inf nor infinity
        raise ValueError("too large")
    return value


def _parsed(
    where: str, line: int, fields: Sequence[str], parse: Callable[[str], Any], dtype: np.dtype[Any]
) -> list[Any]:
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    values = []
    for column, text in enumerate(fields, 1):
        try:
            value = None if "_" in text else parse(text)  # Python reads 1_000 as a number
        except (ValueError, KeyError):
            value = None
        if value is None or (limits and not limits.min <= value <= limits.max):
            raise DataError(
                f"{where}: line {line}, column {column}: {shown(repr(text), 80)} is no {dtype.name}"
            )
        values.append(value)
    return values


def _converted(where: str, array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    lost = np.argwhere(np.isinf(result) & np.isfinite(array))
    if len(lost):
        row, column = lost[0]
        raise DataError(
            f"{where}: row {row + 1}, column {column + 1}: {array[row, column]} is too large "
            f"for {dtype.name}"
        )
    return result


def _rows_of(where: str, reader: Any, dtype: np.dtype[Any]) -> list[list[Any]]:
    """The rows of a reader of `csv`."""
    parse = _parser_of(dtype)
    rows: list[list[Any]] = []
    try:
        for fields in reader:
            if fields:
                _check_length(where, reader.line_num, fields, rows)
                rows.append(_parsed(where, reader.line_num, fields, parse, dtype))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{where}: this is no text of separated values: {error}") from error
    if not rows:
        raise DataError(f"{where}: the file is empty")
    return rows


def _check_length(where: str, line: int, fields: Sequence[str], rows: Sequence[Any]) -> None:
    if rows and len(fields) != len(rows[0]):
        raise DataError(
            f"{where}: line {line} has {len(fields)} values, expected {len(rows[0])} as in the first"
        )


# --- files -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _new_file(what: str, path: PathLike) -> Iterator[IO[bytes]]:
    """A file under a temporary name, which gets its own name when the block ends without an error."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise _file_error(f"{what}: cannot write", path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _file_error(what: str, path: PathLike, error: OSError) -> Exception:
    if isinstance(error, FileError):
        return error
    return FileError(f"{what} {os.fspath(path)}: {error.strerror or error}")
