"""Fused kernels that walk over the rows of matrices: pointwise chains, softmax, normalisation, losses.

A kernel is a list of stages; each goes once over the columns of a row while the row is in the cache. A
stage reduces formulas over the columns (sum, max, min), stores formulas, and afterwards derives numbers
of the row from its reductions, which later stages use. Softmax is three stages::

    Stage(reduce=(Reduction("top", "maximum", x),))
    Stage(reduce=(Reduction("total", "add", exp(x - top)),), store=(Result("y", ..., exp(x - top)),))
    Stage(store=(Result("y", ..., y / total),))
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.backends.cpu.forks import cached_property

from .formula import Formula
from .kernel import hashed_once
from .operands import Operand, Result, all_slots

SHORT_ROW = 8192  # columns
NARROW_ROW = 32  # columns; fewer are not worth several vectors after each other
LONG_ROW = (
    1 << 20
)  # columns, from which on reductions are made in blocks: below, one thread takes 0.25 ms at most
START: Formula = ("start",)
BLOCKS = (
    "start0",
    "start_step",
)  # slots: the first column of the first row, and what is between it and the next row's
COMBINED = ("add", "multiply", "maximum", "minimum")  # how reductions combine elements
CHOOSING = ("maximum", "minimum")  # which is one of them, so that there must be one


@dataclass(frozen=True)
class Reduction:
    """The sum (add), product (multiply), maximum or minimum of a formula over the columns of a row.

    Later it is `("value", name)`.
    """

    name: str
    kind: str
    formula: Formula
    dtype: str = "float32"


@dataclass(frozen=True)
class Stage:
    """One walk over the columns of a row.

    Attributes:
        reduce: what is reduced.
        store: results [rows, columns] that are stored.
        then: numbers of the row, (name, formula), computed in order once the walk is done; formulas
            may use reductions, earlier numbers, and operands that are the same in all of a row.
        store_row: results [rows], stored last, of formulas of the same kind.
    """

    reduce: tuple[Reduction, ...] = ()
    store: tuple[Result, ...] = ()
    then: tuple[tuple[str, Formula], ...] = ()
    store_row: tuple[Result, ...] = ()


@hashed_once
@dataclass(frozen=True)
class Rows:
    """A kernel of stages over the rows `row0` to `row1` of its operands.

    Slots: `row0, row1, column0, column1`, then those of operands and results. With a reduction the
    columns must be all columns; without one any tile will do. Leaves of formulas beside arguments and
    constants: `("value", name)`, `("columns",)`, the number of columns as a float, and
    `("column",)`, the number of an element's column as an int64.

    Attributes:
        operands: what formulas read.
        stages: what is done.
        dtype: of numbers that only constants and reductions make.
        short: rows have at most `SHORT_ROW` columns, and begin at column 0: what costs much is computed
            once, and kept for later stages beside the row.
        narrow: rows have fewer than `NARROW_ROW` columns: what serves longer ones only is not written.
        blocked: rows are blocks of longer ones. Two more slots, `BLOCKS`, and a leaf, `START`: the number
            that the first column has in the longer row, as an int64.
        streamed: names of results that are stored past the caches; they, their rows and what is stored of a
            row begin and end with whole vectors.
    """

    operands: tuple[Operand, ...]
    stages: tuple[Stage, ...]
    dtype: str = "float32"
    short: bool = False
    narrow: bool = False
    streamed: tuple[str, ...] = ()
    blocked: bool = False

    @property
    def parts(self) -> list[Operand | Result]:
        """Everything that has memory."""
        results = [r for stage in self.stages for r in (*stage.store, *stage.store_row)]
        return [*self.operands, *results]

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the argument block's slots."""
        starts = BLOCKS if self.blocked else ()
        return ("row0", "row1", "column0", "column1", *starts, *all_slots(self.parts))


def pointwise(operands: tuple[Operand, ...], *results: Result) -> Rows:
    """The kernel that computes formulas of operands element by element."""
    return Rows(operands, (Stage(store=results),))
