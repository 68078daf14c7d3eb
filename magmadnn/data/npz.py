"""Arrays from NumPy's .npz files, without pickles."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.data.validation import check_dtype
from magmadnn.errors import DataError, ShapeError, shown
from magmadnn.storage.input_files import input_path

_KEYS = "x and y, or x_train and y_train (and x_test and y_test)"
_SHOWN = 20  # keys that a message lists


@dataclass(frozen=True, eq=False)
class NpzArrays:
    """What `read_npz` found; without a test set of its own, `x_test` and `y_test` are None."""

    x: NDArray[Any]
    y: NDArray[Any] | None
    x_test: NDArray[Any] | None = None
    y_test: NDArray[Any] | None = None


@checked_call
def read_npz(path: str | os.PathLike[str], *, with_target: bool = True) -> NpzArrays:
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
    file, stored = shown(path), _read(path)
    if "x" in stored or ("x_train" not in stored and "x_test" not in stored):
        x, y = _pair(file, stored, "x", "y", with_target)
        return NpzArrays(x, y)
    if "x_train" not in stored and not with_target:
        x, y = _pair(file, stored, "x_test", "y_test", with_target)
        return NpzArrays(x, y)
    x, y = _pair(file, stored, "x_train", "y_train", with_target)
    if "x_test" not in stored:
        return NpzArrays(x, y)
    x_test, y_test = _pair(file, stored, "x_test", "y_test", with_target)
    if x_test.shape[1:] != x.shape[1:]:
        raise ShapeError(
            f"{file}: rows of x_train have the shape {x.shape[1:]} but rows of x_test "
            f"{x_test.shape[1:]}: both need the same"
        )
    return NpzArrays(x, y, x_test, y_test)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    from magmadnn.storage.formats.npz_file import (
        opened_npz,  # loads zipfile, which takes milliseconds
    )

    known = ("x", "y", "x_train", "y_train", "x_test", "y_test")
    with opened_npz(path) as stored:
        found = {key: stored.read(key) for key in known if key in stored.names}
        if not found:
            keys = shown(", ".join(stored.names[:_SHOWN]), 400) or "none"
            raise DataError(f"{shown(path)}: expected the keys {_KEYS}, found {keys}")
        return found


def _pair(
    file: str, stored: dict[str, NDArray[Any]], x_key: str, y_key: str, with_target: bool
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if x_key not in stored or (with_target and y_key not in stored):
        missing = x_key if x_key not in stored else y_key
        raise DataError(
            f"{file}: {missing} is missing: expected the keys {_KEYS}, found {', '.join(stored)}"
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
