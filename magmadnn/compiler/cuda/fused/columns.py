"""Kernels that reduce over rows as CUDA C++; `kernels/columns.py` says what they compute.

A block has 32 columns, or where there are many, 32 groups of neighbouring ones. Threads combine rows that lie
`lanes` apart, in order, and the lanes' results then two by two: so a sum's order depends on the sizes only.

Code that runs once has to be fetched all the same. So what is done once is short: loops over lanes are not
unrolled, and there are few quotients. `deviations.py` has sums of squared deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES, Cell, Lines, Writer
from magmadnn.compiler.cuda.text.function import Function, OfParts
from magmadnn.compiler.cuda.text.parts import (
    BY_INDEX,
    STREAMS,
    kept,
    parameters,
    place,
    seen,
    typed,
    vector,
    vector_type,
)
from magmadnn.compiler.cuda.text.reductions import COMBINED, neutral
from magmadnn.compiler.kernels.columns import DEVIATIONS, Columns
from magmadnn.compiler.kernels.formula import ITEM_BYTES, Formula, arguments_in
from magmadnn.compiler.kernels.operands import COLUMN, FULL, ROW, STRIDED_COLUMN, Operand
from magmadnn.compiler.kernels.rows import Reduction

from . import deviations

ACROSS = 32  # columns of a block
LARGE_GROUP = 4
UNROLL = 16
_REGISTERS = 64, 96, 128  # of a thread, roughly; of one with a large group, or that reads early
# numbers that a thread keeps, beyond which it has registers for rows that come while it adds; with a group
# of four columns it has them anyway
_MOST_KEPT = 48
# that a thread with neighbouring columns has on their way: two blocks share a multiprocessor still
_AHEAD_BYTES = 64
_BY_ROW = (*STREAMS, COLUMN, STRIDED_COLUMN)
COMBINED_AT_ONCE = 2  # reductions of groups of columns, where these use shared memory in turn


@dataclass(frozen=True)
class ColumnsVariant(OfParts):
    """How columns are cut.

    Attributes:
        kernel: what is computed.
        lanes: threads that share a column: a power of two.
        steps: rows that a lane takes, all of which are read at once; 0 for any number, in a loop.
        width: neighbouring columns of a thread, which are read together; more than one in a loop only.
        across: threads beside each other.
    """

    kernel: Columns
    lanes: int
    steps: int
    width: int = 1
    across: int = ACROSS

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        return _REGISTERS[2 if self.reads_early else self.width >= LARGE_GROUP]

    @property
    def rows_at_once(self) -> int:
        """That a thread with neighbouring columns reads before it adds the first."""
        least = 1 if self.kernel.put and self.width > LARGE_GROUP else 2
        return min(max(_AHEAD_BYTES // max(self._bytes, 1), least), UNROLL)

    @property
    def reads_early(self) -> bool:
        """Whether such a thread reads the next ones before it adds those."""
        used = set[int]().union(*(arguments_in(r.formula) for r in self.kernel.reduce))
        rows = sum(self.kernel.operands[n].spread == ROW for n in used)
        totals = len(self.kernel.reduce) + 2 * (len(self.kernel.sums) + len(self.kernel.put))
        kept = (rows + totals) * self.width + self.rows_at_once * self._bytes // 4
        is_small = self.kernel.blocked and self.width == LARGE_GROUP
        return is_small or (self.width > 1 and kept > _MOST_KEPT)

    @property
    def _bytes(self) -> int:
        """Of a row of a thread."""
        return self.width * sum(
            ITEM_BYTES[o.dtype] for o in self.kernel.operands if o.spread in STREAMS
        )

    def function(self, name: str) -> Function:
        """The function."""
        return _Text(self, name).function()

    def stored(self, name: str) -> str:
        """How a column's results are stored once its totals are known; see `summed.py`."""
        return _Text(self, name).stored()

    def typed(self, prefix: str) -> list[str]:
        """Parameters with their types."""
        return typed(self.slots, self.kernel.parts, {}, prefix)


_Leaf = Callable[[Formula], Cell]


