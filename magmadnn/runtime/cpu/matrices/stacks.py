"""Functions of a library on stacks of matrices that are there, at once: programs of one step, which are kept.

A program is known by its function and the sizes; a call tells it where operands and result lie, and runs it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.kernels.library import FUNCTION, SMALL, WORKSPACE, Library
from magmadnn.compiler.kernels.moves import FAULTS
from magmadnn.compiler.llvm.driver.driver import Driver, Task, prepare
from magmadnn.compiler.llvm.kernel import load, scratch
from magmadnn.compiler.llvm.library.calls import workspace_bytes
from magmadnn.compiler.llvm.library.small import is_small
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.op import Array
from magmadnn.memory import Kind
from magmadnn.memory.pool import HOST_SOURCE, POOLS, host_bytes
from magmadnn.runtime.cpu.cuts import parts_of_stack
from magmadnn.runtime.threads import thread_count

from .lapack import function_of

_KEPT = 32  # programs
_LARGE = 256 << 10  # bytes of a result, from which on its memory begins at a cache line
_programs: OrderedDict[tuple[object, ...], _Program] = OrderedDict()
_lock = ProcessLock(keep=True)


def on_stack(
    function: str,
    settings: tuple[bool, ...],
    operands: Sequence[Array],
    matrix: tuple[int, int],
    known: tuple[int, ...] = (),
) -> Array | None:
    """What a function gives for each matrix of a stack; bits do not depend on the number of threads.

    Args:
        function: a name in the table of calls (`compiler/llvm/library/calls.py`).
        settings: what it is told.
        operands: [..., rows, columns], of one dtype; leading axes broadcast.
        matrix: rows and columns of the results.
        known: what a kernel is for alone, see `Library`.

    Returns:
        [..., *matrix]; None where the function is not there, or finds something wrong.
    """
    leading = _leading_of(operands)
    packed = [_packed(x, leading) for x in operands]
    kernel = _kernel(function, packed[0].dtype, len(packed), settings, known)
    if function_of(kernel) is None:
        return None
    shapes = tuple(x.shape[-2:] for x in packed)
    single = tuple(x.ndim == 2 for x in packed)
    key = (kernel, leading, shapes, single, matrix, thread_count())
    result = _room((*leading, *matrix), packed[0].dtype)
    found = _programs.get(key)
    if found is None:
        found = _Program(kernel, math.prod(leading), shapes, single, matrix)
        with _lock:
            _programs[key] = found
            while len(_programs) > _KEPT:
                _programs.popitem(last=False)
    return result if found.run(packed, result) else None


def _leading_of(operands: Sequence[Array]) -> tuple[int, ...]:
    """The axes in front of matrices, of all operands together."""
    first, *others = (x.shape[:-2] for x in operands)
    return first if all(one == first for one in others) else np.broadcast_shapes(first, *others)


@lru_cache(maxsize=4 * _KEPT)
def _kernel(
    function: str,
    dtype: np.dtype[Any],
    count: int,
    settings: tuple[bool, ...],
    known: tuple[int, ...],
) -> Library:
    """One of each: to make it takes time."""
    return Library(function, dtype.name, count, settings, known)


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory of a result: large ones from what is kept, since new pages take longer than small matrices."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE:
        return np.empty(shape, dtype)
    lease = POOLS[Kind.HOST].lend(HOST_SOURCE, nbytes, zeroed=False)
    return host_bytes(lease).view(dtype).reshape(shape)


def _packed(x: Array, leading: tuple[int, ...]) -> Array:
    """The operand row by row, as many matrices as the result has, or one that serves all."""
    if math.prod(x.shape[:-2]) == 1:
        x = x.reshape(x.shape[-2:])
    elif x.shape[:-2] != leading:
        x = np.broadcast_to(x, (*leading, *x.shape[-2:]))
    flags = x.flags
    return x if flags.c_contiguous and flags.aligned else np.require(x, None, ("C", "ALIGNED"))


class _Program:
    """A step for so many matrices, cut into tasks."""

    def __init__(
        self,
        kernel: Library,
        count: int,
        shapes: Sequence[tuple[int, ...]],
        single: Sequence[bool],
        matrix: tuple[int, int],
    ) -> None:
        prepare(kernel_cache())
        (loaded,) = load([kernel], cache=kernel_cache())
        rows, columns = matrix
        values = {"rows": rows, "columns": columns, "row0": 0, "row1": count}
        values["height"], values["width"] = shapes[0]
        for k, (shape, one) in enumerate(zip(shapes, single, strict=True)):
            values |= {f"x{k}": 0, f"x{k}_step": 0 if one else math.prod(shape)}
        values |= {"result": 0, FUNCTION: function_of(kernel) or 0}
        values[SMALL] = int(is_small(kernel, values))
        self._faults = np.zeros(1, np.int64)
        values[FAULTS] = self._faults.ctypes.data
        room, threads = workspace_bytes(kernel, values), thread_count()
        self._blocks, tasks = [], []
        for _, rows_of_part in parts_of_stack(values, threads):
            memory = scratch(room) if room else self._faults
            part = {**values, **rows_of_part, WORKSPACE: memory.ctypes.data}
            block = np.array([part[slot] for slot in kernel.slots], np.int64)
            tasks.append(Task(loaded, block, (self._faults, memory)))
            self._blocks.append(block)
        slots = [*(f"x{k}" for k in range(len(shapes))), "result"]
        self._slots = [kernel.slots.index(slot) for slot in slots]
        self._driver = Driver([tasks], min(threads, len(tasks)), cache=kernel_cache())
        self._lock = ProcessLock()

    def run(self, operands: Sequence[Array], result: Array) -> bool:
        """Whether it went well."""
        addresses = [x.__array_interface__["data"][0] for x in (*operands, result)]
        with self._lock:
            for block in self._blocks:
                block[self._slots] = addresses
            self._driver.run(0, 1)
            wrong, self._faults[0] = bool(self._faults[0]), 0
        return not wrong
