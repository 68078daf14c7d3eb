"""The rules of the code's structure, checked on the source and on the imported package.

A rule about a folder that does not exist yet holds by itself and begins to bite with the folder.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "magmadnn"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}

# Top to bottom; names on one line are neighbours, which do not import each other either.
LAYERS = """
    cli sklearn
    workflow
    search
    models
    training
    parallel
    dmath
    workers
    layers
    optim
    metrics
    losses
    data
    analytics
    linalg fft
    tensor
    runtime
    compiler
    ops
    graph
    comm
    memory
    backends
    storage
    calls
    errors
    hints
"""
HEIGHT = {name: -row for row, names in enumerate(LAYERS.split("\n")) for name in names.split()}
# The same within a folder: its sub-folders and files, top to bottom.
ROOMS = {
    "cli": """
        train search workflow evaluate predict export summary launch doctor tune
        searches
        runs report_page training_options
        commands
        ending arguments
        console
    """,
    "compiler": """
        llvm cuda
        plan
        lower
        regions
        program
        layout
        padding stand_ins
        formulas
        kernels rates dump collecting
    """,
    "compiler.llvm": """
        standalone
        driver
        kernel
        gemm fused library
        side_by_side
        expressions
        vmath
        object
        ir
    """,
    "compiler.cuda": """
        module
        megakernel
        many
        fused library clusters
        gemm
        text
    """,
    "runtime": """
        evaluate
        reference places
        binding indices
        cuda
        profile
        cpu
        handed_on
        agreement watch threads variables step_memory
    """,
    "runtime.cuda": """
        many
        running
        data
        schedule
        step_layout
        layout
        algorithms
        measured code
    """,
    "workflow": """
        editor
        workflow searches
        running
        ranks
        reporting
        modules
        tuples
        description
    """,
    "training": """
        many
        model
        callbacks export
        loop
        objective
        arguments
    """,
}
KNOWS_NO_OP = ("compiler", "runtime", "memory")
MAX_LINES = 500
# Loaded where they are used, unless NumPy loads them: some cost a multiple of what the package costs.
LOADED_LATE = (
    "llvmlite",
    "matplotlib",
    "safetensors",
    "rich",
    "cupy",
    "scipy",
    "tensorboardX",
    "sklearn",
    "csv",
    "difflib",
    "fractions",
    "hashlib",
    "secrets",
    "tempfile",
    "magmadnn.compiler",
    "magmadnn.runtime",
)
MAX_IMPORT = 1.3  # times NumPy's own: 0.13 s where that takes 0.1 s


def test_rules_have_something_to_check() -> None:
    assert "magmadnn" in MODULES
    assert "magmadnn.errors" in MODULES


# --- imports ---------------------------------------------------------------------------------


def source_of(node: ast.ImportFrom, package: str) -> str:
    """The full name of the module that a `from` import in `package` names."""
    if not node.level:
        return node.module or ""
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package)


def last_name(node: ast.expr) -> str:
    """`b` of `a.b`, and of `b`; empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def types_only(nodes: Iterable[ast.AST]) -> set[int]:
    """The ids of the imports under `if TYPE_CHECKING`."""
    guards = [n for n in nodes if isinstance(n, ast.If)]
    return {id(n) for g in guards if "TYPE_CHECKING" in ast.unparse(g.test) for n in ast.walk(g)}


