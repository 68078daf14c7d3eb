"""Messages between ranks and tuple servers: a fixed head, a tag, words, data."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

# operation, flags, bytes of the tag, bytes of words, number of the request, number of the run
HEAD = Struct("<BBHIQI")

PUT, ALLOCATE, PLACED, GET, FREE = 1, 2, 3, 4, 5
FAIL, ROLLBACK, ENDED, QUIT, LOOK, STATISTICS, SYNC = 6, 7, 8, 9, 10, 11, 12
"""ROLLBACK and ENDED are about a whole run, or about one rank of it: `request` is 0, or the rank + 1."""

VALUE, SEGMENT, NOTHING, ERROR = 20, 21, 22, 23

TAKE, WAIT, PATTERN, KEEP = 1, 2, 4, 8
"""Flags of GET: remove it; wait for it; the tag is a pattern; keep it until the run has ended well."""

SMALL = 1 << 16
"""Bytes up to which data travels inside the message."""


class Message(NamedTuple):
    """A message that has arrived.

    Attributes:
        operation: one of the numbers above.
        flags: of a GET.
        request: number that the answer bears.
        run: number of the module run that sent it; 0: none.
        tag: of the tuple.
        words: about the data, or a text.
        data: the rest.
    """

    operation: int
    flags: int
    request: int
    run: int
    tag: str
    words: bytes
    data: Any


def packed(
    operation: int,
    *,
    flags: int = 0,
    request: int = 0,
    run: int = 0,
    tag: str | bytes = b"",
    words: bytes = b"",
    data: Any = b"",
) -> bytes:
    """A message as bytes."""
    name = tag.encode() if isinstance(tag, str) else tag
    return b"".join(
        (HEAD.pack(operation, flags, len(name), len(words), request, run), name, words, data)
    )


def unpacked(raw: Any) -> Message:
    """A message from bytes; its data lies in `raw`."""
    operation, flags, of_tag, of_words, request, run = HEAD.unpack_from(raw)
    view = memoryview(raw)
    begin = HEAD.size + of_tag
    tag = str(view[HEAD.size : begin], "utf-8")
    words = bytes(view[begin : begin + of_words])
    return Message(operation, flags, request, run, tag, words, view[begin + of_words :])
