"""The folder of a workflow's run: what it runs (`workflow.json`) and its log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError, CheckpointError, quoted, shown
from magmadnn.storage.disk import is_there
from magmadnn.storage.durable import read_file, write_file
from magmadnn.storage.event_log import read_log
from magmadnn.storage.formats.plain_json import JSON_BYTES, seal, unseal
from magmadnn.storage.printing import note
from magmadnn.storage.run_folder import RUN
from magmadnn.workflow.description.lines import Path as KeyPath
from magmadnn.workflow.description.reading import Description, described

DOCUMENT, LOG, STOP, RUNS = "workflow.json", "events.log", "stop", "modules"
_FORMAT, _VERSION = "magmadnn-workflow", 1


@dataclass(frozen=True)
class Folder:
    """A workflow's folder.

    Attributes:
        path: of it.
        description: the workflow.
        begin: what the log's first checksum begins with.
    """

    path: Path
    description: Description
    begin: str

    def records(self) -> list[dict[str, Any]]:
        """All events so far, also while it goes on."""
        return read_log(self.path / LOG, self.begin)


def create(path: Path, description: Description, resume: bool) -> Folder:
    """Make the folder, or go on with the one that is there; one that holds nothing yet is begun in.

    Raises:
        ArgumentError: it holds another workflow; says what differs.
        FileError: it cannot be written.
    """
    document = path / DOCUMENT
    record = {
        "workflow": json.loads(description.model.model_dump_json()),
        "base": str(description.base),
        "file": description.file,
        "places": [[list(key), line] for key, line in description.places.items()],
    }
    if is_there(document):
        old = open_folder(path)
        if not resume:
            raise ArgumentError(
                f"workflow: {shown(path)} holds a run already; go on with magmadnn workflow resume, or "
                "choose another folder"
            )
        if text := changed(json.loads(old.description.model.model_dump_json()), record["workflow"]):
            raise ArgumentError(
                f"workflow: {shown(description.file or path)} has changed since {shown(path)} began: {text}; "
                "change it back, or begin another run"
            )
        return Folder(path, description, old.begin)
    if resume and not path.exists():
        raise CheckpointError(
            f"{shown(path)}: is not there, so it holds no {DOCUMENT} to go on with; begin a run first"
        )
    others = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if held := [n for n in others if n != RUN and not n.startswith(".")]:
        raise ArgumentError(
            f"workflow: {shown(path)}: expected a new or empty folder, got one that holds {held[0]!r}"
        )
    if resume:  # it was killed before anything of it was on the disk, so nothing is lost
        note(f"{shown(path)}: holds no {DOCUMENT} yet; the run begins there")
    data = seal({"format": _FORMAT, "version": _VERSION, **record})
    write_file(document, data)
    return Folder(path, description, hashlib.sha256(data).hexdigest()[:16])


def open_folder(path: Path) -> Folder:
    """The run in a folder.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    document = path / DOCUMENT
    if not is_there(document):
        raise CheckpointError(
            f"{shown(path)}: holds no {DOCUMENT}; give the folder of a workflow's run, or begin one there: "
            "magmadnn workflow run FILE --out FOLDER"
        )
    data = read_file(document, JSON_BYTES)
    record = unseal(data, shown(document), _FORMAT, _VERSION)
    try:
        places: dict[KeyPath, int] = {tuple(key): line for key, line in record["places"]}
        model, base, file = record["workflow"], Path(record["base"]), record["file"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{shown(document)}: is no workflow of magmadnn's") from error
    return Folder(path, described(model, base, file, places), hashlib.sha256(data).hexdigest()[:16])


def latest_run(description: Description) -> Path | None:
    """The folder of the latest run beside a workflow's file."""
    runs = description.base.glob(f"runs/{description.model.name}-*/{DOCUMENT}")
    return max((one.parent for one in runs), key=lambda one: one.stat().st_mtime, default=None)


def changed(old: Any, new: Any, where: str = "") -> str:
    """The first difference, in words; empty where there is none."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(k for k in new if k not in old)]:
            if text := changed(old.get(key), new.get(key), f"{where}.{key}" if where else str(key)):
                return text
        return ""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (one, other) in enumerate(zip(old, new, strict=True)):
            name = one.get("name", k) if isinstance(one, Mapping) else k
            if text := changed(one, other, f"{where}[{name}]"):
                return text
        return ""
    return "" if old == new else f"{where} was {quoted(old)} and is {quoted(new)}"
