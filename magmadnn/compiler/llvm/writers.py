"""Which function writes which kernel as vector code, and what scratch memory it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, cast

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.data_rows import Advance, Gather, Keep
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import AddPicked, Move, Pick
from magmadnn.compiler.kernels.own import written_by
from magmadnn.compiler.kernels.rows import Rows

from .fused.advance import write_advance
from .fused.batch_rows import write_gather
from .fused.columns import columns_scratch_bytes, write_columns
from .fused.draw import write_draw
from .fused.keep import write_keep
from .fused.moves import write_add_picked, write_move, write_pick
from .fused.rows import rows_scratch_bytes, write_rows
from .gemm.gemm import gemm_scratch_bytes, write_gemm
from .gemm.gemv import gemv_scratch_bytes, write_gemv
from .ir.builder import Code
from .ir.frame import Frame
from .ir.target import Target
from .library.calls import write_library

_WRITERS: dict[type[Any], Callable[[Any, Code, Frame, Target], None]] = {
    Rows: write_rows,
    Columns: write_columns,
    Gemm: write_gemm,
    Gemv: write_gemv,
    Gather: write_gather,
    Keep: write_keep,
    Advance: write_advance,
    Draw: write_draw,
    Move: write_move,
    Pick: write_pick,
    AddPicked: write_add_picked,
    Library: write_library,
}


class WrittenKernel(Protocol):
    """A kernel that writes its own vector code, beside those that are descriptions only."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots, in order."""
        ...

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        ...


def write_kernel(kernel: Kernel, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of a kernel."""
    kind = type(kernel)
    writer = _WRITERS.get(kind) or written_by(kind, f"{__package__}.fused", "write")
    if writer is None:
        cast(WrittenKernel, kernel).write(code, frame, target)
    else:
        writer(kernel, code, frame, target)


@lru_cache(maxsize=4096)
def scratch_bytes(kernel: Kernel, target: Target) -> int:
    """Scratch memory that a kernel needs."""
    if isinstance(kernel, Gemv):
        return gemv_scratch_bytes(target)
    if isinstance(kernel, Rows):
        return rows_scratch_bytes(kernel)
    if isinstance(kernel, Columns):
        return columns_scratch_bytes(kernel)
    return gemm_scratch_bytes(kernel, target) if isinstance(kernel, Gemm) else 0
