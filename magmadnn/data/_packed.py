"""Bytes of a file, plain or packed (.gz, .xz, .bz2), read from the front and never more than asked for."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Protocol

from magmadnn.errors import DataError, shown
from magmadnn.storage.input_files import check_room, opened, unpacked_limit

_PIECE = (
    1 << 14
)  # bytes of packed data; a file of many empty members is copied once for each in a piece
_UNPACKED = 1 << 20  # bytes that one piece gives at a time
_XZ_MEMORY = 1 << 28  # bytes that unpacking may take; xz -9 needs 65 MiB
SMALLER = "use a machine with more, or a part of the data"

Pieces = Generator[bytes, None, bool]
"""Unpacked bytes piece by piece, at last whether they are all: False if packed data is cut short."""


class Unpacked:
    """A file's unpacked bytes.

    Args:
        stream: the file,
        path: its name; the ending says how it is packed.

    Attributes:
        is_packed: whether the file is packed.
        most: bytes that there may be: those of a plain file, or what packed data may become.
        is_whole: at the end, whether all was there: False if packed data is cut short.
    """

    def __init__(self, stream: FileIO, path: Path) -> None:
        self._path, self._size = path, os.fstat(stream.fileno()).st_size
        self._stream = stream
        unpack = _UNPACK.get(path.suffix.lower())
        self._pieces = None if unpack is None else unpack(stream, path)
        self.is_packed = unpack is not None
        self.most = unpacked_limit(self._size) if unpack else self._size
        self._rest = b""
        self.is_whole: bool | None = None if unpack else True

    def read(self, count: int) -> bytearray:
        """The next bytes; fewer where there are no more."""
        goal = bytearray(count)
        return goal[: self.read_into(memoryview(goal))]

    def read_into(self, goal: memoryview) -> int:
        """Fill `goal` with the next bytes; gives how many there were."""
        done = 0
        while not self.is_packed and (count := self._stream.readinto(goal[done:])):
            done += count
        while done < len(goal):
            piece = self._rest or self._next()
            if not piece:
                break
            taken = min(len(piece), len(goal) - done)
            goal[done : done + taken] = piece[:taken]
            self._rest = piece[taken:]
            done += taken
        return done

    def read_all(self) -> bytes | bytearray:
        """All bytes.

        Raises:
            DataError: they are more than packed data may become.
        """
        if not self.is_packed:
            check_room(self._path, self.most, SMALLER)
            return self.read(self.most)
        pieces, size = [self._rest], len(self._rest)
        while piece := self._next():
            pieces.append(piece)
            size += len(piece)
            if size > self.most:
                raise self.too_much(f"more than {self.most:,}")
        return b"".join(pieces)

    def too_much(self, size: str) -> DataError:
        """The error for packed data that would become this many bytes."""
        return DataError(
            f"{shown(self._path)}: {self._size:,} packed bytes become {size}, over {self.most:,}, which is "
            "taken for damage or an attack on the memory: if they are right, unpack the file first"
        )

    def at_end(self) -> bool:
        """Whether no bytes are left."""
        if not self._rest:
            self._rest = self._next()
        return not self._rest

    def _next(self) -> bytes:
        """The next piece; nothing at the end."""
        if self._pieces is None:
            return self._stream.read(_UNPACKED) or b""
        while self.is_whole is None:
            try:
                if piece := next(self._pieces):
                    return piece
            except StopIteration as end:
                self.is_whole = end.value
        return b""


@contextmanager
def unpacked(path: Path) -> Iterator[Unpacked]:
    """A file, open while the block runs.

    Raises:
        FileError: the file cannot be read.
        DataError: the packed data is damaged.
        OutOfMemoryError: the block found no memory.
    """
    with opened(path) as stream:
        yield Unpacked(stream, path)


def _gunzip(stream: FileIO, path: Path) -> Pieces:
    """The members of a gzip file, which may be several, and padded with zeros."""
    member = zlib.decompressobj(wbits=31)  # 31: a gzip header and check sum are expected
    try:
        while raw := stream.read(_PIECE):
            while raw:
                if member.eof:
                    raw = raw.lstrip(b"\0")
                    if not raw:
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(raw, _UNPACKED)
                raw = member.unconsumed_tail or member.unused_data
        while piece := member.decompress(b"", _UNPACKED):  # held back by the bound
            yield piece
    except zlib.error as error:
        raise _damaged(path, "gzip", error) from error
    return member.eof


def _unxz(stream: FileIO, path: Path) -> Pieces:
    """The streams of an xz file, likewise."""
    import lzma  # rarely needed

    def decoder() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    return _streams(stream, decoder, lambda error: _damaged(path, "xz", error))


def _unbz2(stream: FileIO, path: Path) -> Pieces:
    """The streams of a bzip2 file, likewise; unpacking takes 4 MiB of memory at most."""
    import bz2  # rarely needed

    return _streams(stream, bz2.BZ2Decompressor, lambda error: _damaged(path, "bzip2", error))


class _Decoder(Protocol):
    """What unpacks one stream of xz or bzip2."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


def _streams(
    stream: FileIO, decoder: Callable[[], _Decoder], damage: Callable[[Exception], DataError]
) -> Pieces:
    """Packed streams one behind the other, perhaps padded with zeros."""
    from lzma import LZMAError

    member = decoder()

    def unpacked_piece(raw: bytes) -> bytes:
        try:
            return member.decompress(raw, _UNPACKED)
        except (LZMAError, OSError) as error:  # bzip2 has no class of its own
            raise damage(error) from error

    while raw := stream.read(_PIECE):
        while raw:
            if member.eof:
                raw = raw.lstrip(b"\0")
                if not raw:
                    break
                member = decoder()
            yield unpacked_piece(raw)
            while not (member.eof or member.needs_input):
                yield unpacked_piece(b"")
            raw = member.unused_data
    return member.eof


def _damaged(path: Path, kind: str, error: Exception) -> DataError:
    reason = re.sub(r"^Error -?\d+ while decompressing data: ", "", str(error))
    if "Memory usage limit" in reason:
        return DataError(
            f"{shown(path)}: needs more than {_XZ_MEMORY >> 20} MiB of memory to be unpacked: unpack it first"
        )
    return DataError(f"{shown(path)}: the {kind} data is damaged ({reason}): fetch the file again")


_UNPACK: dict[str, Callable[[FileIO, Path], Pieces]] = {
    ".gz": _gunzip,
    ".xz": _unxz,
    ".bz2": _unbz2,
}
