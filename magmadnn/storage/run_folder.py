"""A run's folder: it appears with the run's arguments (`run.json`) inside, in one step.

The arguments are the user's own and may hold paths. They are read to resume a run, never to load a model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magmadnn.errors import CheckpointError, FileError, quoted, shown

from .disk import as_path, is_there, worded
from .durable import clean_leftovers, read_file, write_file, write_folder
from .formats.plain_json import JSON_BYTES, from_plain, seal, to_plain, unseal
from .formats.plain_schema import Anything, Fields, Table, check

RUN = "run.json"
_FORMAT, _VERSION = "magmadnn-run", 1
_DOCUMENT = Fields({"arguments": Table(Anything())}, others=Anything())


def create_run(path: str | os.PathLike[str], arguments: Mapping[str, Any]) -> None:
    """Makes the folder of a new run, with its arguments, durably and in one step.

    Args:
        path: must not exist, or be an empty folder. Missing folders above it are made.
        arguments: plain data (see `State.record`).

    Raises:
        ArgumentError: an argument that JSON cannot give back.
        FileError: the folder exists and is not empty, or it cannot be written.
    """
    folder = Path(os.path.realpath(as_path("the run's folder", path)))
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "arguments": to_plain(dict(arguments), "arguments"),
    }
    text = seal(document)
    if folder.parent.is_dir():
        clean_leftovers(folder.parent)
    if _is_empty_folder(folder):
        write_file(folder / RUN, text)  # it may be the working folder or a mounted disk: it stays
    else:
        write_folder(folder, {RUN: text}, manifest=False)


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments that `create_run` wrote.

    Raises:
        CheckpointError: not a run's folder, damaged, or of a newer version.
        FileError: it cannot be read.
    """
    file = as_path("the run's folder", path) / RUN
    if not is_there(file):
        raise CheckpointError(
            f"{shown(path)}: expected a run's folder, got none with a {RUN}; check the path"
        )
    document = unseal(read_file(file, JSON_BYTES), shown(file), _FORMAT, _VERSION)
    check(_DOCUMENT, document, shown(file))
    arguments: dict[str, Any] = from_plain(document["arguments"])
    check(Table(Anything()), arguments, f"{shown(file)}: arguments")
    return arguments


def check_links(path: str | os.PathLike[str]) -> None:
    """Look whether all that a run writes lies in its folder, which itself may be a link.

    Raises:
        FileError: a link in the folder leads out of it, so that what lies there would be written.
    """
    folder = Path(os.path.realpath(path))
    with worded("cannot read", folder):
        for above, folders, files in os.walk(folder, onerror=_fail):
            for name in (*folders, *files):
                entry = Path(above) / name
                if not entry.is_symlink():
                    continue
                goal = Path(os.path.realpath(entry))
                if not goal.is_relative_to(folder):
                    raise FileError(
                        f"{entry}: is a link to {goal}, outside the run's folder, where a resumed run would "
                        "write; put what it means in its place, or resume the folder that holds all of it"
                    )


def _fail(error: OSError) -> None:
    raise error


def _is_empty_folder(folder: Path) -> bool:
    """Raises `FileError` if it is a folder that holds something."""
    with worded("cannot write", folder):
        if not folder.is_dir():
            return False
        clean_leftovers(folder)
        held = sorted(entry.name for entry in folder.iterdir())
    if held:
        raise FileError(
            f"{shown(folder)}: expected a new or empty folder, got one that holds {quoted(held[0])}; "
            "give another --out, or go on with the run there by --resume"
        )
    return True
