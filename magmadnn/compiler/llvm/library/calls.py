"""Steps that call a library, as native code; `kernels/library.py` says what they compute."""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.llvm.ir.builder import Code, Value
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

from .arguments import LibraryArguments
from .geqrf import room_of_geqrf, write_geqrf, write_orgqr
from .gesdd import room_of_gesdd, write_gesdd
from .getrf import room_of_getrf, write_getrf
from .getrs import room_of_getrs, write_getrs
from .potrf import write_potrf
from .room import Room, Sizes
from .syevd import room_of_syevd, write_syevd
from .trsm import write_trsm

# by the name in the op's record (`LibraryCall.function`)
WRITERS: dict[str, Callable[[LibraryArguments, Value], None]] = {
    "geqrf": write_geqrf,
    "gesdd": write_gesdd,
    "getrf": write_getrf,
    "getrs": write_getrs,
    "orgqr": write_orgqr,
    "potrf": write_potrf,
    "syevd": write_syevd,
    "trsm": write_trsm,
}
# what those work in, that want memory
ROOMS: dict[str, Callable[[Sizes], Room]] = {
    "geqrf": room_of_geqrf,
    "gesdd": room_of_gesdd,
    "getrf": room_of_getrf,
    "getrs": room_of_getrs,
    "orgqr": room_of_geqrf,
    "syevd": room_of_syevd,
}


def workspace_bytes(kernel: Library, sizes: Sizes) -> int:
    """Memory that a call for one matrix works in."""
    if kernel.function not in ROOMS:
        return 0
    return ROOMS[kernel.function](sizes).nbytes(ITEM_BYTES[kernel.dtype])


def can_call(kernel: Library) -> bool:
    """Whether the call of a function of this name is known."""
    return kernel.function in WRITERS


def write_library(kernel: Library, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel: a call for each matrix; empty ones are left alone."""
    arguments = LibraryArguments(kernel, code, frame)
    some = (arguments.rows * arguments.columns).differs(0)
    with code.when(some), code.loop(frame.integer("row0"), frame.integer("row1")) as matrix:
        WRITERS[kernel.function](arguments, matrix)
