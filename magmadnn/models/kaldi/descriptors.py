"""What goes into a line: `input=`, such as Append(-1, 0, 1, ReplaceIndex(ivector, t, 0))."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from magmadnn.errors import quoted

from .lines import Line

_TOKEN: Final = re.compile(
    r"\s*(?:([A-Za-z_][-\w.]*)|([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)|([(),@\[\]]))"
)
_READ: Final = ("Append", "Sum", "Offset", "Scale", "ReplaceIndex")
_OTHERS: Final = ("Failover", "IfDefined", "Switch", "Round", "Const")


@dataclass(frozen=True)
class Frames:
    """The frames of a line's output.

    Attributes:
        name: of the line.
        offset: which frame is taken for frame 0.
        still: whether it is an input with one vector for all frames.
    """

    name: str
    offset: int = 0
    still: bool = False


@dataclass(frozen=True)
class Joined:
    """Several, by features one after the other ("append"), or added up ("sum")."""

    how: str
    parts: tuple[Source, ...]


@dataclass(frozen=True)
class Scaled:
    """A multiple."""

    factor: float
    part: Source


Source = Frames | Joined | Scaled


def shifted(source: Source, offset: int) -> Source:
    """The same, `offset` frames later; what is the same in all frames stays."""
    if isinstance(source, Frames):
        return source if source.still else replace(source, offset=source.offset + offset)
    if isinstance(source, Joined):
        return replace(source, parts=tuple(shifted(part, offset) for part in source.parts))
    return replace(source, part=shifted(source.part, offset))


def appended(*parts: Source) -> Source:
    """Features of all, one after the other."""
    return parts[0] if len(parts) == 1 else Joined("append", parts)


def leaves(source: Source) -> list[Frames]:
    """All frames in it, in order."""
    if isinstance(source, Frames):
        return [source]
    parts = source.parts if isinstance(source, Joined) else (source.part,)
    return [leaf for part in parts for leaf in leaves(part)]


def parsed(line: Line, before: list[str]) -> Source:
    """The source of a line; without `input=` the line before.

    Args:
        line: the line.
        before: names of the lines above.

    Raises:
        DataError: it is none, or none that can be had.
    """
    return _Parser(line, line.text("input", "[-1]"), before).whole()


class _Parser:
    def __init__(self, line: Line, text: str, before: list[str]) -> None:
        self._line, self._text, self._before = line, text, before
        self._tokens: list[tuple[str, str]] = []  # kind and text
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(quoted(text[at:].strip()[0]))
            kind = ("name", "number", "sign")[(found.lastindex or 1) - 1]
            self._tokens.append((kind, found[found.lastindex or 1]))
            at = found.end()
        self._at = 0

    def _wrong(self, got: str, expected: str = "") -> Exception:
        wanted = f"expected {expected}, " if expected else ""
        return self._line.refuse(f"input={quoted(self._text)}: {wanted}got {got}")

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end")
        self._at += 1
        return token

    def _sign(self, sign: str) -> None:
        kind, text = self._next()
        if (kind, text) != ("sign", sign):
            raise self._wrong(text, quoted(sign))

    def _whole(self) -> int:
        kind, text = self._next()
        try:
            if kind == "number":
                return int(text)
        except ValueError:
            pass
        raise self._wrong(text, "a whole number")

    def whole(self) -> Source:
        made = self._source()
        if self._at < len(self._tokens):
            raise self._wrong(self._tokens[self._at][1], "the end")
        return made

    def _source(self) -> Source:
        kind, text = self._next()
        if kind == "number":
            self._at -= 1
            return Frames(self._earlier(-1), self._whole())
        if (kind, text) == ("sign", "["):
            back = self._whole()
            self._sign("]")
            return self._offset(Frames(self._earlier(back)))
        if kind != "name":
            raise self._wrong(text, "a name")
        if self._tokens[self._at : self._at + 1] != [("sign", "(")]:
            return self._offset(Frames(text))
        if text in _OTHERS:
            raise self._line.refuse(f"{text}() is not read: read are {', '.join(_READ)}")
        if text not in _READ:
            raise self._wrong(f"{text}()", f"one of {', '.join(_READ)}")
        self._sign("(")
        return self._call(text)

    def _call(self, name: str) -> Source:
        if name == "Scale":
            kind, text = self._next()
            if kind != "number":
                raise self._wrong(text, "a number")
            self._sign(",")
            made: Source = Scaled(float(text), self._source())
        elif name in ("Append", "Sum"):
            parts = [self._source()]
            while self._tokens[self._at : self._at + 1] == [("sign", ",")]:
                self._at += 1
                parts.append(self._source())
            made = parts[0] if len(parts) == 1 else Joined(name.lower(), tuple(parts))
        else:
            made = self._source()
            self._sign(",")
            if name == "Offset":
                made = shifted(made, self._whole())
            else:
                made = self._replaced(made)
        self._sign(")")
        return made

    def _replaced(self, source: Source) -> Source:
        """ReplaceIndex(input, t, 0): the input has one vector for all frames."""
        _, axis = self._next()
        self._sign(",")
        to = self._whole()
        if axis != "t" or to != 0 or not isinstance(source, Frames):
            raise self._line.refuse(
                "ReplaceIndex() is read as ReplaceIndex(name, t, 0) only, of an input with one vector for "
                "all frames"
            )
        return Frames(source.name, 0, True)

    def _offset(self, source: Frames) -> Source:
        """With @n behind a name."""
        if self._tokens[self._at : self._at + 1] != [("sign", "@")]:
            return source
        self._at += 1
        return shifted(source, self._whole())

    def _earlier(self, back: int) -> str:
        if not -len(self._before) <= back < 0:
            raise self._line.refuse(
                f"input={quoted(self._text)}: there is no line {-back} above it that it could mean"
                if back < 0
                else f"input={quoted(self._text)}: [n] counts lines back, n is -1 or less"
            )
        return self._before[back]
