"""How a reduction over many rows is cut into blocks of rows, and one over long rows into blocks of columns.

By sizes, never by threads or devices. Each block is reduced by itself, into a row of its own of partial
results in the plan's memory; a second kernel combines these in the order of the blocks. So every thread, or
multiprocessor, has work where a matrix has few columns, and the bits of a result depend on sizes only.
Large matrices of a stack are cut each.

How long rows are cut does not depend on how many there are: a sample has the same bits in a batch of any
size. Each block is a row of its own, of a matrix whose rows follow each other. What was the same in all
rows has a part for each block, and what was one number for a row is one for all of its blocks. Rows that
are walked over several times, to find a place or for softmax, have a kernel for each walk
(`regions/fusion/growth.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import ITEM_BYTES, Formula, arguments_in, renumbered
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.operands import COLUMN, FULL, ROW, SCALAR, Operand, Result
from magmadnn.compiler.kernels.rows import BLOCKS, COMBINED, LONG_ROW, Rows, Stage, of_block, parts
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import reduced_by
from magmadnn.graph.dim import bind_shape, product

_COLUMN_PIECES = 256
_VECTORS = 64  # elements of a block are a multiple of it, so that each begins with a whole vector


def block_columns(columns: int) -> int:
    """How many columns each block of a row has, but for the last; all of them where a row is one block."""
    if columns < LONG_ROW:
        return columns
    return -(-columns // (_COLUMN_PIECES * _VECTORS)) * _VECTORS


def can_cut(kernel: Rows) -> bool:
    """Whether rows may be cut: there is one walk, of which nothing depends on the length of a row."""
    if len(kernel.stages) != 1 or not kernel.stages[0].reduce:
        return False
    stage = kernel.stages[0]
    formulas = [*_formulas(stage), *(result.formula for result in stage.store)]
    return (
        all(part.spread in (FULL, ROW, COLUMN, SCALAR) for part in kernel.parts)
        and all(one.kind in COMBINED for one in stage.reduce)
        and not any(("columns",) in parts(formula) for formula in formulas)
    )


def _formulas(stage: Stage) -> list[Formula]:
    """What is reduced, and all numbers of a row."""
    numbers = [formula for _, formula in stage.then]
    return [*(r.formula for r in stage.reduce), *numbers, *(r.formula for r in stage.store_row)]


def partial_bytes_of(kernel: Rows, rows: int, columns: int) -> int:
    """Memory for partial results; 0 where it needs none."""
    each = block_columns(columns)
    if each >= columns or not can_cut(kernel):
        return 0
    return sum(_rooms(kernel, rows, -(-columns // each)))


def _rooms(kernel: Rows, rows: int, blocks: int) -> list[int]:
    """Bytes of the partial results of each reduction."""
    return [rows * blocks * ITEM_BYTES[r.dtype] for r in kernel.stages[0].reduce]


def first_of(kernel: Rows) -> Rows:
    """The kernel that makes partial results, and what is stored of each element."""
    stage = kernel.stages[0]
    made = tuple(
        Result(f"partial{k}", r.dtype, ("value", r.name), COLUMN)
        for k, r in enumerate(stage.reduce)
    )
    spread = {ROW: FULL, COLUMN: SCALAR}
    operands = tuple(replace(o, spread=spread.get(o.spread, o.spread)) for o in kernel.operands)
    cut = Stage(
        reduce=tuple(replace(r, formula=of_block(r.formula)) for r in stage.reduce),
        store=tuple(replace(r, formula=of_block(r.formula)) for r in stage.store),
        store_row=made,
    )
    return replace(kernel, operands=operands, stages=(cut,), blocked=True)


def last_of(kernel: Rows) -> Rows:
    """The kernel that combines them, and computes what follows from them."""
    stage, count = kernel.stages[0], len(kernel.operands)
    partial = tuple(Operand(f"partial{k}", r.dtype) for k, r in enumerate(stage.reduce))
    reduce = tuple(replace(r, formula=("argument", count + k)) for k, r in enumerate(stage.reduce))
    operands = (*kernel.operands, *partial)
    then, stored = stage.then, stage.store_row
    formulas = _formulas(Stage(reduce, (), then, stored))
    used = sorted({number for formula in formulas for number in arguments_in(formula)})
    new = {number: k for k, number in enumerate(used)}
    joined = Stage(
        tuple(replace(r, formula=renumbered(r.formula, new)) for r in reduce),
        (),
        tuple((name, renumbered(formula, new)) for name, formula in then),
        tuple(replace(r, formula=renumbered(r.formula, new)) for r in stored),
    )
    return Rows(tuple(operands[number] for number in used), (joined,), kernel.dtype)


def values_of(
    kernel: Rows, values: Mapping[str, int], room: int
) -> tuple[list[dict[str, int]], dict[str, int]]:
    """What is in the slots of both kernels: of the first for the blocks of each row and what is left over.

    Args:
        kernel: what is computed.
        values: of its slots, for all rows.
        room: address of memory for partial results.
    """
    rows, columns = values["row1"], values["column1"]
    each = block_columns(columns)
    whole, left = divmod(columns, each)
    blocks = whole + (left > 0)
    starts, last = list[tuple[str, int, int]](), {**values, "column1": blocks}
    for k, (one, nbytes) in enumerate(
        zip(kernel.stages[0].reduce, _rooms(kernel, rows, blocks), strict=True)
    ):
        last |= {f"partial{k}": room, f"partial{k}_row": blocks}
        starts.append((f"partial{k}", room, ITEM_BYTES[one.dtype]))
        room += nbytes
    made = []
    for row in range(rows):
        for at, count, length in ((0, whole, each), (whole, 1, left)):
            if not length:
                continue
            own = {**values, "row0": 0, "row1": count, "column1": length}
            own |= _moved(kernel.parts, values, row, at * each)
            own |= {f"{part.name}_row": each for part in kernel.parts}
            own |= dict(zip(BLOCKS, (at * each, each), strict=True))
            own |= {name: start + (row * blocks + at) * item for name, start, item in starts}
            made.append(own)
    return made, last


def _moved(
    parts: Sequence[Operand | Result], values: Mapping[str, int], row: int, column: int
) -> Iterator[tuple[str, int]]:
    """Addresses of what is read and stored from an element on."""
    for part in parts:
        places = {FULL: row * values.get(f"{part.name}_row", 0) + column, ROW: column, COLUMN: row}
        yield part.name, values[part.name] + places.get(part.spread, 0) * ITEM_BYTES[part.dtype]


# --- blocks of rows -------------------------------------------------------------------------------


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
        return partial_bytes_of(kernel, math.prod(leading), columns)
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
        if block_columns(columns) >= columns or not can_cut(kernel):
            return None
        runs, last = values_of(kernel, values, room)
        return RowBlocks(first_of(kernel), runs, last_of(kernel), last)
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
