"""A log of events: one line for each, added at the end, checked, and on the disk before it counts.

Studies keep their results in one, workflows what became of their modules.

A line is 16 hexadecimal digits, a space, and JSON. The digits are a hash of the line before and of the
JSON, so that a line that was changed, left out or moved is found. A last line that is not whole was being
written when the machine or the process stopped: it is taken away, and what it told of is done again.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any

from magmadnn.errors import CheckpointError, shown
from magmadnn.storage.disk import calls, file_error, worded
from magmadnn.storage.printing import note

_DIGITS = 16
_PIECE = 1 << 26
_plain = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class EventLog:
    """A log that is open for adding; there is one at a time, whose folder is held.

    Args:
        path: of the file; it is made if it is missing.
        begin: text that the first line's hash begins with: what the log is of.

    Attributes:
        records: all that was there when it was opened, in order.

    Raises:
        CheckpointError: a line that is not the last is damaged.
        FileError: it cannot be read or written.
    """

    def __init__(self, path: Path, begin: str) -> None:
        self._path = path
        self.records, self._last, length = _read(path, begin) if path.exists() else ([], begin, 0)
        with worded("cannot write", path):
            if path.exists():
                flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(path, flags)
                if os.fstat(self._file).st_size > length:
                    note(
                        f"{shown(path)}: the last line is not whole; what it told of is done again"
                    )
                    os.ftruncate(self._file, length)
                    calls.sync(self._file)
            else:
                self._file = calls.create(path)
                calls.sync_folder(path.parent)

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds records; returns when they are on the disk.

        Raises:
            FileError: they cannot be written; the log is as it was.
        """
        last, lines = self._last, []
        for record in records:
            text = _plain(record)
            last = _hash(last, text.encode())
            lines.append(f"{last} {text}\n")
        if not lines:
            return
        before = os.fstat(self._file).st_size
        rest = memoryview("".join(lines).encode())
        try:
            while rest:
                rest = rest[calls.write(self._file, rest[:_PIECE]) :]
            calls.sync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise file_error("cannot write", self._path, error) from error
        self._last = last

    def close(self) -> None:
        """Give the file back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextmanager
def without_collecting() -> Iterator[None]:
    """Without looking for garbage, again and again, in records that all stay."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def read_log(path: Path, begin: str) -> list[dict[str, Any]]:
    """The records of a log that somebody may be adding to.

    Raises:
        CheckpointError: a line that is not the last is damaged.
        FileError: it cannot be read.
    """
    return _read(path, begin)[0] if path.exists() else []


def _read(path: Path, begin: str) -> tuple[list[dict[str, Any]], str, int]:
    """Records, the hash of the last line, and the bytes up to its end."""
    with worded("cannot read", path):
        data = path.read_bytes()
    texts: list[bytes] = []
    last, length = begin, 0
    lines = data.split(b"\n")  # the last part is empty, or a line that is not whole
    for number, line in enumerate(lines[:-1], 1):
        claimed, text = line[:_DIGITS].decode("latin-1"), line[_DIGITS + 1 :]
        found = _hash(last, text)
        if claimed != found:
            if number == len(lines) - 1 and not lines[-1]:
                break
            raise CheckpointError(
                f"{shown(path)}: line {number} is damaged or was edited: expected checksum {claimed!r}, got "
                f"{found!r}; restore the file from a copy"
            )
        texts.append(text)
        last, length = found, length + len(line) + 1
    return _records(texts, path), last, length


def _records(texts: list[bytes], path: Path) -> list[dict[str, Any]]:
    """The records of lines, parsed as one list, in which keys are shared; if that fails line by line.

    Between them stands a word that nobody knew when the lines were written, so that no line is part of two.
    """
    between = token_hex(16)
    try:
        found = json.loads("[" + f',"{between}",'.join(map(bytes.decode, texts)) + "]")
    except (ValueError, RecursionError):
        found = []
    records = found[::2]
    if len(found) == 2 * len(texts) - 1 and found[1::2] == [between] * (len(texts) - 1):
        if all(type(record) is dict for record in records):
            return records  # type: ignore[no-any-return]  # what was looked at
    return [_record(text, path, number) for number, text in enumerate(texts, 1)]


def _record(text: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{shown(path)}: line {number} is no JSON; not a log of magmadnn's"
        ) from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{shown(path)}: line {number} is no record")
    return record


def _hash(last: str, text: bytes) -> str:
    return blake2b(last.encode() + text, digest_size=_DIGITS // 2).hexdigest()
