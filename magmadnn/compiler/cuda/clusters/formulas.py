"""Formulas of a chain as CUDA C++: functions of an element, and numbers of a row of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from magmadnn.compiler.cuda.text.formulas import TYPES, Cell, Lines, Writer, literal
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import Result
from magmadnn.compiler.kernels.rows import CHOOSING, COMBINED, Reduction, Stage

from .dense_chain import WEIGHTS, Chain, Ending, RowStep

_COMBINE = dict(zip(COMBINED, ("plus", "times", "largest", "smallest"), strict=True))
LANES = 8  # threads that share a row in `SharedRows`
Cells = dict[str, list[Cell]]  # of a value: of each column of a row, or one


def scalars_of(chain: Chain) -> dict[str, Cell]:
    """How scalars are called where `scalars_text` stands before."""
    constants = (s for s in chain.scalars if s.kind == "constant" and len(s.values) == 1)
    found = {s.name: literal(s.values[0], s.dtype) for s in constants}
    for name, (_, dtype) in chain.slots_of_scalars.items():
        found[name] = Cell(f"s_{name}", dtype)
    return found


def cells_of(chain: Chain) -> Cells:
    """The same as values of steps, with constants of several numbers."""
    found = {name: [cell] for name, cell in scalars_of(chain).items()}
    return found | {
        s.name: [literal(value, s.dtype) for value in s.values]
        for s in chain.scalars
        if len(s.values) > 1
    }


def scalars_text(chain: Chain, names: Sequence[str], indent: str = "    ") -> str:
    """Scalars as values of a thread."""
    lines = []
    for name in dict.fromkeys(names):
        if name in chain.slots_of_scalars:
            number, dtype = chain.slots_of_scalars[name]
            lines.append(
                f"{indent}const {TYPES[dtype]} s_{name} = *(const {stored_type(dtype)} *)(now + {number});"
            )
    return "\n".join(lines)


def stored_type(dtype: str) -> str:
    """The type of a number in memory."""
    return "u8" if dtype == "bool" else TYPES[dtype]


class Endings:
    """Endings as functions.

    Args:
        chain: whose they are.
        name: that names of functions begin with.
    """

    def __init__(self, chain: Chain, name: str) -> None:
        self._scalars, self._name = scalars_of(chain), name
        self._stored = chain.slots_of_scalars  # the others are constants
        updates = dict(zip(WEIGHTS, chain.updates, strict=True))
        named = {
            "activation": chain.activation,
            "kept": chain.kept,
            "slope": chain.slope,
            **updates,
        }
        self._endings = {key: ending for key, ending in named.items() if ending is not None}

    def text(self) -> str:
        """All functions."""
        return "".join(self._function(key, ending) for key, ending in self._endings.items())

    def _function(self, key: str, ending: Ending) -> str:
        lines, arguments = Lines(), ["const float product"]
        cells = []
        for number, read in enumerate(ending.reads):
            scalar = Cell("product", "float32") if read == "product" else self._scalars.get(read)
            if scalar is not None and read not in self._stored:
                cells.append(scalar)
                continue
            dtype = "float32" if scalar is None else scalar.dtype
            arguments.append(f"const {TYPES[dtype]} a{number}")
            cells.append(Cell(f"a{number}", dtype))

        def leaf(formula: Formula) -> Cell:
            if formula[0] == "argument":
                return cells[formula[1]]
            return Cell("product", "float32")

        cell = Writer(lines, leaf, "float32").write(ending.formula, "float32")
        head = f"static __device__ __forceinline__ float {self._name}_{key}({', '.join(arguments)})"
        return f"{head} {{\n{lines}\n  return {cell.text};\n}}\n"

    def call(self, key: str, product: str, elements: Mapping[str, str]) -> str:
        """The call for an element: `elements` has what it reads that is no scalar."""
        given = [product]
        for read in self._endings[key].reads:
            if read in elements:
                given.append(elements[read])
            elif read in self._stored:
                given.append(self._scalars[read].text)
        return f"{self._name}_{key}({', '.join(given)})"

    def scalars(self, *keys: str) -> list[str]:
        """Names of the scalars that some of them read."""
        endings = [self._endings[key] for key in keys if key in self._endings]
        return [read for ending in endings for read in ending.reads if read in self._scalars]

    def __contains__(self, key: str) -> bool:
        return key in self._endings


class Rows:
    """Steps over rows of the batch, of which a thread has one.

    Args:
        lines: where their text goes.
        cells: values that are there; what is computed comes to them.
    """

    def __init__(self, lines: Lines, cells: Cells) -> None:
        self._lines, self.cells = lines, cells

    def add(self, step: RowStep) -> list[Cell]:
        """Compute a step; what this row gives to sums over the batch, which `finish` is to be told then."""
        known: dict[str, Cell] = {}
        for stage in step.kernel.stages:
            totals = self._walk(step, stage, known)
            if step.kind == "batch" and stage.reduce:
                return [totals[reduction.name] for reduction in stage.reduce]
            known |= totals
            self.finish(step, stage, known)
        return []

    def finish(self, step: RowStep, stage: Stage, known: dict[str, Cell]) -> None:
        """What a stage makes of what it has reduced."""
        writer = self._writer(step, known, 0)
        for name, formula in stage.then:
            known[name] = writer.write(formula)
        for result in stage.store_row:
            self._store(step, result, writer.write(result.formula, result.dtype), 0)

    def _walk(self, step: RowStep, stage: Stage, known: dict[str, Cell]) -> dict[str, Cell]:
        """Store what a stage stores of each column; what it reduces, by name."""
        totals: dict[str, Cell] = {}
        for column in range(self._count(step)):
            writer = self._writer(step, known, column)
            for reduction in stage.reduce:
                cell = writer.write(reduction.formula, reduction.dtype)
                total = totals.get(reduction.name)
                totals[reduction.name] = self._together(step, reduction, total, cell, column)
            for result in stage.store:
                self._store(step, result, writer.write(result.formula, result.dtype), column)
        return totals

    def _count(self, step: RowStep) -> int:
        """How many columns of a step this thread computes."""
        return step.columns

    def _column(self, step: RowStep, column: int) -> Cell:
        """The number of one of the thread's columns, in the row."""
        return literal(column, "int64")

    def _together(
        self, step: RowStep, reduction: Reduction, total: Cell | None, cell: Cell, column: int
    ) -> Cell:
        """A reduction with one more column in it; `total` is None before the first."""
        if total is None:
            return cell
        text = f"{_COMBINE[reduction.kind]}({total.text}, {cell.text})"
        return self._lines.let(reduction.dtype, text)

    def _store(self, step: RowStep, result: Result, cell: Cell, column: int) -> None:
        value = dict(step.writes)[result.name]
        if column == 0:
            self.cells[value] = []
        if len(self.cells[value]) == column:
            self.cells[value].append(cell)

    def _writer(self, step: RowStep, known: dict[str, Cell], column: int) -> Writer:
        def leaf(formula: Formula) -> Cell:
            if formula[0] == "argument":
                own = self.cells[step.reads[formula[1]]]
                return own[column if len(own) > 1 else 0]
            if formula[0] == "value":
                return known[formula[1]]
            if formula[0] == "product":
                return self.cells["product"][column]
            if formula[0] == "column":
                return self._column(step, column)
            return literal(step.columns, step.kernel.dtype)

        return Writer(self._lines, leaf, step.kernel.dtype)


