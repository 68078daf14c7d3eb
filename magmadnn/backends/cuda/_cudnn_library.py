"""Where cuDNN is: in NVIDIA's package for Python, or where the system looks for libraries."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from ctypes import c_size_t
from pathlib import Path
from typing import Any

_FILE = "libcudnn.so.9"
_OLDEST = 90000  # whose numbers of attributes `_cudnn_descriptors.py` has


def find_cudnn(cuda: int) -> Any | None:
    """The library, for this major version of CUDA; None where there is none."""
    for place in _places():
        try:
            library = ctypes.CDLL(str(place))
        except OSError:
            continue
        library.cudnnGetVersion.restype = library.cudnnGetCudartVersion.restype = c_size_t
        if library.cudnnGetVersion() >= _OLDEST and library.cudnnGetCudartVersion() // 1000 == cuda:
            return library
    return None


def _places() -> Iterator[Path | str]:
    try:
        found = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:  # there is no package of NVIDIA's at all
        found = None
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        yield Path(folder) / "lib" / _FILE
    yield _FILE
