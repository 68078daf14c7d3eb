"""Arrays by their names, and NumPy's .npz files, without pickles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data.validation import check_dtype
from magmadnn.errors import DataError, ShapeError, shown
from magmadnn.storage.input_files import input_path

KEYS = ("x", "y", "x_train", "y_train", "x_test", "y_test")
_WORDS = "x and y, or x_train and y_train (and x_test and y_test)"
_SHOWN = 20  # keys that a message lists


@dataclass(frozen=True, eq=False)
class NamedArrays:
    """What `read_npz` or `read_hdf5` found; without a test set of its own, `x_test` and `y_test` are None."""

    x: NDArray[Any]
    y: NDArray[Any] | None
    x_test: NDArray[Any] | None = None
    y_test: NDArray[Any] | None = None


@checked_call
def read_npz(path: str | os.PathLike[str], *, with_target: bool = True) -> NamedArrays:
    """Reads the arrays x and y, or x_train, y_train, x_test and y_test; others are not looked at.

    Args:
        path: the file.
        with_target: False: targets are not read, and may be absent.

    Raises:
        FileError: the file cannot be read.
        DataError: no .npz file, a damaged one, keys other than these, no rows, or packed to less than a
            hundredth.
        ShapeError: numbers of rows differ.
        DTypeError: elements that are no numbers; objects are never loaded.
        OutOfMemoryError: the arrays are larger than the memory that is free.
    """
    path = input_path("read_npz: the file", path)
    return named_arrays(shown(path), _read(path), with_target)


def named_arrays(file: str, stored: dict[str, NDArray[Any]], with_target: bool) -> NamedArrays:
    """Arrays of a file in pairs of inputs and targets.

    Args:
        file: how messages call it.
        stored: the arrays by name.
        with_target: whether targets are needed.

    Raises:
        DataError, ShapeError, DTypeError: see `read_npz`.
    """
    if "x" in stored or ("x_train" not in stored and "x_test" not in stored):
        x, y = _pair(file, stored, "x", "y", with_target)
        return NamedArrays(x, y)
    if "x_train" not in stored and not with_target:
        x, y = _pair(file, stored, "x_test", "y_test", with_target)
        return NamedArrays(x, y)
    x, y = _pair(file, stored, "x_train", "y_train", with_target)
    if "x_test" not in stored:
        return NamedArrays(x, y)
    x_test, y_test = _pair(file, stored, "x_test", "y_test", with_target)
    if x_test.shape[1:] != x.shape[1:]:
        raise ShapeError(
            f"{file}: rows of x_train have the shape {x.shape[1:]} but rows of x_test "
            f"{x_test.shape[1:]}: both need the same"
        )
    return NamedArrays(x, y, x_test, y_test)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    from magmadnn.storage.formats.npz_file import (
        opened_npz,  # loads zipfile, which takes milliseconds
    )

    with opened_npz(path) as stored:
        found = {key: stored.read(key) for key in KEYS if key in stored.names}
        if not found:
            raise no_keys(path, stored.names)
        return found


def no_keys(path: Path, names: Sequence[str]) -> DataError:
    """The error for a file with other names only."""
    keys = shown(", ".join(names[:_SHOWN]), 400) or "none"
    return DataError(f"{shown(path)}: expected the keys {_WORDS}, found {keys}")


def _pair(
    file: str, stored: dict[str, NDArray[Any]], x_key: str, y_key: str, with_target: bool
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if x_key not in stored or (with_target and y_key not in stored):
        missing = x_key if x_key not in stored else y_key
        raise DataError(
            f"{file}: {missing} is missing: expected the keys {_WORDS}, found {', '.join(stored)}"
        )
    x = stored[x_key]
    check_dtype(f"{file}: {x_key}", x)
    if x.ndim == 0 or x.size == 0:
        raise DataError(f"{file}: {x_key} is empty: its shape is {x.shape}, expected some rows")
    if not with_target:
        return x, None
    y = stored[y_key]
    if y.shape[:1] != x.shape[:1]:
        raise ShapeError(
            f"{file}: {x_key} has the shape {x.shape} but {y_key} {y.shape}: "
            "both need the same number of rows"
        )
    return x, y
