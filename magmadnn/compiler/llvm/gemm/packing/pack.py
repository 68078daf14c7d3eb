"""Copies of parts of A and B in the order in which a tile reads them.

A panel of B is `k x columns`, row after row, so that a tile streams through it; where B is stored
transposed it is turned here, square blocks of vectors at a time. A block of A is made of panels of
`rows` rows, in which the `rows` elements of one k lie side by side; one that is converted keeps its rows.
Copies do not change values, but for what a reader says (`read.py`), which also says what a step of k is.

Each function here is written as a subroutine of the module: call them through `Code.subroutine`.
"""

from __future__ import annotations

from magmadnn.compiler.llvm.gemm.cache_hints import LINE_BYTES
from magmadnn.compiler.llvm.ir.builder import I8, I64, Array, Code, Value, item_bytes, vector
from magmadnn.compiler.llvm.ir.transposing import transposed

from .read import Reader

_ROWS_AHEAD = 6  # that are announced to the caches before they are copied
_PANELS_WRITTEN = 16  # of A stored transposed, at a time


def pack_b_rows(
    reader: Reader,
    width: int,
    lanes: int,
    code: Code,
    b: Array,
    b_row: Value,
    depth: Value,
    copy: Array,
    panels: Value,
) -> None:
    """copy[q][p, j] = b[p, q * columns + j] for `panels` panels of `width` whole vectors."""
    columns = width * lanes
    room = reader.steps(depth) * columns
    for p, read in reader.across(code, b, b_row, depth):
        goal = copy.at(p * columns)
        following = b.at((p + _ROWS_AHEAD) * (b_row * reader.per_step))
        with code.loop(0, panels) as q:
            there = goal.at(q * room)
            for j in range(0, columns, LINE_BYTES // item_bytes(b.item)):
                code.prefetch(following, q * columns + j, written=False)
            for j in range(0, columns, lanes):
                there.put(j, read(q * columns + j, lanes, None))


def pack_b_joined(
    width: int,
    lanes: int,
    code: Code,
    rows: Array,
    columns: Array,
    depth: Value,
    copy: Array,
    panels: Value,
) -> None:
    """copy[q][p, j] = the element at `rows[p] + columns[q * wide + j]`, of panels of `width` whole vectors.

    Where a vector's columns lie side by side it is copied whole.
    """
    wide, item = width * lanes, item_bytes(copy.item)
    side_by_side = code.lane_numbers(lanes, I64) * item
    with code.loop(0, panels) as q, code.loop(0, wide, lanes) as j:
        places = columns.at(q * wide + j)
        goal = copy.at(q * (depth * wide) + j)
        apart = places.vector(0, lanes) - places[0]
        with code.choose(code.any(apart.differs(side_by_side))) as (scattered, together):
            with scattered, code.loop(0, depth) as p:
                start = code.memory_at(rows[p], I8)
                for lane in range(lanes):
                    goal[p * wide + lane] = start.at(places[lane]).viewed(copy.item)[0]
            with together, code.loop(0, depth) as p:
                start = code.memory_at(rows[p] + places[0], copy.item)
                goal.put(p * wide, start.vector(0, lanes))


def pack_b_joined_edge(
    lanes: int,
    code: Code,
    rows: Array,
    columns: Array,
    depth: Value,
    panel: Array,
    panel_row: Value,
    count: Value,
) -> None:
    """panel[p, j] = the element at `rows[p] + columns[j]` for j < count, else 0: a panel at the edge."""
    with code.loop(0, depth) as p:
        start, goal = code.memory_at(rows[p], I8), panel.at(p * panel_row)
        with code.loop(0, panel_row, lanes) as j:
            goal.put(j, code.zero(vector(panel.item, lanes)))
        with code.loop(0, count) as j:
            goal[j] = start.at(columns[j]).viewed(panel.item)[0]


def pack_b_edge(
    reader: Reader,
    lanes: int,
    code: Code,
    b: Array,
    b_row: Value,
    depth: Value,
    panel: Array,
    panel_row: Value,
    columns: Value,
) -> None:
    """panel[p, j] = b[p, j] for j < columns, else 0."""
    with code.loop(0, panel_row, lanes) as j:
        mask = code.first(columns - j, lanes)
        goal = panel.at(j)
        for p, read in reader.across(code, b, b_row, depth):
            goal.put(p * panel_row, read(j, lanes, mask))


def pack_b_columns(
    reader: Reader,
    lanes: int,
    code: Code,
    b: Array,
    b_row: Value,
    depth: Value,
    panel: Array,
    panel_row: Value,
    columns: Value,
) -> None:
    """panel[p, j] = b[j, p]: a panel of B stored transposed.

    Columns from `columns` on repeat the last one; what a tile makes of them is not used. The panel has
    room for `depth` rounded up to `lanes` rows.
    """
    with code.loop(0, panel_row, lanes) as j:
        goal = panel.at(j)
        sources = [b.at(code.smaller(j + i, columns - 1) * b_row) for i in range(lanes)]

        for p, read in reader.along(code, depth, lanes):
            block = transposed(code, [read(row) for row in sources])
            for i, column in enumerate(block):
                goal.put((p + i) * panel_row, column)


def pack_a_rows(
    rows: int,
    lanes: int,
    code: Code,
    a: Array,
    a_row: Value,
    depth: Value,
    copy: Array,
    stride: Value,
    count: Value,
) -> None:
    """copy[i // rows][p, i % rows] = a[i, p] for i < count, in panels `stride` elements apart.

    The last panel may be narrower than `rows`; its further rows repeat the last one and are not used.
    Square blocks of vectors are turned; as in `pack_a_columns`, the next vector overwrites what one has too
    much.
    """
    lanes = _lanes_for(rows, lanes)
    whole = depth - depth % lanes
    with code.loop(0, count, rows) as i:
        goal = copy.at(i // rows * stride)
        sources = [a.at(code.smaller(i + x, count - 1) * a_row) for x in range(rows)]
        sources += sources[-1:] * (-rows % lanes)
        with code.loop(0, whole, lanes) as p:
            blocks = [
                transposed(code, [row.vector(p, lanes) for row in sources[x : x + lanes]])
                for x in range(0, len(sources), lanes)
            ]
            for step in range(lanes):
                for x, block in enumerate(blocks):
                    goal.put((p + step) * rows + x * lanes, block[step])
        with code.loop(whole, depth) as p:
            for x, row in enumerate(sources[:rows]):
                goal[p * rows + x] = row[p]


def convert_a_rows(
    reader: Reader,
    lanes: int,
    code: Code,
    a: Array,
    a_row: Value,
    depth: Value,
    copy: Array,
    stride: Value,
    count: Value,
) -> None:
    """copy[i, p] = a[i, p] for i < count, in rows `stride` elements apart: room for whole vectors."""
    with code.loop(0, count) as i:
        source, goal = a.at(i * a_row), copy.at(i * stride)
        for p, read in reader.along(code, depth, lanes):
            goal.put(p, read(source))


def pack_a_columns(
    reader: Reader,
    rows: int,
    lanes: int,
    code: Code,
    a: Array,
    a_step: Value,
    depth: Value,
    copy: Array,
    stride: Value,
    count: Value,
) -> None:
    """copy[i // rows][p, i % rows] = a[p, i]: A stored transposed, whole vectors at a time.

    A vector reaches beyond the `rows` elements wanted; the next one in the panel overwrites what is too
    much, and panels have room for one more vector. Near the end of the block, masks keep it inside. Some
    panels at a time: each is written in a page of its own, and page tables hold few.
    """
    lanes = _lanes_for(rows, lanes)
    reach = -(-rows // lanes) * lanes
    with code.loop(0, count, rows * _PANELS_WRITTEN) as first:
        end = code.smaller(first + rows * _PANELS_WRITTEN, count)
        wide = code.smaller(end, count - (reach - rows)) - first
        inside = first + code.larger(wide, 0) // rows * rows
        for p, read in reader.across(code, a, a_step, depth):
            goal = copy.at(p * rows)
            following = a.at((p + _ROWS_AHEAD) * (a_step * reader.per_step))
            with code.loop(first, inside, rows) as i:
                code.prefetch(following, i, written=False)
                for x in range(0, rows, lanes):
                    goal.put(i // rows * stride + x, read(i + x, lanes, None))
            with code.loop(inside, end, rows) as i:
                for x in range(0, rows, lanes):
                    mask = code.first(count - i - x, lanes)
                    goal.put(i // rows * stride + x, read(i + x, lanes, mask))


def _lanes_for(rows: int, lanes: int) -> int:
    """Lanes of the vectors that copy `rows` elements, so that little is copied twice."""
    return min(lanes, 1 << (rows - 1).bit_length())
