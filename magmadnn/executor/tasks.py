"""The tasks of a plan: argument blocks over laid-out memory, cut into tiles for threads.

What a kernel computes does not depend on how its matrix is cut, so neither do results depend on the number
of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.compiler.emit.llvm.cache import Cache
from magmadnn.compiler.emit.llvm.driver import Task
from magmadnn.compiler.emit.llvm.kernel import Loaded, load
from magmadnn.compiler.emit.llvm.target import host
from magmadnn.compiler.emit.llvm.writers import scratch_bytes
from magmadnn.compiler.lower import Lowered, product_of, reduced_by
from magmadnn.compiler.native import NativePlan, Work
from magmadnn.compiler.regions import RegionKind
from magmadnn.errors import FileError
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import PLACEHOLDER, Node
from magmadnn.graph.op import Array

# What a tile is made of at least: below, a barrier between threads costs more than they gain.
_LEAST_PRODUCTS = 200_000
_LEAST_ELEMENTS = 20_000
_ROW_STEP = 12  # rows of a tile are a multiple of what kernels take at a time
_COLUMN_STEP = 64


@dataclass(frozen=True)
class Patch:
    """An address in an argument block that follows what is fed."""

    block: Array
    slot: int
    placeholder: Node
    offset: int  # bytes


class Tasks:
    """Makes the tasks of a plan for given arrays.

    Attributes:
        patches: addresses to be set before each run.
        scratch_bytes: what each thread needs.
        useful_threads: how many threads have something to gain: one, where no step is worth cutting.
    """

    def __init__(
        self,
        plan: NativePlan,
        arrays: Mapping[Node, Array],
        sizes: Mapping[str, int],
        threads: int,
    ) -> None:
        self.plan, self.arrays, self.sizes, self.threads = plan, arrays, sizes, threads
        self.patches: list[Patch] = []
        self.scratch_bytes = 0
        self.useful_threads = 1
        compiled = [w.lowered.kernel for w in plan.work if w.lowered is not None]
        load(compiled, cache=kernel_cache())

    def of(self, work: Work) -> list[Task]:
        """The tasks of one step."""
        assert work.lowered is not None
        kernel = work.lowered.kernel
        (loaded,) = load([kernel])
        self.scratch_bytes = max(self.scratch_bytes, scratch_bytes(kernel, host()))
        values = slot_values(work, self.arrays, self.sizes)
        return [
            self._task(loaded, work.lowered, {**values, **t}) for t in self._tiles(work, values)
        ]

    def _task(self, loaded: Loaded, lowered: Lowered, values: Mapping[str, int]) -> Task:
        slots = lowered.kernel.slots
        block = np.array([values[slot] for slot in slots], np.int64)
        for slot, node, _ in lowered.reads:
            base = self.plan.layouts.bases[node]
            if base.op is PLACEHOLDER:
                offset = self.arrays[node].ctypes.data - self.arrays[base].ctypes.data
                self.patches.append(Patch(block, slots.index(slot), base, offset))
        return Task(loaded, block)

    def _tiles(self, work: Work, values: Mapping[str, int]) -> list[dict[str, int]]:
        """The parts of the matrix that threads take one by one."""
        rows, columns = values["row1"], values["column1"]
        cost = rows * columns * values.get("k", 1)
        least = _LEAST_PRODUCTS if "k" in values else _LEAST_ELEMENTS
        pieces = min(2 * self.threads, cost // least)
        if self.threads == 1 or pieces < 2:
            return [{}]
        self.useful_threads = self.threads
        by_row = rows >= columns or bool(work.region.numbers)
        if work.region.kind is RegionKind.COLUMNS:
            by_row = False
        length, step = (rows, _ROW_STEP) if by_row else (columns, _COLUMN_STEP)
        size = -(-length // (pieces * step)) * step
        name = "row" if by_row else "column"
        return [
            {f"{name}0": start, f"{name}1": min(start + size, length)}
            for start in range(0, length, size)
        ]


def slot_values(
    work: Work, arrays: Mapping[Node, Array], sizes: Mapping[str, int]
) -> dict[str, int]:
    """All slots of the kernel of a step, for its whole matrix."""
    lowered, region = work.lowered, work.region
    assert lowered is not None
    slots = lowered.kernel.slots
    rows = int(np.prod(bind_shape(region.rows, sizes), dtype=np.int64))
    (columns,) = bind_shape((region.columns,), sizes)
    values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns}
    for slot, number in lowered.numbers:
        (values[slot],) = bind_shape((number,), sizes)
    if region.kind is RegionKind.RANDOM:  # its elements are one long row
        values["row1"], values["column1"] = 1, rows * columns
    if region.kind is RegionKind.COLUMNS:
        values["row1"] = arrays[reduced_by(region).inputs[0]].size // max(columns, 1)
    if region.kind is RegionKind.GEMM:
        values["k"] = arrays[product_of(region).inputs[0]].shape[1]
    for slot, node, _ in (*lowered.reads, *lowered.writes):
        array = arrays[node]
        values[slot] = array.ctypes.data
        if f"{slot}_row" in slots:
            values[f"{slot}_row"] = _row_stride(array)
        if f"ld{slot}" in slots:
            values[f"ld{slot}"] = _leading(array)
    return values


def kernel_cache() -> Cache | None:
    """The folder of compiled kernels; None where it cannot be used safely."""
    try:
        return Cache()
    except FileError:
        return None


def _row_stride(array: Any) -> int:
    """Elements from one row to the next of a matrix whose leading axes are packed."""
    for stride, size in zip(array.strides[-2::-1], array.shape[-2::-1], strict=True):
        if size > 1:  # the stride of a single row says nothing
            return int(stride // array.itemsize)
    return 0


def _leading(array: Any) -> int:
    """The leading dimension of a matrix that is stored by rows or by columns."""
    rows, columns = array.strides
    if rows == array.itemsize and columns != array.itemsize:
        return int(columns // array.itemsize)
    return int(rows // array.itemsize)
