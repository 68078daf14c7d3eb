"""What a model is made of besides magmadnn's own, for processes that can import it: workers of a client.

A saved model needs its own classes handed over, since a file may be a stranger's. A client and its workers
belong together: it tells them modules and names, and they import these.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.graph.op import Op

_WAY_OUT = (
    "put it at the top of a module that workers can import, beside the script, or run the script by magmadnn "
    "launch"
)


def record_of(items: Iterable[Any]) -> dict[str, Any]:
    """Where classes, functions and ops are found, as JSON data."""
    places = [
        [item.name, item.numpy.__module__, None]
        if isinstance(item, Op)
        else [item.__name__, item.__module__, getattr(item, "__qualname__", item.__name__)]
        for item in items
    ]
    return {"places": places, "path": [entry for entry in sys.path if entry] if places else []}


def imported(record: Mapping[str, Any]) -> list[Any]:
    """Classes and functions of a client; modules of its ops, which become known, are imported.

    Raises:
        ArgumentError: naming what cannot be found here.
    """
    known = set(sys.path)  # the client's script may lie elsewhere than these workers began
    sys.path.extend(entry for entry in record["path"] if entry not in known)
    return [
        found
        for name, module, within in record["places"]
        if (found := _found(name, module, within)) is not None
    ]


def _found(name: str, module: str, within: str | None) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever a module of the user's does when it is imported
        raise ArgumentError(
            f"workers: the model needs {name}, and importing {module} ended with {error!r}: {_WAY_OUT}"
        ) from error
    if within is None:
        return None
    for part in within.split("."):
        found = getattr(found, part, None)
    if found is None:
        where = "the script" if module == "__main__" else module
        raise ArgumentError(
            f"workers: the model needs {name}, which workers do not find as {within} of {where}: {_WAY_OUT}"
        )
    return found
