"""How a reduction over many rows is cut into blocks of rows: by sizes, never by threads or devices.

Each block is reduced by itself, into a row of its own of partial results in the plan's memory; a second
kernel combines these in the order of the blocks. So every thread, or multiprocessor, has work where a
matrix has few columns, and the bits of a result depend on sizes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import ITEM_BYTES, Formula
from magmadnn.compiler.kernels.operands import COLUMN, FULL, ROW, Operand, Result
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.stages import reduced_by
from magmadnn.graph.dim import bind_shape, product

_LEAST_ROWS = 8192  # below, one block: sums over a batch of a few thousand rows stay as they are
_LEAST_ELEMENTS = 1 << 17
_PIECES = (
    256  # of rows and columns together, which serve as many threads and 132 multiprocessors well
)
_ACROSS = 32  # columns of a piece
_ALIKE = 8  # rows of a block are a multiple of it


def block_rows(rows: int, columns: int) -> int:
    """How many rows each block has, but for the last; all of them where a matrix is one block."""
    blocks = _PIECES // max(-(-columns // _ACROSS), 1)
    if rows < _LEAST_ROWS or rows * columns < _LEAST_ELEMENTS or blocks < 2:
        return rows
    return -(-rows // (blocks * _ALIKE)) * _ALIKE


def partial_bytes(work: Work, sizes: Mapping[str, int]) -> int:
    """Memory for partial results of a step; 0 where it needs none."""
    kernel = None if work.lowered is None else work.lowered.kernel
    if not isinstance(kernel, Columns) or kernel.stacked:
        return 0
    columns, elements = bind_shape(
        (work.region.columns, product(reduced_by(work.region).inputs[0].shape)), sizes
    )
    rows = elements // max(columns, 1)
    blocks = -(-rows // max(block_rows(rows, columns), 1))
    return sum(_room(kernel, blocks, columns)) if blocks > 1 else 0


def _room(kernel: Columns, blocks: int, columns: int) -> list[int]:
    """Bytes of the partial results of each reduction."""
    return [blocks * columns * ITEM_BYTES[r.dtype] for r in kernel.reduce]


@dataclass(frozen=True)
class RowBlocks:
    """Two kernels in place of one.

    Attributes:
        first: makes the partial results, those of each block by itself.
        values: of its slots; blocks are numbered from `outer0` to `outer1`.
        last: combines them, and stores the results,
        last_values: of its slots.
    """

    first: Columns
    values: dict[str, int]
    last: Columns
    last_values: dict[str, int]


def in_blocks(kernel: Columns, values: Mapping[str, int], room: int) -> RowBlocks | None:
    """How a reduction runs in blocks of rows; None where all rows are one.

    Args:
        kernel: what is computed.
        values: of its slots, for the whole matrix.
        room: address of memory for partial results: `partial_bytes`.
    """
    rows, columns = values["row1"], values["column1"]
    each = block_rows(rows, columns)
    if kernel.stacked or each >= rows:
        return None
    blocks = -(-rows // each)
    made = tuple(
        Result(f"partial{k}", r.dtype, ("value", r.name), ROW) for k, r in enumerate(kernel.reduce)
    )
    first = _only_used(replace(kernel, store=made, blocked=True))
    own = {**values, "row1": each, "rows": rows, "outer0": 0, "outer1": blocks}
    own |= {f"{o.name}_outer": 0 for o in kernel.operands}
    for operand in kernel.operands:
        if operand.spread in (FULL, COLUMN):
            own[f"{operand.name}_outer"] = each * values.get(f"{operand.name}_row", 1)
    together = {**values, "row1": blocks, "rows": rows, "each": each}
    for result, nbytes in zip(made, _room(kernel, blocks, columns), strict=True):
        own |= {result.name: room, f"{result.name}_outer": columns}
        together |= {result.name: room, f"{result.name}_row": columns}
        room += nbytes
    return RowBlocks(first, own, _joining(kernel, made), together)


def _joining(kernel: Columns, made: Sequence[Result]) -> Columns:
    """The kernel that combines partial results, the rows of a small matrix."""
    count = len(kernel.operands)
    partial = tuple(Operand(r.name, r.dtype) for r in made)
    reduce = tuple(replace(r, formula=("argument", count + k)) for k, r in enumerate(kernel.reduce))
    operands = (*kernel.operands, *partial)
    return _only_used(replace(kernel, operands=operands, reduce=reduce, joins=True))


def _only_used(kernel: Columns) -> Columns:
    """The kernel without operands that none of its formulas reads."""
    formulas = [*(r.formula for r in kernel.reduce), *(r.formula for r in kernel.store)]
    used = sorted({number for formula in formulas for number in _arguments(formula)})
    new = {number: k for k, number in enumerate(used)}
    return replace(
        kernel,
        operands=tuple(kernel.operands[number] for number in used),
        reduce=tuple(replace(r, formula=_renumbered(r.formula, new)) for r in kernel.reduce),
        store=tuple(replace(r, formula=_renumbered(r.formula, new)) for r in kernel.store),
    )


def _arguments(formula: Formula) -> set[int]:
    """The numbers of the operands that a formula reads."""
    if formula[0] == "argument":
        return {formula[1]}
    return {n for part in formula[1:] if isinstance(part, tuple) for n in _arguments(part)}


def _renumbered(formula: Formula, new: Mapping[int, int]) -> Formula:
    if formula[0] == "argument":
        return ("argument", new[formula[1]])
    return tuple(_renumbered(part, new) if isinstance(part, tuple) else part for part in formula)
