"""Checks of arrays before they are trained on: one error that names the first bad row."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np

from magmadnn.data._structure import Array, is_mapped, leaves, row_count
from magmadnn.errors import DataError, DTypeError, ShapeError
from magmadnn.memory.foreign import OnDevice
from magmadnn.memory.on_demand import OnDemand
from magmadnn.memory.unchanging import Noted

_BLOCK = 1 << 18
_FEW = 1 << 12  # shares: added in any order, their rounding errors are below a thousandth
_LARGE = 1 << 25  # bytes that several threads look at
_THREADS = 8
_FOUND_FINITE = Noted()  # arrays that nobody may write are looked at once
_FOUND_WITHIN = defaultdict[int, Noted](Noted)  # by the number of classes


def is_numbers(value: Any) -> bool:
    """Whether it is an array of NumPy's real numbers."""
    return type(value) is np.ndarray and value.dtype.kind in "biuf"


def check_arrays(
    x: Any,
    y: Any = None,
    *,
    classes: int | None = None,
    inner: int = 0,
    scan: bool | None = None,
    later: bool = False,
) -> int:
    """Checks inputs and targets; returns the number of rows.

    Args:
        x: inputs: an array, or a tuple, list or dict of arrays with the same number of rows.
        y: targets of the same number of rows, or None.
        classes: with a number, `y` holds class numbers 0..classes-1, shape [rows] or [rows, 1]
            (or one column per class, shape [rows, classes], which is checked as numbers).
        inner: axes between rows and classes: with 1, a row holds a sequence of class numbers.
        scan: whether to look at every value. None: yes, but not in memory-mapped files, where
            it would take as long as an epoch.
        later: whether somebody else looks at values that lie on a device, before they are relied on
            (`PendingChecks`).

    Raises:
        DataError: no rows, NaN or infinity (names row and column), a label outside the classes.
        ShapeError: different numbers of rows, or labels of a wrong shape.
        DTypeError: elements that are no real numbers, or class numbers that are no integers.
    """
    named = leaves(x, "x") + ([] if y is None else leaves(y, "y"))
    for name, array in named:
        check_dtype(name, array)
    rows = row_count(x, "x")
    if y is not None and row_count(y, "y") != rows:
        first = leaves(y, "y")[0]
        raise ShapeError(
            f"x has {rows} rows but {first[0]} has {len(first[1])}: every row needs a target"
        )
    for name, array in named:
        if scan:
            check_finite(name, array, later=later)
        elif scan is None and not is_mapped(array):
            check_values(name, array, later=later)
    if classes is not None and y is not None:
        for name, array in leaves(y, "y"):
            check_labels(name, array, classes, inner=inner, scan=scan, later=later)
    return rows


def check_dtype(name: str, array: Array) -> None:
    """Refuses elements that are no real numbers (text, objects, complex, dates), and masked ones."""
    # bfloat16 and the float8 types of ml_dtypes are of kind "V" for NumPy, as records are.
    small_float = array.dtype.kind == "V" and "float" in array.dtype.name
    if array.dtype.kind not in "biuf" and not small_float:
        example = ""
        if array.dtype.kind in "UST" and array.ndim == 1:
            example = (
                ", for instance with classes, numbers = np.unique(labels, return_inverse=True)"
            )
        raise DTypeError(
            f"{name}: elements are of type {array.dtype}, expected numbers: "
            f"convert text to numbers or class numbers first{example}"
        )
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise DataError(f"{name}: elements are masked: fill them, or leave out their rows")


