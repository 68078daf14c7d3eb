"""Steps that call a library, as native code; `kernels/library.py` says what they compute."""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.library import SMALL, Library
from magmadnn.compiler.llvm.ir.builder import Code, Value
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

from .arguments import LibraryArguments
from .gemm import write_gemm
from .geqrf import room_of_geqrf, write_geqrf, write_orgqr
from .gesdd import room_of_gesdd, write_gesdd
from .gesv import room_of_gesv, write_gesv
from .getrf import room_of_getrf, write_getrf
from .getrs import room_of_getrs, write_getrs
from .potrf import write_potrf
from .room import Room, Sizes
from .small import SMALL as TAKEN_TOGETHER
from .small import is_small, room_of_small, write_small
from .syevd import room_of_syevd, write_syevd
from .trsm import write_trsm

# by the name in the op's record (`LibraryCall.function`)
WRITERS: dict[str, Callable[[LibraryArguments, Value], None]] = {
    "gemm": write_gemm,
    "geqrf": write_geqrf,
    "gesdd": write_gesdd,
    "gesv": write_gesv,
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
    "gesv": room_of_gesv,
    "getrf": room_of_getrf,
    "getrs": room_of_getrs,
    "orgqr": room_of_geqrf,
    "syevd": room_of_syevd,
}


def workspace_bytes(kernel: Library, sizes: Sizes) -> int:
    """Memory that a call for one matrix works in, or one for small matrices side by side."""
    item = ITEM_BYTES[kernel.dtype]
    if is_small(kernel, sizes):
        return room_of_small(sizes).nbytes(item)
    if kernel.function not in ROOMS:
        return 0
    return ROOMS[kernel.function](sizes).nbytes(item)


def can_call(kernel: Library) -> bool:
    """Whether the call of a function of this name is known."""
    return kernel.function in WRITERS


def write_library(kernel: Library, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel: a call for each matrix, or small ones side by side; no empty ones."""
    arguments = LibraryArguments(kernel, code, frame)
    some = (arguments.rows * arguments.columns).differs(0)
    first, end = frame.integer("row0"), frame.integer("row1")
    if kernel.function not in TAKEN_TOGETHER:
        with code.when(some), code.loop(first, end) as matrix:
            WRITERS[kernel.function](arguments, matrix)
        code.settle()  # a product may have been stored past the caches
        return
    with code.choose(frame.integer(SMALL).differs(0)) as (small, others):
        with small:
            write_small(kernel, arguments, target, (first, end))
        with others, code.when(some), code.loop(first, end) as matrix:
            WRITERS[kernel.function](arguments, matrix)
