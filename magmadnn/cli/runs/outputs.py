"""The files that commands write: results, curves, the model; and files that the user names."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn.cli.console import Console
from magmadnn.data import Dataset
from magmadnn.errors import FileError, MissingExtraError, shown
from magmadnn.storage.disk import is_folder, worded
from magmadnn.storage.durable import write_file
from magmadnn.storage.places import expanded
from magmadnn.training import History, Model
from magmadnn.training.model.saving import save_model

from .results import RESULT, result_of
from .selection import Selection
from .settings import Settings

MODEL = "model"


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that the user named; a device or pipe is written to, never replaced.

    Raises:
        FileError: if it cannot be written.
    """
    target = expanded(path)
    if target.exists() and not (target.is_file() or target.is_dir()):
        with worded("cannot write", target), target.open("wb") as file:
            file.write(data)
    else:
        write_file(target, data)


def write_json(path: str | os.PathLike[str], result: Mapping[str, Any]) -> None:
    """Write a result that the user asked for.

    Raises:
        FileError: if it cannot be written.
    """
    write_output(path, as_json(result))


def as_json(result: Mapping[str, Any]) -> bytes:
    """A result as JSON: one name on a line; NaN and infinities, which JSON lacks, become null."""
    plain = {
        k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in result.items()
    }
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


def check_place(option: str, path: str | None) -> None:
    """See whether a file can be written, before work begins that would be lost otherwise.

    Raises:
        FileError: if it is a folder, or the nearest folder above it that exists cannot be written.
    """
    if path is None:
        return
    if is_folder(expanded(path)):
        raise FileError(f"{option} {path}: expected the name of a file, got a folder")
    check_above(option, path)


def check_new(option: str, folder: Path, instead: str) -> None:
    """Refuse a folder in use before data is read, which may take long; who makes it decides.

    Args:
        option: as it is written on the command line.
        folder: what the user gave.
        instead: what to give in its place, for the message.

    Raises:
        FileError: the folder holds something, is a file, or cannot be made.
    """
    with worded("cannot read", folder):
        held = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        is_file = folder.exists() and not folder.is_dir()
    if held:
        raise FileError(
            f"{option} {shown(folder)}: expected a new or empty folder, got one that holds {held[0]!r}; "
            f"give {instead}"
        )
    if is_file:
        raise FileError(f"{option} {shown(folder)}: expected a new or empty folder, got a file")
    check_above(option, str(folder))


def check_above(option: str, path: str) -> None:
    """See whether the nearest folder above `path` that exists can be written.

    Raises:
        FileError: if it cannot, or is a file.
    """
    target = expanded(path).absolute()
    above = next(p for p in target.parents if p.exists() or p.is_symlink())
    if not above.is_dir():
        raise FileError(f"{option} {path}: {above} is a file, not a folder; choose another path")
    if not os.access(above, os.W_OK):
        raise FileError(
            f"{option} {path}: the folder {above} cannot be written; choose another one, or change "
            "its permissions"
        )


def write_history(history: History, folder: Path, say: Console) -> None:
    """The table of the epochs and its curves.

    Raises:
        FileError: if a file cannot be written.
    """
    history.to_csv(folder / "history.csv")
    history.to_json(folder / "history.json")
    _draw(history, folder / "curves.png", say)


def write_results(
    folder: Path,
    model: Model,
    data: Dataset,
    history: History,
    settings: Settings,
    selection: Selection | None,
) -> dict[str, Any]:
    """The network and its result, which comes last, so that it means all is there.

    Args:
        folder: of the run.
        model: as it is kept.
        data: with the statistics that it was trained with.
        history: of the training that it comes from.
        settings: of the run.
        selection: what validation rows chose, if there are any.

    Raises:
        FileError: if a file cannot be written.
    """
    save_model(model, folder / MODEL)
    result = result_of(model, data, history, settings, selection)
    write_file(folder / RESULT, as_json(result))
    return result


def _draw(history: History, path: Path, say: Console) -> None:
    """The curves, or one line that says why there are none."""
    import logging

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it announces building its font cache
    picture = io.BytesIO()
    try:
        history.plot().savefig(picture, format="png", dpi=120)
    except MissingExtraError as error:
        say(f"no {path.name}: {error}")
        return
    write_file(path, picture.getvalue())
