"""What is wrong with a workflow and what it is answered with: one line, with file and line, and the way out.

What only shows while a workflow runs is in `test_runs.py`: an executable that exits 3, a get that can never
be answered, a full disk under the log, a resume with a changed file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from magmadnn.errors import ArgumentError, DataError, DTypeError, FileError
from magmadnn.workflow import Workflow
from magmadnn.workflow.tuples.payload import array_of, pack
from tests.refusals.cases import PythonCase, check_in_python

SHARED = np._core._multiarray_umath.__file__  # a shared library that is surely there


def checked(place: Path, lines: str, ranks: int | None = None) -> None:
    """A module `m` with more keys."""
    (place / "mods.py").write_text("def run(ctx):\n    pass\n")
    (place / "f.toml").write_text(f'[[modules]]\nname = "m"\n{lines}\n')
    Workflow.load(place / "f.toml").check(ranks)


def unknown(place: Path) -> None:
    Workflow("w").add_module(lambda ctx: None, "m")


CASES: dict[str, PythonCase] = {
    "file: not there": (
        lambda p: Workflow.load(p / "none.toml"),
        FileError,
        "~.*none.toml: there is no such file; check the path",
    ),
    "file: a key": (
        lambda p: checked(p, 'command = ["true"]\nrank = 2'),
        DataError,
        "~.*f.toml:4: key of modules: 'rank' is not known: did you mean 'ranks'.*",
    ),
    "module: not importable": (
        lambda p: checked(p, 'function = "nothing_there:run"'),
        DataError,
        "~.*f.toml:3: m: function 'nothing_there:run': there is no module 'nothing_there' beside .*",
    ),
    "module: no such function": (
        lambda p: checked(p, 'function = "mods:runs"'),
        DataError,
        "~.*f.toml:3: m: function 'mods:runs': function 'runs' is not known: did you mean 'run'.*",
    ),
    "library: without the symbol": (
        lambda p: checked(p, f'library = "{SHARED}"\nsymbol = "simulate"'),
        DataError,
        "~.*f.toml:4: m: library .* has no function 'simulate'; in Fortran give it bind.*",
    ),
    "command: not there": (
        lambda p: checked(p, 'command = ["./a.out"]'),
        DataError,
        "~.*f.toml:3: m: command: the program './a.out' is not there or may not be run; check the path .*",
    ),
    "ranks: none": (
        lambda p: checked(p, 'command = ["true"]\nranks = 0'),
        DataError,
        "~.*f.toml:4: modules.0.ranks must be at least 1, got 0.*",
    ),
    "copies: more than the job has ranks": (
        lambda p: checked(p, 'command = ["true"]\nranks = 2\ncopies = 3', 5),
        DataError,
        "~.*f.toml:4: m: needs 6 ranks at once .ranks times copies., but the job has 5 for modules; .*",
    ),
    "gets: what nobody puts": (
        lambda p: checked(p, 'command = ["true"]\nputs = ["x"]\ngets = ["y"]'),
        DataError,
        "~.*f.toml:5: m: gets 'y', which no module puts: put are x",
    ),
    "tuple: another dtype": (
        lambda p: array_of("x", np.arange(3), np.float64),
        DTypeError,
        "get: tag 'x': expected an array of float64, got int64",
    ),
    "tuple: an object": (
        lambda p: pack(object()),
        DTypeError,
        "~put: a object cannot be put: .*; give an array, bytes or JSON values",
    ),
    "tuple: an array of objects": (
        lambda p: pack(np.array([{}])),
        DTypeError,
        "~put: arrays of Python objects cannot be put, got dtype object; give .*",
    ),
    "tuples: more copies than servers": (
        lambda p: checked(p, 'command = ["true"]\n[tuple_space]\ncopies = 2'),
        DataError,
        "~.*f.toml:5: tuple_space: 2 copies need as many servers, got 1.*",
    ),
    "program: found nowhere else": (
        unknown,
        ArgumentError,
        "~add_module: .* is not a function of a file's or module's top level, .*; move it there, or .*",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_in_python(case: PythonCase, tmp_path: Path) -> None:
    check_in_python(tmp_path, case)
