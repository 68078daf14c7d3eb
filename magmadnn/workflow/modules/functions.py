"""Python functions as modules: found by name, in a module or in a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError

IN_JOB = "MAGMADNN_WORKFLOW_JOB"
_known: dict[tuple[str, str], Callable[..., Any]] = {}


class Loading(BaseException):
    """Ends the import of a driver's file where it would run the workflow of which it is a part."""


def function_of(text: str, base: Path) -> Callable[..., Any]:
    """The function that `"package.module:name"` or `"file.py:name"` names.

    Raises:
        ArgumentError: there is none.
    """
    key = (text, str(base))
    if key not in _known:
        module, _, name = text.rpartition(":")
        found = _file_module(base / module) if module.endswith(".py") else _module(module, base)
        function = getattr(found, name, None)
        if not callable(function):
            raise ArgumentError(f"function {text!r}: there is no function {name!r}")
        _known[key] = function
    return _known[key]


def _module(name: str, base: Path) -> Any:
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    return importlib.import_module(name)


def _file_module(path: Path) -> Any:
    """A file as a module; a driver's own call of `run` ends its import, functions above are there."""
    name = f"magmadnn_workflow_{path.stem}_{abs(hash(str(path)))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"function: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    before = os.environ.get(IN_JOB, "")
    os.environ[IN_JOB] = "loading"
    try:
        spec.loader.exec_module(module)
    except Loading:
        return module
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        os.environ[IN_JOB] = before
    return module
