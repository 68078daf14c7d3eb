"""Rows of the data of a search: which are kept back, taking them, and what tells data apart."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data._structure import is_mapped, leaves, rebuild, row_count, take_rows
from magmadnn.data.preparation.targets import target_kind
from magmadnn.data.tables.libraries import is_column, is_table, raw_column, raw_table
from magmadnn.data.tables.plain import is_foreign_data, plain_target
from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.training.arguments import at_least
from magmadnn.training.many.folds import fold_rows

_WHOLE = 1 << 28  # bytes that are all looked at
_SMALL = 1 << 24  # bytes of data of trials that are trained together
_ROWS = 1 << 16  # of larger arrays


def count_rows(data: Any, name: str) -> int:
    """Rows of arrays or of a table of another library."""
    if is_foreign_data(data) or (not isinstance(data, np.ndarray) and is_table(data)):
        return len(data)
    return row_count(data, name)


def rows_of(data: Any, rows: NDArray[np.int64]) -> Any:
    """These rows of arrays, tables or columns, in the same structure."""
    if isinstance(data, np.ndarray):
        return take_rows(data, rows)
    if is_foreign_data(data) or is_table(data) or is_column(data):
        if hasattr(data, "iloc"):
            return data.iloc[rows]
        return data.take(rows) if hasattr(data, "combine_chunks") else data[rows]
    return rebuild(data, partial(take_rows, rows=rows))


def is_small(data: Any) -> bool:
    """Whether several trainings may have the data once more each, as those that prepare it do."""
    return sum(array.nbytes for part in data for _, array in _arrays(part)) <= _SMALL


def check_same_rows(x: Any, y: Any, what: str = "search") -> int:
    """How many rows x and y have.

    Raises:
        ArgumentError: if y is missing.
        ShapeError: if they have different numbers.
    """
    if y is None:
        raise ArgumentError(f"{what}: y is missing: a search needs arrays x and y, not an iterable")
    if is_foreign_data(x) or is_foreign_data(y):
        return count_rows(x, "x")
    count, targets = row_count(x, f"{what}: x"), row_count(y, f"{what}: y")
    if count != targets:
        raise ShapeError(
            f"{what}: x has {count} rows but y has {targets}: every row needs a target"
        )
    return count


def folds_of(
    y: Any, rows: int, folds: int, repeat: int, stratified: bool | None, seed: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows to train on and rows that are held out, for each fold.

    Args:
        y: targets.
        rows: how many there are.
        folds: how many parts.
        repeat: number of this way of cutting.
        stratified: whether each fold has its share of each class; None: where targets are classes.
        seed: of the order in which rows are dealt.

    Raises:
        ArgumentError: more folds than rows, or than a class has rows; or there are no classes.
    """
    at_least("search: folds", folds, 2)
    classes = None if stratified is False else classes_of(y)
    if classes is None and stratified:
        raise ArgumentError("search: stratified=True needs one class for each row; leave it out")
    held = fold_rows(rows, folds, seed, repeat, classes, "search")
    every = np.arange(rows)
    return [(np.setdiff1d(every, one), one) for one in held]


def classes_of(y: Any) -> NDArray[Any] | None:
    """The class of each row; None where targets are quantities."""
    if isinstance(y, (dict, list, tuple)) and not isinstance(y, np.ndarray):
        return None
    values = plain_target(y, "y").values if is_foreign_data(y) else np.asarray(y)
    if values.ndim != 1 or values.dtype.kind not in "iubUSO":
        return None
    return values if target_kind(values) == "classification" else None


def data_sha256(*parts: Any) -> str:
    """SHA-256, in hex, of data: of all values up to 256 MB, of 65,536 rows beyond."""
    digest = hashlib.sha256()
    for part in parts:
        for name, array in _arrays(part):
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            if array.dtype == object:
                digest.update(repr(array.tolist()).encode())
                continue
            if array.nbytes > _WHOLE or is_mapped(array):
                array = array[:: max(1, len(array) // _ROWS)]
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _arrays(part: Any) -> list[tuple[str, NDArray[Any]]]:
    if part is None:
        return []
    if isinstance(part, np.ndarray):
        return [("", part)]
    if is_table(part):
        table = raw_table(part, "x")
        named = zip(table.names, table.columns, strict=True)
        return [(name, raw_column(column, name).values) for name, column in named]
    if is_column(part):
        return [("", raw_column(part).values)]
    return [(name, np.asarray(array)) for name, array in leaves(part, "")]
