"""What is looked at before anything of a workflow runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from magmadnn.errors import DataError, UnknownNameError, quoted, shown

from .dependencies import circle, gang_ranks, home_steps, steps_of
from .gpus import gpus_here
from .model import GroupModel, ModuleModel
from .reading import Description, Fault


def check(description: Description, ranks: int | None = None) -> None:
    """Refuse a workflow that cannot run.

    Args:
        description: the workflow.
        ranks: MPI ranks for its modules; None: as many as they need.

    Raises:
        DataError: tells all faults, each with file and line.
    """
    found = sorted(faults(description, ranks), key=lambda fault: fault.line)
    if found:
        raise DataError("\n".join(description.worded(fault) for fault in found))


def faults(description: Description, ranks: int | None = None) -> list[Fault]:
    """Everything that is wrong; see `check`."""
    if found := list(_names(description)):  # the rest would stumble over them
        return found
    found = [*_order(description)]
    if not found:
        found += _sizes(description, ranks)
    for k, module in enumerate(description.model.modules):
        found += [
            Fault(description.line("modules", k, *at), text)
            for at, text in _program(description, module)
        ]
    return [*found, *_tags(description)]


def has_order(description: Description) -> bool:
    """Whether all names are right and no module comes after itself, so that it can be drawn."""
    return not list(_names(description)) and not list(_order(description))


def _names(description: Description) -> Iterator[Fault]:
    model = description.model
    seen: set[str] = set()
    places = [("modules", k, m.name) for k, m in enumerate(model.modules)]
    places += [("groups", k, g.name) for k, g in enumerate(model.groups)]
    for table, k, name in places:
        if name in seen:
            yield Fault(
                description.line(table, k, "name"),
                f"{table}.{k}: the name {name!r} is there twice; give another",
            )
        seen.add(name)
    modules = {m.name for m in model.modules}
    tables: list[tuple[str, Sequence[ModuleModel | GroupModel]]]
    tables = [("modules", model.modules), ("groups", model.groups)]
    for table, rows in tables:
        for k, row in enumerate(rows):
            for name in row.after:
                if name not in seen or name == row.name:
                    error = UnknownNameError.of(
                        f"{row.name}: after: module or group", name, seen - {row.name}
                    )
                    yield Fault(description.line(table, k, "after"), str(error))
    homes: dict[str, str] = {}
    for k, group in enumerate(model.groups):
        for name in group.modules:
            line = description.line("groups", k, "modules")
            if name not in modules:
                error = UnknownNameError.of(f"{group.name}: modules: module", name, modules)
                yield Fault(line, str(error))
            elif name in homes:
                yield Fault(
                    line, f"{group.name}: modules: {name!r} is in group {homes[name]!r} already"
                )
            homes[name] = group.name


def _order(description: Description) -> Iterator[Fault]:
    home = home_steps(description)
    model = description.model
    for k, module in enumerate(model.modules):
        if home[module.name] in module.after and home[module.name] != module.name:
            yield Fault(
                description.line("modules", k, "after"),
                f"{module.name}: after: {home[module.name]!r} is the group that it is in",
            )
            return
    steps = steps_of(description)
    graphs = [
        {s.name: s.after for s in steps},
        *({m: s.inner.get(m, ()) for m in s.modules} for s in steps),
    ]
    for graph in graphs:
        if names := circle(graph):
            row = _row(description, names[0])
            yield Fault(
                description.line(*row, "after"),
                f"{' after '.join(names)}: a circle, none of them could begin; leave one 'after' out",
            )


def _row(description: Description, name: str) -> tuple[str, int]:
    """The table and number of a group or module."""
    groups = [group.name for group in description.model.groups]
    if name in groups:
        return "groups", groups.index(name)
    return "modules", [module.name for module in description.model.modules].index(name)


def _sizes(description: Description, ranks: int | None) -> Iterator[Fault]:
    model = description.model
    if ranks is not None:
        for step in steps_of(description):
            needed = gang_ranks(description, step)
            largest = max(
                (description.module(m) for m in step.modules), key=lambda m: m.ranks * m.copies
            )
            needed = max(needed, largest.ranks * largest.copies)
            if needed > ranks:
                yield Fault(
                    description.line(*_row(description, step.name), "ranks"),
                    f"{step.name}: needs {needed} ranks at once (ranks times copies), but the job has "
                    f"{ranks} for modules; start it with more, or lower ranks or copies",
                )
    gpus = len(gpus_here())
    for k, module in enumerate(model.modules):
        if module.gpus * module.ranks * module.copies > gpus and module.gpus:
            yield Fault(
                description.line("modules", k, "gpus"),
                f"{module.name}: needs {module.gpus * module.ranks * module.copies} GPUs "
                f"(gpus x ranks x copies), but there are {gpus}",
            )
    if model.tuple_space.copies > model.tuple_space.servers:
        yield Fault(
            description.line("tuple_space", "copies"),
            f"tuple_space: {model.tuple_space.copies} copies need as many servers, got "
            f"{model.tuple_space.servers}",
        )


def _program(
    description: Description, module: ModuleModel
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with what a module runs: key and text."""
    if module.directory is not None and not (description.base / module.directory).is_dir():
        yield ("directory",), f"{module.name}: directory {quoted(module.directory)} is not there"
    if module.function is not None and module.name not in description.callables:
        if text := _function_fault(module.function, description.base):
            yield ("function",), f"{module.name}: function {quoted(module.function)}: {text}"
    elif module.command is not None:
        if program_of(module.command[0], description.base) is None:
            program = quoted(module.command[0])
            text = f"{module.name}: command: the program {program} is not there or may not be run"
            yield ("command",), f"{text}; check the path and its permissions"
    elif module.library is not None:
        path = description.base / module.library
        if not path.is_file():
            yield (
                ("library",),
                f"{module.name}: library {quoted(module.library)} is not there; build it",
            )
            return
        if module.symbol not in _symbols_named(path, module.symbol):
            text = f"library {quoted(module.library)} has no function {quoted(module.symbol)}"
            yield ("symbol",), f'{module.name}: {text}; in Fortran give it bind(c, name="...")'


