"""Kernels that reduce over rows as CUDA C++; `kernels/columns.py` says what they compute.

A block has 32 columns, or where there are many, 32 groups of neighbouring ones. Its threads combine rows that
lie `lanes` apart, in order, and the lanes' results are then combined two by two. So the order of a sum
depends on the number of rows only.

A lane adds deviations from its first element, d, and their squares: sum(d ** 2) - sum(d) ** 2 / n is the sum
of squared deviations from the mean of its n elements. As the first is one of them, sum(d ** 2) is at most n
times that, however large the mean is: so little cancels. Two lanes' are combined as on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES, Cell, Lines, Writer
from magmadnn.compiler.cuda.text.function import Function, OfParts
from magmadnn.compiler.cuda.text.parts import (
    kept,
    parameters,
    place,
    seen,
    typed,
    vector_type,
    width_for,
)
from magmadnn.compiler.cuda.text.reductions import COMBINED, neutral
from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.columns import DEVIATIONS, Columns
from magmadnn.compiler.kernels.formula import ITEM_BYTES, Formula
from magmadnn.compiler.kernels.operands import COLUMN, FULL, ROW
from magmadnn.compiler.kernels.rows import Reduction

_ACROSS = 32  # columns of a block
_MOST_LANES = 32
_ROWS_OF_A_LANE = 16  # before there are more lanes: small blocks leave room for others beside them
_UNROLL = 16
# that a thread with neighbouring columns has on their way, in up to as many rows
_AHEAD_BYTES = 128
_MOST_TOLD = (
    16 << 10
)  # bytes of shared memory: kernels that are merged have theirs beside each other
_MOST_IN_PIECES = (
    4  # neighbouring columns of a thread where matrices are cut in pieces of 32 columns
)


@dataclass(frozen=True)
class ColumnsVariant(OfParts):
    """How columns are cut.

    Attributes:
        kernel: what is computed.
        lanes: threads that share a column: a power of two.
        steps: rows that a lane takes, all of which are read at once; 0 for any number, in a loop.
        width: neighbouring columns of a thread, which are read together; more than one in a loop only.
    """

    kernel: Columns
    lanes: int
    steps: int
    width: int = 1

    @property
    def across(self) -> int:
        """Threads beside each other; fewer where matrices are cut in pieces, whose number is fixed."""
        return _ACROSS // self.width if self.kernel.in_pieces else _ACROSS

    def function(self, name: str) -> Function:
        """The function."""
        return _Text(self, name).function()

    def sums(self, name: str) -> str:
        """The struct `NAME`: what a product needs that has the columns at hand; see `summed.py`."""
        return _Text(self, name).sums()

    def typed(self, prefix: str) -> list[str]:
        """Parameters with their types."""
        return typed(self.slots, self.kernel.parts, {}, prefix)


def choose_columns(kernel: Columns, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The variant and the launch for given sizes; None where nothing is to be done."""
    rows, columns = values["row1"], values["column1"]
    matrices = values["outer1"] if kernel.in_pieces else 1
    if columns == 0 or matrices == 0:
        return None
    lanes = 1
    most = min(_MOST_LANES, chip.together // _ACROSS)
    while lanes < most and lanes * _ROWS_OF_A_LANE < rows:
        lanes *= 2
    steps = -(-rows // lanes)
    width = 1
    if steps > _UNROLL and kernel.in_pieces:
        width = _width_in_pieces(kernel, values, columns)
    elif steps > _UNROLL:
        width = width_for(kernel.parts, values, columns)
        room = lanes // 2 * _ACROSS * sum(map(_told_bytes, kernel.reduce))
        least = _ACROSS * chip.processors // 2
        while width > 1 and (room * width > _MOST_TOLD or columns < least * width):
            width //= 2
    variant = ColumnsVariant(kernel, lanes, steps if steps <= _UNROLL else 0, width)
    grid = (-(-columns // (variant.across * width)) * matrices, 1, 1)
    return Launch(variant, grid, (variant.across, lanes, 1), arguments_of(variant, values))


def _told_bytes(reduction: Reduction) -> int:
    """Bytes that a lane tells another of a column's reduction."""
    count = ITEM_BYTES["int64"] if reduction.kind == DEVIATIONS else 0
    return ITEM_BYTES[reduction.dtype] + count


def _width_in_pieces(kernel: Columns, values: Mapping[str, int], columns: int) -> int:
    """Neighbouring columns of a thread, where each matrix of a stack begins so that they can be loaded."""
    width = min(width_for(kernel.parts, values, columns), _MOST_IN_PIECES)
    outer = [values[f"{o.name}_outer"] for o in kernel.operands if o.spread == FULL]
    while width > 1 and any(step % width for step in outer):
        width //= 2
    return width


class _Text:
    """Writes one kernel."""

    def __init__(self, variant: ColumnsVariant, name: str) -> None:
        self.variant, self.kernel, self.name = variant, variant.kernel, name
        self.lines = Lines()

    def function(self) -> Function:
        """All of the function."""
        kernel, lines, lanes = self.kernel, self.lines, self.variant.lanes
        slots = parameters(kernel.slots, kernel.parts, {})
        if self.variant.width > 1:
            self._groups()
            return Function(self.name, slots, str(lines), self.variant.across * lanes)
        block = self._block_of_matrix()
        lines.add(f"const i64 column = {block} * {_ACROSS} + threadIdx.x;")
        lines.add("const bool live = column < column1;")
        for reduction in kernel.reduce:
            for kind, name, start in self._state(reduction):
                lines.add(f"{kind} {name} = {start};")
        if self.variant.steps:
            self._at_once()
        else:
            lines.add("if (live) {")
            lines.add(f"#pragma unroll {_UNROLL}")
            lines.add(f"for (i64 row = row0 + threadIdx.y; row < row1; row += {lanes}) {{")
            self._add(lambda leaf: self._leaf(leaf, "row"))
            lines.add("}")
            lines.add("}")
        self._combine_all()
        lines.add("if (!live || threadIdx.y != 0) return;")
        self._store()
        return Function(self.name, slots, str(lines), self.variant.across * lanes)

    def _groups(self) -> None:
        """Neighbouring columns by each thread: one load for all of them in a row."""
        kernel, lines, width = self.kernel, self.lines, self.variant.width
        streams = [o for o in kernel.operands if o.spread == FULL]
        block, across = self._block_of_matrix(), self.variant.across
        lines.add(f"const i64 first = ({block} * {across} + threadIdx.x) * {width};")
        for reduction in kernel.reduce:
            for kind, name, start in self._state(reduction):
                lines.add(f"{kind} {name}_t[{width}];")
                lines.add("#pragma unroll")
                lines.add(f"for (int v = 0; v < {width}; ++v) {name}_t[v] = {start};")
        lines.add("if (first < column1) {")
        each = sum(width * ITEM_BYTES[o.dtype] for o in streams)
        lines.add(f"#pragma unroll {min(max(_AHEAD_BYTES // max(each, 1), 1), _UNROLL)}")
        lines.add(f"for (i64 row = row0 + threadIdx.y; row < row1; row += {self.variant.lanes}) {{")
        for operand in streams:
            kind, at = MEMORY[operand.dtype], place(operand, "row", "first")
            loaded = f"load<{width}>((const {kind} *)({at}))"
            lines.add(f"const {vector_type(operand.dtype, width)} {operand.name}_v = {loaded};")
        self._each_of_group()
        self._add(self._grouped_leaf)
        lines.add("}")
        lines.add("}")
        lines.add("}")
        self._combine_all()
        lines.add("if (first < column1 && threadIdx.y == 0)")
        self._each_of_group()
        self._store()
        lines.add("}")

    def _each_of_group(self) -> None:
        """Begin a loop over a thread's columns, with the totals of each by their names."""
        lines = self.lines
        lines.add("#pragma unroll")
        lines.add(f"for (int v = 0; v < {self.variant.width}; ++v) {{")
        lines.add("const i64 column = first + v;")
        for reduction in self.kernel.reduce:
            for kind, name, _ in self._state(reduction):
                lines.add(f"{kind} &{name} = {name}_t[v];")

    def _grouped_leaf(self, leaf: Formula) -> Cell:
        if leaf[0] == "argument":
            operand = self.kernel.operands[leaf[1]]
            if operand.spread == FULL:
                return seen(f"{operand.name}_v.at[v]", operand.dtype)
        return self._leaf(leaf, "row")

    def _block_of_matrix(self) -> str:
        """The number of the block among those of its matrix, or of its rows; addresses become theirs."""
        lines = self.lines
        if not self.kernel.in_pieces:
            return "(i64)blockIdx.x"
        lines.add(f"const i64 pieces = (column1 + {_ACROSS - 1}) / {_ACROSS};")
        lines.add("const i64 outer = blockIdx.x / pieces;")
        for name in dict.fromkeys(part.name for part in self.kernel.apart):
            lines.add(f"{name} += outer * {name}_outer;")
        if self.kernel.blocked:
            lines.add("row1 = rows - outer * row1 < row1 ? rows - outer * row1 : row1;")
        return "(blockIdx.x % pieces)"

    def sums(self) -> str:
        """How totals of columns are made and what is stored, for one sum."""
        (reduction,) = self.kernel.reduce
        self._store()
        kind, fields = TYPES[reduction.dtype], " ".join(f"{one};" for one in self.variant.typed(""))
        return f"""struct {self.name} {{
  {fields}
  static constexpr int LANES = {self.variant.lanes};
  static __device__ __forceinline__ {kind} none() {{ return {neutral(reduction)}; }}
  static __device__ __forceinline__ {kind} both({kind} a, {kind} b) {{
    return {COMBINED[reduction.kind]}(a, b);
  }}
  __device__ __forceinline__ void finish(i64 column, {kind} {reduction.name}_s) const {{
{self.lines}
  }}
}};
"""

    def _at_once(self) -> None:
        """Few rows: all of a lane's elements are on their way before the first is added."""
        lines, steps = self.lines, self.variant.steps
        each = [o for o in self.kernel.operands if o.spread in (FULL, COLUMN)]
        for operand in each:
            lines.add(f"{MEMORY[operand.dtype]} {operand.name}_v[{steps}];")
        for number in range(2):
            lines.add("#pragma unroll")
            lines.add(f"for (int step = 0; step < {steps}; ++step) {{")
            lines.add(f"const i64 row = row0 + threadIdx.y + step * {self.variant.lanes};")
            if number == 0:
                for operand in each:
                    kind = MEMORY[operand.dtype]
                    at = f"*(const {kind} *)({place(operand, 'row', 'column')})"
                    lines.add(f"{operand.name}_v[step] = live && row < row1 ? {at} : {kind}();")
            else:
                lines.add("if (live && row < row1) {")
                self._add(self._held_leaf)
                lines.add("}")
            lines.add("}")

    def _held_leaf(self, leaf: Formula) -> Cell:
        if leaf[0] == "argument":
            operand = self.kernel.operands[leaf[1]]
            if operand.spread in (FULL, COLUMN):
                return seen(f"{operand.name}_v[step]", operand.dtype)
        return self._leaf(leaf, "row")

    def _state(self, reduction: Reduction) -> list[tuple[str, str, str]]:
        """What a lane keeps of a reduction: types, names, and values to begin with."""
        kind, name = TYPES[reduction.dtype], reduction.name
        found = [(kind, f"{name}_s", neutral(reduction))]
        if reduction.kind == DEVIATIONS:
            found += [
                (kind, f"{name}_first", "0"),
                (kind, f"{name}_sum", "0"),
                ("i64", f"{name}_n", "0" if self.kernel.joins else self._rows_of_lane()),
            ]
        return found

    def _rows_of_lane(self) -> str:
        lanes = self.variant.lanes
        return (
            f"row1 > row0 + threadIdx.y ? (row1 - row0 - threadIdx.y + {lanes - 1}) / {lanes} : 0"
        )

    def _add(self, leaf: Callable[[Formula], Cell]) -> None:
        """Add a row's elements to the lane's totals."""
        writer = Writer(self.lines, leaf, self.kernel.dtype)
        cells = {r: writer.write(r.formula, r.dtype).text for r in self.kernel.reduce}
        for reduction in reversed(self.kernel.reduce):  # deviations before their sum
            name, cell = reduction.name, cells[reduction]
            total = f"{name}_s"
            if reduction.kind == DEVIATIONS and self.kernel.joins:
                before = self.kernel.sums[reduction]
                self.lines.add(
                    f"const i64 {name}_here = rows - row * each < each ? rows - row * each : each;"
                )
                both = f"{total}, {before.name}_s, {name}_n, {cell}, {cells[before]}, {name}_here"
                self.lines.add(f"{total} = deviations({both});")
                self.lines.add(f"{name}_n += {name}_here;")
            elif reduction.kind == DEVIATIONS:
                self.lines.add(f"if (row == row0 + threadIdx.y) {name}_first = {cell};")
                self.lines.add(f"const {TYPES[reduction.dtype]} {name}_d = {cell} - {name}_first;")
                self.lines.add(f"{name}_sum = {name}_sum + {name}_d;")
                self.lines.add(f"{total} = {total} + {name}_d * {name}_d;")
            else:
                self.lines.add(f"{total} = {COMBINED[reduction.kind]}({total}, {cell});")

    def _combine_all(self) -> None:
        """All lanes' results, two by two, so that the first lane has those of all."""
        lines, lanes, width = self.lines, self.variant.lanes, self.variant.width
        if not self.kernel.joins and self.kernel.sums:
            self._of_columns(self._own_deviations)
        if lanes == 1:
            return
        for kind, name in self._exchanged():
            lines.add(f"__shared__ {kind} of_{name}[{lanes // 2}][{self.variant.across * width}];")
        lines.add("#pragma unroll")
        lines.add(f"for (int half = {lanes // 2}; half > 0; half /= 2) {{")
        lines.add("if (threadIdx.y >= half && threadIdx.y < 2 * half)")
        self._of_columns(self._give)
        lines.add("__syncthreads();")
        lines.add("if (threadIdx.y < half)")
        self._of_columns(self._take)
        lines.add("__syncthreads();")
        lines.add("}")

    def _of_columns(self, write: Callable[[], None]) -> None:
        """Something for each column of a thread, as one statement."""
        if self.variant.width > 1:
            self._each_of_group()
        else:
            self.lines.add("{")
        write()
        self.lines.add("}")

    def _exchanged(self) -> list[tuple[str, str]]:
        """Types and names of what lanes tell each other."""
        found = [(TYPES[r.dtype], f"{r.name}_s") for r in self.kernel.reduce]
        return [*found, *(("i64", f"{r.name}_n") for r in self.kernel.sums)]

    def _own_deviations(self) -> None:
        """Deviations from the mean of a lane's own rows."""
        for reduction in self.kernel.sums:
            name, kind = reduction.name, TYPES[reduction.dtype]
            own = f"{name}_s - {name}_sum * ({name}_sum / ({kind}){name}_n)"
            self.lines.add(f"if ({name}_n > 0) {name}_s = {own};")
            self.lines.add(f"if ({name}_s < 0) {name}_s = 0;")

    def _at(self, name: str, lane: str) -> str:
        """Where a lane's number for a column is told."""
        beside = (
            "threadIdx.x" if self.variant.width == 1 else f"threadIdx.x * {self.variant.width} + v"
        )
        return f"of_{name}[{lane}][{beside}]"

    def _give(self) -> None:
        for _, name in self._exchanged():
            self.lines.add(f"{self._at(name, 'threadIdx.y - half')} = {name};")

    def _take(self) -> None:
        """Add what the lane `half` behind has told; deviations before the sums that they need."""

        def told(name: str) -> str:
            return self._at(name, "threadIdx.y")

        for reduction, before in self.kernel.sums.items():
            names = f"{reduction.name}_s", f"{before.name}_s", f"{reduction.name}_n"
            both = ", ".join([*names, *map(told, names)])
            self.lines.add(f"{names[0]} = deviations({both});")
            self.lines.add(f"{names[2]} += {told(names[2])};")
        for reduction in self.kernel.reduce:
            if reduction.kind != DEVIATIONS:
                name = f"{reduction.name}_s"
                self.lines.add(f"{name} = {COMBINED[reduction.kind]}({name}, {told(name)});")

    def _store(self) -> None:
        """The results' formulas, all computed before anything is stored."""
        lines, kernel = self.lines, self.kernel
        numbers = {r.name: Cell(f"{r.name}_s", r.dtype) for r in kernel.reduce}

        def leaf(formula: Formula) -> Cell:
            if formula[0] == "value":
                return numbers[formula[1]]
            return self._leaf(formula, "row0")

        writer = Writer(lines, leaf, kernel.dtype)
        cells = [(result, writer.write(result.formula)) for result in kernel.store]
        for result, cell in cells:
            lines.add(f"*({place(result, 'row0', 'column')}) = {kept(cell, result.dtype)};")

    def _leaf(self, leaf: Formula, row: str) -> Cell:
        if leaf == ("rows",):
            rows = "rows" if self.kernel.joins else "row1 - row0"
            return self.lines.let(self.kernel.dtype, f"({TYPES[self.kernel.dtype]})({rows})")
        operand = self.kernel.operands[leaf[1]]
        at = place(operand, row, "column")
        if operand.spread not in (FULL, ROW, COLUMN):
            at = operand.name
        cell = seen(f"*(const {MEMORY[operand.dtype]} *)({at})", operand.dtype)
        return self.lines.let(cell.dtype, cell.text)
