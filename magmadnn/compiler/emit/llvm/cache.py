"""Object code kept on disk, so that a kernel is compiled once per machine and not once per process.

Entries lie in a folder of the user's own, `$XDG_CACHE_HOME/magmadnn/kernels` (`~/.cache/...`), since
loading one runs what it holds: the folder must belong to the user and be closed to everybody else, or it
is not used. An entry is a header with a checksum of the rest. Writers make a file of another name and
rename it, so readers see whole entries only; one that is damaged all the same is removed and made anew.
When the folder grows too large, entries not used for longest go first. To look takes longer than to compile a
kernel where there are thousands of entries: writers do so once in a while.

The name of an entry is a hash of all that its code depends on: the kernels, the CPU and its features, the
versions of LLVM and llvmlite, and the source of these generators.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import stat
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from magmadnn.errors import FileError

from .target import Target

LIMIT_BYTES = 256 << 20
_SHARE = 16  # of the limit, which is written between two looks
_MAGIC = b"magmadnn object code 1\n"
_SUFFIX = ".object"
_SUM_BYTES = hashlib.sha256().digest_size


def default_folder() -> Path:
    """Where entries lie unless said otherwise."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return base / "magmadnn" / "kernels"


@functools.cache
def _sources() -> str:
    """A hash of the source of the generators and descriptions: other source, other code."""
    total = hashlib.sha256()
    here = Path(__file__).resolve().parent
    folders = (here, here.parent.parent / "kernels")
    for path in sorted(p for folder in folders for p in folder.rglob("*.py")):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def key_of(what: str, target: Target) -> str:
    """The name of the entry for the code described by `what` for `target`."""
    parts = (what, repr(target), llvmlite.__version__, repr(llvm.llvm_version_info), _sources())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Cache:
    """A folder of object code.

    Args:
        folder: where; None: `default_folder()`.
        limit_bytes: how large the folder may grow.

    Raises:
        FileError: the folder belongs to somebody else, or others may write to it.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder or default_folder()
        self._limit = limit_bytes
        # Bytes to write before the next look: drawn, so that many processes that write little look as often
        # as one that writes as much.
        self._until_look = random.uniform(0, limit_bytes / _SHARE)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"kernel cache: cannot make the folder {self.folder}: {error}"
            ) from error
        _check_private(self.folder)

    def code(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The entry `key`; if there is none that is whole, what `make` gives is kept and returned."""
        found = self.find(key)
        if found is None:
            found = make()
            self.keep(key, found)
        return found

    def find(self, key: str) -> bytes | None:
        """The entry `key`; None if there is none that is whole."""
        return _read(self._path(key))

    def keep(self, key: str, code: bytes) -> None:
        """Make the entry `key`."""
        # A cache that cannot be written to, or a full disk, costs time and nothing else.
        with contextlib.suppress(OSError):
            self._write(self._path(key), code)

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, size, _ in self._entries())

    def clear(self) -> None:
        """Remove all entries."""
        for _, _, path in self._entries():
            Path(path).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _write(self, path: Path, code: bytes) -> None:
        entry = _MAGIC + hashlib.sha256(code).digest() + code
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry)
            temporary.replace(path)
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
                        state = entry.stat()
                        made.append((state.st_mtime_ns, state.st_size, entry.path))
        return made


def kernel_cache() -> Cache | None:
    """The folder of compiled kernels; None, with a warning, where it cannot be used safely."""
    return _cache_in(default_folder())


@functools.cache
def _cache_in(folder: Path) -> Cache | None:
    """Looked at once in a process."""
    try:
        return Cache(folder)
    except FileError as error:
        text = f"kernels are compiled anew in each process: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None


def cache_trouble() -> str | None:
    """Why the folder of compiled kernels cannot be used; None where it can, or is not there yet."""
    folder = default_folder()
    if not folder.exists():
        return None
    try:
        _check_private(folder)
    except FileError as error:
        return str(error)
    return None


def _check_private(folder: Path) -> None:
    """Refuse a folder that others could have put code into."""
    state = folder.stat()
    if not hasattr(os, "getuid"):  # Windows: profiles are private by their access lists
        return
    if state.st_uid != os.getuid():
        raise FileError(
            f"kernel cache: {folder} belongs to user {state.st_uid}, expected {os.getuid()}: "
            "set XDG_CACHE_HOME to a folder of your own"
        )
    if stat.S_IMODE(state.st_mode) & 0o022:
        raise FileError(
            f"kernel cache: others may write to {folder}, and what it holds is run: "
            f"chmod 700 {folder}"
        )


def _read(path: Path) -> bytes | None:
    """The code of an entry, now the one used last; None if there is none or it is damaged."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _SUM_BYTES
    code = raw[start:]
    if raw[:start] != _MAGIC + hashlib.sha256(code).digest():
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return code
