"""Arrays from HDF5 files by h5py: read whole, or row by row when a batch needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data.images.reading import DECODES, Decode, needs_stream
from magmadnn.data.npz import KEYS, NamedArrays, named_arrays, no_keys
from magmadnn.data.validation import check_dtype
from magmadnn.errors import DataError, MagmaDNNError, MissingExtraError, UnknownNameError, shown
from magmadnn.memory.on_demand import OnDemand
from magmadnn.storage.input_files import check_room, input_path, opened, reading, unpacked_limit

ENDINGS = (".h5", ".hdf5")
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # what h5py itself unpacks
_COPIES = 8  # bytes of each element in float32, as read and as prepared
_SMALLER = 'read it batch by batch with decode="stream"'


@checked_call
def read_hdf5(
    path: str | os.PathLike[str], *, with_target: bool = True, decode: Decode | None = None
) -> NamedArrays:
    """Reads the data sets x and y, or x_train, y_train, x_test and y_test, at the top of an HDF5 file.

    Others are not looked at. As a stream x is rows on demand (`OnDemand`): `x[rows]` opens the file and reads
    these rows, neighbouring ones at once. Where data sets are packed, one row a chunk reads least
    (`create_dataset(..., chunks=(1, ...))`).

    Args:
        path: the file.
        with_target: False: targets are not read, and may be absent.
        decode: "memory": all rows now; "stream": inputs when they are asked for; None: as a stream where
            they, with two copies in float32, need more than half of the memory that is available.

    Raises:
        FileError: the file cannot be read.
        DataError: no HDF5 file, a damaged one, names other than these, no rows, packed to less than a
            hundredth or by filters of others, or values that lie in other files.
        ShapeError: numbers of rows differ.
        DTypeError: elements that are no numbers.
        UnknownNameError: `decode` is something else.
        MissingExtraError: without h5py.
        OutOfMemoryError: the arrays are larger than the memory that is free.
    """
    if decode is not None and decode not in DECODES:
        raise UnknownNameError.of("read_hdf5: decode", decode, DECODES)
    path = input_path("read_hdf5: the file", path)
    with _opened(path) as file:
        names = tuple(file)
        found = {key: _checked(path, file, key) for key in KEYS if key in names}
        if not found:
            raise no_keys(path, names)
        arrays = {
            key: _stream(path, key, data) if _streamed(key, data, decode) else _whole(path, data)
            for key, data in found.items()
            if with_target or key[0] == "x"
        }
    return named_arrays(shown(path), arrays, with_target)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file; what h5py raises in the block becomes one of magmadnn's errors."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError.of("h5py", "reading HDF5 files", "data") from error
    with opened(path):  # only to look whether it is a regular file that can be read
        pass
    with reading(path):  # which words a MemoryError
        try:
            with h5py.File(path, "r") as file:
                yield file
        except MagmaDNNError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
            raise DataError(
                f"{shown(path)}: is no HDF5 file, or damaged ({shown(str(error), 120)}): write it again"
            ) from error


def _checked(path: Path, file: Any, key: str) -> Any:
    """A data set whose values are numbers in this file, in a form that can be read.

    Raises:
        DataError, DTypeError: it is not.
    """
    import h5py

    name = f"{shown(path)}: {key}"
    link = file.get(key, getlink=True)  # of another file, which is not opened
    data = file[key] if isinstance(link, h5py.HardLink) else None
    if not isinstance(data, h5py.Dataset):
        raise DataError(f"{name} is no data set of this file: copy the values into one")
    if data.is_virtual or data.external:
        raise DataError(f"{name} lies in other files: copy the values into this one")
    if data.shape is None or data.ndim == 0:
        raise DataError(f"{name} is empty: expected some rows")
    check_dtype(name, np.empty(0, data.dtype))
    pipeline = data.id.get_create_plist()
    numbers = [pipeline.get_filter(k)[0] for k in range(pipeline.get_nfilters())]
    if strange := [n for n in numbers if n not in _FILTERS]:
        raise DataError(
            f"{name} is packed by the filter {strange[0]}: expected {', '.join(_FILTERS.values())}, or none"
        )
    if data.nbytes > unpacked_limit(data.id.get_storage_size()):
        raise DataError(
            f"{name} has {data.nbytes:,} bytes packed to less than a hundredth, taken for an attack on the "
            "memory: write it without packing"
        )
    return data


def _streamed(key: str, data: Any, decode: Decode | None) -> bool:
    """Whether rows are read when they are asked for, which inputs may be."""
    if not key.startswith("x"):
        return False
    return needs_stream(decode, data.nbytes + _COPIES * data.size)


def _whole(path: Path, data: Any) -> NDArray[Any]:
    check_room(path, data.nbytes, _SMALLER)
    found: NDArray[Any] = data[()]
    return found


def _stream(path: Path, key: str, data: Any) -> Any:
    shape, dtype = data.shape, data.dtype

    def read(rows: NDArray[np.int64]) -> NDArray[Any]:
        with _opened(path) as file:
            if key not in file or (file[key].shape, file[key].dtype) != (shape, dtype):
                raise DataError(
                    f"{shown(path)}: {key} has changed since it was looked at: load it again"
                )
            return _rows(_checked(path, file, key), rows)

    return OnDemand(shape, dtype, read)


def _rows(data: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows in the order of their numbers, each run of neighbours read at once."""
    numbers, places = np.unique(rows, return_inverse=True)
    held = np.empty((len(numbers), *data.shape[1:]), data.dtype)
    ends = np.flatnonzero(np.diff(numbers, append=-1) != 1) + 1
    low = 0
    for high in ends.tolist():
        held[low:high] = data[int(numbers[low]) : int(numbers[high - 1]) + 1]
        low = high
    return held[places]
