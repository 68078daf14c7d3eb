"""The fields of a message, read by name and kind; what nobody asked for is an error in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TypeVar, overload

from magmadnn.errors import DataError, UnknownNameError, shown

from .text_format import Field, Message, Scalar

_TRUE, _FALSE = ("true", "True", "t", "1"), ("false", "False", "f", "0")
_MOST = 2**31 - 1  # of whole numbers in Caffe's messages that say sizes
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where something stands, for errors: a file, and what in it.

    Attributes:
        file: its name.
        words: the layer and the message, such as `layer "conv1" (Convolution): convolution_param`.
    """

    file: str
    words: str = ""

    def at(self, line: int) -> str:
        """The beginning of an error about a line."""
        return f"{self.file}, line {line}: {self.words}" if self.words else self.in_line(line)

    def in_line(self, line: int) -> str:
        """File and line alone."""
        return f"{self.file}, line {line}"

    def within(self, words: str) -> Place:
        """The same of a part."""
        return replace(self, words=f"{self.words}: {words}" if self.words else words)


class Fields:
    """Reads the fields of a message.

    Args:
        message: what was read; None for one that is left out, of which all fields are.
        place: for errors.
    """

    def __init__(self, message: Message | None, place: Place) -> None:
        self.line = 0 if message is None else message.line
        self.place = place
        self._found: dict[str, list[Field]] = {}
        for field in () if message is None else message.fields:
            self._found.setdefault(field.name, []).append(field)
        self._known: dict[str, None] = {}
        self._parts: list[Fields] = []
        self._single: dict[str, Fields] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def names(self) -> list[str]:
        """The names of all fields that are there."""
        return list(self._found)

    def lines(self, name: str) -> list[int]:
        """Where a field stands, each time."""
        return [field.line for field in self._found.get(name, [])]

    def scalar(self, name: str) -> Scalar | None:
        """A value of any kind but a message, as it is written."""
        field = self._one(name)
        if field is not None and isinstance(field.value, Message):
            raise self._wrong(field, "a word or text")
        return None if field is None else field.value  # type: ignore[return-value]  # looked at above

    def refuse(self, name: str, words: str) -> DataError:
        """The error about a field; about the message where the field is left out."""
        fields = self._found.get(name)
        return DataError(f"{self.place.at(fields[0].line if fields else self.line)}: {words}")

    # --- values -----------------------------------------------------------------------------------

    def _all(self, name: str) -> list[Field]:
        self._known[name] = None
        return self._found.get(name, [])

    def _one(self, name: str) -> Field | None:
        fields = self._all(name)
        if len(fields) > 1:
            raise DataError(
                f"{self.place.at(fields[1].line)}: {name} is given twice, first in line {fields[0].line}"
            )
        return fields[0] if fields else None

    def _scalar(self, field: Field, kinds: Sequence[str], words: str) -> str:
        value = field.value
        if isinstance(value, Message):
            raise DataError(
                f"{self.place.at(field.line)}: {field.name} must be {words}, got {{...}}"
            )
        if value.kind not in kinds:
            raise self._wrong(field, words)
        return value.text

    def _wrong(self, field: Field, words: str) -> DataError:
        given = field.value if isinstance(field.value, Scalar) else "{...}"
        return DataError(
            f"{self.place.at(field.line)}: {field.name} must be {words}, got {shown(given, 80)}"
        )

    def texts(self, name: str) -> list[str]:
        """Texts of a field that may be repeated."""
        return [self._scalar(f, ["text"], "text in quotes") for f in self._all(name)]

    @overload
    def text(self, name: str) -> str | None: ...
    @overload
    def text(self, name: str, default: str) -> str: ...
    def text(self, name: str, default: str | None = None) -> str | None:
        """A text in quotes."""
        field = self._one(name)
        return default if field is None else self._scalar(field, ["text"], "text in quotes")

    def wholes(self, name: str, least: int = 0) -> list[int]:
        """Whole numbers of a field that may be repeated."""
        return [self._as_whole(field, least) for field in self._all(name)]

    @overload
    def whole(self, name: str, default: None = None, least: int = 0) -> int | None: ...
    @overload
    def whole(self, name: str, default: int, least: int = 0) -> int: ...
    def whole(self, name: str, default: int | None = None, least: int = 0) -> int | None:
        """A whole number of at least `least`."""
        field = self._one(name)
        return default if field is None else self._as_whole(field, least)

    def needed(self, name: str, least: int = 1) -> int:
        """A whole number that may not be left out."""
        if (found := self.whole(name, None, least)) is None:
            raise self.missing(f"{name}, a whole number of at least {least}")
        return found

    def missing(self, words: str) -> DataError:
        """The error about a field that is left out, to be called once all others were read.

        Raises:
            UnknownNameError: for a field that is not known, which may be what was meant.
        """
        self.check_own()
        return DataError(f"{self.place.at(self.line)}: needs {words}")

    def _as_whole(self, field: Field, least: int) -> int:
        words = f"a whole number of at least {least}"
        text = self._scalar(field, ["number"], words)
        digits = text.removeprefix("-")
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[:1] == "0" else 10
        try:
            value = int(text, base)
        except ValueError as error:
            raise self._wrong(field, words) from error
        if not least <= value <= _MOST:
            raise self._wrong(field, words if value < least else f"at most {_MOST}")
        return value

    def numbers(self, name: str) -> list[float]:
        """Finite numbers of a field that may be repeated."""
        return [self._as_number(field) for field in self._all(name)]

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        field = self._one(name)
        return default if field is None else self._as_number(field)

    def _as_number(self, field: Field) -> float:
        text = self._scalar(field, ["number"], "a number")
        is_hexadecimal = text.removeprefix("-")[:2] in ("0x", "0X")
        try:
            value = float(int(text, 16)) if is_hexadecimal else float(text.rstrip("fF"))
        except (ValueError, OverflowError):  # such as -inf
            value = inf
        if not isfinite(value):
            raise self._wrong(field, "a finite number")
        return value

    def flags(self, name: str) -> list[bool]:
        """Truth values of a field that may be repeated."""
        return [self._as_flag(field) for field in self._all(name)]

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        field = self._one(name)
        return default if field is None else self._as_flag(field)

    def _as_flag(self, field: Field) -> bool:
        text = self._scalar(field, ["word", "number"], "true or false")
        if text not in (*_TRUE, *_FALSE):
            raise self._wrong(field, "true or false")
        return text in _TRUE

    @overload
    def word(self, name: str, known: Iterable[str]) -> str | None: ...
    @overload
    def word(self, name: str, known: Iterable[str], default: str) -> str: ...
    def word(self, name: str, known: Iterable[str], default: str | None = None) -> str | None:
        """One of the known words."""
        field = self._one(name)
        if field is None:
            return default
        listed = list(known)
        text = self._scalar(field, ["word"], f"a word without quotes: {', '.join(listed)}")
        if text not in listed:
            raise UnknownNameError.of(f"{self.place.at(field.line)}: {name}", text, listed)
        return text

    # --- messages ---------------------------------------------------------------------------------

    def parts(self, name: str) -> list[Fields]:
        """Messages of a field that may be repeated; `check_all_read` looks at them too."""
        made = []
        for field in self._all(name):
            if not isinstance(field.value, Message):
                raise self._wrong(field, "a message in braces")
            made.append(Fields(field.value, self.place.within(name)))
        self._parts += made
        return made

    def part(self, name: str) -> Fields:
        """A message, the same one each time; one without fields where it is left out."""
        if name not in self._single:
            there = self._one(name) is not None
            self._single[name] = self.parts(name)[0] if there else self._left_out(name)
        return self._single[name]

    def _left_out(self, name: str) -> Fields:
        none = Fields(None, self.place.within(name))
        none.line = self.line
        return none

    # --- what is not taken up ---------------------------------------------------------------------

    def ignore(self, *names: str) -> None:
        """Fields that change nothing here."""
        for name in names:
            self._all(name)

    def fixed(self, name: str, got: T, *only: T, why: str) -> None:
        """Refuse any value but those that can be had.

        Raises:
            DataError: giving the reason.
        """
        if got not in only:
            words = f"{got:g}" if isinstance(got, float) else str(got)
            words = words.lower() if isinstance(got, bool) else words
            raise self.refuse(name, f"{name}: {words} is not supported: {why}")

    def check_all_read(self) -> None:
        """Look whether there is a field that nobody asked for, here and in the parts that were read.

        Raises:
            UnknownNameError: naming the first, its line, and the nearest known one.
        """
        self.check_own()
        for part in self._parts:
            part.check_all_read()

    def check_own(self) -> None:
        """The same without the parts."""
        for name, fields in self._found.items():
            if name not in self._known:
                raise UnknownNameError.of(
                    f"{self.place.at(fields[0].line)}: field", name, self._known
                )
