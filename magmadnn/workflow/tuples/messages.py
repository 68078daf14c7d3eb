"""Messages between ranks and tuple servers: a fixed head, a tag, words, data.

A PUT becomes the VALUE that answers a get by other numbers in its head, so that a server copies nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

# operation, flags, bytes of the tag, bytes of words, where the data begins, numbers of request and run
HEAD = Struct("<BBHIIQI")
SIZE = HEAD.size
"""Bytes of the head; the tag comes next."""

_REQUEST = Struct("<Q")
_AT_REQUEST = 12
_ALIGNED = 16  # bytes, as memory of an array made here is

PUT, ALLOCATE, PLACED, GET, FREE = 1, 2, 3, 4, 5
FAIL, ROLLBACK, ENDED, QUIT, LOOK, STATISTICS, SYNC, WHERE = 6, 7, 8, 9, 10, 11, 12, 13
"""ROLLBACK and ENDED are about a whole run, or about one rank of it: `request` is 0, or the rank + 1."""

VALUE, SEGMENT, NOTHING, ERROR = 20, 21, 22, 23

CAN_READ, READS, LENT, RETURNED = 30, 31, 32, 33
"""Between modules: can you read this GPU memory; whether it can (flags); an array there; it has been read."""

SHARED, FRESH = 1, 2
"""Flags of SEGMENT: others see it too, so it is to be copied; it has no pages yet, so it is to be written."""

TAKE, WAIT, PATTERN, KEEP = 1, 2, 4, 8
"""Flags of GET: remove it; wait for it; the tag is a pattern; keep it until the run has ended well."""

SMALL = 1 << 16
"""Bytes up to which data travels inside the message."""


class Message:
    """A message that has arrived; its tag and words are read when somebody asks for them.

    Attributes:
        operation: one of the numbers above.
        flags: of a GET.
        request: number that the answer bears.
        run: number of the module run that sent it; 0: none.
        raw: the whole message.
        begin: where its data begins, a multiple of 16 bytes, so that an array may lie there.
    """

    __slots__ = ("_tag", "_words", "begin", "flags", "operation", "raw", "request", "run")

    def __init__(self, raw: bytearray) -> None:
        self.raw = raw
        (
            self.operation,
            self.flags,
            self._tag,
            self._words,
            self.begin,
            self.request,
            self.run,
        ) = HEAD.unpack_from(raw)

    @property
    def tag(self) -> str:
        """Of the tuple."""
        return self.raw[SIZE : SIZE + self._tag].decode()

    @property
    def words(self) -> bytes:
        """About the data, or a text."""
        end = SIZE + self._tag
        return bytes(self.raw[end : end + self._words])

    @property
    def data(self) -> memoryview:
        """The rest, in the memory of the message."""
        return memoryview(self.raw)[self.begin :]


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
    end = SIZE + len(name) + len(words)
    begin = -(-end // _ALIGNED) * _ALIGNED
    head = HEAD.pack(operation, flags, len(name), len(words), begin, request, run)
    return b"".join((head, name, words, bytes(begin - end), data))


def for_request(front: bytes, request: int) -> bytearray:
    """A message made before, with the number of another request."""
    raw = bytearray(front)
    _REQUEST.pack_into(raw, _AT_REQUEST, request)
    return raw


def make_answer(raw: bytearray, request: int) -> bytearray:
    """Make the PUT that has brought a tuple the VALUE that answers a request."""
    raw[0] = VALUE
    _REQUEST.pack_into(raw, _AT_REQUEST, request)
    return raw
