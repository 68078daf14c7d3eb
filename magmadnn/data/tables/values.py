"""What the values of a column are: numbers, truth values, durations, dates or names of categories."""

from __future__ import annotations

import datetime
import math
import numbers
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.data.tables.cells import MISSING, is_number
from magmadnn.data.tables.dates import day, days, kind_of_date
from magmadnn.data.tables.libraries import RawColumn
from magmadnn.errors import DataError, DTypeError

Array = NDArray[Any]

Kind = Literal["number", "bool", "duration", "date", "instant", "category"]

KINDS: dict[Kind, str] = {
    "number": "numbers",
    "bool": "truth values",
    "duration": "durations",
    "date": "dates",
    "instant": "dates with a time zone",
    "category": "categories",
}


@dataclass(frozen=True, eq=False)
class Values:
    """The values of a column.

    Attributes:
        kind: what they are.
        data: numbers as they were, NaN where missing; truth values as bool, or 1, 0 and NaN; durations in
            seconds and dates in days since 1970-01-01, float64, NaN where missing; categories as objects,
            their texts or None.
        texts: whether categories came as texts; otherwise the library said that they are some.
    """

    kind: Kind
    data: Array
    texts: bool = False


def settled(column: RawColumn, what: str) -> Values:
    """The values of a column.

    Args:
        column: as its library holds it.
        what: how messages call it: `x: column 'age'`.

    Raises:
        DTypeError: values that are nothing of the kind, such as times of the day or lists.
        DataError: several kinds of values in one column.
    """
    raw = column.values
    if column.is_category:
        return Values("category", _texts(raw, what))
    match raw.dtype.kind:
        case "b":
            return Values("bool", raw)
        case "i" | "u" | "f":
            return Values("number", raw)
        case "m":
            return Values("duration", _seconds(raw))
        case "U":
            return Values("category", _texts(raw.astype(object), what), texts=True)
        case "O":
            return _of_objects(raw, what)
        case "M":
            return Values("instant" if column.has_zone else "date", days(raw))
    raise DTypeError(f"{what} holds {column.dtype}, expected {_EXPECTED}")


_EXPECTED = "numbers, truth values, durations, dates or texts: convert the column, or leave it out"


def refused_dates(what: str) -> DTypeError:
    """The error for targets that are dates."""
    return DTypeError(
        f"{what} holds dates, expected numbers or names of classes: make numbers of them, such as days since "
        "the first one"
    )


def text_of(value: Any) -> str:
    """One name for one category or class, whether it came as a whole number or as 3.0; no outer blanks."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value).strip()


def _is_missing(value: Any) -> bool:
    """Whether an object stands for a value that is not there; pandas' own NA is known by its name."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, np.timedelta64 | np.datetime64) and bool(np.isnat(value))
    )


def _texts(raw: Array, what: str) -> Array:
    """Names of categories, None where missing."""
    out = np.empty(len(raw), object)
    for row, value in enumerate(raw):
        if _is_missing(value):
            continue
        if not isinstance(value, str | bool | np.bool_ | numbers.Real):
            raise DTypeError(
                f"{what} holds a {type(value).__name__} in row {row}, expected {_EXPECTED}"
            )
        text = text_of(value)
        out[row] = None if text in MISSING else text
    return out


def _seconds(raw: Array) -> Array:
    """Durations of NumPy in seconds."""
    seconds = raw / np.timedelta64(1, "s")
    return np.asarray(seconds, np.float64)


def _kind_of(value: Any) -> Kind | None:
    if isinstance(value, str):
        return "category"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, datetime.timedelta | np.timedelta64):
        return "duration"
    if isinstance(value, datetime.date | np.datetime64):
        return kind_of_date(value)
    if isinstance(value, complex | np.complexfloating):
        return None
    return "number" if isinstance(value, numbers.Number) else None  # a Decimal is one, and not Real


def _of_objects(raw: Array, what: str) -> Values:
    """The values of a column of objects, which must be of one kind."""
    known = [(row, value) for row, value in enumerate(raw) if not _is_missing(value)]
    kinds: dict[Kind, int] = {}
    for row, value in known:
        found = _kind_of(value)
        if found is None:
            raise DTypeError(
                f"{what} holds a {type(value).__name__} in row {row}, expected {_EXPECTED}"
            )
        kinds.setdefault(found, row)
    if len(kinds) > 1:
        first, second, *_ = kinds.items()
        raise DataError(
            f"{what} holds {KINDS[first[0]]} ({raw[first[1]]!r} in row {first[1]}) and {KINDS[second[0]]} "
            f"({raw[second[1]]!r} in row {second[1]}): make it a column of one kind"
        )
    kind: Kind = next(iter(kinds), "number")
    if kind == "category":
        return Values("category", _texts(raw, what), texts=True)
    data = np.full(len(raw), np.nan)
    for row, value in known:
        data[row] = _number(value)
    if kind == "number" and len(known) == len(raw) and all(_is_whole(value) for _, value in known):
        return Values(kind, raw.astype(np.int64))
    return Values(kind, data.astype(bool) if kind == "bool" and len(known) == len(raw) else data)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and bool(-(2**63) <= value < 2**63)


def _number(value: Any) -> float:
    if isinstance(value, datetime.date | np.datetime64):
        return day(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, np.timedelta64):
        return float(value / np.timedelta64(1, "s"))
    return float(value)


def refuse_numbers_as_text(texts: Array, what: str) -> None:
    """Refuses texts of which some are numbers: they would become categories, one input each.

    Raises:
        DataError: they are; names a number, and a text that is none.
    """
    known = {text for text in texts if text is not None}
    found = sorted(filter(is_number, known))
    if not found:
        return
    others = sorted(known.difference(found))
    beside = f" beside texts, {others[0]!r} for instance" if others else ""
    raise DataError(
        f"{what} holds numbers as text, {found[0]!r} for instance{beside}: make them numbers "
        "(pandas.to_numeric, polars' cast), or say that they are categories: "
        f'categories=[...] or, in pandas, astype("category")'
    )
