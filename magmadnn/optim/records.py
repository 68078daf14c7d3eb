"""Frozen records of settings that have a name, compare equal, and go to JSON and back.

Optimisers, their parts and schedules are such records. A class is known by its name from the moment it
is defined, so `from_config` makes known classes from plain values and nothing else: it runs no code that
is named in a file.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.graph.own_names import check_name

Setting = float | Callable[[int], float]  # a number, or a schedule: step -> number
R = TypeVar("R", bound="Record")


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be; words its own error.

    Attributes:
        text: for the error, after "must be".
        low: lower end, which belongs to the range unless `above`.
        high: upper end, which does not belong to it.
        above: whether the lower end is left out.
        whole: whether it must be an integer.
    """

    text: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    whole: bool = False

    def has(self, value: float) -> bool:
        """Whether it is one of these numbers, which need not be whole."""
        inside = self.low <= value < self.high and value > -math.inf
        return inside and not self.whole and not (self.above and value == self.low)

    def check(self, where: str, name: str, value: Any, source: str = "") -> float:
        """The value as a float (an int where it must be whole).

        Raises:
            ArgumentError: if it is no number, not finite, or outside.
        """
        kind = type(value)  # a question to an abstract class takes its time
        number = kind is float or (isinstance(value, numbers.Real) and kind is not bool)
        inside = number and math.isfinite(value) and self.low <= value < self.high
        if not inside or (self.above and value == self.low) or (self.whole and value % 1):
            raise ArgumentError(f"{where}: {name} must be {self.text}, got {value!r}{source}")
        return int(value) if self.whole else float(value)


FINITE = Range("a finite number")
COUNT = Range("a whole number of at least 1", 1, whole=True)


def _metadata(allowed: Range, *, schedule: bool = False) -> Mapping[str, Any]:
    return MappingProxyType({"range": allowed, "schedule": schedule})


# What dataclass fields may be: `learning_rate: Setting = field(default=0.01, metadata=AT_LEAST_0)`. A field
# whose default is None may be None as well.
VALUE = _metadata(FINITE, schedule=True)
AT_LEAST_0 = _metadata(Range("a number of at least 0", 0.0), schedule=True)
ABOVE_0 = _metadata(Range("a number above 0", 0.0, above=True), schedule=True)
FRACTION = _metadata(Range("at least 0 and below 1", 0.0, 1.0), schedule=True)
NUMBER = _metadata(FINITE)
POSITIVE = _metadata(Range("a number above 0", 0.0, above=True))
AT_LEAST_1 = _metadata(Range("a number of at least 1", 1.0))
WHOLE = _metadata(COUNT)


def range_of(entry: Field[Any]) -> Range:
    """What a field may be; any finite number if it does not say."""
    allowed: Range = entry.metadata.get("range", FINITE)
    return allowed


_fields: WeakKeyDictionary[type[Any], tuple[Field[Any], ...]] = WeakKeyDictionary()
_ranged: WeakKeyDictionary[type[Any], tuple[Field[Any], ...]] = WeakKeyDictionary()


def fields_of(cls: type[Any]) -> tuple[Field[Any], ...]:
    """`dataclasses.fields`, which looks for them each time."""
    found = _fields.get(cls)
    if found is None:
        found = _fields[cls] = fields(cls)
    return found


def _ranged_of(cls: type[Any]) -> tuple[Field[Any], ...]:
    """The fields that say what they may be."""
    found = _ranged.get(cls)
    if found is None:
        found = tuple([entry for entry in fields(cls) if "range" in entry.metadata])
        _ranged[cls] = found
    return found


_RECORDS: dict[str, type[Record]] = {}


