"""NVIDIA's run-time compiler as its wheels bring it: it compiles for every architecture, without a GPU.

That of CUDA 13 knows what comes from sm_75 on, that of CUDA 12 the older sm_70 too.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_PLACES = {13: ("nvidia.cu13", "libnvrtc.so.13"), 12: ("nvidia.cuda_nvrtc", "libnvrtc.so.12")}
_KNOWN = {13: ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"), 12: ("sm_70",)}


def library_of(major: int) -> Path | None:
    """Where the compiler of a version of CUDA is; None where its wheel is not installed."""
    package, name = _PLACES[major]
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    folders = [] if found is None else list(found.submodule_search_locations or ())
    paths = [Path(folder) / "lib" / name for folder in folders]
    return next((path for path in paths if path.exists()), None)


_USUAL = ("sm_70", "sm_80", "sm_90a")  # the others take the text of the one before, with --all


def _marks(major: int, name: str) -> list[pytest.MarkDecorator]:
    reason = f"NVRTC of CUDA {major} is not installed"
    marks = [pytest.mark.skipif(library_of(major) is None, reason=reason)]
    return marks if name in _USUAL else [*marks, pytest.mark.long]


ARCHITECTURES = [
    pytest.param(major, name, id=name, marks=_marks(major, name))
    for major, names in _KNOWN.items()
    for name in names
]


@cache
def _library(major: int) -> ctypes.CDLL:
    path = library_of(major)
    assert path is not None
    for part in path.parent.glob("libnvrtc-builtins.so.*"):  # looked for by its name alone
        ctypes.CDLL(str(part))
    return ctypes.CDLL(str(path))


def compiled(text: str, major: int, options: Sequence[str]) -> tuple[bytes, str]:
    """Machine code and what the compiler said; fails with that where it refuses."""
    library, program = _library(major), c_void_p()
    assert not library.nvrtcCreateProgram(
        byref(program), text.encode(), b"module.cu", 0, None, None
    )
    given = (c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, c_int(len(options)), given)
    log = _taken(library, "ProgramLog", program).rstrip(b"\0").decode()
    assert not failed, log
    image = _taken(library, "CUBIN", program)
    assert not library.nvrtcDestroyProgram(byref(program))
    return image, log


def _taken(library: Any, what: str, program: c_void_p) -> bytes:
    size = c_size_t()
    assert not getattr(library, f"nvrtcGet{what}Size")(program, byref(size))
    found = ctypes.create_string_buffer(size.value)
    assert not getattr(library, f"nvrtcGet{what}")(program, found)
    return found.raw
