"""Kernels of single ops, found by the name that the op's record gives: see `graph/computed_by.py`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@cache
def description_of(name: str) -> Any:
    """The class that describes a kernel: of `NAME.py` the one that the file is called by."""
    words = "".join(word.capitalize() for word in name.split("_"))
    return getattr(import_module(f"{__package__}.{name}"), words)


@cache
def written_by(kind: type[Any], folder: str, prefix: str) -> Any:
    """The function of a target that writes kernels of a class; None where the target has no file for them.

    Args:
        kind: the class of the description.
        folder: package of the target's files.
        prefix: of the function's name, before that of the file.
    """
    home, _, name = kind.__module__.rpartition(".")
    if home != __package__ or find_spec(f"{folder}.{name}") is None:
        return None
    return getattr(import_module(f"{folder}.{name}"), f"{prefix}_{name}", None)
