"""The C and Fortran programs of the how-to page, compiled and run as the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.exported import NEEDS_C, NEEDS_FORTRAN, run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/call-a-network-from-c-and-fortran.md"


def blocks(language: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first example of the page leaves."""
    made = tmp_path_factory.mktemp("guide")
    code = blocks("python")[0]
    subprocess.run([sys.executable, "-c", code], cwd=made, check=True, capture_output=True)
    return made


def play(console: str, folder: Path) -> None:
    """Run the commands of a console block; what they print must be what it shows."""
    for session in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        assert run(shlex.split(command), folder).decode() == shown


@NEEDS_C
def test_header_holds_the_prototypes_shown(folder: Path) -> None:
    assert blocks("c")[0] in (folder / "decay.h").read_text()


@NEEDS_C
def test_c_example(folder: Path) -> None:
    (folder / "main.c").write_text(blocks("c")[1])
    play(blocks("console")[0], folder)


@NEEDS_FORTRAN
def test_fortran_example(folder: Path) -> None:
    (folder / "main.f90").write_text(blocks("fortran")[0])
    play(blocks("console")[1], folder)
