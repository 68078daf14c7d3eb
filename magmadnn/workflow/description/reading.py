"""Reading a workflow's file: every fault with file and line."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magmadnn.errors import (
    DataError,
    FileError,
    MissingExtraError,
    UnknownNameError,
    quoted,
    shown,
)
from magmadnn.storage.disk import as_path, is_there
from magmadnn.storage.durable import read_file

from . import lines

try:
    from pydantic import BaseModel, ValidationError

    from .model import GroupModel, ModuleModel, TupleSpaceModel, WorkflowModel
except ImportError as error:
    raise MissingExtraError.of("pydantic", "md.workflow", "workflow") from error

_MOST = 1 << 24


@dataclass(frozen=True)
class Fault:
    """Something wrong in a workflow.

    Attributes:
        line: in its file; 0 where it was made by Python.
        text: what, with the way out.
    """

    line: int
    text: str


@dataclass(frozen=True)
class Description:
    """A workflow, and where it was described.

    Attributes:
        model: what it is.
        base: folder that paths are relative to.
        file: its name, for messages; empty where it was made by Python.
        places: line of each table and key.
        callables: functions of modules that were given as such, by module.
    """

    model: WorkflowModel
    base: Path
    file: str = ""
    places: Mapping[lines.Path, int] = field(default_factory=dict)
    callables: Mapping[str, Any] = field(default_factory=dict)

    def line(self, *path: str | int) -> int:
        """The line of a key, or of what it belongs to."""
        return lines.line_of(dict(self.places), path) if self.places else 0

    def worded(self, fault: Fault) -> str:
        """A fault with file and line."""
        where = f"{shown(self.file)}:{fault.line}: " if fault.line else ""
        return where + fault.text

    @property
    def sha256(self) -> str:
        """Of what it says, without comments."""
        return hashlib.sha256(self.model.model_dump_json().encode()).hexdigest()

    def module(self, name: str) -> ModuleModel:
        """The module of a name."""
        return next(m for m in self.model.modules if m.name == name)


def read_workflow(name: str | Path) -> Description:
    """The workflow in a TOML file; nothing of it is imported or run.

    Raises:
        FileError: it cannot be read.
        DataError: it is no TOML, or no workflow; tells each fault with its line.
    """
    path = as_path("workflow: the file", name)
    found, faults = understood(text_of(path), path)
    if found is None:
        raise DataError("\n".join(f"{shown(path)}:{one.line}: {one.text}" for one in faults))
    return found


def text_of(path: Path) -> str:
    """The text of a workflow's file.

    Raises:
        FileError: it is not there, or cannot be read.
        DataError: it is no text.
    """
    if not is_there(path):
        raise FileError(f"{shown(path)}: there is no such file; check the path")
    try:
        return read_file(path, _MOST).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(path)}: is no text in UTF-8: {error}") from error


def understood(text: str, path: Path) -> tuple[Description | None, list[Fault]]:
    """The workflow in the text of a file, or what is wrong with the text."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        return None, [Fault(int(at[1]) if at else 1, f"is no TOML: {error}")]
    places = lines.key_lines(text)
    try:
        model = WorkflowModel.model_validate(data)
    except ValidationError as error:
        return None, [_fault(one, places) for one in error.errors()]
    return Description(model, path.absolute().parent, str(path), places), []


def described(
    data: Mapping[str, Any],
    base: Path,
    file: str = "",
    places: Mapping[lines.Path, int] | None = None,
    callables: Mapping[str, Any] | None = None,
) -> Description:
    """The workflow that plain data describes.

    Raises:
        DataError: it is none; tells each fault with its line.
    """
    try:
        model = WorkflowModel.model_validate(data)
    except ValidationError as error:
        faults = [_fault(one, places or {}) for one in error.errors()]
        where = (f"{shown(file)}:{fault.line}: " if file else "" for fault in faults)
        texts = [at + fault.text for at, fault in zip(where, faults, strict=True)]
        raise DataError("\n".join(texts)) from error
    return Description(model, base, file, dict(places or {}), dict(callables or {}))


_KEYS: dict[str, type[BaseModel]] = {
    "modules": ModuleModel,
    "groups": GroupModel,
    "tuple_space": TupleSpaceModel,
}
_KINDS = {
    "missing": "is missing",
    "list_type": 'must be a list, such as ["a"]',
    "string_type": "must be a text in quotes",
    "int_type": "must be a whole number",
    "string_pattern_mismatch": "must be letters, digits, _ and -, beginning with a letter",
    "too_short": "must name at least one",
}


def _fault(found: Any, places: Mapping[lines.Path, int]) -> Fault:
    """One of pydantic's findings in our words."""
    path = tuple(found["loc"])
    line = lines.line_of(dict(places), path)
    table = next((str(part) for part in path if isinstance(part, str)), "")
    key, kind = str(path[-1]) if path else "", found["type"]
    what = f"{'.'.join(str(p) for p in path)}" if path else "the workflow"
    if kind == "extra_forbidden":
        model: type[BaseModel] = _KEYS[table] if len(path) > 1 else WorkflowModel
        of = f" of {path[0]}" if len(path) > 1 else ""
        return Fault(line, str(UnknownNameError.of(f"key{of}:", key, model.model_fields)))
    if kind == "value_error":
        return Fault(line, f"{what}: {found['ctx']['error']}")
    if kind == "literal_error":
        return Fault(
            line, f"{what} must be {found['ctx']['expected']}, got {quoted(found['input'])}"
        )
    if kind in ("greater_than_equal", "greater_than", "less_than_equal"):
        words = {"greater_than_equal": ("at least", "ge"), "greater_than": ("above", "gt")}
        least, name = words.get(kind, ("at most", "le"))
        return Fault(
            line, f"{what} must be {least} {found['ctx'][name]}, got {quoted(found['input'])}"
        )
    if kind == "missing":
        return Fault(line, f"{what} is missing")
    words_of = _KINDS.get(kind, found["msg"][:1].lower() + found["msg"][1:])
    return Fault(line, f"{what} {words_of}, got {quoted(found['input'])}")