@functools.cache
def all_imports(module: str, path: Path) -> list[tuple[int, str, bool]]:
    """Line and full name of all that `module` imports, inside functions too, and whether for types only."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    for_types, found = types_only(nodes), []
    for node in nodes:
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = source_of(node, package)
            inner = [f"{source}.{alias.name}" for alias in node.names]
            named = [name if name in MODULES else source for name in inner]
        elif isinstance(node, ast.Call) and last_name(node.func).endswith(
            ("import_module", "__import__")
        ):
            named = [str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant)]
        found += [(node.lineno, name, id(node) in for_types) for name in named]
    return found


def imports(module: str, path: Path, types: bool = True) -> Iterator[tuple[int, str]]:
    """Line and full name of all that `module` imports, inside functions too; without `types`, at run time.

    `from magmadnn.a import b` counts as `magmadnn.a.b` where that is a module.
    """
    for line, name, for_types in all_imports(module, path):
        if types or not for_types:
            yield line, name


def folder_of(module: str) -> str:
    """`magmadnn.ops.matmul` -> `ops`; the package itself and `__main__` -> ``."""
    first = module.split(".")[1:2]
    return "" if first in ([], ["__main__"]) else first[0]


def inner_imports(module: str, path: Path) -> Iterator[tuple[str, str]]:
    """Where and what `module` imports of magmadnn's other folders."""
    for line, target in imports(module, path):
        if target.split(".")[0] == "magmadnn" and folder_of(target) != folder_of(module):
            yield f"{path.relative_to(ROOT)}:{line}", target


def test_every_folder_has_a_place_in_the_order() -> None:
    assert {folder_of(module) for module in MODULES} - {""} <= HEIGHT.keys()


def test_the_page_on_the_design_lists_the_folders_in_their_order() -> None:
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]*) \|", page, re.M)
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == LAYERS.split()


def test_imports_go_down_only() -> None:
    upwards = [
        f"{where} imports {target}"
        for module, path in MODULES.items()
        if folder_of(module)
        for where, target in inner_imports(module, path)
        # The package itself stands above all: it exports what is everywhere.
        if HEIGHT.get(folder_of(target), 1) >= HEIGHT[folder_of(module)]
    ]
    assert not upwards, "\n".join(upwards)


def unit_of(module: str, folder: str) -> str:
    """The sub-folder or file of `folder` that a module belongs to; empty for the folder itself and others."""
    inside = module.removeprefix(f"magmadnn.{folder}.")
    return "" if inside == module else inside.split(".")[0]


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_import_down_only(folder: str) -> None:
    height = {n: -row for row, names in enumerate(ROOMS[folder].split("\n")) for n in names.split()}
    units = {unit_of(module, folder) for module in MODULES} - {""}
    assert units == height.keys(), f"ROOMS[{folder!r}] does not list what is there"
    upwards = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for module, path in MODULES.items()
        if (unit := unit_of(module, folder))
        for line, target in imports(module, path, types=False)
        if (other := unit_of(target, folder)) and other != unit and height[other] >= height[unit]
    ]
    assert not upwards, "\n".join(upwards)


