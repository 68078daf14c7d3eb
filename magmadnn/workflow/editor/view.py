"""What the editor's page shows of a text."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magmadnn.workflow.description.checking import faults, has_order
from magmadnn.workflow.description.dependencies import ranks_needed
from magmadnn.workflow.description.drawing import svg
from magmadnn.workflow.description.model import GroupModel, ModuleModel, TupleSpaceModel
from magmadnn.workflow.description.reading import understood

if TYPE_CHECKING:
    from pydantic import BaseModel

NEW = """# A workflow: see "Run a workflow" in the documentation.
name = "workflow"

[[modules]]
name = "first"
command = ["true"]
"""
"""The text of a file that is not there yet."""


def view(text: str, file: Path) -> dict[str, Any]:
    """A text as plain data: what it says, what is wrong with it, the picture of its graph.

    Returns:
        "text"; "data": what the forms show, None where it is no TOML; "faults": each with "line" and "text";
        "svg" and "ranks" (of the whole job): None where there is no order.
    """
    description, found = understood(text, file)
    seen: dict[str, Any] = {"text": text, "data": None, "svg": None, "ranks": None}
    if description is not None:
        found = sorted(faults(description), key=lambda fault: fault.line)
        if has_order(description):
            seen["svg"] = svg(description)
            seen["ranks"] = 1 + description.model.tuple_space.servers + ranks_needed(description)
    try:
        seen["data"] = _plain(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        pass  # the faults say so
    return {**seen, "faults": [{"line": one.line, "text": one.text} for one in found]}


def fields() -> dict[str, list[dict[str, Any]]]:
    """The fields of the forms, from the model that checks the file."""
    models: dict[str, type[BaseModel]] = {
        "modules": ModuleModel,
        "groups": GroupModel,
        "tuple_space": TupleSpaceModel,
    }
    return {
        kind: [
            {
                "key": key,
                "kind": _kind(key, schema),
                "about": schema.get("description", ""),
                "default": schema.get("default"),
                "choices": schema.get("enum", []),
            }
            for key, schema in model.model_json_schema()["properties"].items()
        ]
        for kind, model in models.items()
    }


def _kind(key: str, schema: dict[str, Any]) -> str:
    """How a field is asked for: "choice", "names", or the JSON type without null."""
    if key in ("after", "modules"):
        return "names"
    if "enum" in schema:
        return "choice"
    types = [one.get("type") for one in schema.get("anyOf", [schema])]
    return str(next(one for one in types if one != "null"))


def _plain(value: Any) -> Any:
    """What TOML has and JSON has not as text: dates, numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value if isinstance(value, str | int | float | bool) else str(value)
