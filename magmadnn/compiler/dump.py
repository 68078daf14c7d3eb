"""MAGMADNN_DUMP=folder: everything that the compiler makes, as files to be read.

Each program that is compiled has a folder `0001-native`, `0002-reference`, ..., with the program's text as it
was given (`00-given.txt`) and after each pass (`01-simplify.txt`, ...), in order, and the drawing of the
regions (`plan.svg`).
The IR of kernels is in `kernels`, numbered in the order in which they were loaded; a kernel
that several programs have in common is there once. On a GPU there are the CUDA text of modules
(`0001-module.cu`) and the launches of graphs, each with those that it waits for (`0002-graph.txt`).
Numbers go on where the folder has some already.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from magmadnn.errors import FileError


def folder() -> Path | None:
    """Where to write; None where nothing is wanted."""
    name = os.environ.get("MAGMADNN_DUMP", "")
    return Path(name) if name else None


class Dump:
    """The files of one program; writes nothing where nothing is wanted.

    Args:
        kind: what it is compiled to: "native" or "reference".

    Raises:
        FileError: if the folder cannot be written.
    """

    def __init__(self, kind: str) -> None:
        base = folder()
        self._at = None if base is None else _numbered(base, kind)
        self._count = 0

    @property
    def is_wanted(self) -> bool:
        """Whether anything is written."""
        return self._at is not None

    def add(self, name: str, text: Callable[[], str]) -> None:
        """Write what a pass made; `text` is asked only where it is wanted."""
        if self._at is not None:
            _write(self._at / f"{self._count:02}-{name}.txt", text())
            self._count += 1

    def add_file(self, name: str, text: Callable[[], str]) -> None:
        """Write a file of that name beside those of the passes."""
        if self._at is not None:
            _write(self._at / name, text())


def dump_kernel(name: str, text: Callable[[], str]) -> None:
    """Write the IR or the text of a kernel, or of a graph of kernels.

    Raises:
        FileError: if the folder cannot be written.
    """
    base = folder()
    if base is None:
        return
    where = base / "kernels"
    _make(where)
    number = 1 + max((int(p.name[:4]) for p in where.glob("[0-9]" * 4 + "-*")), default=0)
    _write(where / f"{number:04}-{name}", text())


def _numbered(base: Path, kind: str) -> Path:
    """A new folder with the next number."""
    _make(base)
    number = max((int(p.name[:4]) for p in base.glob("[0-9]" * 4 + "-*")), default=0)
    while True:  # another process may take the number meanwhile
        number += 1
        made = base / f"{number:04}-{kind}"
        try:
            made.mkdir()
            return made
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot(made, error) from error


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot(path, error) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise _cannot(path, error) from error


def _cannot(path: Path, error: OSError) -> FileError:
    return FileError(f"MAGMADNN_DUMP: cannot write {path}: {error.strerror}; choose another folder")