def imported_units(types: bool) -> dict[str, dict[str, set[str]]]:
    """For each folder, which of its files and sub-folders import which others of it."""
    found: dict[str, dict[str, set[str]]] = {}
    for module, path in MODULES.items():
        for _, target in imports(module, path, types=types):
            if target in MODULES:
                a, b = module.split("."), target.split(".")
                same = sum(itertools.accumulate(map(str.__eq__, a, b), min))
                if same < min(len(a), len(b)):  # a folder's own __init__ is in none of its files
                    graph = found.setdefault(".".join(a[:same]), {})
                    graph.setdefault(a[same], set()).add(b[same])
    return found


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Those that can be reached from themselves."""
    reached = {name: set(targets) for name, targets in graph.items()}
    for middle in reached:
        for name in reached:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {name for name, targets in reached.items() if name in targets}


# Where annotations name what stands above: two halves of one thing, or the model and its training, which are
# handed to all that works on them.
TYPES_ABOVE = {
    "magmadnn.compiler.llvm.ir": {"arithmetic", "values"},
    "magmadnn.optim": {"courses", "optimizer", "slices", "step"},
    "magmadnn.runtime.cuda.schedule": {"launches", "loops"},
}
ABOUT_MODELS = "magmadnn.training"


@pytest.mark.parametrize("types", [False, True], ids=["run time", "types too"])
def test_no_folder_has_a_circle_of_imports(types: bool) -> None:
    circles = {folder: in_circles(graph) for folder, graph in imported_units(types).items()}
    allowed = TYPES_ABOVE if types else {}
    found = [
        f"{folder}: {', '.join(sorted(names))}"
        for folder, names in circles.items()
        if names != allowed.get(folder, set()) and not (types and folder.startswith(ABOUT_MODELS))
    ]
    assert not found, "files and folders that import each other, in a circle:\n" + "\n".join(found)


def test_circles_are_found() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}


# --- compiler, runtime and memory know kinds of op and sizes, but no op ---------------------


def op_names() -> set[str]:
    """The names of all registered ops."""
    if "magmadnn.graph.op" not in MODULES:
        return set()
    importlib.import_module("magmadnn.ops")
    return set(importlib.import_module("magmadnn.graph.op").REGISTRY)


def primitive_names() -> set[str]:
    """The few scalar functions that the emitters print as instructions; some ops are named alike."""
    if "magmadnn.graph.scalar" not in MODULES:
        return set()
    return {*importlib.import_module("magmadnn.graph.scalar").PRIMITIVES, "cast"}


WRITE_FORMULAS = (
    "magmadnn.compiler.cuda",
    "magmadnn.compiler.llvm",
    "magmadnn.compiler.formulas",
    "magmadnn.compiler.formulas",
    "magmadnn.compiler.kernels",
    "magmadnn.compiler.lower.kernels_of",
    "magmadnn.compiler.regions.fusion.fuse",
)


def modules_without_ops() -> dict[str, Path]:
    return {name: path for name, path in MODULES.items() if folder_of(name) in KNOWS_NO_OP}


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the constants that are docstrings."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders)]
    return {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}


def test_compiler_runtime_and_memory_import_no_op() -> None:
    found = [
        f"{where} imports {target}"
        for module, path in modules_without_ops().items()
        for where, target in inner_imports(module, path)
        if folder_of(target) == "ops"
    ]
    assert not found, "\n".join(found)


def test_compiler_runtime_and_memory_name_no_op() -> None:
    found = []
    for module, path in modules_without_ops().items():
        formulas = module.startswith(WRITE_FORMULAS)
        names = op_names() - (primitive_names() if formulas else set())
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skip = docstrings(tree)
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno} names the op {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in names
            and id(node) not in skip
        ]
    assert not found, "\n".join(found)


# --- files and folders -----------------------------------------------------------------------


def test_folders_have_a_readme() -> None:
    folders = {path.parent for path in FILES}
    missing = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if len(list(folder.glob("*.py"))) > 1 and not (folder / "README.md").is_file()
    ]
    if "magmadnn" in missing:
        missing.remove("magmadnn")  # the repository's README.md is about this folder
    assert not missing, f"folders without a README.md: {', '.join(missing)}"


def test_a_readme_names_every_file_of_its_folder() -> None:
    readmes = {path.parent: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("README.md")}
    missing = [
        str(path.relative_to(ROOT))
        for path in FILES
        if path.stem != "__init__" and path.parent in readmes
        if not re.search(rf"[`/]{re.escape(path.name)}`", readmes[path.parent])
    ]
    assert not missing, f"not named in the README.md of their folder: {', '.join(missing)}"


MOST_FILES = 16  # of a folder, beside its __init__.py
FAMILIES = {"ops": 20}  # a file for each family of ops, which users look for there


def test_folders_can_be_seen_at_once() -> None:
    full = [
        f"{folder.relative_to(PACKAGE)}: {count} files"
        for folder in {path.parent for path in FILES}
        if (count := len(list(folder.glob("[!_]*.py")) + list(folder.glob("_[!_]*.py"))))
        > FAMILIES.get(str(folder.relative_to(PACKAGE)), MOST_FILES)
    ]
    assert not full, "\n".join(sorted(full))


def test_files_can_be_read_in_one_go() -> None:
    sizes = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for path in [*FILES, *(ROOT / "scripts").glob("*.py")]
    }
    long = [f"{path}: {lines} lines" for path, lines in sizes.items() if lines >= MAX_LINES]
    assert not long, "\n".join(long)


def catches_everything(kind: ast.expr | None) -> bool:
    """Whether `except kind` catches any exception at all."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(
        one is None or (isinstance(one, ast.Name) and one.id in ("Exception", "BaseException"))
        for one in kinds
    )


