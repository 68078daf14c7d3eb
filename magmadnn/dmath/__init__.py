"""Matrices spread over workers that feel like a regular mathematics library.

`with md.workers(4) as w:` makes arrays by `w.array(...)`, `w.random(...)`; `md.dmath.local` and
`md.dmath.cuda` make them by the same names in this process, and `md.dmath.distributed(w, ...)` on workers
with other settings. Functions and operators are the same for all.
"""

from inspect import isfunction
from typing import Any

from magmadnn.calls import check_methods, check_public, checked_call, missing_name
from magmadnn.dmath import fft
from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.client.session import Session
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.recipes import Blocks, Columns, Replicated, Rows, cyclic
from magmadnn.dmath.libraries import distributed, in_this_process
from magmadnn.dmath.names import FUNCTIONS
from magmadnn.dmath.products.rates import Rates

globals().update(FUNCTIONS)


def __getattr__(name: str) -> Any:
    """`local` and `cuda`: arrays in this process, on the processor or on one GPU."""
    if name in ("local", "cuda"):
        return in_this_process("cpu" if name == "local" else "cuda")
    raise missing_name("module magmadnn.dmath", ["magmadnn.dmath"], name, lambda: __all__)


__all__ = [
    "Blocks",
    "Columns",
    "Layout",
    "Matrix",
    "Rates",
    "Replicated",
    "Rows",
    "Session",
    "cyclic",
    "distributed",
    "fft",
    *sorted(FUNCTIONS),
]

cyclic, distributed = checked_call(cyclic), checked_call(distributed)
check_public(vars())
for _class in (Matrix, Session):
    _found = {name: getattr(_class, name) for name in dir(_class) if not name.startswith("_")}
    check_methods(_class, *(name for name, value in _found.items() if isfunction(value)))
