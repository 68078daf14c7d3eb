"""What a model is made of besides magmadnn's own, for processes that can import it: workers of a client.

A saved model needs its own classes handed over, since a file may be a stranger's. A client and its workers
belong together: it tells them modules and names, and they import these. Both look whether they mean the same:
the client, that the name leads to what it has; workers, that their module's file has the same bytes, and
so have those of the user's own modules that it imports.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MethodType
from typing import Any

from magmadnn.comm.launching.importing import importing
from magmadnn.errors import ArgumentError, MagmaDNNError
from magmadnn.graph.op import REGISTRY, Op

from .codec import module_of
from .own_modules import digest, digest_now, file_of, needed

_WAY_OUT = (
    "put it at the top of a module that workers can import, beside the script, or run the script by magmadnn "
    "launch"
)


def record_of(items: Iterable[Any]) -> dict[str, Any]:
    """Where classes, functions and ops are found, as JSON data.

    Raises:
        ArgumentError: something is not found by its name, or two are called the same.
    """
    places = [_place(item) for item in items]
    known: dict[str, dict[str, Any]] = {}
    for place in places:
        if place["within"] is None:  # an op, whose name is no other's
            continue
        before = known.setdefault(place["name"], place)
        if _words(before) != _words(place):
            raise ArgumentError(
                f"workers: the model needs {_words(before)} and {_words(place)}, which workers would know by "
                "one name: rename one"
            )
    return {"places": places, "path": _path() if places else []}


def _place(item: Any) -> dict[str, Any]:
    """Where one of them is found."""
    module = module_of(item)
    within = None if isinstance(item, Op) else getattr(item, "__qualname__", item.__name__)
    name = item.name if isinstance(item, Op) else item.__name__
    if within is not None:
        found = _at(sys.modules.get(module), within)
        if found is None:
            raise _not_found(name, within, module)
        if found is not item and not (isinstance(item, MethodType) and found == item):
            raise ArgumentError(
                f"workers: the model needs {name}, and {within} of {_called(module)} is something else, as "
                "after a decorator or a reload, or for the method of one object: make the model with what "
                "stands there, or set __name__ and __qualname__ to where it stands"
            )
    return {
        "name": name, "module": module, "within": within,
        "file": file_of(module), "sha256": digest(module), "needs": _needs(module),
    }  # fmt: skip


def imported(record: Mapping[str, Any]) -> list[Any]:
    """Classes and functions of a client; modules of its ops, which become known, are imported.

    The client's path comes first here from now on: of modules of one name, its own are meant.

    Raises:
        ArgumentError: naming what cannot be found here, or is not what the client has.
    """
    path, own = record["path"], _path()
    if own[: len(path)] != path:
        sys.path[:] = path + [entry for entry in own if entry not in path]
    found = [_found(place) for place in record["places"]]
    for place in record["places"]:
        if place["within"] is None and place["name"] not in REGISTRY:
            raise ArgumentError(
                f"workers: the model needs the op {place['name']}, which is not defined by importing "
                f"{_called(place['module'])}: {_WAY_OUT}"
            )
    return [one for one in found if one is not None]


def _found(place: Mapping[str, Any]) -> Any:
    """A class or function; None for an op."""
    name, module, within = place["name"], place["module"], place["within"]
    try:
        if module not in sys.modules:
            importlib.invalidate_caches()  # the file may be younger than what is known of its folder
        with importing(module):
            importlib.import_module(module)
    except MagmaDNNError as error:  # which has a way out
        raise ArgumentError(
            f"workers: the model needs {name}, and importing {module} ended with "
            f"{type(error).__name__}: {error}"
        ) from error
    except Exception as error:  # whatever a module of the user's does when it is imported
        raise ArgumentError(
            f"workers: the model needs {name}, and importing {module} ended with {error!r}: {_WAY_OUT}"
        ) from error
    if digest(module) != place["sha256"]:
        raise _other_file(place)
    for other, (file, sha256) in place["needs"].items():
        if (
            file_of(other) is not None and digest(other) != sha256
        ):  # unless only the client asks for it
            needed_by = {**place, "module": other, "file": file, "sha256": sha256}
            raise _other_file(needed_by, f", which {module} imports,")
    found = None if within is None else _at(sys.modules[module], within)
    if found is None and within is not None:
        raise _not_found(name, within, module)
    return found


def _at(found: Any, within: str) -> Any:
    """What stands in a module by a name with dots; None where there is nothing."""
    for part in within.split("."):
        found = getattr(found, part, None)
    return found


def _path() -> list[str]:
    """Folders in which this process looks for modules, in order; an empty one is the current one."""
    return [entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str)]


def _words(place: Mapping[str, Any]) -> str:
    return f"{place['within']} of {_called(place['module'])}"


def _called(module: str) -> str:
    return "the script" if module == "__main__" else module or "no module"


def _not_found(name: str, within: str, module: str) -> ArgumentError:
    return ArgumentError(
        f"workers: the model needs {name}, which is not found as {within} of {_called(module)}: {_WAY_OUT}"
    )


def _needs(module: str) -> dict[str, tuple[str | None, str | None]]:
    """Files and digests of own modules that a module imports, and these."""
    return {name: (file_of(name), sha256) for name, sha256 in needed(module).items()}


def _other_file(place: Mapping[str, Any], by: str = "") -> ArgumentError:
    """What to say where this process's module is not the client's, or one that it imports."""
    name, module, file = place["name"], place["module"], file_of(place["module"])
    if module == "__main__":
        what = place["within"] or f"the op {name}"
        return ArgumentError(
            f"workers: the model needs {name}, and workers do not find {what} in the script: {_WAY_OUT}"
        )
    if file != place["file"]:
        return ArgumentError(
            f"workers: the model needs {name}, and module {module}{by} is another file here ({file}) than "
            f"the client's ({place['file']}): rename one of them, or leave its folder out of the path"
        )
    if digest_now(module) == place["sha256"]:
        return ArgumentError(
            f"workers: the model needs {name}, and module {module}{by} has changed since workers imported "
            "it: call workers.restart(), or start the job again"
        )
    return ArgumentError(
        f"workers: the model needs {name}, and module {module}{by} has changed since the client imported it: "
        "importlib.reload it, or start the script again"
    )