def does_nothing(statement: ast.stmt) -> bool:
    silent = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return silent or isinstance(statement, ast.Pass | ast.Continue)


def swallows(node: ast.AST) -> bool:
    """`except Exception: pass` and `suppress(Exception)`, in all their forms."""
    if isinstance(node, ast.ExceptHandler):
        return catches_everything(node.type) and all(does_nothing(line) for line in node.body)
    if isinstance(node, ast.Call) and last_name(node.func).endswith("suppress"):
        return any(catches_everything(kind) for kind in node.args)
    return False


def test_no_error_is_swallowed() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if swallows(node)
    ]
    assert not found, "every exception is caught and dropped in:\n" + "\n".join(found)


# --- public names ----------------------------------------------------------------------------


def public_names() -> Iterator[tuple[ModuleType, str, Any]]:
    """Module, name and object of all that a public module exports."""
    for name in MODULES:
        if any(part.startswith("_") for part in name.split(".")):
            continue
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            yield module, public, getattr(module, public)


def is_function(thing: object) -> bool:
    """Whether users call it like a function: a function, or an object made for being called."""
    return callable(thing) and not inspect.isclass(thing) and not inspect.ismodule(thing)


def is_explained(thing: object) -> bool:
    """Whether it has a docstring of its own: its class's would not tell it from the next."""
    return bool(thing.__doc__) and thing.__doc__ != type(thing).__doc__


def test_public_names_have_a_docstring() -> None:
    missing = [
        f"{module.__name__}.{name}"
        for module, name, thing in public_names()
        if callable(thing) or inspect.ismodule(thing)
        if not is_explained(thing)
    ]
    assert not missing, "\n".join(sorted(set(missing)))


def test_no_file_bears_the_name_of_a_public_function() -> None:
    functions = {name for _, name, thing in public_names() if is_function(thing)}
    files = {path.stem: path for path in FILES} | {path.parent.name: path for path in FILES}
    functions -= {
        "fft",
        "plan",
    }  # magmadnn.fft.fft, as NumPy's; what md.parallel plans are ways to train
    clashes = [str(files[name].relative_to(ROOT)) for name in functions & files.keys()]
    assert not clashes, f"named like a public function: {', '.join(sorted(clashes))}"


def test_no_file_hides_a_name_of_its_folder() -> None:
    # Once `magmadnn/ops/softmax.py` is imported, `magmadnn.ops.softmax` is that file.
    clashes = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {alias.name}, hidden by a file"
        for package, path in MODULES.items()
        if path.name == "__init__.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{package}.{alias.asname or alias.name}" in MODULES
        if f"{source_of(node, package)}.{alias.name}" not in MODULES
    ]
    assert not clashes, "\n".join(clashes)


# --- import time -----------------------------------------------------------------------------


def in_a_new_interpreter(code: str) -> str:
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    return done.stdout


def test_import_is_fast() -> None:
    # In units of NumPy's import in the same process, as machines and their loads differ: processor
    # time, and the least of several.
    code = (
        "import time; start = time.thread_time(); import numpy; begun = time.thread_time();"
        "import magmadnn; print((time.thread_time() - begun) / (begun - start))"
    )
    in_a_new_interpreter(code)  # compiles the modules
    best = float("inf")
    for _ in range(40):  # beside other tests few are undisturbed
        best = min(best, float(in_a_new_interpreter(code)))
        if best < MAX_IMPORT:
            return
    pytest.fail(f"import magmadnn takes {best:.2f} times the import of numpy")


def test_import_loads_nothing_heavy() -> None:
    code = (
        "import numpy, sys; before = set(sys.modules); import magmadnn;"
        "print(*set(sys.modules) - before)"
    )
    loaded = in_a_new_interpreter(code).split()
    names = {name.split(".")[0] for name in loaded} | set(loaded)
    heavy = sorted(names & set(LOADED_LATE))
    assert not heavy, f"import magmadnn loads {', '.join(heavy)}"
