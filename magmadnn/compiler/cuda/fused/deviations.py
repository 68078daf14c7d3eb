"""Sums of squared deviations from the mean as CUDA C++, from one reading.

A lane adds deviations from its first element, d, and their squares: sum(d ** 2) - sum(d) ** 2 / n is the sum
of squared deviations from the mean of its n elements. As the first is one of them, sum(d ** 2) is at most n
times that, however large the mean is: so little cancels. Those of all N elements, whose sum S is known by
then, are the lanes' together and, for each, n (m - S / N) ** 2 with its mean m. Blocks of rows are combined
in the same way, with n (m - S / N) = s - S n / N of their sums s: 0 where all elements are the same.

Numbers of a reduction NAME are NAME_s, its total; NAME_first, in the end a lane's mean; NAME_sum, of d.
"""

from __future__ import annotations

from magmadnn.compiler.cuda.text.formulas import TYPES, Lines, Writer
from magmadnn.compiler.kernels.columns import Columns


def in_turn(kernel: Columns, width: int) -> bool:
    """Whether reductions use the same shared memory in turn to combine the results of lanes."""
    return width > 1 and not kernel.sums


def count_rows(lines: Lines, kernel: Columns, lanes: int) -> None:
    """How many rows there are, and a lane has; one over these, or 0 where there are none."""
    mine = "row1 - row0 - threadIdx.y"
    counted = f"row1 > row0 + threadIdx.y ? ({mine} + {lanes - 1}) / {lanes} : 0"
    lines.add(f"const i64 rows_of_lane = {counted};")
    for reduction in kernel.sums:
        kind, name = TYPES[reduction.dtype], reduction.name
        for part, rows in (("all", "row1 - row0"), ("own", "rows_of_lane")):
            lines.add(f"const {kind} {name}_{part} = ({kind})({rows});")
            lines.add(f"const {kind} {name}_of_{part} = {name}_{part} > 0 ? 1 / {name}_{part} : 0;")


def own_deviations(lines: Lines, kernel: Columns) -> None:
    """Deviations from the mean of a lane's own rows, and that mean."""
    for reduction in kernel.sums:
        name, kind = reduction.name, TYPES[reduction.dtype]
        lines.add(f"const {kind} {name}_r = {name}_sum * {name}_of_own;")
        lines.add(f"{name}_s = {name}_s - {name}_sum * {name}_r;")
        lines.add(f"if ({name}_s < 0) {name}_s = 0;")
        lines.add(f"{name}_first = {name}_first + {name}_r;")


def from_all(lines: Lines, kernel: Columns) -> None:
    """Add n times the squared distance of the mean of a lane's n rows to that of all."""
    for reduction, before in kernel.sums.items():
        name, kind = reduction.name, TYPES[reduction.dtype]
        apart = f"({name}_first * {name}_all - {before.name}_s) * {name}_of_all"
        lines.add(f"const {kind} {name}_d = {apart};")
        lines.add(f"{name}_s = {name}_s + {name}_d * {name}_d * {name}_own;")


# --- blocks of rows -------------------------------------------------------------------------------


def count_rows_of_blocks(lines: Lines, kernel: Columns) -> None:
    """How many rows there are, and blocks had, of which the last may have had fewer; one over all of them."""
    lines.add("const i64 last_rows = rows - (row1 - 1) * each;")
    for reduction in kernel.sums:
        kind, name = TYPES[reduction.dtype], reduction.name
        for part, count in (("all", "rows"), ("each", "each"), ("last", "last_rows")):
            lines.add(f"const {kind} {name}_{part} = ({kind}){count};")
        lines.add(f"const {kind} {name}_of_all = 1 / {name}_all;")
        lines.add(f"{kind} {name}_whole = 0, {name}_rest = 0;")


def join(lines: Lines, writer: Writer, kernel: Columns) -> None:
    """Add a block's deviations, and apart the square of s - S n / N of whole blocks and of the last one."""
    lines.add("const bool is_last = row + 1 == row1;")
    for reduction, before in kernel.sums.items():
        name, kind = reduction.name, TYPES[reduction.dtype]
        own, total = (writer.write(r.formula, r.dtype).text for r in (reduction, before))
        rows = f"(is_last ? {name}_last : {name}_each)"
        apart = f"({total} * {name}_all - {before.name}_s * {rows}) * {name}_of_all"
        lines.add(f"const {kind} {name}_d = {apart};")
        lines.add(
            f"const {kind} {name}_w = is_last ? 0 : {name}_d, {name}_l = {name}_d - {name}_w;"
        )
        lines.add(f"{name}_whole = {name}_whole + {name}_w * {name}_w;")
        lines.add(f"{name}_rest = {name}_rest + {name}_l * {name}_l;")
        lines.add(f"{name}_s = {name}_s + {own};")


def blocks_from_all(lines: Lines, kernel: Columns) -> None:
    """Add n times the squared distances of the blocks' means to that of all."""
    for reduction in kernel.sums:
        name = reduction.name
        moved = f"{name}_whole / {name}_each + {name}_rest / {name}_last"
        lines.add(f"{name}_s = {name}_s + ({moved});")