def way_to_shape(x: str, shape: tuple[int, ...], expected: tuple[Any, ...]) -> str:
    """How arrays of samples become such of another shape, where that is plain; otherwise nothing.

    Args:
        x: the array's name.
        shape: of the array.
        expected: of one sample, which may have symbols for sizes that are not known.
    """
    sample, places = shape[1:], len(expected) - 1
    if not expected:
        return ""
    if shape == expected:
        return f"this is one sample; a batch of one is {x}[None]"
    if places and expected[-1] == 1 and sample == expected[:-1]:
        return f"an axis of channels is {x}[..., None]"
    if places and expected[-1] == 1 and shape == expected[:-1]:
        return f"this is one sample without channels; a batch of one is {x}[None, ..., None]"
    if places and len(sample) == len(expected) and sample == (expected[-1], *expected[:-1]):
        return f"channels come last: give np.moveaxis({x}, 1, -1), not a reshaped {x}"
    if places == 2 and len(sample) == 3 and all(isinstance(size, int) for size in expected):
        if sample[:2] != expected[:2]:
            same = sample[2] == expected[2]
            return f"scale images to {expected[0]} x {expected[1]}" if same else ""
        if (sample[2], expected[2]) == (3, 1):
            return f"colours become grey by {x}.mean(axis=-1, keepdims=True)"
        if (sample[2], expected[2]) == (1, 3):
            return f"grey becomes three colours by np.repeat({x}, 3, axis=-1)"
    return ""


def check_values(name: str, array: Array, *, later: bool = False) -> None:
    """`check_finite`, but of an array that nobody may write only once."""
    written = _may_be_written(array)
    if written or array not in _FOUND_FINITE:
        check_finite(name, array, later=later)
        if not written:
            _FOUND_FINITE.add(array)


def _may_be_written(array: Array) -> bool:
    """Whether what was found out about an array may not stay true."""
    return not isinstance(array, np.ndarray) or array.flags.writeable


def check_finite(
    name: str, array: Array, *, nan_allowed: bool = False, later: bool = False
) -> None:
    """Raises DataError at the first NaN (unless allowed) or infinity."""
    if isinstance(array, OnDevice):
        if _is_finite_there(array, later):
            return
        array = np.asarray(array)  # to tell where
    where = first_not_finite(array, nan_allowed=nan_allowed)
    if where is None:
        return
    value = float(array[where[:1]][where[1:]])  # rows on demand take numbers of rows only
    raise DataError(
        f"{name}: {place(where)} is {value}, expected finite numbers: repair or leave out the row"
    )


def _is_finite_there(array: OnDevice, later: bool) -> bool:
    """Whether no element is NaN or infinite; with `later` that is noted as wanted."""
    looks = array.looks
    if not looks.finite and array.dtype.kind not in "biu":
        looks.wants_finite = True
        if later:
            return True
        if not _on_device().is_finite(array):
            return False
        looks.wants_finite, looks.finite = False, True
    return True


def _is_within_there(labels: OnDevice, classes: int, later: bool) -> bool:
    """The same for class numbers."""
    looks = labels.looks
    if looks.below != classes:
        looks.wants_below = classes
        if later:
            return True
        if not _on_device().is_within(labels, classes):
            return False
        looks.wants_below, looks.below = None, classes
    return True


def _on_device() -> ModuleType:
    """Kernels that look at values; loaded where an array lies on a device."""
    from magmadnn.runtime.cuda.data import arrays

    return arrays


def place(where: tuple[int, ...]) -> str:
    """The words for an index: row; row and column; or row and position in it."""
    row, *rest = where
    if not rest:
        return f"row {row}"
    return f"row {row}, " + (f"column {rest[0]}" if len(rest) == 1 else f"position {tuple(rest)}")


