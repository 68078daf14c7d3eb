"""Digests of the pieces of a file, so that each of several readers can read a part of it and check that.

The digest of a whole file says nothing about a part. So the record of a checkpoint holds one for each of at
most 1,024 pieces of its file of values.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from magmadnn.errors import CheckpointError, quoted, shown

from .disk import is_there, worded
from .durable import folder_entries
from .formats.plain_schema import Fields, Many, Text, Whole
from .formats.tensor_file import Array, tensors_within
from .input_files import check_room, kind_of

LEAST: Final = 4096  # bytes of a piece
MOST: Final = 1024  # pieces
PIECES: Final = Fields(
    {"size": Whole(), "each": Whole(LEAST, 2**62), "sha256": Many(Text(64), most=MOST)}
)
"""What `pieces_of` gives."""

ReadParts = Callable[[Path, str, Mapping[str, Any]], "dict[str, Array] | None"]
"""Reads the arrays of a folder's file by this name, which has these pieces; None where it cannot."""


def pieces_of(data: bytes) -> dict[str, Any]:
    """The size of a file, how long its pieces are, and the SHA-256 of each; the last may be shorter."""
    each = LEAST
    while each * MOST < len(data):
        each *= 2
    view = memoryview(data)
    digests = [
        hashlib.sha256(view[first : first + each]).hexdigest()
        for first in range(0, len(data), each)
    ]
    return {"size": len(data), "each": each, "sha256": digests}


def are_whole(pieces: Mapping[str, Any]) -> bool:
    """Whether there is a digest of each byte."""
    return len(pieces["sha256"]) == -(-int(pieces["size"]) // int(pieces["each"]))


class SharedFile:
    """A file of arrays in a folder that `write_folder` wrote, of which one of several readers reads its part.

    Args:
        folder: the folder.
        name: of the file.
        pieces: what `pieces_of` gave for it.

    Attributes:
        size: its bytes.
        count: how many pieces it has.
        each: bytes of one.
    """

    def __init__(self, folder: Path, name: str, pieces: Mapping[str, Any]) -> None:
        self._folder, self._name, self._path = folder, name, folder / name
        self.size, self.each = int(pieces["size"]), int(pieces["each"])
        self._digests = list(pieces["sha256"])
        self.count = len(self._digests)

    def sha256(self) -> str:
        """Of the whole file, as the manifest says; it tells copies of it from other files of that name.

        Raises:
            FileError: it is not there.
        """
        entry = folder_entries(self._folder).get(self._name)
        if entry is None or not is_there(self._path):
            raise CheckpointError(f"{shown(self._folder)}: has no {quoted(self._name)}")
        return str(entry["sha256"])

    def room(self) -> Array:
        """Memory for the whole file, uint8 [size].

        Raises:
            OutOfMemoryError: there is not as much.
        """
        check_room(self._path, self.size, "use a machine with more")
        return np.empty(self.size, np.uint8)

    def read(self, first: int, last: int, out: Array) -> int:
        """Read pieces `first` to `last` - 1, each of them checked; how many bytes they were.

        Args:
            first: number of a piece.
            last: likewise, the first that is not read.
            out: uint8 [size], as `room` gave it; the bytes of those pieces are written.

        Raises:
            CheckpointError: it is another file, or damaged; names the piece.
            FileError: it is not there, or cannot be read.
        """
        begin, end = first * self.each, min(last * self.each, self.size)
        if begin >= end:
            return 0
        with worded("cannot read", self._path), self._opened() as file:
            file.seek(begin)
            for number in range(first, last):
                place = out.data[number * self.each : (number + 1) * self.each]
                have = 0
                while have < len(place) and (got := file.readinto(place[have:])):
                    have += got
                self._check(number, place[:have])
        return end - begin

    def _opened(self) -> FileIO:
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe would block
        file = FileIO(os.open(self._path, flags), "r")
        status = os.fstat(file.fileno())
        if kind_of(status) is not None or status.st_size != self.size:
            file.close()
            raise CheckpointError(
                f"{shown(self._path)}: expected a regular file of {self.size} bytes, got {status.st_size}; "
                "use another checkpoint or a copy"
            )
        return file

    def _check(self, number: int, data: memoryview) -> None:
        found = hashlib.sha256(data).hexdigest()
        if found != self._digests[number]:
            raise CheckpointError(
                f"{shown(self._path)}: damaged: piece {number} of {self.each} bytes: expected SHA-256 "
                f"{self._digests[number]}, got {found}; use another checkpoint or a copy"
            )

    def tensors(self, data: Array) -> dict[str, Array]:
        """The arrays of the file, from its bytes.

        Raises:
            CheckpointError: it is not a file of arrays.
        """
        return tensors_within(data, shown(self._path))
