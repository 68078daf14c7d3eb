"""Which kernels stand around which function of the device's library."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from magmadnn.compiler.kernels.library import Library

from .potrf import around_potrf
from .surroundings import Around
from .trsm import around_trsm

# by the name in the op's record (`LibraryCall.function`)
AROUND: dict[str, Callable[[Library, dict[str, int]], Around]] = {
    "potrf": around_potrf,
    "trsm": around_trsm,
}


def can_call(kernel: Library) -> bool:
    """Whether the device's library is called for a function of this name."""
    return kernel.function in AROUND


def around(kernel: Library, values: Mapping[str, int]) -> Around | None:
    """The kernels around a call, for values of its slots and of `INFO`; None where there are no elements."""
    matrices = values["row1"] - values["row0"]
    count = matrices * values["rows"] * values["columns"]
    if not count:
        return None
    return AROUND[kernel.function](kernel, {**values, "matrices": matrices, "count": count})
