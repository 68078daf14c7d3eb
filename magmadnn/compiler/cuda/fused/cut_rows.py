"""How kernels of stages over rows are cut into groups, threads and blocks: by sizes."""

from __future__ import annotations

from collections.abc import Mapping

from magmadnn.compiler.cuda.text.parts import width_for
from magmadnn.compiler.cuda.text.variant import WARP, Chip, Launch, arguments_of
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import FULL, ROW, SCALAR, PaddedOperand
from magmadnn.compiler.kernels.rows import Rows

from .rows import THREADS, RowsVariant

_MOST_THREADS = 1024
_HELD = 32  # elements of one operand that a thread may hold in registers
_ELEMENTS = 4  # vectors of a row that a thread takes, before the group grows
_MOST_ROWS = 8  # of a thread that keeps what rows share,
_AHEAD = 2  # and those that it reads at once
_LEAST_BLOCKS = 6  # of a multiprocessor, then
_SHARED = 64  # elements that rows share, which a thread may keep


def choose_rows(kernel: Rows, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The variant and the launch for given sizes; None where nothing is to be done."""
    rows, columns = values["row1"], values["column1"]
    reduces = any(stage.reduce or stage.then or stage.store_row for stage in kernel.stages)
    if not reduces and (rows, columns) != (1, 1) and _is_flat(kernel, values):
        values = {**values, "row1": 1, "column1": rows * columns}
        values |= {slot: 0 for slot in kernel.slots if slot.endswith("_row")}
        rows, columns = 1, rows * columns
    if rows == 0 or (columns == 0 and not reduces):
        return None
    width = width_for(kernel.parts, values, columns)
    vectors = -(-columns // width)
    if not reduces:
        across = min(THREADS, _power(vectors))
        down = min(THREADS // across, _power(rows)) if vectors <= across else 1
        down = max(down, -(-WARP // across))
        beside, blocks = -(-vectors // across), -(-rows // down)
        each = _rows_of_thread(kernel, width, beside * blocks // chip.processors)
        equal = _equal_slots(kernel, values)
        variant = RowsVariant(kernel, width, 0, 1, 1, equal, min(each, _AHEAD))
        grid = (beside, min(-(-blocks // each), 65535), 1)
        return Launch(variant, grid, (across, down, 1), arguments_of(variant, values))
    group = min(_group_for(vectors), chip.together)
    steps = -(-vectors // group)
    groups = max(1, min(THREADS // 2, chip.together) // group) if group <= WARP else 1
    held = steps * width <= _HELD
    variant = RowsVariant(kernel, width, group, groups, steps if held else 0)
    grid = (-(-rows // groups), 1, 1)
    return Launch(variant, grid, (group * groups, 1, 1), arguments_of(variant, values))


def _rows_of_thread(kernel: Rows, width: int, blocks: int) -> int:
    """How many rows a thread takes where each processor has so many blocks with a row of each thread."""
    shared = sum(operand.spread == ROW for operand in kernel.operands) * width
    if not 0 < shared <= _SHARED:
        return 1
    return min(_MOST_ROWS, _power(blocks // _LEAST_BLOCKS + 1) // 2 or 1)


def _equal_slots(kernel: Rows, values: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """Sizes and steps of rows of operands, each with an earlier one of the same value.

    Only where several operands have pads: so what is divided to find their indices is divided once.
    """
    if sum(isinstance(operand, PaddedOperand) for operand in kernel.operands) < 2:
        return ()
    counts = ("_size", "_step")
    slots = dict.fromkeys(slot for operand in kernel.operands for slot in operand.slots[1:])
    firsts: dict[int, str] = {}
    found = []
    for slot in slots:
        if any(one in slot for one in counts):
            first = firsts.setdefault(values[slot], slot)
            found += [(slot, first)] if first != slot else []
    return tuple(found)


def _group_for(vectors: int) -> int:
    """Threads of a row: a warp or less for short rows, up to a block for long ones."""
    wanted = vectors if vectors <= WARP else max(-(-vectors // _ELEMENTS), WARP)
    return min(_power(max(wanted, 1)), _MOST_THREADS)


def _power(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()


def _is_flat(kernel: Rows, values: Mapping[str, int]) -> bool:
    """Whether the matrix can be walked over as one long row."""
    columns = values["column1"]
    leaves = (("column",), ("columns",))
    return all(
        part.spread == SCALAR
        or (part.spread == FULL and (values[f"{part.name}_row"] == columns or values["row1"] <= 1))
        for part in kernel.parts
    ) and not any(
        _mentions(result.formula, leaf)
        for s in kernel.stages
        for result in s.store
        for leaf in leaves
    )


def _mentions(formula: Formula, leaf: Formula) -> bool:
    return formula == leaf or any(isinstance(a, tuple) and _mentions(a, leaf) for a in formula[1:])
