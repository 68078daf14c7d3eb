"""Tables and columns of pandas, polars, pyarrow and NumPy, known by what they offer: none is imported.

Each column becomes an array of NumPy: numbers, bools or times where no value is missing or NaN and NaT say
so; otherwise objects, with None where a value is missing. Another library's table that gives an Arrow stream
is read by pyarrow or polars, whichever is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, DTypeError

Array = NDArray[Any]

NEITHER = (list, tuple, dict, str, int, float, NoneType)  # table nor column: known at once


@dataclass(frozen=True, eq=False)
class RawColumn:
    """A column as its library holds it.

    Attributes:
        name: its name; "" for none.
        values: [rows]; objects may be None.
        dtype: the library's own word for the type.
        is_category: whether the library says that values name categories.
        has_zone: whether they are dates with a time zone; values are then in UTC.
    """

    name: str
    values: Array
    dtype: str
    is_category: bool = False
    has_zone: bool = False


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table as its library holds it.

    Attributes:
        names: of the columns; `column <index>` where they are only counted.
        is_named: whether they have names.
        columns: as the library's own objects; `raw_column` reads one.
        rows: their number.
        index: the labels of the rows, where the library has such (pandas).
    """

    names: tuple[str, ...]
    is_named: bool
    columns: tuple[Any, ...]
    rows: int
    index: Any = None


def is_table(value: Any) -> bool:
    """Whether `value` is a table with columns: a DataFrame, an Arrow table, a structured array."""
    if isinstance(value, np.ndarray):
        return value.dtype.names is not None
    if isinstance(value, NEITHER):
        return False
    if _has(value, "iloc", "columns") or _has(value, "get_columns", "schema"):
        return True
    if _has(value, "column_names", "column") or _has(value, "collect", "collect_schema"):
        return True
    return _has(value, "__arrow_c_stream__") and not _has(value, "dtype") and not _is_arrow(value)


def is_column(value: Any) -> bool:
    """Whether `value` is a single column of such a library: a Series, or an Arrow array."""
    if isinstance(value, (np.ndarray, *NEITHER)):
        return False
    return (
        _has(value, "iloc", "name", "index")
        or _has(value, "to_list", "null_count", "is_null")
        or _is_arrow(value)
    )


def raw_table(value: Any, what: str) -> RawTable:
    """The columns of a table.

    Args:
        value: of which `is_table` holds.
        what: how messages call it.

    Raises:
        DataError: columns have no names of their own, or several levels of names.
        DTypeError: it is a plan of a table (a LazyFrame), or of a library that cannot be read.
    """
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise DTypeError(f"{what}: a structured array must have one axis, got {value.shape}")
        names = value.dtype.names or ()
        return RawTable(names, True, tuple(value[name] for name in names), len(value))
    if _has(value, "iloc", "columns"):
        return _pandas_table(value, what)
    if _has(value, "get_columns", "schema"):
        return _named(value.columns, value.get_columns(), len(value), what)
    if _has(value, "column_names", "column"):
        columns = [value.column(k) for k in range(value.num_columns)]
        return _named(value.column_names, columns, value.num_rows, what)
    if _has(value, "collect", "collect_schema"):
        raise DTypeError(
            f"{what}: a {type(value).__name__} holds no rows yet: give .collect() of it"
        )
    return raw_table(_from_stream(value, what), what)


def raw_column(column: Any, name: str | None = None) -> RawColumn:
    """A column of one of the libraries, or an array of one axis."""
    own = getattr(column, "name", None) if name is None else name
    label = "" if own is None else str(own)
    if isinstance(column, np.ndarray):
        return RawColumn(label, column, column.dtype.name)
    if _has(column, "iloc"):
        return RawColumn(
            label, _pandas_values(column), *_described(column.dtype), _zoned(column.dtype)
        )
    if _has(column, "to_list"):
        return RawColumn(
            label, _polars_values(column), *_described(column.dtype), _zoned(column.dtype)
        )
    kind, is_category = _described(column.type)
    exact = column.null_count == 0 or kind.startswith(("int", "uint", "float", "double", "half"))
    plain = exact and kind.startswith(("int", "uint", "float", "double", "half", "bool"))
    plain = plain or kind.startswith(("duration", "timestamp", "date", "time"))
    values = np.asarray(column) if plain else _objects(column.to_pylist())
    return RawColumn(label, values, kind, is_category, _zoned(column.type))


