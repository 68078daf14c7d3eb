"""How a reduction over long rows is cut into blocks of columns: by their length, never by threads or devices.

Nor does it depend on how many rows there are: a sample has the same bits in a batch of any size.

Each block is a row of its own, of a matrix whose rows follow each other. Its results are partial ones, which
a second kernel combines in their order. What was the same in all rows has a part for each block, and what was
one number for a row is one for all of its blocks. Rows that are walked over several times, to find a place or
for softmax, have a kernel for each walk (`regions/fusion/growth.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from magmadnn.compiler.kernels.formula import ITEM_BYTES, Formula, arguments_in, renumbered
from magmadnn.compiler.kernels.operands import COLUMN, FULL, ROW, SCALAR, Operand, Result
from magmadnn.compiler.kernels.rows import BLOCKS, COMBINED, LONG_ROW, Rows, Stage, of_block, parts

_PIECES = 256
_ALIKE = 64  # elements of a block are a multiple of it, so that each begins with a whole vector


def block_columns(columns: int) -> int:
    """How many columns each block of a row has, but for the last; all of them where a row is one block."""
    if columns < LONG_ROW:
        return columns
    return -(-columns // (_PIECES * _ALIKE)) * _ALIKE


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
