"""What a kernel is: how it is called, where its arguments lie, what writes it, how it becomes an address.

Every kernel is one function of the signature ::

    void kernel(int64 *arguments, void *scratch, int64 batch)

* `arguments` is a block of 8-byte slots: integers, or addresses. Numbers that change between calls
  (a learning rate) lie elsewhere, and a slot holds their address.
* `scratch` is memory of the calling thread, at least `scratch_bytes` of the kernel and aligned to 64.
* `batch` is the number of the batch within the epoch; most kernels do not look at it.

A kernel keeps nothing between calls and writes only where its arguments say, so that tiles of one
piece of work run on any threads in any order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, Protocol, cast

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from magmadnn.backends.cpu.host import HostMemory
from magmadnn.compiler.dump import dump_kernel
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.data_rows import Advance, Gather, Keep
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.library import Library as LibraryKernel
from magmadnn.compiler.kernels.moves import AddPicked, Move, Pick
from magmadnn.compiler.kernels.own import written_by
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.compiler.llvm.fused.advance import write_advance
from magmadnn.compiler.llvm.fused.batch_rows import write_gather
from magmadnn.compiler.llvm.fused.columns import columns_scratch_bytes, write_columns
from magmadnn.compiler.llvm.fused.draw import write_draw
from magmadnn.compiler.llvm.fused.keep import write_keep
from magmadnn.compiler.llvm.fused.moves import write_add_picked, write_move, write_pick
from magmadnn.compiler.llvm.fused.rows import rows_scratch_bytes, write_rows
from magmadnn.compiler.llvm.gemm.gemm import gemm_scratch_bytes, write_gemm
from magmadnn.compiler.llvm.gemm.gemv import gemv_scratch_bytes, write_gemv
from magmadnn.compiler.llvm.ir.builder import I64, POINTER, VOID, Code
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target, cores, host
from magmadnn.compiler.llvm.library.calls import write_library
from magmadnn.compiler.llvm.object.cache import Cache, key_of
from magmadnn.compiler.llvm.object.library import Library, parts_of
from magmadnn.compiler.llvm.object.parallel import Pieces, quick_turns
from magmadnn.errors import ArgumentError

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
    LibraryKernel: write_library,
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


# --- from a description to an address -------------------------------------------------------------


_NAME = "kernel"

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def llvm_text(kernels: Sequence[Kernel], target: Target) -> str:
    """The LLVM IR of `kernels` for `target`, as one module in which they share what they have in common.

    The functions are called `symbol(0)`, `symbol(1)`, ... in the order of `kernels`.
    """
    module = ir.Module(_NAME)
    module.triple = target.triple
    for number, kernel in enumerate(kernels):
        add_function(module, symbol(number), kernel, target)
    return str(module)


def add_function(module: Any, name: str, kernel: Kernel, target: Target) -> Any:
    """Write `kernel` into an llvmlite module as the function `name`, and give that."""
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, I64]), name)
    function.attributes.add("nounwind")
    code = Code(function, target)
    write_kernel(kernel, code, Frame(code, kernel.slots), target)
    code.give_back()
    return function


def symbol(number: int) -> str:
    """The name of the function of kernel `number` of a module."""
    return f"{_NAME}_{number}"


def block(kernel: Kernel, **values: int | NDArray[Any]) -> NDArray[np.int64]:
    """An argument block for `kernel`: integers as they are, arrays by their address.

    The caller keeps the arrays alive.

    Raises:
        ArgumentError: a slot is missing or not known.
    """
    if set(values) != set(kernel.slots):
        wrong = sorted(set(values) ^ set(kernel.slots))
        raise ArgumentError(
            f"arguments of {type(kernel).__name__}: expected the slots "
            f"{', '.join(kernel.slots)}; missing or not known: {', '.join(wrong)}"
        )
    numbers = [
        value.ctypes.data if isinstance(value, np.ndarray) else int(value)
        for value in (values[slot] for slot in kernel.slots)
    ]
    return np.array(numbers, np.int64)


def scratch(size: int, zeros: bool = True) -> NDArray[np.uint8]:
    """`size` bytes for a thread's scratch memory, aligned as kernels expect."""
    return HostMemory().allocate(size, zeros)


class Loaded:
    """A kernel in memory: its address, and a way to call it from Python."""

    def __init__(self, library: Library, name: str) -> None:
        self._library = library  # keeps the code alive
        self.address = library.address(name)
        self._call = _FUNCTION(self.address)

    def __call__(
        self, arguments: NDArray[np.int64], scratch: NDArray[np.uint8], batch: int = 0
    ) -> None:
        """Run the kernel on an argument block; the interpreter lock is free meanwhile."""
        self._call(arguments.ctypes.data, scratch.ctypes.data, batch)


def _shown(kernel: Kernel, target: Target) -> str:
    """The IR of a kernel, below what it is."""
    return f"; {kernel!r}\n{llvm_text([kernel], target)}"


_loaded: dict[tuple[Kernel, Target], Loaded] = {}


def load(
    kernels: Sequence[Kernel], target: Target | None = None, cache: Cache | None = None
) -> list[Loaded]:
    """`kernels` compiled for `target` (the host) and loaded, each once per process.

    Kernels that are asked for together compile faster than one by one: matrix products share their parts,
    and LLVM works on all cores while the next text is written. Object code is taken from `cache` where it is
    there, one entry for the products and one for the others.
    """
    made_for = target or host()
    known = [_loaded.get((kernel, made_for)) for kernel in kernels]
    if None not in known:
        return [loaded for loaded in known if loaded is not None]
    missing = [k for k in dict.fromkeys(kernels) if (k, made_for) not in _loaded]
    products = [k for k in missing if isinstance(k, Gemm)]
    others = [k for k in missing if not isinstance(k, Gemm)]
    groups = [group for group in (others, products) if group]
    for group, code in zip(groups, _codes(groups, made_for, cache), strict=True):
        library = Library(parts_of(code), map(symbol, range(len(group))))
        for number, kernel in enumerate(group):
            dump_kernel(f"{type(kernel).__name__.lower()}.ll", partial(_shown, kernel, made_for))
            _loaded[kernel, made_for] = Loaded(library, symbol(number))
    return [_loaded[kernel, made_for] for kernel in kernels]


def _codes(groups: Sequence[Sequence[Kernel]], target: Target, cache: Cache | None) -> list[bytes]:
    """The object code of each group, from the cache or compiled."""
    keys = [key_of(repr(group), target) for group in groups]
    found = [cache.find(key) if cache else None for key in keys]
    made = _made([group for group, code in zip(groups, found, strict=True) if not code], target)
    codes = [code or next(made) for code in found]
    for key, code, before in zip(keys, codes, found, strict=True):
        if cache and not before:
            cache.keep(key, code)
    return codes


def _made(groups: Sequence[Sequence[Kernel]], target: Target) -> Iterator[bytes]:
    """Each group compiled, while the text of the next one is written."""
    if not groups:
        return
    with quick_turns(), ThreadPoolExecutor(cores()) as pool:
        yield from [pieces.code() for pieces in [_begun(g, target, pool) for g in groups]]


def _begun(group: Sequence[Kernel], target: Target, pool: Executor) -> Pieces:
    """Kernels as one module that LLVM is working on."""
    pieces = Pieces(_NAME, target, pool)
    for number, kernel in enumerate(group):
        add_function(pieces.module, symbol(number), kernel, target)
        pieces.hand_over()
    pieces.hand_over(is_all=True)
    return pieces
