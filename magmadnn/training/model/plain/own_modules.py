"""The user's own modules that a model's classes and functions need, and whether two processes have the same.

Own is what neither magmadnn nor Python brings along, nor lies among installed packages. A module needs those
that its text imports, wherever in it, and the packages that it lies in; so do these. What is imported by
a name that is computed (`importlib.import_module(name)`) is not seen.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from magmadnn.graph.op import Op
from magmadnn.graph.origins import is_ours
from magmadnn.layers.layer import Layer
from magmadnn.parallel.way import MODULE

from .codec import module_of

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))
# Of modules, by name: what they were loaded by, which a reload replaces, and the file's digest.
_digests: dict[str, tuple[Any, str | None]] = {}
_needs: dict[str, tuple[Any, tuple[str, ...]]] = {}


def digest(module: str) -> str | None:
    """SHA-256 of a module's file as it was when it was first looked at since it was loaded."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if module not in _digests or _digests[module][0] is not spec:
        _digests[module] = spec, digest_now(module)
    return _digests[module][1]


def digest_now(module: str) -> str | None:
    """The same of the file as it is now; None where there is none that can be read."""
    import hashlib  # late: importing magmadnn does not load it

    text = _text(module)
    return None if text is None else hashlib.sha256(text).hexdigest()


def file_of(module: str) -> str | None:
    """The file of a module, where it has one; it need not have been imported."""
    found = getattr(sys.modules.get(module), "__file__", None) or getattr(
        _spec(module), "origin", None
    )
    return os.path.realpath(found) if found and Path(found).is_file() else None


def needed(module: str) -> dict[str, str | None]:
    """The digests of own modules that a module needs, beside itself, by name."""
    found: dict[str, str | None] = {}
    left = [module]
    while left:
        for name in _imports(left.pop()):
            if name != module and name not in found:
                found[name] = digest(name)
                left.append(name)
    return found


def code_of(model: Model) -> dict[str, str]:
    """The digests of all own modules that a model's classes and functions need, by `module <name>`."""
    found: dict[str, str | None] = {}
    given = [*model.layers, model.loss, model.metrics, model._given]
    for item in _items(given):
        name = module_of(item)
        if name in sys.modules and name not in found and not is_ours(name) and _is_own(name):
            found |= {name: digest(name)} | needed(name)
    return {f"{MODULE}{name}": str(one)[:16] for name, one in sorted(found.items())}


def _items(value: Any) -> Iterator[Any]:
    """Classes, functions and ops that a layer, a setting or a record is made of."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _items(one)
    elif isinstance(value, Layer):
        yield type(value)
        settings = [getattr(value, f.name) for f in value.settings()]
        yield from _items([one for one in settings if not isinstance(one, Layer)])
        yield from _items(list(value.layers))
    elif isinstance(value, partial):
        yield from _items([value.func, *value.args, value.keywords])
    elif isinstance(value, (Op, type)):
        yield value
    elif is_dataclass(value):
        yield type(value)
        yield from _items([getattr(value, f.name) for f in fields(value)])
    elif callable(value):
        yield value if hasattr(value, "__qualname__") else type(value)


def _imports(module: str) -> tuple[str, ...]:
    """Own modules that are imported here, of those that a module's text names."""
    found = sys.modules.get(module)
    spec = getattr(found, "__spec__", None)
    if module not in _needs or _needs[module][0] is not spec:
        names = dict.fromkeys(_named(found, module))
        _needs[module] = spec, tuple(n for n in names if n in sys.modules and _is_own(n))
    return _needs[module][1]


def _named(found: ModuleType | None, module: str) -> Iterator[str]:
    """All names that may be modules: packages around this one, and what its text imports."""
    package = getattr(found, "__package__", None) or module.rpartition(".")[0]
    yield from _around(module)
    text = _text(module)
    try:
        tree = ast.parse(text or b"")
    except (SyntaxError, ValueError):  # a library in machine code
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield from (*_around(one.name), one.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                outer = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*outer, *([base] if base else [])])
            yield from (*_around(base), base, *(f"{base}.{one.name}" for one in node.names))


def _around(name: str) -> Iterable[str]:
    """The packages that a module lies in."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def _is_own(module: str) -> bool:
    """Whether a module is the user's: not magmadnn's, Python's or an installed one."""
    file = file_of(module)
    if file is None or is_ours(module):
        return False
    inside = any(file.startswith(f"{folder}{os.path.sep}") for folder in _of_python())
    return not inside and _INSTALLED.isdisjoint(file.split(os.path.sep))


@cache
def _of_python() -> tuple[str, ...]:
    """Folders of Python's own modules."""
    return tuple(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _spec(module: str) -> Any:
    """How a module that was not imported would be found; None if it would not."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__spec__", None)
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # its package is another here, or none
        return None


def _text(module: str) -> bytes | None:
    """The bytes of a module's file; None where there is none that can be read."""
    found = sys.modules.get(module)
    spec = _spec(module)
    loader = getattr(found, "__loader__", None) or getattr(spec, "loader", None)
    file = getattr(found, "__file__", None) or getattr(spec, "origin", None)
    try:
        if file is not None and loader is None:  # a script that `magmadnn launch` runs
            return Path(file).read_bytes()
        data: bytes = loader.get_data(file)  # type: ignore[union-attr]  # is caught
    except (AttributeError, OSError, TypeError):
        return None
    return data