def _has(value: Any, *names: str) -> bool:
    return all(hasattr(value, name) for name in names)


def _is_arrow(value: Any) -> bool:
    return _has(value, "to_pylist", "type", "null_count")


def _zoned(dtype: Any) -> bool:
    """Whether a type is one of times with a zone: of pandas, Arrow, pandas on Arrow, or polars."""
    types = (dtype, getattr(dtype, "pyarrow_dtype", None))
    return any(getattr(t, n, None) is not None for t in types for n in ("tz", "time_zone"))


def _described(dtype: Any) -> tuple[str, bool]:
    """The library's word for a type, and whether it is one of categories."""
    text = str(dtype)
    return text, text.lower().startswith(("category", "categorical", "enum", "dictionary"))


def _pandas_table(value: Any, what: str) -> RawTable:
    labels = value.columns
    if getattr(labels, "nlevels", 1) > 1:
        raise DataError(
            f"{what}: columns have {labels.nlevels} levels of names (a MultiIndex): make one name of each: "
            'df.columns = ["_".join(map(str, c)) for c in df.columns]'
        )
    columns = tuple(value.iloc[:, k] for k in range(len(labels)))
    if [*labels] == [*range(len(labels))] and not any(isinstance(x, str) for x in labels):
        names = tuple(f"column {k}" for k in range(len(labels)))
        return RawTable(names, False, columns, len(value), value.index)
    table = _named(labels, columns, len(value), what)
    return RawTable(table.names, True, columns, len(value), value.index)


def _named(labels: Iterable[Any], columns: Iterable[Any], rows: int, what: str) -> RawTable:
    names = tuple(map(str, labels))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        first = names.index(twice[0])
        second = names.index(twice[0], first + 1)
        raise DataError(
            f"{what}: the name {twice[0]!r} stands twice, in columns {first} and {second} (counted from 0): "
            "every column needs a name of its own"
        )
    return RawTable(names, True, tuple(columns), rows)


def _pandas_values(series: Any) -> Array:
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return np.asarray(series)
    kind = "O" if _described(dtype)[1] else getattr(dtype, "kind", "O")
    if kind == "M":
        return np.asarray(series.to_numpy("M8[us]"))  # in UTC, where there is a zone
    if kind == "m":
        return np.asarray(series.to_numpy("m8[ns]"))
    if kind in "iuf" and series.isna().any():
        return np.asarray(series.to_numpy("float64", na_value=np.nan))
    if kind in "biuf" and not series.isna().any():
        return np.asarray(
            series.to_numpy({"b": "bool", "i": "int64", "u": "uint64"}.get(kind, "f8"))
        )
    return np.asarray(series.to_numpy(dtype=object, na_value=None))


def _polars_values(series: Any) -> Array:
    dtype = series.dtype
    name = type(dtype).__name__
    plain = (dtype.is_numeric() and name != "Decimal") or name in ("Boolean", "Duration")
    if plain or name in ("Date", "Datetime", "Time"):
        return np.asarray(series.to_numpy())
    return _objects(series.to_list())


def _objects(values: list[Any]) -> Array:
    """An array of these objects, of one axis whatever they are."""
    array = np.empty(len(values), object)
    for k, value in enumerate(values):
        array[k] = value
    return array


def _from_stream(value: Any, what: str) -> Any:
    """A table of a library that is read, from one that gives an Arrow stream."""
    try:
        import pyarrow

        return pyarrow.table(value)
    except ImportError:
        pass
    try:
        import polars

        return polars.DataFrame(value)
    except ImportError:
        raise DTypeError(
            f"{what}: to read a {type(value).__name__} pyarrow or polars is needed, and neither is "
            "installed: convert it to a DataFrame of pandas, or install one"
        ) from None
