"""How a reduction over many rows is cut into blocks of rows: by sizes, never by threads or devices.

Each block is reduced by itself, into a row of its own of partial results in the plan's memory; a second
kernel combines these in the order of the blocks. So every thread, or multiprocessor, has work where a
matrix has few columns, and the bits of a result depend on sizes only. Large matrices of a stack
are cut each; long rows by `long_rows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import ITEM_BYTES, arguments_in, renumbered
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.operands import COLUMN, FULL, ROW, Operand, Result
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import reduced_by
from magmadnn.graph.dim import bind_shape, product

from . import long_rows

_LEAST_ROWS = 8192  # below, one block: sums over a batch of a few thousand rows stay as they are
_LEAST_ELEMENTS = 1 << 17
_LEAST_OF_STACKS = 1 << 18
_PIECES = (
    256  # of rows and columns together, which serve as many threads and 132 multiprocessors well
)
_ACROSS = 128  # columns of a piece: a GPU reads 256 neighbouring bytes in half precision
_ALIKE = 8  # rows of a block are a multiple of it


def block_rows(rows: int, columns: int, *, stacked: bool = False) -> int:
    """How many rows each block of a matrix has, but for the last; all of them where it is one block.

    Args:
        rows: of the matrix.
        columns: of it.
        stacked: whether it is one of a stack, which has work for several threads as it is. How many others
            there are does not count: a sample has the same bits in a batch of any size.
    """
    blocks = _PIECES // max(-(-columns // _ACROSS), 1)
    least = _LEAST_OF_STACKS if stacked else _LEAST_ELEMENTS
    if rows < _LEAST_ROWS or rows * columns < least or blocks < 2:
        return rows
    return -(-rows // (blocks * _ALIKE)) * _ALIKE


def partial_bytes(work: Work, sizes: Mapping[str, int]) -> int:
    """Memory for partial results of a step; 0 where it needs none."""
    kernel = None if work.lowered is None else work.lowered.kernel
    if isinstance(kernel, Rows):
        *leading, columns = bind_shape((*work.region.rows, work.region.columns), sizes)
        return long_rows.partial_bytes_of(kernel, math.prod(leading), columns)
    if not isinstance(kernel, Columns):
        return 0
    *leading, columns = bind_shape((*work.region.rows, work.region.columns), sizes)
    matrices = math.prod(leading)
    (elements,) = bind_shape((product(reduced_by(work.region).inputs[0].shape),), sizes)
    rows = elements // max(columns * matrices, 1)
    blocks = -(-rows // max(block_rows(rows, columns, stacked=kernel.stacked), 1))
    return sum(_room(kernel, blocks * matrices, columns)) if blocks > 1 else 0


def _room(kernel: Columns, blocks: int, columns: int) -> list[int]:
    """Bytes of the partial results of each reduction."""
    return [blocks * columns * ITEM_BYTES[r.dtype] for r in kernel.reduce]


@dataclass(frozen=True)
class RowBlocks:
    """Two kernels in place of one.

    Attributes:
        first: makes the partial results, those of each block by itself.
        values: of its slots, for each of its runs, which do not depend on each other: blocks are numbered
            from `outer0` to `outer1`, or are rows.
        last: combines them, and stores the results,
        last_values: of its slots.
    """

    first: Kernel
    values: Sequence[dict[str, int]]
    last: Kernel
    last_values: dict[str, int]

    def partials(self, values: Mapping[str, int]) -> list[tuple[int, int]]:
        """Where the partial results of a run with these values begin and end."""
        if isinstance(self.first, Columns):
            made, count = self.first.store, values["outer1"] * values["column1"]
        else:
            assert isinstance(self.first, Rows)
            made, count = self.first.stages[0].store_row, values["row1"]
        starts = [(values[result.name], ITEM_BYTES[result.dtype]) for result in made]
        return [(start, start + count * item) for start, item in starts]


def in_blocks(kernel: Kernel, values: Mapping[str, int], room: int) -> RowBlocks | None:
    """How a reduction runs in blocks; None where it is one.

    Args:
        kernel: what is computed.
        values: of its slots, for all of its rows and matrices.
        room: address of memory for partial results: `partial_bytes`.
    """
    rows, columns = values["row1"], values["column1"]
    if isinstance(kernel, Rows):
        if long_rows.block_columns(columns) >= columns or not long_rows.can_cut(kernel):
            return None
        runs, last = long_rows.values_of(kernel, values, room)
        return RowBlocks(long_rows.first_of(kernel), runs, long_rows.last_of(kernel), last)
    assert isinstance(kernel, Columns)
    matrices = values["outer1"] if kernel.stacked else 1
    each = block_rows(rows, columns, stacked=kernel.stacked)
    if each >= rows:
        return None
    blocks = -(-rows // each)
    made = tuple(
        Result(f"partial{k}", r.dtype, ("value", r.name), ROW) for k, r in enumerate(kernel.reduce)
    )
    first = _only_used(replace(kernel, store=made, stacked=False, blocked=True))
    own = {**values, "row1": each, "rows": rows, "outer0": 0, "outer1": blocks}
    own |= {f"{o.name}_outer": 0 for o in kernel.operands}
    for operand in kernel.operands:
        if operand.spread in (FULL, COLUMN):
            own[f"{operand.name}_outer"] = each * values.get(f"{operand.name}_row", 1)
    together = {**values, "row1": blocks, "rows": rows, "each": each}
    for result, nbytes in zip(made, _room(kernel, blocks * matrices, columns), strict=True):
        own |= {result.name: room, f"{result.name}_outer": columns}
        together |= {result.name: room, f"{result.name}_row": columns}
        together |= {f"{result.name}_outer": blocks * columns}
        room += nbytes
    apart = {
        o.name: values.get(f"{o.name}_outer", 0) * ITEM_BYTES[o.dtype] for o in kernel.operands
    }
    apart |= {r.name: blocks * columns * ITEM_BYTES[r.dtype] for r in made}
    runs = [
        own | {name: own[name] + number * nbytes for name, nbytes in apart.items()}
        for number in range(matrices)
    ]
    return RowBlocks(first, runs, _joining(kernel, made), together)


def _joining(kernel: Columns, made: Sequence[Result]) -> Columns:
    """The kernel that combines partial results, the rows of a small matrix."""
    count = len(kernel.operands)
    partial = tuple(Operand(r.name, r.dtype) for r in made)
    reduce = tuple(replace(r, formula=("argument", count + k)) for k, r in enumerate(kernel.reduce))
    operands = (*kernel.operands, *partial)
    joins = not kernel.stacked  # a stack has no deviations, which need lengths of blocks
    return _only_used(replace(kernel, operands=operands, reduce=reduce, joins=joins))


def _only_used(kernel: Columns) -> Columns:
    """The kernel without operands that none of its formulas reads."""
    formulas = [*(r.formula for r in kernel.reduce), *(r.formula for r in kernel.store)]
    used = sorted({number for formula in formulas for number in arguments_in(formula)})
    new = {number: k for k, number in enumerate(used)}
    return replace(
        kernel,
        operands=tuple(kernel.operands[number] for number in used),
        reduce=tuple(replace(r, formula=renumbered(r.formula, new)) for r in kernel.reduce),
        store=tuple(replace(r, formula=renumbered(r.formula, new)) for r in kernel.store),
    )
