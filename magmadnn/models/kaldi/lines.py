"""Lines of an xconfig file: a type, then settings as name=value; `#` begins a comment.

A value may hold spaces within its parentheses, and anything between double quotes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from magmadnn.errors import DataError, UnknownNameError, quoted, shown
from magmadnn.storage.input_files import input_path, opened

_MOST_BYTES = 1 << 22  # the largest that are known have some kilobytes
_TYPE = re.compile(r"[a-z][-a-z0-9]*")
_SETTING = re.compile(r"\s*([A-Za-z_][-\w]*)\s*=\s*")
_NAME = re.compile(r"[A-Za-z_][-\w.]*", re.ASCII)
_RAW = ("component", "component-node", "input-node", "output-node", "dim-range-node")
_T = TypeVar("_T")


@dataclass
class Line:
    """What a line says.

    Attributes:
        file: its name, for errors.
        number: from 1.
        type: the first word.
        settings: values by name, as they are written.
        folder: that the file lies in.
    """

    file: str
    number: int
    type: str
    settings: dict[str, str]
    folder: Path
    _read: set[str] = field(default_factory=set)

    @property
    def where(self) -> str:
        """How an error about it begins."""
        name = self.settings.get("name")
        return f"{self.file}, line {self.number}: {self.type}{'' if name is None else ' ' + quoted(name)}"

    def refuse(self, text: str) -> DataError:
        """The error that says so of this line."""
        return DataError(f"{self.where}: {text}")

    def text(self, name: str, default: str | None = None) -> str:
        """A value as it is written.

        Raises:
            DataError: it is not there, and there is no default.
        """
        self._read.add(name)
        found = self.settings.get(name, default)
        if found is None:
            raise self.refuse(f"needs {name}=")
        return found

    @property
    def name(self) -> str:
        """Its name.

        Raises:
            DataError: it has none, or one with other characters than letters, digits and - _ .
        """
        found = self.text("name")
        if not _NAME.fullmatch(found):
            raise self.refuse(
                "name= must begin with a letter or _ and have letters, digits and - _ . only"
            )
        return found

    def _converted(self, name: str, default: _T, kind: Callable[[str], _T], expected: str) -> _T:
        self._read.add(name)
        if name not in self.settings:
            return default
        try:
            return kind(self.settings[name])
        except ValueError:
            raise self.refuse(
                f"{name} must be {expected}, got {quoted(self.settings[name])}"
            ) from None

    def path(self, name: str) -> Path:
        """A file: as it stands, from the present folder; or of that name beside the description."""
        found = input_path(f"{self.where}: {name}", self.text(name))
        beside = self.folder / found.name
        return found if found.exists() or not beside.exists() else beside

    def whole(self, name: str, default: int) -> int:
        """A whole number."""
        return self._converted(name, default, int, "a whole number")

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1; without a default it is needed."""
        if default is None:
            self.text(name)
        found = self.whole(name, default or 0)
        if found < 1:
            raise self.refuse(f"{name} must be at least 1, got {found}")
        return found

    def number_of(self, name: str, default: float, least: float, most: float) -> float:
        """A number within bounds."""
        found = self._converted(name, default, float, "a number")
        if not least <= found <= most:
            raise self.refuse(f"{name} must be from {least:g} to {most:g}, got {found:g}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        known = {"true": True, "True": True, "false": False, "False": False}
        found = self.text(name, str(default))
        if found not in known:
            raise self.refuse(f"{name} must be true or false, got {quoted(found)}")
        return known[found]

    def ignore(self, *names: str) -> None:
        """Settings of Kaldi's training, which are not taken up; those that are numbers must be some."""
        for name in names:
            if name.endswith("options"):
                self.text(name, "")
            else:
                self._converted(name, 0.0, float, "a number")

    def check_all_read(self) -> None:
        """Raises `UnknownNameError` for a setting that nobody asked for."""
        for name in self.settings:
            if name not in self._read:
                raise UnknownNameError.of(f"{self.where}: setting", name, self._read)


def read_lines(file: str | os.PathLike[str], where: str) -> list[Line]:
    """The lines of a file that say something.

    Args:
        file: an xconfig file.
        where: how messages about its name begin.

    Raises:
        FileError: it cannot be read.
        DataError: it is no text, or a line is none of xconfig; names the line.
    """
    path = input_path(f"{where}: the file", file)
    with opened(path) as opened_file:
        data = opened_file.read(_MOST_BYTES + 1)
    name = shown(path)
    try:
        if len(data) > _MOST_BYTES or b"\0" in data:
            raise ValueError
        text = data.decode("utf-8-sig")
    except ValueError:
        raise DataError(
            f"{name}: is no description of a network as text (xconfig); trained models (.mdl, .raw) are not "
            "read"
        ) from None
    lines = [
        _line(name, number, line, path.parent) for number, line in enumerate(text.splitlines(), 1)
    ]
    found = [line for line in lines if line is not None]
    if not found:
        raise DataError(
            f"{name}: holds no line, expected a network such as `input dim=40 name=input`"
        )
    return found


def _line(file: str, number: int, text: str, folder: Path) -> Line | None:
    text = text.split("#")[0].strip()
    if not text:
        return None
    where = f"{file}, line {number}"
    if "$" in text:
        raise DataError(
            f"{where}: holds a variable of the shell, {quoted(text[text.index('$') :].split()[0])}: give the "
            "file that the recipe wrote (configs/network.xconfig), which has its value"
        )
    begin = _TYPE.match(text)
    kind = begin[0] if begin is not None else ""
    if not kind or text[len(kind) : len(kind) + 1].strip():
        raise DataError(
            f"{where}: expected a type and settings, such as `input dim=40`, got {quoted(text)}"
        )
    if kind in _RAW:
        raise DataError(
            f"{where}: is a line of nnet3's own config ({kind}), which is not read: give the xconfig file "
            "that it was made from (configs/network.xconfig)"
        )
    return Line(file, number, kind, _settings(where, text[len(kind) :]), folder)


def _settings(where: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        begin = _SETTING.match(text, at)
        if begin is None:
            raise DataError(f"{where}: expected name=value, got {quoted(text[at:].strip())}")
        name, at = begin[1], begin.end()
        if text[at : at + 1] == '"':
            end = text.find('"', at + 1)
            if end < 0:
                raise DataError(f'{where}: {name}= has no closing "')
            value, at = text[at + 1 : end], end + 1
        else:
            value = _value_at(text, at)
            at += len(value)
        if not value or (text[at - 1] != '"' and "=" in value):
            raise DataError(f"{where}: {name}= has no value")
        if name in found:
            raise DataError(f"{where}: {name}= is given twice")
        found[name] = value
    return found


def _value_at(text: str, at: int) -> str:
    """From here to the first space that is not in parentheses."""
    depth, end = 0, at
    while end < len(text) and (depth > 0 or not text[end].isspace()):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[at:end]


def check_type(line: Line, known: Iterable[str], others: dict[str, str]) -> None:
    """Raises an error for a type that is not read; `others` says of known ones what to write instead."""
    if line.type in others:
        raise line.refuse(f"{line.type} is not read: {others[line.type]}")
    if line.type not in known:
        raise UnknownNameError.of(f"{line.file}, line {line.number}: type", line.type, known)