def program_of(name: str, base: Path) -> str | None:
    """The path of a program: relative to the workflow's file where it has a slash, else searched for."""
    if "{" in name:
        return name
    if "/" in name:
        path = base / name
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(name)


def _function_fault(text: str, base: Path) -> str | None:
    """Why a function cannot be found; None where it can. Nothing is imported but packages on the way."""
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name.isidentifier():
        return 'must be "package.module:name" or "file.py:name"'
    if module.endswith(".py"):
        path: Path | None = base / module
        if path is not None and not path.is_file():
            return f"there is no file {shown(base / module)}"
    else:
        path = module_path(module, base)
        if path is None:
            return f"there is no module {module!r} beside the workflow's file or on Python's path"
    if path is None or path.suffix != ".py":
        return None  # compiled: known when it is imported
    return _defined(path, name)


def _defined(path: Path, name: str) -> str | None:
    import ast

    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        return f"{shown(path)} cannot be read: {error}"
    names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    bound = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    bound |= {
        a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names
    }
    if name in names | bound or "*" in bound:
        return None
    return str(UnknownNameError.of("function", name, names))


def module_path(module: str, base: Path) -> Path | None:
    """The file of a Python module, found beside the workflow's file first; not imported."""
    parts = module.split(".")
    for path in (base.joinpath(*parts).with_suffix(".py"), base.joinpath(*parts, "__init__.py")):
        if path.is_file():
            return path
    try:
        found = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    if len(parts) == 1 or found.submodule_search_locations is None:
        return Path(found.origin) if found.origin and len(parts) == 1 else None
    for folder in found.submodule_search_locations:
        inner = Path(folder).joinpath(*parts[1:])
        for path in (inner.with_suffix(".py"), inner / "__init__.py"):
            if path.is_file():
                return path
        if matches := sorted(inner.parent.glob(f"{inner.name}.*.so")):
            return matches[0]
    return None


def _symbols_named(path: Path, name: str) -> set[str]:
    """The name if a library exports it. The library is loaded by another process: loading runs its code."""
    import subprocess

    code = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])"
    command = [sys.executable, "-I", "-c", code, str(path), name]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return set() if done.returncode else {name}


def _tags(description: Description) -> Iterator[Fault]:
    """Tags that are got, but that no module puts; only where every module says what it puts or gets."""
    modules = description.model.modules
    if any(m.puts is None and m.gets is None for m in modules):
        return
    put = sorted({tag for m in modules for tag in m.puts or ()})
    known = f"put are {', '.join(put)}" if put else "no module says that it puts any"
    for k, module in enumerate(modules):
        for tag in module.gets or ():
            if not any(tags_meet(tag, other) for other in put):
                line = description.line("modules", k, "gets")
                yield Fault(line, f"{module.name}: gets {tag!r}, which no module puts: {known}")
    for k, group in enumerate(description.model.groups):
        if group.until is not None and not any(tags_meet(group.until, other) for other in put):
            line = description.line("groups", k, "until")
            yield Fault(line, f"{group.name}: until {group.until!r}, which no module puts: {known}")


def tags_meet(one: str, other: str) -> bool:
    """Whether two tags or patterns may name the same tag."""
    return fnmatchcase(one, other) or fnmatchcase(other, one) or ("*" in one and "*" in other)
