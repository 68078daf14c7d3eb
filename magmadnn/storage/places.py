"""Where a user's files lie: the home folder, the folder for caches, paths that begin with `~`.

None of them has to be there. HOME may not be set, or name a folder of somebody else's; a batch job or a
container may have a user number without a name; `$XDG_CACHE_HOME` may be a relative path, which its
specification tells programs to pass over (https://specifications.freedesktop.org/basedir/latest/).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from magmadnn.errors import FileError, shown

_NAME = "magmadnn"


def home() -> Path | None:
    """The user's home folder; None where the system does not know one."""
    try:
        found = Path.home()
    except RuntimeError:
        return None
    return found if found.is_absolute() else None


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path, with `~` or `~user` at its beginning replaced by that home folder.

    Raises:
        FileError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        first = Path(path).parts[0]
        raise FileError(
            f"{shown(path)}: the home folder {first} is not known; give the path without {first}, or set HOME"
        ) from error


def user_cache() -> Path | None:
    """magmadnn's folder among the user's caches; None without a home folder. It may not be there yet."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given and Path(given).is_absolute():
        return Path(given) / _NAME
    at_home = home()
    return at_home / ".cache" / _NAME if at_home else None


def cache_places() -> Iterator[Path]:
    """Folders for what can be made again, best first; the last one is among temporary files."""
    if (found := user_cache()) is not None:
        yield found
    try:
        temporary = tempfile.gettempdir()
    except OSError:  # not even a folder for temporary files can be written
        return
    number = f"-{os.geteuid()}" if hasattr(os, "geteuid") else ""
    yield Path(temporary).absolute() / f"{_NAME}{number}"
