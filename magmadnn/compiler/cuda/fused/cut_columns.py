"""How kernels that reduce over rows are cut into blocks and lanes: by sizes, never by what runs first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from magmadnn.compiler.cuda.text.parts import STREAMS, width_for
from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import ITEM_BYTES

from .columns import (
    ACROSS,
    COMBINED_AT_ONCE,
    LARGE_GROUP,
    UNROLL,
    ColumnsVariant,
)
from .deviations import in_turn

# groups of columns of a block, where they are large and matrices are cut in pieces
_ACROSS_OF_GROUPS = 16
_MOST_LANES = 32
_ROWS_OF_A_LANE = 16  # before there are more lanes: small blocks leave room for others beside them
_ROWS_OF_A_JOIN = 8  # likewise, where what blocks have made is combined
_FEW_STEPS = 8  # where a thread has one column of a piece
_AT_ONCE = 2  # blocks of large groups on a multiprocessor
# bytes of shared memory: kernels that are merged have theirs beside each other
_MOST_SHARED = 16 << 10


def choose_columns(kernel: Columns, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The variant and the launch for given sizes; None where nothing is to be done."""
    rows, columns = values["row1"], values["column1"]
    matrices = values["outer1"] if kernel.in_pieces else 1
    if columns == 0 or matrices == 0:
        return None
    lanes, each = 1, _ROWS_OF_A_JOIN if kernel.joins else _ROWS_OF_A_LANE
    most = min(_MOST_LANES, chip.together // ACROSS)
    while lanes < most and lanes * each < rows:
        lanes *= 2
    width, across = 1, ACROSS
    least_steps = _FEW_STEPS if kernel.in_pieces else UNROLL
    if -(-rows // lanes) > least_steps and not kernel.joins:
        width = width_for(kernel.parts, values, columns)
        if kernel.in_pieces:
            outer = [values[f"{o.name}_outer"] for o in kernel.operands if o.spread in STREAMS]
            while width > 1 and any(step % width for step in outer):
                width //= 2
            across = _across(width, columns)
            while lanes >= _MOST_LANES and lanes * across < _MOST_LANES * _ACROSS_OF_GROUPS:
                lanes *= 2
            if kernel.blocked and _has_rounds(width, columns, matrices, chip):
                across, lanes = 2 * across, -(-lanes // 2)
        least = 0 if kernel.in_pieces else ACROSS * chip.processors // 2
        room = lanes // 2 * across * _shared_bytes(kernel)
        while width > 1 and (room * width > _MOST_SHARED or columns < least * width):
            width //= 2
    steps = -(-rows // lanes)
    at_once = steps <= UNROLL and width == 1
    variant = ColumnsVariant(kernel, lanes, steps if at_once else 0, width, across)
    grid = (-(-columns // (across * width)) * matrices, 1, 1)
    return Launch(variant, grid, (across, lanes, 1), arguments_of(variant, values))


def _shared_bytes(kernel: Columns) -> int:
    """Bytes of shared memory for a column of a group and each two lanes."""
    if not in_turn(kernel, LARGE_GROUP):
        return sum(ITEM_BYTES[r.dtype] for r in kernel.reduce)
    counts = Counter(r.dtype for r in kernel.reduce)
    return sum(ITEM_BYTES[dtype] * min(n, COMBINED_AT_ONCE) for dtype, n in counts.items())


def _has_rounds(width: int, columns: int, matrices: int, chip: Chip) -> bool:
    """Whether blocks of large groups come in several rounds, so that half as many are enough."""
    each = _ACROSS_OF_GROUPS * width
    fills = width == LARGE_GROUP and columns % (2 * each) == 0
    return fills and columns // each * matrices > _AT_ONCE * chip.processors


def _across(width: int, columns: int) -> int:
    """Threads of a block beside each other, each with so many columns of a piece of a matrix."""
    across = _ACROSS_OF_GROUPS if width >= LARGE_GROUP else ACROSS
    while width > 1 and across > 1 and columns <= across // 2 * width:
        across //= 2
    return across