def first_not_finite(array: Array, *, nan_allowed: bool = False) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity, or None."""
    if array.dtype.kind in "biu":
        return None

    def look(first: int, last: int) -> tuple[int, ...] | None:
        for low, block in row_blocks(array[first:last]):
            if _has_finite_sum(block):
                continue
            bad = np.isinf(block) if nan_allowed else ~np.isfinite(block)
            if bad.any():
                row, *rest = np.argwhere(bad)[0].tolist()
                return (first + low + row, *rest)
        return None

    if array.nbytes < _LARGE:
        return look(0, len(array))
    threads = min(_THREADS, os.cpu_count() or 1)
    step = -(-len(array) // threads)
    firsts = range(0, len(array), step)
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(look, firsts, (first + step for first in firsts))
        return next((where for where in found if where is not None), None)


def _has_finite_sum(block: Array) -> bool:
    """Whether the sum is finite, and so all elements: that is seen faster than element by element."""
    if block.dtype not in (np.float32, np.float64):
        return False
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.add.reduce(block, axis=None)))


def first_not_shares(array: Array) -> tuple[int, ...] | None:
    """The index of the first place whose numbers along the last axis are not shares of a whole, or None.

    They are where none is negative and their sum is 1, to 1 %: shares may have been rounded.
    """
    for low, block in row_blocks(array):
        numbers = np.asarray(block, np.float32 if block.dtype.itemsize < 4 else block.dtype)
        few = numbers.shape[-1] <= _FEW  # of which NumPy's `sum` is slow
        totals = np.einsum("...k->...", numbers) if few else numbers.sum(axis=-1)
        bad = np.abs(totals - 1.0) > 0.01
        if not numbers.min() >= 0:  # NaN, too
            bad |= numbers.min(axis=-1) < 0
        if bad.any():
            row, *rest = np.argwhere(bad)[0].tolist()
            return (low + row, *rest)
    return None


def row_blocks(array: Array) -> Iterator[tuple[int, Array]]:
    """The array in blocks of rows of up to 2**18 elements, each with its first row's number."""
    step = max(1, _BLOCK // max(1, array[:1].size))
    for low, part in _made(array, step):
        for k in range(0, len(part), step):
            yield low + k, part[k : k + step]


def _made(array: Array, step: int) -> Iterator[tuple[int, Array]]:
    """The array in parts that lie in memory, of some blocks of `step` rows each."""
    if not isinstance(array, OnDemand):
        yield 0, array
        return
    most = -(-array.rows_at_once // step) * step
    for low in range(0, len(array), most):
        yield low, array[low : low + most]


def check_labels(
    name: str,
    labels: Array,
    classes: int,
    *,
    inner: int = 0,
    scan: bool | None = None,
    later: bool = False,
) -> None:
    """Checks that labels are class numbers 0..classes-1, or have one column per class.

    The arguments are those of `check_arrays`.
    """
    if are_class_numbers(name, labels, classes, inner) and scan is not False:
        if scan or not is_mapped(labels):
            check_within(name, labels, classes, inner=inner, later=later)


def are_class_numbers(name: str, labels: Array, classes: int, inner: int = 0) -> bool:
    """Whether labels are class numbers, by shape and dtype; False where they have one column per class.

    Raises:
        ShapeError, DTypeError: if they are neither.
    """
    numbers, last = 1 + inner, labels.shape[-1]
    if labels.ndim == numbers + 1 and last == classes and classes > 1:
        return False
    if labels.ndim != numbers and (labels.ndim != numbers + 1 or last != 1):
        one = ", ".join([str(len(labels)), *["..."] * inner])
        comma = "" if inner else ","
        raise ShapeError(
            f"{name}: labels have the shape {labels.shape}, expected ({one}{comma}) with class "
            f"numbers or ({one}, {classes}) with one column per class"
        )
    if labels.dtype.kind not in "iub":
        raise DTypeError(
            f"{name}: class numbers are of type {labels.dtype}, expected integers: "
            f'use {name}.astype("int64")'
        )
    return True


def check_within(
    name: str, labels: Array, classes: int, *, inner: int = 0, later: bool = False
) -> None:
    """Checks the values of class numbers; of an array that nobody may write only once.

    Raises:
        DataError: one is outside 0..classes-1; names its row.
    """
    if labels.dtype.kind == "b" and classes > 1:
        return
    if isinstance(labels, OnDevice):
        if _is_within_there(labels, classes, later):
            return
        labels = np.asarray(labels)  # to tell where
    written = _may_be_written(labels)
    if not written and labels in _FOUND_WITHIN[classes]:
        return
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        first = tuple(np.argwhere(outside)[0].tolist())
        raise DataError(
            f"{name}: {place(first[: 1 + inner])} has the label {labels[first]}, outside the classes "
            f"0..{classes - 1}"
        )
    if not written:
        _FOUND_WITHIN[classes].add(labels)
