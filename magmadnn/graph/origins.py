"""Which module an op was defined by: the one whose import makes it known."""

from __future__ import annotations

import sys
from inspect import CO_NEWLOCALS
from typing import Any, Final

_OURS: Final = __package__.split(".")[0]
# What a call for a new op goes through.
_MAKERS: Final = tuple(f"{_OURS}.{part}" for part in ("graph.", "ops._pointwise", "calls"))
DEFINED_IN: Final[dict[str, str]] = {}  # modules, by the op's name


def is_ours(module: str) -> bool:
    """Whether a module is magmadnn's."""
    return module.partition(".")[0] == _OURS


def note_origin(name: str, function: Any) -> None:
    """Note which module defines the op `name`; to be called while it is made.

    It is the module whose code is run, at its top, when a user's op is made: its formula may come from
    another, and so may a function that makes it. In a thread there is no such code: then it is the module of
    `function`.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _module_of(frame).startswith(_MAKERS):
        frame = frame.f_back
    found = _module_of(frame)
    if not is_ours(found):
        while frame is not None and frame.f_code.co_flags & CO_NEWLOCALS:  # of a function
            frame = frame.f_back  # type: ignore[assignment]  # None behind the outermost
        found = str(getattr(function, "__module__", "")) if frame is None else _module_of(frame)
    DEFINED_IN[name] = found


def is_again(known: Any, op: Any) -> bool:
    """Whether `op` is a user's op defined once more, as when a cell of a notebook runs again."""
    module = getattr(op.numpy, "__module__", None)
    again = getattr(getattr(known, "numpy", None), "__module__", "") == module
    return again and not is_ours(str(module))


def _module_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))