class _Text:
    """Writes one kernel."""

    def __init__(self, variant: ColumnsVariant, name: str) -> None:
        self.variant, self.kernel, self.name = variant, variant.kernel, name
        self.lines = Lines()
        self.memory: dict[str, str] = {}  # shared memory by reduction

    def function(self) -> Function:
        """All of the function."""
        kernel, lines, lanes = self.kernel, self.lines, self.variant.lanes
        slots = parameters(kernel.slots, kernel.parts, {})
        if self.variant.width > 1:
            self._groups()
            return Function(self.name, slots, str(lines), self.variant.across * lanes)
        block, across = self._block_of_matrix(), self.variant.across
        lines.add(f"const i64 column = {block} * {across} + threadIdx.x;")
        lines.add("const bool live = column < column1;")
        for kind, name, start in self._states():
            lines.add(f"{kind} {name} = {start};")
        if self.variant.steps:
            self._at_once()
        else:
            self._in_a_loop(self._add)
        self._combine_all()
        lines.add("if (!live || threadIdx.y != 0) return;")
        self._store()
        return Function(self.name, slots, str(lines), self.variant.across * lanes)

    def _in_a_loop(self, add: Callable[[_Leaf], None]) -> None:
        """Any number of rows, after what a lane must know of its first one."""
        lines = self.lines
        lines.add("if (live) {")
        if self._has_firsts:
            lines.add("if (row0 + threadIdx.y < row1) {")
            self._note_firsts(lambda leaf: self._leaf(leaf, "row0 + threadIdx.y"))
            lines.add("}")
        lines.add(f"#pragma unroll {UNROLL}")
        lines.add(f"for (i64 row = row0 + threadIdx.y; row < row1; row += {self.variant.lanes}) {{")
        add(lambda leaf: self._leaf(leaf, "row"))
        lines.add("}")
        lines.add("}")

    def _groups(self) -> None:
        """Neighbouring columns by each thread: one load for all of them in a row."""
        kernel, lines, width = self.kernel, self.lines, self.variant.width
        streams = [o for o in kernel.operands if o.spread in STREAMS]
        block, across = self._block_of_matrix(), self.variant.across
        lines.add(f"const i64 first = ({block} * {across} + threadIdx.x) * {width};")
        for kind, name, start in self._states():
            lines.add(f"{kind} {name}_t[{width}];")
            lines.add("#pragma unroll")
            lines.add(f"for (int v = 0; v < {width}; ++v) {name}_t[v] = {start};")
        lines.add("if (first < column1) {")
        for one in self._at_hand:
            lines.add(f"const auto {one.name}_v = {self._loaded(one)};")
        lines.add("i64 next = row0 + threadIdx.y;")
        if self._has_firsts:
            lines.add("if (next < row1) {")
            lines.add("const i64 row = next;")
            self._load(streams)
            self._each_of_group()
            self._note_firsts(self._grouped_leaf)
            lines.add("}")
            lines.add("}")
        self._many_rows(streams)
        lines.add("#pragma unroll 1")
        lines.add(f"for (; next < row1; next += {self.variant.lanes}) {{")
        lines.add("const i64 row = next;")
        self._load(streams)
        self._add_group()
        lines.add("}")
        lines.add("}")
        self._combine_all()
        lines.add("if (first < column1 && threadIdx.y == 0)")
        self._each_of_group()
        self._store()
        lines.add("}")

    def _many_rows(self, streams: Sequence[Operand]) -> None:
        """Several rows of a group at a time: all are on their way before the first is added."""
        lines, lanes, width = self.lines, self.variant.lanes, self.variant.width
        count, early = self.variant.rows_at_once, self.variant.reads_early
        apart, last = count * lanes, (count - 1) * lanes
        each = f"for (int step = 0; step < {count}; ++step) {{"
        for o in streams:
            names = [f"{o.name}{suffix}[{count}]" for suffix in ("_a", "_b")[: 1 + early]]
            lines.add(f"{vector_type(o.dtype, width)} {', '.join(names)};")
        if early:
            self._read_rows(streams, "_b", f"next + {last} < row1", "next")
        lines.add("#pragma unroll 1")
        lines.add(f"for (; next + {last} < row1; next += {apart}) {{")
        if early:
            copies = " ".join(f"{o.name}_a[step] = {o.name}_b[step];" for o in streams)
            lines.add("#pragma unroll")
            lines.add(f"{each} {copies} }}")
            self._read_rows(streams, "_b", f"next + {apart + last} < row1", f"next + {apart}")
        else:
            self._read_rows(streams, "_a", "true", "next")
        given = [f"const auto {o.name}_v = {o.name}_a[step];" for o in streams]
        for line in ("#pragma unroll", each, f"const i64 row = next + step * {lanes};", *given):
            lines.add(line)
        self._add_group()
        lines.add("}")
        lines.add("}")

    def _add_group(self) -> None:
        """Add a group's elements of a row, and store what is made of them."""
        lines, width = self.lines, self.variant.width
        for one in self.kernel.put:
            lines.add(f"{vector_type(one.dtype, width)} {one.name}_r;")
        self._each_of_group()
        self._add(self._grouped_leaf)
        lines.add("}")
        for one in self.kernel.put:
            lines.add(f"store<{width}>({place(one, 'row', 'first')}, {one.name}_r);")

    def _read_rows(self, streams: Sequence[Operand], to: str, where: str, first: str) -> None:
        """Read rows from a first one on into arrays whose names end so, on a condition."""
        count, lanes = self.variant.rows_at_once, self.variant.lanes
        each = f"for (int step = 0; step < {count}; ++step) {{"
        row = f"const i64 row = {first} + step * {lanes};"
        for line in (f"if ({where})", "#pragma unroll", each, row):
            self.lines.add(line)
        for operand in streams:
            self.lines.add(f"{operand.name}{to}[step] = {self._loaded(operand)};")
        self.lines.add("}")

    def _loaded(self, one: Operand) -> str:
        return self._vector(one, "row", "first", self.variant.width)

    def _vector(self, operand: Operand, row: str, column: str, width: int) -> str:
        """Elements of a row of an operand, from a column on."""
        if operand.spread in BY_INDEX and self.kernel.in_pieces:
            row = f"(rows_before + {row})"
        return vector(operand, row, column, width)

    def _load(self, streams: Sequence[Operand]) -> None:
        """A group's elements of a row."""
        for operand in streams:
            self.lines.add(f"const auto {operand.name}_v = {self._loaded(operand)};")

    def _each_of_group(self) -> None:
        """Begin a loop over a thread's columns, with the totals of each by their names."""
        lines = self.lines
        lines.add("#pragma unroll")
        lines.add(f"for (int v = 0; v < {self.variant.width}; ++v) {{")
        lines.add("const i64 column = first + v;")
        for kind, name, _ in self._states():
            lines.add(f"{kind} &{name} = {name}_t[v];")

    def _grouped_leaf(self, leaf: Formula) -> Cell:
        if leaf[0] == "argument":
            operand = self.kernel.operands[leaf[1]]
            if operand.spread in STREAMS or operand in self._at_hand:
                return seen(f"{operand.name}_v.at[v]", operand.dtype)
        return self._leaf(leaf, "row")

    @property
    def _at_hand(self) -> list[Operand]:
        """What rows share, kept over a loop that stores: it would be read again behind each store."""
        return [o for o in self.kernel.operands if self.kernel.put and o.spread == ROW]

    def _block_of_matrix(self) -> str:
        """The number of the block among those of its matrix, or of its rows; addresses become theirs."""
        lines = self.lines
        if not self.kernel.in_pieces:
            return "(i64)blockIdx.x"
        each = self.variant.across * self.variant.width
        lines.add(f"const u32 pieces = ((u32)column1 + {each - 1}u) / {each}u;")
        lines.add("const i64 outer = blockIdx.x / pieces;")
        for name in dict.fromkeys(part.name for part in self.kernel.apart):
            lines.add(f"{name} += outer * {name}_outer;")
        if any(part.spread in BY_INDEX for part in self.kernel.operands):
            lines.add("const i64 rows_before = outer * row1;")
        if self.kernel.blocked:
            lines.add("row1 = rows - outer * row1 < row1 ? rows - outer * row1 : row1;")
        return "(blockIdx.x % pieces)"

    def stored(self) -> str:
        """How results are stored."""
        self._store()
        return str(self.lines)

    def _at_once(self) -> None:
        """Few rows: all of a lane's elements are on their way before the first is added."""
        lines, steps = self.lines, self.variant.steps
        each = [o for o in self.kernel.operands if o.spread in _BY_ROW]
        for operand in each:
            lines.add(f"{MEMORY[operand.dtype]} {operand.name}_v[{steps}];")
        self._each_step()
        for operand in each:
            kind = MEMORY[operand.dtype]
            at = f"{self._vector(operand, 'row', 'column', 1)}.at[0]"
            lines.add(f"{operand.name}_v[step] = live && row < row1 ? {at} : {kind}();")
        lines.add("}")
        self._held(self._add)

    def _held(self, add: Callable[[_Leaf], None]) -> None:
        """What is done with rows that are at hand, or in a loop where they are too many."""
        self._each_step()
        self.lines.add("if (live && row < row1) {")
        add(self._held_leaf)
        self.lines.add("}")
        self.lines.add("}")

    def _each_step(self) -> None:
        """Begin a loop over rows that are at hand."""
        self.lines.add("#pragma unroll")
        self.lines.add(f"for (int step = 0; step < {self.variant.steps}; ++step) {{")
        self.lines.add(f"const i64 row = row0 + threadIdx.y + step * {self.variant.lanes};")

    def _held_leaf(self, leaf: Formula) -> Cell:
        if leaf[0] == "argument":
            operand = self.kernel.operands[leaf[1]]
            if operand.spread in _BY_ROW:
                return seen(f"{operand.name}_v[step]", operand.dtype)
        return self._leaf(leaf, "row")

    @property
    def _has_firsts(self) -> bool:
        """Whether a lane needs its first element before it adds any."""
        return bool(self.kernel.sums) and not self.kernel.joins

    def _states(self) -> Iterator[tuple[str, str, str]]:
        """What a lane keeps of the reductions: types, names, and values to begin with."""
        for one in self.kernel.reduce:
            kind, name = TYPES[one.dtype], one.name
            yield kind, f"{name}_s", neutral(one)
            if one.kind == DEVIATIONS and not self.kernel.joins:
                # the mean of the lane's elements in the end
                yield kind, f"{name}_first", "0"
                yield kind, f"{name}_sum", "0"

    def _note_firsts(self, leaf: _Leaf) -> None:
        """Keep the lane's first element of what deviations are of."""
        writer = Writer(self.lines, leaf, self.kernel.dtype)
        for reduction in self.kernel.sums:
            cell = writer.write(reduction.formula, reduction.dtype)
            self.lines.add(f"{reduction.name}_first = {cell.text};")

    def _add(self, leaf: _Leaf) -> None:
        """Add a row's elements to the lane's totals; deviations that blocks have made come later."""
        writer = Writer(self.lines, leaf, self.kernel.dtype)
        if self._has_firsts and self.variant.steps:
            self.lines.add("if (step == 0) {")
            self._note_firsts(leaf)
            self.lines.add("}")
        wanted = [r for r in self.kernel.reduce if r.kind != DEVIATIONS or not self.kernel.joins]
        cells = {r: writer.write(r.formula, r.dtype).text for r in wanted}
        for reduction, cell in cells.items():
            name, total = reduction.name, f"{reduction.name}_s"
            if reduction.kind == DEVIATIONS:
                self.lines.add(f"const {TYPES[reduction.dtype]} {name}_d = {cell} - {name}_first;")
                self.lines.add(f"{name}_sum = {name}_sum + {name}_d;")
                self.lines.add(f"{total} = {total} + {name}_d * {name}_d;")
            else:
                self.lines.add(f"{total} = {COMBINED[reduction.kind]}({total}, {cell});")
        for one in self.kernel.put:
            text = kept(writer.write(one.formula), one.dtype)
            self.lines.add(f"{one.name}_r.at[v] = {text};")

    # --- what lanes have together -----------------------------------------------------------------

    def _combine_all(self) -> None:
        """All lanes' results, so that the first lane has those of all; deviations from the mean of all."""
        later = list(self.kernel.sums)
        lines, kernel = self.lines, self.kernel
        if self._has_firsts:
            deviations.count_rows(lines, kernel, self.variant.lanes)
            self._of_columns(lambda: deviations.own_deviations(lines, kernel))
        self._combine([r for r in self.kernel.reduce if r not in later])
        if not later:
            return
        self._share_totals()
        if kernel.joins:
            deviations.count_rows_of_blocks(lines, kernel)
            (self._held if self.variant.steps else self._in_a_loop)(self._join)
            deviations.blocks_from_all(lines, kernel)
        else:
            self._of_columns(lambda: deviations.from_all(lines, kernel))
        self._combine(later)

    def _join(self, leaf: _Leaf) -> None:
        """Add what a block has made."""
        deviations.join(self.lines, Writer(self.lines, leaf, self.kernel.dtype), self.kernel)

    def _combine(self, reductions: Sequence[Reduction]) -> None:
        """Results of the lanes two by two: of all reductions at once, or of a few in turn."""
        if self.variant.lanes == 1:
            return
        across = self.variant.across * self.variant.width
        memory = {one.name: self._memory_of(one, k) for k, one in enumerate(reductions)}
        declared = {memory[one.name]: TYPES[one.dtype] for one in reductions}
        for name, kind in declared.items():
            lanes = self.variant.lanes // 2
            self.lines.add(f"__shared__ {kind} {name}[{lanes}][{across}];")
        self.memory |= memory
        in_turn = deviations.in_turn(self.kernel, self.variant.width)
        count = COMBINED_AT_ONCE if in_turn else len(reductions)
        for first in range(0, len(reductions), max(count, 1)):
            self._halve(reductions[first : first + count])

    def _memory_of(self, reduction: Reduction, number: int) -> str:
        """The shared memory in which results of the lanes are combined."""
        if deviations.in_turn(self.kernel, self.variant.width):
            return f"of_{TYPES[reduction.dtype]}_{number % COMBINED_AT_ONCE}"
        return f"of_{reduction.name}"

    def _halve(self, reductions: Sequence[Reduction]) -> None:
        """Half of the lanes take the results of the others, until the first has those of all."""
        lines = self.lines
        lines.add("#pragma unroll 1")
        lines.add(f"for (int half = {self.variant.lanes // 2}; half > 0; half /= 2) {{")
        lines.add("if (threadIdx.y >= half && threadIdx.y < 2 * half)")
        self._of_columns(lambda: self._give(reductions))
        lines.add("__syncthreads();")
        lines.add("if (threadIdx.y < half)")
        self._of_columns(lambda: self._take(reductions))
        lines.add("__syncthreads();")
        lines.add("}")

    def _share_totals(self) -> None:
        """All lanes get the sums that the first has, from which each computes the mean."""
        if self.variant.lanes == 1:
            return
        names = dict.fromkeys(before.name for before in self.kernel.sums.values())
        shared = {self._at(name, "0"): f"{name}_s" for name in names}
        self.lines.add("if (threadIdx.y == 0)")
        self._of_columns(lambda: self._assign(shared.items()))
        self.lines.add("__syncthreads();")
        self._of_columns(lambda: self._assign((name, at) for at, name in shared.items()))

    def _assign(self, pairs: Iterable[tuple[str, str]]) -> None:
        for to, value in pairs:
            self.lines.add(f"{to} = {value};")

    def _of_columns(self, write: Callable[[], None]) -> None:
        """Something for each column of a thread, as one statement."""
        if self.variant.width > 1:
            self._each_of_group()
        else:
            self.lines.add("{")
        write()
        self.lines.add("}")

    def _at(self, name: str, lane: str) -> str:
        """The place in shared memory of a lane's number for a column."""
        width = self.variant.width
        beside = "threadIdx.x" if width == 1 else f"threadIdx.x * {width} + v"
        return f"{self.memory[name]}[{lane}][{beside}]"

    def _give(self, reductions: Sequence[Reduction]) -> None:
        for one in reductions:
            self.lines.add(f"{self._at(one.name, 'threadIdx.y - half')} = {one.name}_s;")

    def _take(self, reductions: Sequence[Reduction]) -> None:
        """Add the number of the lane `half` behind."""
        for one in reductions:
            name, other = f"{one.name}_s", self._at(one.name, "threadIdx.y")
            combined = "plus" if one.kind == DEVIATIONS else COMBINED[one.kind]
            self.lines.add(f"{name} = {combined}({name}, {other});")

    def _store(self) -> None:
        """The results' formulas, all computed before anything is stored."""
        lines, kernel = self.lines, self.kernel
        numbers = {r.name: Cell(f"{r.name}_s", r.dtype) for r in kernel.reduce}

        def leaf(formula: Formula) -> Cell:
            return numbers[formula[1]] if formula[0] == "value" else self._leaf(formula, "row0")

        writer = Writer(lines, leaf, kernel.dtype)
        cells = [(result, writer.write(result.formula)) for result in kernel.store]
        for result, cell in cells:
            lines.add(f"*({place(result, 'row0', 'column')}) = {kept(cell, result.dtype)};")

    def _leaf(self, leaf: Formula, row: str) -> Cell:
        if leaf == ("rows",):
            rows = "rows" if self.kernel.joins else "row1 - row0"
            return self.lines.let(self.kernel.dtype, f"({TYPES[self.kernel.dtype]})({rows})")
        operand = self.kernel.operands[leaf[1]]
        if operand.spread in BY_INDEX:
            text = f"{self._vector(operand, row, 'column', 1)}.at[0]"
        else:
            known = operand.spread in (FULL, ROW, COLUMN)
            at = place(operand, row, "column") if known else operand.name
            text = f"*(const {MEMORY[operand.dtype]} *)({at})"
        cell = seen(text, operand.dtype)
        return self.lines.let(cell.dtype, cell.text)