@dataclass(frozen=True)
class Record:
    """Base of optimisers, parts and schedules."""

    family: ClassVar[str] = ""  # what errors call it

    def __init_subclass__(cls, family: str = "", abstract: bool = False) -> None:
        """Make a class known by its name, unless it is a base class; a later one of that name counts.

        Raises:
            ArgumentError: for the name of one of ours: "adam" always means Adam.
        """
        if family:
            cls.family = family
        if family or abstract or cls.__name__.startswith("_"):
            return
        key = cls.__name__.lower()
        check_name(f"{cls.family} {cls.__name__}", key, cls, _RECORDS, "give yours another name")
        _RECORDS[key] = cls

    def __post_init__(self) -> None:
        """Check the fields that declare a range.

        Raises:
            ArgumentError: naming the class, the field, what it must be and what it is.
        """
        where = type(self).__name__
        for entry in _ranged_of(type(self)):
            value = getattr(self, entry.name)
            if value is None and entry.default is None:
                continue
            if type(value) is float and range_of(entry).has(value):
                continue  # as most are
            if entry.metadata.get("schedule") and callable(value):
                refuse_class(f"{where}: {entry.name}", value)
                continue
            other = ", or a schedule" if entry.metadata.get("schedule") else ""
            checked = range_of(entry).check(where, entry.name, value, other and _hint(value))
            object.__setattr__(self, entry.name, checked)

    def config(self) -> dict[str, Any]:
        """Name and settings, as JSON can hold them; `from_config` goes back.

        Raises:
            ArgumentError: if a setting is a plain function.
        """
        cls = type(self).__name__
        values = {f.name: _plain(getattr(self, f.name), f"{cls}: {f.name}") for f in fields(self)}
        return {"name": cls, **values}


def refuse_class(what: str, value: Any) -> None:
    """Look whether a setting is a class, which would be called with the step as its first argument.

    Raises:
        ArgumentError: it is.
    """
    if isinstance(value, type):
        raise ArgumentError(
            f"{what} is the class {value.__name__}, expected an instance: write {value.__name__}(...)"
        )


def _hint(value: Any) -> str:
    """The way out for a value that is not even a number."""
    return "" if isinstance(value, numbers.Real) else "; give a number or a schedule"


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, Record):
        return value.config()
    if isinstance(value, tuple):
        return [_plain(v, what) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArgumentError(
        f"{what} is {value!r}, which cannot be kept as JSON; use one of md.optim's schedules, "
        "or derive yours from md.optim.Schedule"
    )


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return restore(Record, value)
    if isinstance(value, list):
        return tuple(_restored(v) for v in value)
    return value


def restore(base: type[R], config: dict[str, Any]) -> R:
    """The record that `Record.config` describes; errors as for `named`."""
    if not isinstance(config, dict) or not isinstance(config.get("name"), str):
        what = base.family or "record"
        raise ArgumentError(
            f"{what}: expected a dict with a name and settings, as config() gives, got {config!r}"
        )
    settings = {k: _restored(v) for k, v in config.items() if k != "name"}
    return named(base, config["name"], settings)


def named(base: type[R], name: str, settings: dict[str, Any]) -> R:
    """The record of the class `name` (in any case), with its defaults where a setting is left out.

    Raises:
        UnknownNameError: if there is none of that name, or it has no such setting.
        ArgumentError: if a setting is missing or wrong.
    """
    cls = _RECORDS.get(str(name).lower())
    if cls is None or not issubclass(cls, base):
        raise UnknownNameError.of(base.family or "record", name, known(base))
    entries = fields(cls)
    for key in settings:
        if key not in [f.name for f in entries]:
            raise UnknownNameError.of(f"{cls.__name__}: setting", key, [f.name for f in entries])
    for f in entries:
        if f.default is MISSING and f.default_factory is MISSING and f.name not in settings:
            raise ArgumentError(f"{cls.__name__}: {f.name} is missing; it has no default")
    return cls(**settings)


def known(base: type[Record]) -> Iterable[str]:
    """The names of all classes that derive from `base`."""
    return [c.__name__ for c in _RECORDS.values() if issubclass(c, base)]
