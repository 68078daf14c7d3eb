"""Kernels of stages over rows as CUDA C++; `kernels/rows.py` says what they compute.

Without a reduction every thread takes a few elements of a row, or of several rows where these share operands,
which it reads once. With one, a group of threads takes a row: each combines elements that lie a group apart,
in order, and then the group's results are combined by halves, always in the same pairs. So the order of a sum
depends on sizes only. Where a row's elements fit into registers they are read once for all stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.cuda.text.formulas import (
    MEMORY,
    TYPES,
    Cell,
    Lines,
    Writer,
)
from magmadnn.compiler.cuda.text.function import Function, OfParts
from magmadnn.compiler.cuda.text.parts import (
    kept,
    padded_fill,
    padded_place,
    parameters,
    place,
    seen,
    vector_type,
)
from magmadnn.compiler.cuda.text.reductions import COMBINED, group_reduction, neutral
from magmadnn.compiler.kernels.formula import ITEM_BYTES, REAL_FUNCTIONS, Formula
from magmadnn.compiler.kernels.operands import (
    ROW,
    Operand,
    PaddedOperand,
    Result,
    row_constant,
)
from magmadnn.compiler.kernels.rows import (
    BLOCKS,
    COLUMN_NUMBER,
    START,
    Reduction,
    Rows,
    Spike,
    Stage,
    is_row_constant,
    parts,
    place_of,
    spike_of,
)

_WARP = 32
THREADS = 256  # of a block, where no group needs more
_REGISTERS = 32  # of a thread, beside what it keeps


@dataclass(frozen=True)
class RowsVariant(OfParts):
    """How rows are cut.

    Attributes:
        kernel: what is computed.
        width: elements that are loaded together.
        group: threads of a row: a power of two; 0 where elements are computed one by one.
        groups: rows of a block.
        steps: vectors of a row that a thread takes; 0 for any number, in a loop.
        equal: slots of operands with pads, each with an earlier one of the same value: what follows from it
            is computed once.
        ahead: rows that a thread reads at once, after what they share: two, or one with nothing before it.
    """

    kernel: Rows
    width: int
    group: int
    groups: int
    steps: int
    equal: tuple[tuple[str, str], ...] = ()
    ahead: int = 1

    def function(self, name: str) -> Function:
        """The function."""
        return _Text(self, name).function()

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        if self.ahead == 1:
            return 2 * _REGISTERS
        streams = [o for o in self.kernel.operands if not row_constant(o)]
        shared = sum(o.spread == ROW for o in streams)
        nbytes = sum(ITEM_BYTES[o.dtype] for o in streams if o.spread != ROW)
        return _REGISTERS + (shared + self.ahead * nbytes // 4) * self.width


def _formulas(stages: Sequence[Stage]) -> Iterator[Formula]:
    """What is computed for each element."""
    for stage in stages:
        yield from (reduction.formula for reduction in stage.reduce)
        yield from (result.formula for result in stage.store)


class _Text:
    """Writes one kernel."""

    def __init__(self, variant: RowsVariant, name: str) -> None:
        self.variant, self.kernel, self.name = variant, variant.kernel, name
        self.lines = Lines()
        self.numbers: dict[str, Cell] = {}
        self.constants: dict[Operand, Cell] = {}
        self.streams = [o for o in self.kernel.operands if not row_constant(o)]
        self.places: dict[Formula, str] = {}  # formulas that are true in one column only, and which
        self.spikes: dict[Reduction, Spike] = {}
        # what several stages compute, and where it is kept
        self.kept: dict[Formula, Cell | None] = {}

    def function(self) -> Function:
        """All of the function."""
        variant, lines = self.variant, self.lines
        slots = parameters(self.kernel.slots, self.kernel.parts, {})
        threads = max(variant.group * variant.groups, _WARP) if variant.group else THREADS
        if variant.group:
            self._grouped()
        else:
            self._single()
        return Function(self.name, slots, str(lines), threads)

    # --- elements one by one ----------------------------------------------------------------------

    def _single(self) -> None:
        lines, width = self.lines, self.variant.width
        lines.add(f"const i64 column = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * {width};")
        lines.add("if (column >= column1) return;")
        lines.add("const i64 first = (i64)blockIdx.y * blockDim.y + threadIdx.y;")
        ahead, names = self.variant.ahead, {o: f"{o.name}_v" for o in self.streams}
        shared = [o for o in self.streams if o.spread == ROW and ahead > 1]
        self._load("column", {o: names[o] for o in shared}, declare=True)
        own = {o: f"{name}_a" for o, name in names.items() if o not in shared}
        lines.add("const i64 apart = (i64)gridDim.y * blockDim.y;")
        lines.add(f"for (i64 top = first; top < row1; top += {ahead} * apart) {{")
        for slot, equal in self.variant.equal:
            lines.add(f"const i64 {slot} = {equal};")
        for operand, name in own.items():
            lines.add(f"{vector_type(operand.dtype, width)} {name}[{ahead}];")
        self._each_ahead()
        self._load("column", {o: f"{name}[step]" for o, name in own.items()})
        lines.add("}")
        self._each_ahead()
        self._load_constants("true")
        for operand, name in own.items():
            kind = vector_type(operand.dtype, width)
            lines.add(f"const {kind} {names[operand]} = {name}[step];")
        for stage in self.kernel.stages:
            self._elements((), stage.store, names, "column")
        lines.add("}")
        lines.add("}")

    def _each_ahead(self) -> None:
        """Begin a loop over rows that a thread reads before it computes the first."""
        lines, more = self.lines, "top + step * apart < row1"
        lines.add("#pragma unroll")
        lines.add(f"for (int step = 0; step < {self.variant.ahead} && {more}; ++step) {{")
        lines.add("const i64 row = top + step * apart;")

    # --- rows by groups ---------------------------------------------------------------------------

    def _grouped(self) -> None:
        lines, variant = self.lines, self.variant
        if variant.groups > 1 or variant.group < _WARP:
            lines.add(
                f"const i64 row = (i64)blockIdx.x * {variant.groups} + threadIdx.x / {variant.group};"
            )
        else:
            lines.add("const i64 row = blockIdx.x;")
        lines.add(f"const int lane = threadIdx.x % {variant.group};")
        lines.add("const bool live = row < row1;")
        self._load_constants("live")
        if variant.steps:
            self._find_places()
            self._find_kept()
            self._hold()
        for stage in self.kernel.stages:
            self._stage(stage)

    def _find_places(self) -> None:
        """Columns of which a formula says that they are a class, as numbers that compare fast."""
        names: dict[Formula, str] = {}
        for test in dict.fromkeys(p for f in _formulas(self.kernel.stages) for p in parts(f)):
            place = place_of(test, self.kernel.operands)
            if place is None or place[0] != "argument":
                continue
            if place not in names:
                names[place] = f"place{len(names)}"
                at = self._row_leaf(place).text
                inside = f"live && {at} >= 0 && {at} < column1"
                self.lines.add(f"const int {names[place]} = {inside} ? (int){at} : -1;")
            self.places[test] = names[place]
        for reduction in (r for stage in self.kernel.stages for r in stage.reduce):
            spike = spike_of(reduction, self.kernel.operands)
            if spike is not None and spike.place in names:
                self.spikes[reduction] = replace(spike, place=("place", names[spike.place]))

    def _find_kept(self) -> None:
        """Functions of elements that several stages compute: one does, in its own dtype."""
        seen: dict[Formula, Stage] = {}
        for stage in self.kernel.stages:
            for part in dict.fromkeys(p for f in _formulas([stage]) for p in parts(f)):
                if part[0] in REAL_FUNCTIONS and not is_row_constant(part, self.kernel.operands):
                    if seen.setdefault(part, stage) is not stage and part not in self.kept:
                        self.kept[part] = None

    def _hold(self) -> None:
        """Read all of a row's elements into registers."""
        lines, variant = self.lines, self.variant
        for operand in self.streams:
            kind = vector_type(operand.dtype, variant.width)
            lines.add(f"{kind} {operand.name}_v[{variant.steps}];")
        self._each_step()
        self._load("column", self._held())
        lines.add("}")
        lines.add("}")

    def _held(self) -> dict[Operand, str]:
        return {o: f"{o.name}_v[step]" for o in self.streams}

    def _each_step(self) -> None:
        """Begin a loop over the vectors of a thread, and what is done where there is one."""
        lines, variant = self.lines, self.variant
        if variant.steps:
            lines.add("#pragma unroll")
            lines.add(f"for (int step = 0; step < {variant.steps}; ++step) {{")
            lines.add(f"const i64 column = (i64)(step * {variant.group} + lane) * {variant.width};")
            lines.add("if (live && column < column1) {")
        else:
            stride = variant.group * variant.width
            lines.add("if (live) {")
            lines.add(
                f"for (i64 column = lane * {variant.width}; column < column1; column += {stride}) {{"
            )

    def _stage(self, stage: Stage) -> None:
        lines = self.lines
        if stage.reduce or stage.store:
            for reduction in stage.reduce:
                kind = TYPES[reduction.dtype]
                lines.add(f"{kind} {reduction.name}_s = {neutral(reduction)};")
            walked = [r for r in stage.reduce if r not in self.spikes]
            if walked or stage.store:
                self._walk(walked, stage.store, keep=self.variant.steps > 0)
            for reduction in stage.reduce:
                if reduction in self.spikes:
                    self._pick(reduction, self.spikes[reduction])
            for reduction in stage.reduce:
                self._combine(reduction)
        writer = Writer(lines, self._row_leaf, self.kernel.dtype)
        for name, formula in stage.then:
            self.numbers[name] = writer.write(formula)
        if stage.store_row:
            cells = [(result, writer.write(result.formula)) for result in stage.store_row]
            lines.add("if (live && lane == 0) {")
            for result, cell in cells:
                lines.add(f"*({place(result, 'row', '0')}) = {kept(cell, result.dtype)};")
            lines.add("}")

    def _walk(
        self, reduce: Sequence[Reduction], store: Sequence[Result], *, keep: bool = False
    ) -> None:
        """Reduce and store a thread's elements."""
        begun = len(self.lines.lines) if keep else -1
        self._each_step()
        names = self._held()
        if not self.variant.steps:
            names = {o: f"{o.name}_v" for o in self.streams}
            self._load("column", names, declare=True)
        self._elements(reduce, store, names, "column", begun)
        self.lines.add("}")
        self.lines.add("}")

    def _pick(self, reduction: Reduction, spike: Spike) -> None:
        """A sum of zeros but for one column; the walk over all, should they turn out not to be zeros."""
        lines, number = self.lines, spike.place[1]
        if spike.elsewhere[0] != "constant" or spike.elsewhere[1] != 0:
            writer = Writer(lines, self._row_leaf, self.kernel.dtype)
            lines.add(f"if ({writer.write(spike.elsewhere, reduction.dtype).text} == 0) {{")

        def leaf(formula: Formula) -> Cell:
            operand = self.kernel.operands[formula[1]] if formula[0] == "argument" else None
            if operand is None or operand not in self.streams:
                return (
                    Cell(number, "int32") if formula == COLUMN_NUMBER else self._row_leaf(formula)
                )
            at = f"*(const {MEMORY[operand.dtype]} *)({place(operand, 'row', number)})"
            cell = seen(at, operand.dtype)
            return lines.let(cell.dtype, cell.text)

        lines.add(f"if ({number} >= 0 && lane == 0) {{")
        cell = Writer(lines, leaf, self.kernel.dtype).write(spike.here, reduction.dtype)
        total = f"{reduction.name}_s"
        lines.add(f"{total} = {COMBINED[reduction.kind]}({total}, {cell.text});")
        lines.add("}")
        if spike.elsewhere[0] != "constant" or spike.elsewhere[1] != 0:
            lines.add("} else {")
            self._walk([reduction], ())
            lines.add("}")

    def _combine(self, reduction: Reduction) -> None:
        """The results of a group's threads combined; each thread has the result."""
        group_reduction(self.lines, reduction, f"{reduction.name}_s", self.variant.group)
        self.numbers[reduction.name] = self.lines.let(reduction.dtype, f"{reduction.name}_s")

    # --- shared -----------------------------------------------------------------------------------

    def _load_constants(self, live: str) -> None:
        """Operands that are the same in all of a row."""
        for operand in self.kernel.operands:
            if row_constant(operand):
                at = place(operand, "row" if live == "true" else f"({live} ? row : 0)", "0")
                cell = seen(f"*({at})", operand.dtype)
                self.constants[operand] = self.lines.let(cell.dtype, cell.text)

    def _load(self, column: str, names: Mapping[Operand, str], *, declare: bool = False) -> None:
        """A vector of each operand."""
        width = self.variant.width
        for operand, name in names.items():
            if isinstance(operand, PaddedOperand):
                self._load_padded(operand, column, name, declare)
                continue
            kind = f"const {vector_type(operand.dtype, width)} " if declare else ""
            memory = MEMORY[operand.dtype]
            at = place(operand, "row", column)
            self.lines.add(f"{kind}{name} = load<{width}>((const {memory} *)({at}));")

    def _load_padded(self, operand: PaddedOperand, column: str, name: str, declare: bool) -> None:
        """A vector that is the operand's, or the constant around it; no width is such that it is both."""
        lines, width, memory = self.lines, self.variant.width, MEMORY[operand.dtype]
        at, inside = lines.name("place"), ""
        if operand.has_edges:
            inside = f" && {column} >= {operand.name}_left && {column} < {operand.name}_right"
        kind = f"{vector_type(operand.dtype, width)} " if declare else ""
        lines.add(f"const PaddedRow {at} = {padded_place(operand)};")
        lines.add(f"{kind}{name} = filled<{width}>({padded_fill(operand)});")
        source = f"(const {memory} *)({operand.name} + {at}.begin + {column})"
        lines.add(f"if ({at}.inside{inside}) {name} = load<{width}>({source});")

    def _elements(
        self,
        reduce: Sequence[Reduction],
        store: Sequence[Result],
        names: Mapping[Operand, str],
        column: str,
        begun: int = -1,
    ) -> None:
        """What a stage does with the elements of one vector.

        What other stages compute too is kept, declared at line `begun`, where that is given.
        """
        lines, width, keep = self.lines, self.variant.width, begun >= 0
        for result in store:
            lines.add(f"{vector_type(result.dtype, width)} {result.name}_r;")
        lines.add("#pragma unroll")
        lines.add(f"for (int v = 0; v < {width}; ++v) {{")
        constants: dict[Operand, Cell] = {}

        def leaf(formula: Formula) -> Cell:
            if formula == ("column",):
                return lines.let("int64", f"{column} + v")
            if formula[0] == "argument":
                operand = self.kernel.operands[formula[1]]
                if operand in names:
                    if operand not in constants:
                        cell = seen(f"{names[operand]}.at[v]", operand.dtype)
                        constants[operand] = lines.let(cell.dtype, cell.text)
                    return constants[operand]
            return self._row_leaf(formula)

        writer = Writer(lines, leaf, self.kernel.dtype)
        formulas = [*(r.formula for r in reduce), *(r.formula for r in store)]
        for test in dict.fromkeys(p for f in formulas for p in parts(f)):
            if test in self.places:
                here = lines.let("bool", f"{self.places[test]} == (int){column} + v")
                writer.know(test, here)
        shared = [f for f in self.kept if any(f in parts(g) for g in formulas)]
        for formula in shared:
            if (cell := self.kept[formula]) is not None:
                writer.know(formula, cell)
        for reduction in reduce:
            cell = writer.write(reduction.formula, reduction.dtype)
            total = f"{reduction.name}_s"
            lines.add(f"{total} = {COMBINED[reduction.kind]}({total}, {cell.text});")
        for result in store:
            cell = writer.write(result.formula)
            lines.add(f"{result.name}_r.at[v] = {kept(cell, result.dtype)};")
        for formula in shared:
            if self.kept[formula] is None and keep:
                cell, name = writer.write(formula), f"kept{len(self.lines.lines)}"
                lines.add(f"{name}[step][v] = {cell.text};")
                self.kept[formula] = Cell(f"{name}[step][v]", cell.dtype)
                kind = f"{TYPES[cell.dtype]} {name}[{self.variant.steps}][{width}];"
                lines.lines.insert(begun, kind)
        lines.add("}")
        for result in store:
            lines.add(f"store<{width}>({place(result, 'row', column)}, {result.name}_r);")

    def _row_leaf(self, leaf: Formula) -> Cell:
        """A leaf that is the same in all of a row."""
        if leaf[0] == "value":
            return self.numbers[leaf[1]]
        if leaf == ("columns",):
            return self.lines.let(self.kernel.dtype, f"({TYPES[self.kernel.dtype]})column1")
        if leaf == START:
            return self.lines.let("int64", f"{BLOCKS[0]} + row * {BLOCKS[1]}")
        return self.constants[self.kernel.operands[leaf[1]]]
