"""Dates as numbers: days since 1970-01-01, with the time as a fraction; of times with a zone, in UTC."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

DateKind = Literal["date", "instant"]  # an instant has a time zone

_DAY = datetime.timedelta(days=1)
_BEGIN = datetime.datetime(1970, 1, 1)
_WRITTEN = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,6})?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?)?"
)
EXAMPLES: dict[str, str] = {
    "date": "2024-03-31 or 2024-03-31 12:30, without a time zone",
    "instant": "2024-03-31T12:30Z, with a time zone",
}


def days(raw: NDArray[Any]) -> NDArray[np.float64]:
    """Dates of NumPy as days, NaN for NaT."""
    if np.datetime_data(raw.dtype)[0] == "generic":  # NaT only
        return np.full(raw.shape, np.nan)
    found = (raw - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    return np.asarray(found, np.float64)


def kind_of_date(value: datetime.date | np.datetime64) -> DateKind:
    """Whether a date has a time zone."""
    zone = value.tzinfo if isinstance(value, datetime.datetime) else None
    return "date" if zone is None else "instant"


def day(value: datetime.date | np.datetime64) -> float:
    """A date as days."""
    if isinstance(value, np.datetime64):
        return float(days(np.array(value)))
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return (value - _BEGIN) / _DAY


def written(cell: str, kind: DateKind | None = None) -> datetime.datetime | None:
    """The date that a text is, as ISO 8601 has it; None for other texts, and for dates of another kind."""
    match = _WRITTEN.fullmatch(cell)
    if match is None or (kind is not None and (match["zone"] is not None) != (kind == "instant")):
        return None
    try:
        return datetime.datetime.fromisoformat(cell)
    except ValueError:  # the 30th of February
        return None


def written_kind(cells: Iterable[str]) -> DateKind | None:
    """What texts are if all are dates, with a time zone or without; otherwise None."""
    kinds: set[DateKind] = set()
    for cell in cells:
        if (found := written(cell)) is None:
            return None
        kinds.add(kind_of_date(found))
        if len(kinds) > 1:
            return None
    return next(iter(kinds), None)
