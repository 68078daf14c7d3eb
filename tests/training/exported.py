"""Calling exported models: through ctypes, and from programs that gcc and gfortran compile."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, np.dtype[Any]]

NEEDS_C = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="gcc is not installed: apt-get install gcc"
)
NEEDS_FORTRAN = pytest.mark.skipif(
    shutil.which("gfortran") is None, reason="gfortran is not installed: apt-get install gfortran"
)
STRICT_C = ["gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
STRICT_FORTRAN = ["gfortran", "-std=f2008", "-Wall", "-Wextra", "-Werror", "-fcheck=all"]


def run(command: Sequence[str | Path], folder: Path, stdin: bytes = b"") -> bytes:
    """Run a command that must succeed without a word of complaint."""
    done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert done.stderr == b"", (command, done.stderr)
    return done.stdout


class Exported:
    """An object file, linked as a shared library."""

    def __init__(self, file: Path, prefix: str) -> None:
        library = file.with_suffix(".so")
        run(["gcc", "-shared", "-Wl,--fatal-warnings", "-o", library, file], file.parent)
        self._library = ctypes.CDLL(str(library))
        self.prefix = prefix

    def function(self, name: str, result: Any = ctypes.c_int) -> Any:
        found = getattr(self._library, f"{self.prefix}_{name}")
        found.restype = result
        return found

    def predict(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        sizes: Sequence[int] = (),
        scratch: Array | None = None,
    ) -> int:
        """Fill `outputs`; gives the status."""
        arguments = [ctypes.c_void_p(a.ctypes.data) for a in inputs]
        arguments += [ctypes.c_int64(n) for n in (len(inputs[0]), *sizes)]
        arguments += [ctypes.c_void_p(a.ctypes.data) for a in outputs]
        if scratch is None:
            return int(self.function("predict")(*arguments))
        return int(self.function("predict_with")(*arguments, ctypes.c_void_p(scratch.ctypes.data)))

    def scratch_bytes(self, *sizes: int) -> int:
        function = self.function("scratch_bytes", ctypes.c_int64)
        return int(function(*map(ctypes.c_int64, sizes)))


def nan_like(arrays: Any) -> list[Array]:
    """Arrays of these shapes and dtypes that hold nothing of use."""
    several = arrays if isinstance(arrays, list) else [arrays]
    made = [np.empty_like(a, order="C") for a in several]
    for array in made:
        array.reshape(-1).view(np.uint8).fill(0xA5)
    return made


def assert_equal(found: Sequence[Array], expected: Any) -> None:
    """Bit for bit."""
    several = expected if isinstance(expected, list) else [expected]
    for one, other in zip(found, several, strict=True):
        assert one.tobytes() == np.ascontiguousarray(other).tobytes()
