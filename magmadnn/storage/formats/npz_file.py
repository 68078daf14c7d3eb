"""Named arrays from an .npz file, checked before memory is taken for them; nothing loaded can run code.

An .npz file is a zip archive of .npy members; a .npy member is a header (a Python literal with dtype, order
and shape) and the values. NumPy's own reader evaluates the header, allocates what it says, and unpacks
whatever comes. Here headers are matched with a pattern, and sizes are bounded and compared with the file's.

Sources: NumPy, "A simple file format for NumPy arrays" (NEP 1) and `numpy.lib.format`; PKWARE's APPNOTE.TXT.
"""

from __future__ import annotations

import math
import struct
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import DataError, MagmaDNNError, shown
from magmadnn.storage.formats.npy_header import MAGIC, read_npy_header
from magmadnn.storage.input_files import check_room, opened, unpacked_limit

Array = NDArray[Any]

_ZIP = (b"PK\3\4", b"PK\5\6")  # with members, and without
_DIRECTORY_BYTES = 4 << 20  # some 50,000 members
_PIECE = 1 << 18  # bytes that are unpacked at a time
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes
_ENCRYPTED = 1

# What zipfile and zlib raise at damaged bytes, beside what says so.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    RuntimeError,
    LookupError,
    OverflowError,
)


class NpzFile:
    """An .npz file that is open.

    Args:
        stream: the file,
        where: and how messages call it.

    Attributes:
        names: of the arrays, in the archive's order.
    """

    def __init__(self, stream: FileIO, where: str) -> None:
        self._where = where
        bounded = _Bounded(stream)
        self._archive = zipfile.ZipFile(cast(IO[bytes], bounded))
        members = self._archive.infolist()
        self._members = {one.filename.removesuffix(".npy"): one for one in members}
        if len(self._members) != len(members):
            names = Counter(one.filename.removesuffix(".npy") for one in members)
            raise self._damaged(f"{shown(names.most_common(1)[0][0], 80)} stands there twice")
        if sum(one.compress_size for one in members) > bounded.size:
            raise self._damaged("its members overlap")
        self._left = unpacked_limit(bounded.size)
        self.names = list(self._members)

    def read(self, name: str) -> Array:
        """One array, writable and of its own memory.

        Raises:
            DataError: damaged, packed by another method, or no array of numbers or text.
            DTypeError: elements that are neither numbers nor text.
            OutOfMemoryError: there is not enough memory.
        """
        member = self._members[name]
        if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
            raise DataError(
                f"{self._where}: {shown(name, 80)} is encrypted or packed in another way than NumPy's: "
                "write it with numpy.savez"
            )
        with self._archive.open(member) as file:
            return self._values(name, member, file)

    def _values(self, name: str, member: zipfile.ZipInfo, file: IO[bytes]) -> Array:
        what = f"{self._where}: {shown(name, 80)}"
        header = read_npy_header(file, what, "write it with numpy.savez(file, x=..., y=...)")
        dtype, shape, begin, nbytes = header.dtype, header.shape, header.begin, header.nbytes
        if begin + nbytes != member.file_size:
            raise self._damaged(
                f"{shown(name, 80)} of the shape {shown(shape, 80)} needs {begin + nbytes} bytes, got "
                f"{member.file_size}"
            )
        self._left -= member.file_size
        if self._left < 0:
            raise DataError(
                f"{self._where}: is packed to less than a hundredth of its {member.file_size:,} bytes, "
                "which is taken for an attack on the memory: write it with numpy.savez, which does not pack"
            )
        check_room(
            self._where, nbytes, "read a smaller file, or .npy files by numpy.load(mmap_mode='r')"
        )
        flat = np.empty(math.prod(shape), dtype)
        _fill(flat.view(np.uint8).data, file)
        if (dtype == np.bool_ and (flat.view(np.uint8) > 1).any()) or (
            dtype.kind == "U" and (flat.view(dtype.str[0] + "u4") > sys.maxunicode).any()
        ):
            raise self._damaged(f"{shown(name, 80)} holds what is no {dtype}")
        return flat.reshape(shape[::-1]).T if header.is_fortran else flat.reshape(shape)

    def _damaged(self, reason: str) -> DataError:
        return DataError(f"{self._where}: is damaged ({reason}): write or fetch it again")


@contextmanager
def opened_npz(path: Path, where: str | None = None) -> Iterator[NpzFile]:
    """An .npz file, open while the block runs.

    Args:
        path: the file.
        where: how messages call it; None: its name.

    Raises:
        FileError: it cannot be read.
        DataError: it is damaged, or none; in the block too.
    """
    where = where or shown(path)
    with opened(path, where) as stream:
        try:
            start = stream.read(len(MAGIC)) or b""
            if start == MAGIC:
                raise DataError(
                    f"{where}: holds a single array, expected an .npz file of named ones: write it "
                    "with numpy.savez(file, x=..., y=...)"
                )
            if not start.startswith(_ZIP):  # an archive behind something else is none for NumPy
                raise zipfile.BadZipFile("File is not a zip file")
            yield NpzFile(stream, where)
        except MagmaDNNError:
            raise
        except _DAMAGE as error:
            reason = shown(" ".join(str(error).split()) or type(error).__name__, 200)
            raise DataError(f"{where}: is damaged ({reason}): write or fetch it again") from error


class _Bounded:
    """A file as zipfile reads it: never much at once, so that no directory fills the memory."""

    def __init__(self, stream: FileIO) -> None:
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable
        self._read = stream.read
        self.size = stream.seek(0, 2)

    def read(self, count: int = -1) -> bytes:
        if count < 0:
            count = max(0, self.size - self.tell())
        if count > _DIRECTORY_BYTES:
            raise ValueError(f"a directory of more than {_DIRECTORY_BYTES} bytes")
        return self._read(count) or b""


def _fill(goal: memoryview, file: IO[bytes]) -> None:
    """Reads values up to the end, where the checksum is compared."""
    done = 0
    while done < len(goal):
        piece = file.read(min(_PIECE, len(goal) - done))
        if not piece:
            raise EOFError("cut short")
        goal[done : done + len(piece)] = piece
        done += len(piece)
    if file.read(1):
        raise ValueError("more bytes than its size")
