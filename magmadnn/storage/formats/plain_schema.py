"""What plain data from a file has to look like: types, ranges and lengths, stated once, checked before use.

    ROW = Fields({"epoch": Whole(1), "loss": Number()})
    check(Many(ROW, most=1000), rows, "run/record.json")

A kind is a value; `check` compares and names the first place that differs. Bools are no numbers, integers are
floats too, and no kind changes what it looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from magmadnn.errors import CheckpointError, MagmaDNNError, quoted

LARGEST = 2**53  # counts: far beyond what anybody counts, and exact as floats
_NAME = 10_000  # letters of a name in a table


def _at(name: str) -> str:
    """How a place within an object is written."""
    return f".{name}" if name.isidentifier() and len(name) < _NAME else f"[{quoted(name)}]"


class Fault(NamedTuple):
    """Where a value differs, from what, and what stands there."""

    place: str
    expected: str
    got: Any


class Kind(Protocol):
    """What a value may be."""

    def fault(self, value: Any) -> Fault | None:
        """The first difference; None where there is none."""
        ...


def check(kind: Kind, value: Any, where: str, error: type[MagmaDNNError] = CheckpointError) -> None:
    """Refuse a value that is not of this kind.

    Args:
        kind: what is expected.
        value: what was read.
        where: how messages begin: the file, and the field in it.
        error: the class that is raised.

    Raises:
        CheckpointError: naming the first place that differs.
    """
    found = kind.fault(value)
    if found is not None:
        at = ": ".join(filter(None, (where, found.place.lstrip("."))))
        raise error(
            f"{at}: expected {found.expected}, got {quoted(found.got)}; the file is damaged, use a copy"
        )


@dataclass(frozen=True)
class Anything:
    """Any plain data; whoever uses it checks it."""

    def fault(self, value: Any) -> Fault | None:
        """None."""
        return None


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        return None if isinstance(value, bool) else Fault("", "true or false", value)


@dataclass(frozen=True)
class Whole:
    """An integer from `low` to `high`."""

    low: int = 0
    high: int = LARGEST

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        if type(value) is int and self.low <= value <= self.high:
            return None
        return Fault("", f"an integer from {self.low} to {self.high}", value)


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`; infinities and NaN where it need not be finite."""

    low: float = -math.inf
    high: float = math.inf
    finite: bool = False

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        if type(value) in (int, float):
            if math.isfinite(value) and self.low <= value <= self.high:
                return None
            if not self.finite and (math.isnan(value) or self.low <= value <= self.high):
                return None
        words = "a finite number" if self.finite else "a number"
        if (self.low, self.high) != (-math.inf, math.inf):
            words += f" from {self.low:g} to {self.high:g}"
        return Fault("", words, value)


@dataclass(frozen=True)
class Numbers:
    """A number, or lists of numbers, nested."""

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        left = [value]
        while left:
            one = left.pop()
            if isinstance(one, list):
                left += one
            elif type(one) not in (int, float):
                return Fault("", "numbers, or lists of them", one)
        return None


@dataclass(frozen=True)
class Text:
    """A text of at most `most` letters, or one of a few words."""

    most: int = 10_000
    among: Collection[str] = ()

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        if not isinstance(value, str) or len(value) > self.most:
            return Fault("", f"a text of at most {self.most} letters", value)
        if self.among and value not in self.among:
            return Fault("", f"one of {', '.join(sorted(self.among))}", value)
        return None


@dataclass(frozen=True)
class Many:
    """A list of one kind."""

    item: Kind
    least: int = 0
    most: int = LARGEST

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            many = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            many = "a list" if self.most == LARGEST else f"a list of {many}"
            return Fault("", many, value)
        for number, item in enumerate(value):
            if (found := self.item.fault(item)) is not None:
                return found._replace(place=f"[{number}]{found.place}")
        return None


@dataclass(frozen=True)
class Table:
    """An object whose names may be any that `named` takes, with values of one kind."""

    item: Kind
    most: int = LARGEST
    named: Callable[[str], bool] = lambda name: len(name) <= _NAME

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        if not isinstance(value, dict) or len(value) > self.most:
            limit = "" if self.most == LARGEST else f" of at most {self.most} fields"
            return Fault("", f"an object{limit}", value)
        for name, item in value.items():
            if not isinstance(name, str) or not self.named(name):
                return Fault("", "plain names", name)
            if (found := self.item.fault(item)) is not None:
                return found._replace(place=_at(name) + found.place)
        return None


@dataclass(frozen=True)
class Fields:
    """An object with fields of known names.

    Attributes:
        required: name -> kind.
        optional: likewise, of fields that may be missing.
        others: the kind of fields with other names; None: there may be none.
    """

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)
    others: Kind | None = None

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        if not isinstance(value, dict):
            return Fault("", "an object", value)
        for name in self.required:
            if name not in value:
                return Fault("", f"a field {name!r}", list(value))
        for name, item in value.items():
            kind = self.required.get(name) or self.optional.get(name) or self.others
            if kind is None:
                known = ", ".join([*self.required, *self.optional])
                return Fault("", f"only the fields {known}", name)
            if (found := kind.fault(item)) is not None:
                return found._replace(place=_at(name) + found.place)
        return None


@dataclass(frozen=True)
class Either:
    """One of several kinds."""

    kinds: tuple[Kind, ...]

    def fault(self, value: Any) -> Fault | None:
        """The difference from all of them."""
        faults = [kind.fault(value) for kind in self.kinds]
        found = [one for one in faults if one is not None]
        if len(found) < len(faults):
            return None
        deep = [
            one for one in found if one.place
        ]  # of the right kind, and something in it is wrong
        return (
            deep[0] if deep else found[0]._replace(expected=" or ".join(f.expected for f in found))
        )


@dataclass(frozen=True)
class Nothing:
    """Null."""

    def fault(self, value: Any) -> Fault | None:
        """The difference."""
        return None if value is None else Fault("", "null", value)


def maybe(kind: Kind) -> Either:
    """This kind, or null."""
    return Either((kind, Nothing()))
