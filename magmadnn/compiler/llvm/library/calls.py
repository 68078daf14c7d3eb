"""Steps that call a library, as native code; `kernels/library.py` says what they compute."""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.llvm.ir.builder import Code, Value
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

from .arguments import LibraryArguments
from .potrf import write_potrf
from .trsm import write_trsm

# by the name in the op's record (`LibraryCall.function`)
WRITERS: dict[str, Callable[[LibraryArguments, Value], None]] = {
    "potrf": write_potrf,
    "trsm": write_trsm,
}


def can_call(kernel: Library) -> bool:
    """Whether the call of a function of this name is known."""
    return kernel.function in WRITERS


def write_library(kernel: Library, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel: a call for each matrix; empty ones are left alone."""
    arguments = LibraryArguments(kernel, code, frame)
    some = (arguments.rows * arguments.columns).differs(0)
    with code.when(some), code.loop(frame.integer("row0"), frame.integer("row1")) as matrix:
        WRITERS[kernel.function](arguments, matrix)
