"""Temporary names, and what a writer that died left under them.

A name of the form `.<name>.tmp-<host>-<process>-<random>` is being written or removed and never read.
`.<name>.old-...` is a whole folder on its way to be replaced: if `<name>` is missing, this is it.
"""

from __future__ import annotations

import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .disk import calls

_LEFTOVER = re.compile(
    r"\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<mark>(?P<host>[0-9a-f]{8})-(?P<process>\d{1,9})-[0-9a-f]{16})"
)
_DAY = 24 * 3600.0  # seconds; what no writer takes, so older leftovers are dead whoever wrote them

_active: set[str] = set()


@dataclass(frozen=True)
class Leftover:
    """A temporary name found in a folder: of what, and whether its writer is still at work."""

    path: Path
    name: str
    kind: str  # "tmp" or "old"
    dead: bool


@contextmanager
def writer_mark() -> Iterator[str]:
    """What this writer's temporary names end with; they count as in use until the block ends."""
    mark = f"{_host()}-{os.getpid()}-{secrets.token_hex(8)}"
    _active.add(mark)
    try:
        yield mark
    finally:
        _active.discard(mark)


def temporary_name(path: Path, kind: str, mark: str) -> Path:
    """The name beside `path` for something unfinished (`tmp`) or on its way out (`old`)."""
    return path.with_name(f".{path.name}.{kind}-{mark}")


def leftovers(folder: Path, name: str | None = None) -> list[Leftover]:
    """The temporary names in `folder`, of `name` or of anything, in the order of their names."""
    found = []
    for entry in sorted(folder.iterdir()):
        match = _LEFTOVER.fullmatch(entry.name)
        if match and name in (None, match["name"]):
            found.append(Leftover(entry, match["name"], match["kind"], _is_dead(entry, match)))
    return found


def discard(path: Path) -> None:
    """Removes a file, or a folder of files, as far as that works; what stays is cleaned up later."""
    with suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            calls.remove_file(path)
            return
        for entry in sorted(path.iterdir()):
            calls.remove_file(entry)
        calls.remove_folder(path)


def _is_dead(entry: Path, match: re.Match[str]) -> bool:
    if match["mark"] in _active:
        return False
    process = int(match["process"])
    if match["host"] == _host() and (process == os.getpid() or not _is_alive(process)):
        return True
    try:
        return time.time() - entry.lstat().st_mtime > _DAY
    except OSError:  # gone meanwhile
        return False


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # there os.kill(process, 0) would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def _host() -> str:
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return f"{zlib.crc32(name.encode()):08x}"
