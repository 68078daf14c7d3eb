"""Where data files are looked for, and how their bytes are read (plain, .gz or .xz)."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from magmadnn.errors import DataError, FileError
from magmadnn.storage.places import expanded, user_cache

PACKED = ("", ".gz", ".xz")  # endings tried, in this order


def places_of(name: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """The folders where the data set `name` is looked for, best first.

    A folder that was given is the only root; otherwise `$MAGMADNN_DATA`, `./data`, then the
    user's cache (`$XDG_CACHE_HOME` or `~/.cache`). Each root counts with its subfolder `name`.
    """
    if folder is not None:
        roots = [expanded(folder)]
    else:
        given = os.environ.get("MAGMADNN_DATA")
        roots = ([expanded(given)] if given else []) + [Path("data")]
    found = [place for root in roots for place in (root, root / name)]
    if folder is None:
        cache = user_cache()
        found += [cache / name] if cache else []
    return found


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of `names`, plain or packed, that stands in `folder`."""
    tried = (folder / (name + ending) for name in names for ending in PACKED)
    return next((path for path in tried if path.is_file()), None)


def list_folder(folder: Path) -> list[str]:
    """The names in a folder, sorted.

    Raises:
        FileError: it is missing, is no folder or cannot be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise cannot_read(folder, error) from error


def cannot_read(path: Path, error: OSError) -> FileError:
    """The error for a file or folder that the system does not let us read."""
    reason = error.strerror or type(error).__name__
    return FileError(f"{path}: cannot be read ({reason}): check the path and its permissions")


def read_bytes(path: Path) -> tuple[bytes, bool]:
    """The unpacked bytes of a file, and whether they are all: False if packed data is cut short.

    Raises:
        FileError: the file cannot be read.
        DataError: the packed data is damaged.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error
    if path.suffix == ".gz":
        return _gunzip(path, raw)
    return _unxz(path, raw) if path.suffix == ".xz" else (raw, True)


def _gunzip(path: Path, raw: bytes) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    ended = False
    while raw.strip(b"\0") or not pieces:  # a file may be several members, and padded with zeros
        member = zlib.decompressobj(wbits=31)  # 31: a gzip header and check sum are expected
        try:
            pieces.append(member.decompress(raw))
        except zlib.error as error:
            raise _damaged(path, "gzip", error) from error
        raw, ended = member.unused_data, member.eof
        if not ended:
            break
    return b"".join(pieces), ended


def _unxz(path: Path, raw: bytes) -> tuple[bytes, bool]:
    import lzma  # rarely needed

    stream = lzma.LZMADecompressor()
    try:
        return stream.decompress(raw), stream.eof
    except lzma.LZMAError as error:
        raise _damaged(path, "xz", error) from error


def _damaged(path: Path, kind: str, error: Exception) -> DataError:
    reason = re.sub(r"^Error -?\d+ while decompressing data: ", "", str(error))
    return DataError(f"{path}: the {kind} data is damaged ({reason}): fetch the file again")