class SharedRows(Rows):
    """The same of a row that `LANES` neighbouring threads share: each has every so many-th column of it.

    Args:
        lines: where their text goes; `part` is the number of the thread among these.
        cells: as `Rows` has them, with the thread's columns in place of all.
        columns: of a row; a step has as many, or one, which all threads have.
    """

    def __init__(self, lines: Lines, cells: Cells, columns: int) -> None:
        super().__init__(lines, cells)
        self._columns = columns

    def _count(self, step: RowStep) -> int:
        return 1 if step.columns == 1 else lanes_columns(self._columns)

    def _column(self, step: RowStep, column: int) -> Cell:
        return literal(0, "int64") if step.columns == 1 else lanes_column(column)

    def _walk(self, step: RowStep, stage: Stage, known: dict[str, Cell]) -> dict[str, Cell]:
        totals = super()._walk(step, stage, known)
        if step.columns == 1:
            return totals
        for reduction in stage.reduce:
            total, kind = totals[reduction.name], TYPES[reduction.dtype]
            for apart in (1, 2, 4):
                other = f"({kind})__shfl_xor_sync(~0u, {total.text}, {apart})"
                text = f"{_COMBINE[reduction.kind]}({total.text}, {other})"
                total = self._lines.let(reduction.dtype, text)
            totals[reduction.name] = total
        return totals

    def _together(
        self, step: RowStep, reduction: Reduction, total: Cell | None, cell: Cell, column: int
    ) -> Cell:
        if total is not None:
            before, cell = total, super()._together(step, reduction, total, cell, column)
        else:
            before = literal(_nothing(reduction), reduction.dtype)
        if step.columns == 1 or LANES * (column + 1) <= self._columns:
            return cell
        text = f"{lanes_column(column).text} < {self._columns} ? {cell.text} : {before.text}"
        return self._lines.let(reduction.dtype, text)


def can_share_rows(chain: Chain) -> bool:
    """Whether values of a row are one number, or as many as there are outputs, and others single numbers."""
    steps = [step for step in chain.steps if step.kind in ("rows", "batch")]
    read = {name for step in steps for name in step.reads}
    widths = {step.columns for step in steps} | {columns for _, _, columns in chain.data}
    return widths <= {1, chain.outputs} and not any(
        len(s.values) > 1 for s in chain.scalars if s.name in read
    )


def lanes_columns(columns: int) -> int:
    """How many columns of a row each of `LANES` threads has at most."""
    return -(-columns // LANES)


def lanes_column(number: int) -> Cell:
    """The column that a thread has as this one."""
    return Cell(f"(part + {LANES * number})" if number else "part", "int64")


def _nothing(reduction: Reduction) -> float:
    """What a reduction begins with: its value for a row without columns."""
    if reduction.kind in CHOOSING:
        if reduction.dtype.startswith("float"):
            return -math.inf if reduction.kind == "maximum" else math.inf
        least = -(1 << (63 if reduction.dtype == "int64" else 31))
        return least if reduction.kind == "maximum" else -1 - least
    return float(reduction.kind == "multiply")
