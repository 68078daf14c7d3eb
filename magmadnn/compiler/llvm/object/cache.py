"""Object code kept on disk, so that a kernel is compiled once per machine and not once per process.

Entries lie in a folder of the user's own, `kernels` in `storage.places.cache_places`, since loading one
runs what it holds. `storage/private.py` says when folder and entry can be trusted. A folder that others
could write to is closed and emptied; one that they could replace is not used. An entry is a header with a
checksum of its name and the rest, so that an entry under another's name is none. Writers make a file of
another name and rename it, so readers see whole entries only; one that is damaged all the same is removed
and made anew. When the folder grows too large, entries not used for longest go first. To look takes longer
than to compile a kernel where there are thousands of entries: writers do so once in a while.

The name of an entry is a hash of all that its code depends on: the kernels, the CPU and its features, the
versions of LLVM and llvmlite, and the source of these generators.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.errors import FileError
from magmadnn.storage.private import (
    CacheFolder,
    cache_folder,
    empty_folder,
    private_folder,
    private_trouble,
    read_private,
)

LIMIT_BYTES = 256 << 20
_SHARE = 16  # of the limit, which is written between two looks
_MAGIC = b"magmadnn object code 2\n"
_SUFFIX = ".object"
FOLDER = "kernels"
ENDINGS = (_SUFFIX, ".part")
_SUM_BYTES = hashlib.sha256().digest_size


def generators() -> list[Path]:
    """The files that code depends on: descriptions of kernels, and all that writes and compiles them."""
    compiler = Path(__file__).resolve().parents[2]
    folders = (compiler / "llvm", compiler / "kernels")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@functools.cache
def _sources() -> str:
    """A hash of the source of the generators: other source, other code."""
    total = hashlib.sha256()
    for path in generators():
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def key_of(what: str, target: Target) -> str:
    """The name of the entry for the code described by `what` for `target`."""
    parts = (what, repr(target), llvmlite.__version__, repr(llvm.llvm_version_info), _sources())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Cache:
    """A folder of object code.

    Args:
        folder: where; made where it is missing, closed and emptied where others could write to it.
        limit_bytes: how large it may grow.

    Raises:
        FileError: the folder belongs to somebody else, others may replace it, or it cannot be written.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit = limit_bytes
        # Bytes to write before the next look: drawn, so that many processes that write little look as often
        # as one that writes as much.
        self._until_look = random.uniform(0, limit_bytes / _SHARE)
        private_folder(folder, ENDINGS)

    def code(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The entry `key`; if there is none that is whole, what `make` gives is kept and returned."""
        found = self.find(key)
        if found is None:
            found = make()
            self.keep(key, found)
        return found

    def find(self, key: str) -> bytes | None:
        """The entry `key`; None if there is none that is whole."""
        path = self._path(key)
        try:
            raw = read_private(path)
        except FileError as error:  # the folder was open once, and may hold more of the kind
            with contextlib.suppress(OSError):
                empty_folder(self.folder, ENDINGS, str(error))
            return None
        if raw is None:
            return None
        start = len(_MAGIC) + _SUM_BYTES
        code = raw[start:]
        if raw[:start] != _head(key, code):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # now the one used last
        return code

    def keep(self, key: str, code: bytes) -> None:
        """Make the entry `key`."""
        # A cache that cannot be written to, or a full disk, costs time and nothing else.
        with contextlib.suppress(OSError):
            self._write(key, code)

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, size, _ in self._entries())

    def clear(self) -> None:
        """Remove all entries.

        Raises:
            OSError: they cannot be removed.
        """
        for _, _, path in self._entries():
            Path(path).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _write(self, key: str, code: bytes) -> None:
        entry = _head(key, code) + code
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry)
            temporary.replace(self._path(key))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._until_look -= len(entry)
        if self._until_look <= 0:
            self._until_look = self._limit / _SHARE
            self._shrink()

    def _shrink(self) -> None:
        """Remove the entries not used for longest; leaves room for what is written until the next look."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self._limit - self._until_look:
                return
            Path(path).unlink(missing_ok=True)
            total -= size

    def _entries(self) -> list[tuple[int, int, str]]:
        """Time of last use in nanoseconds, size and path of every entry."""
        made = []
        with os.scandir(self.folder) as found:  # several times as fast as Path.glob
            for entry in found:
                # Another process may remove it meanwhile
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.endswith(_SUFFIX):
                        state = entry.stat(follow_symlinks=False)
                        made.append((state.st_mtime_ns, state.st_size, entry.path))
        return made


def kernel_cache() -> Cache | None:
    """The folder of compiled kernels; None, with a warning, where none can be used safely."""
    return _cache_in(cache_folder(FOLDER, ENDINGS))


@functools.cache
def _cache_in(found: CacheFolder) -> Cache | None:
    """Looked at once in a process."""
    if found.path is not None:
        return Cache(found.path)
    reasons = "; ".join(found.troubles) or "no folder for caches or temporary files is known"
    text = f"kernels are compiled anew in each process: {reasons}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return None


def cache_trouble(place: Path) -> str | None:
    """Why compiled kernels cannot be kept in one of `cache_places`; None where they can. Changes nothing."""
    return private_trouble(place) or private_trouble(place / FOLDER)


def _head(key: str, code: bytes) -> bytes:
    """What an entry begins with."""
    return _MAGIC + hashlib.sha256(key.encode() + code).digest()
