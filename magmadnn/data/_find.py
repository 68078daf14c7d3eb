"""Where data files are looked for: folders, and names with the endings of packed files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from magmadnn.storage.input_files import input_path, reading
from magmadnn.storage.places import expanded, user_cache

PACKED = ("", ".gz", ".xz", ".bz2")  # endings tried, in this order


def places_of(name: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """The folders where the data set `name` is looked for, best first.

    A folder that was given is the only root; otherwise `$MAGMADNN_DATA`, `./data`, then the
    user's cache (`$XDG_CACHE_HOME` or `~/.cache`). Each root counts with its subfolder `name`.
    """
    if folder is not None:
        roots = [input_path(f"{name}: the folder", folder)]
    else:
        given = os.environ.get("MAGMADNN_DATA")
        roots = ([expanded(given)] if given else []) + [Path("data")]
    found = [place for root in roots for place in (root, root / name)]
    if folder is None:
        cache = user_cache()
        found += [cache / name] if cache else []
    return found


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of `names`, plain or packed, that stands in `folder`, whatever it is.

    Raises:
        FileError: the system does not let us look.
    """
    tried = (folder / (name + ending) for name in names for ending in PACKED)
    with reading(folder):
        return next((path for path in tried if path.exists() and not path.is_dir()), None)


def list_folder(folder: Path) -> list[str]:
    """The names in a folder, sorted.

    Raises:
        FileError: it is missing, is no folder or cannot be read.
    """
    with reading(folder):
        return sorted(entry.name for entry in folder.iterdir())
