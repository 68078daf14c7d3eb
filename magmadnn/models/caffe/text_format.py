"""Protobuf's text format, read without knowledge of the message's type.

A text is a message: fields, each a name and a value. A value is a number, a word (`MAX`, `true`), text in
quotes, a message in braces or angle brackets, or a list of such in square brackets. A colon stands before
a value, and may be left out before a message; a comma or semicolon may follow; `#` begins a comment. The
language is described at https://protobuf.dev/reference/protobuf/textformat-spec/. Names of extensions and
`Any` messages, in square brackets, are refused: no description of a network has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from magmadnn.errors import DataError, quoted

_DEEPEST = 100  # messages within messages, as in protobuf
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)(?![\w.]))
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>[-{}<>\[\]:;,])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)")
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_THEMSELVES = "\\'\"?"
_CLOSING = {"{": "}", "<": ">"}


@dataclass(frozen=True)
class Scalar:
    """A value that is no message.

    Attributes:
        kind: "text" for one in quotes, "number", or "word".
        text: of text what it says, of the others as they are written, with their sign.
        line: where it stands, from 1.
    """

    kind: Literal["text", "number", "word"]
    text: str
    line: int

    def __str__(self) -> str:
        return quoted(self.text) if self.kind == "text" else self.text


@dataclass(frozen=True)
class Message:
    """Fields in braces, or those of the whole text.

    Attributes:
        fields: in order; a field that is repeated, or a list, is there several times.
        line: where it begins, from 1.
    """

    fields: tuple[Field, ...]
    line: int


@dataclass(frozen=True)
class Field:
    """A name and its value; `line` is that of the name."""

    name: str
    value: Scalar | Message
    line: int


def parse(text: str, where: str) -> Message:
    """The message that a text describes.

    Args:
        text: in protobuf's text format.
        where: how messages call it, such as the name of the file.

    Raises:
        DataError: it is something else; names the line.
    """
    return _Parser(text, where).whole()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int

    def __str__(self) -> str:
        return "the end of the file" if self.kind == "end" else quoted(self.text)


class _Parser:
    """Reads one text from front to back."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._tokens = self._split(text)
        self._next = next(self._tokens)

    def _split(self, text: str) -> Iterator[_Token]:
        """Its tokens without spaces and comments; the end of the file again and again behind them."""
        place, line = 0, 1
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._error(line, self._unreadable(text, place))
            if found.lastgroup != "space":
                yield _Token(str(found.lastgroup), found[0], line)
            line += found[0].count("\n")
            place = found.end()
        while True:
            yield _Token("end", "", line)

    def _unreadable(self, text: str, place: int) -> str:
        """Why no token begins at a place."""
        if text[place] in "\"'":
            return f"the quotation mark {text[place]} is not closed in its line"
        word = re.compile(r"[^\s,;{}<>\[\]]{1,40}").match(text, place)
        given = word[0] if word else text[place]
        if given[0].isdigit() or given[0] == ".":
            return f"{quoted(given)} is no number"
        return f"{quoted(given)} is neither a name nor a value"

    def _error(self, line: int, words: str) -> DataError:
        return DataError(f"{self._where}, line {line}: {words}")

    def _take(self) -> _Token:
        token = self._next
        self._next = next(self._tokens)
        return token

    def _took(self, *signs: str) -> bool:
        """Whether one of these signs came next; it is taken then."""
        there = self._next.kind == "sign" and self._next.text in signs
        if there:
            self._take()
        return there

    def whole(self) -> Message:
        """The message that the whole text is."""
        fields: list[Field] = []
        while self._next.kind != "end":
            if self._next.text in ("}", ">") and self._next.kind == "sign":
                raise self._error(self._next.line, f"{quoted(self._next.text)} closes nothing")
            fields += self._field(0)
        return Message(tuple(fields), 1)

    def _field(self, depth: int) -> list[Field]:
        """The next field, as often as its list has values."""
        name = self._take()
        if name.kind != "word":
            words = f"expected the name of a field, got {name}"
            if name.text == "[":
                words += ": names of extensions in square brackets are not read"
            raise self._error(name.line, words)
        colon = self._took(":")
        if not colon and self._next.text not in ("{", "<", "["):
            raise self._error(
                self._next.line,
                f"expected ':' or '{{' behind {quoted(name.text)}, got {self._next}",
            )
        values = self._list(depth) if self._next.text == "[" else [self._value(depth)]
        if not colon and any(isinstance(value, Scalar) for value in values):
            raise self._error(name.line, f"expected ':' between {quoted(name.text)} and its list")
        self._took(",", ";")
        return [Field(name.text, value, name.line) for value in values]

    def _list(self, depth: int) -> list[Scalar | Message]:
        opening = self._take()
        values: list[Scalar | Message] = []
        if self._took("]"):
            return values
        while True:
            values.append(self._value(depth))
            if self._took("]"):
                return values
            if not self._took(","):
                raise self._error(
                    self._next.line,
                    f"expected ',' or ']' in the list that begins in line {opening.line}, got "
                    f"{self._next}",
                )

    def _value(self, depth: int) -> Scalar | Message:
        token = self._take()
        if token.text in _CLOSING and token.kind == "sign":
            return self._message(token, depth + 1)
        if token.kind == "text":
            words = [self._unescaped(token)]
            while self._next.kind == "text":  # parts that follow each other are one text
                words.append(self._unescaped(self._take()))
            return Scalar("text", "".join(words), token.line)
        if token.kind == "number":
            return Scalar("number", token.text, token.line)
        if token.kind == "word":
            return Scalar("word", token.text, token.line)
        if token.text == "-" and self._next.kind in ("number", "word"):
            value = self._take()
            if value.kind == "number" or value.text.lower() in ("inf", "infinity", "nan"):
                return Scalar("number", f"-{value.text}", token.line)
            raise self._error(token.line, f"expected a number behind '-', got {value}")
        raise self._error(token.line, f"expected a value, got {token}")

    def _message(self, opening: _Token, depth: int) -> Message:
        if depth > _DEEPEST:
            raise self._error(opening.line, f"more than {_DEEPEST} messages lie within each other")
        fields: list[Field] = []
        closing = _CLOSING[opening.text]
        while not self._took(closing):
            if self._next.kind == "end":
                raise self._error(
                    self._next.line, f"the {opening} of line {opening.line} is not closed"
                )
            fields += self._field(depth)
        return Message(tuple(fields), opening.line)

    def _unescaped(self, token: _Token) -> str:
        """What text in quotes says."""

        def letter(found: re.Match[str]) -> str:
            code = found[1]
            if code[0] in "xuU" and len(code) > 1:
                number = int(code[1:], 16)
            elif code[0] in "01234567":
                number = int(code, 8)
            elif code in _LETTERS:
                return _LETTERS[code]
            elif code in _THEMSELVES:
                return code
            else:
                number = -1
            if not 0 <= number <= 0x10FFFF:
                raise self._error(token.line, f"{quoted(found[0])} is no character")
            return chr(number)

        return _ESCAPE.sub(letter, token.text[1:-1])
