"""Fused kernels that walk over the rows of matrices: pointwise chains, softmax, normalisation, losses.

A kernel is a list of stages; each goes once over the columns of a row while the row is in the cache. A
stage reduces formulas over the columns (sum, max, min), stores formulas, and afterwards derives numbers
of the row from its reductions, which later stages use. Softmax is three stages::

    Stage(reduce=(Reduction("top", "maximum", x),))
    Stage(reduce=(Reduction("total", "add", exp(x - top)),), store=(Result("y", ..., exp(x - top)),))
    Stage(store=(Result("y", ..., y / total),))

A formula that compares a class with the number of the column is true in one column only. What has such a
formula, and is the same in all other columns, is a `Spike`; a sum of it that is 0 there needs no walk over
the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.kernels.formula import HALVES, Formula
from magmadnn.compiler.kernels.kernel import hashed_once
from magmadnn.compiler.kernels.operands import Operand, Result, all_slots, row_constant

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


# --- formulas that are true in a single column ----------------------------------------------------


COLUMN_NUMBER: Formula = ("column",)
LEAVES = ("argument", "constant", "value", "columns", "column", "start")
_INTEGERS = ("uint8", "int32", "int64")
_CASTS: dict[Any, Callable[[Any], Any]] = {"bool": bool, "float32": float, "float64": float}


@dataclass(frozen=True)
class Spike:
    """A formula over columns that are alike but for one.

    Attributes:
        place: the number of that column; outside of the matrix there is none.
        here: what it is there,
        elsewhere: and in every other column; the same in all of them.
    """

    place: Formula
    here: Formula
    elsewhere: Formula


def children(formula: Formula) -> tuple[Formula, ...]:
    """The formulas that a formula is made of."""
    if formula[0] in LEAVES:
        return ()
    return tuple(part for part in formula[1:] if isinstance(part, tuple))


def parts(formula: Formula) -> Iterator[Formula]:
    """The formula and everything it is made of."""
    yield formula
    for part in children(formula):
        yield from parts(part)


def of_block(formula: Formula) -> Formula:
    """A formula of an element of a row, as one of an element of a block of it."""
    if formula == COLUMN_NUMBER:
        return ("add", COLUMN_NUMBER, START)
    if formula[0] in LEAVES:
        return formula
    return tuple(of_block(part) if isinstance(part, tuple) else part for part in formula)


def is_row_constant(formula: Formula, operands: Sequence[Operand]) -> bool:
    """Whether a formula is the same in all columns of a row."""
    if formula[0] == "argument":
        return row_constant(operands[formula[1]])
    return formula != COLUMN_NUMBER and all(is_row_constant(p, operands) for p in children(formula))


def place_of(formula: Formula, operands: Sequence[Operand]) -> Formula | None:
    """Where a formula that compares an integer with the column's number is true; None for others."""
    if formula[0] != "equal" or COLUMN_NUMBER not in formula[1:]:
        return None
    place: Formula = formula[1] if formula[2] == COLUMN_NUMBER else formula[2]
    if not is_row_constant(place, operands):
        return None
    dtype = place[2] if place[0] == "cast" else ""
    if place[0] == "argument":
        dtype = operands[place[1]].dtype
    return place if dtype in _INTEGERS else None


def spike_of(reduction: Reduction, operands: Sequence[Operand]) -> Spike | None:
    """A sum that needs no walk; None for others."""
    return spike(reduction.formula, operands) if reduction.kind == "add" else None


def spike(formula: Formula, operands: Sequence[Operand]) -> Spike | None:
    """A formula that is the same in all columns but one; None for others."""
    tests = {p for p in parts(formula) if place_of(p, operands) is not None}
    if len(tests) != 1:
        return None
    (test,) = tests
    here, elsewhere = (_replaced(formula, test, truth) for truth in (True, False))
    place = place_of(test, operands)
    assert place is not None
    return Spike(place, here, elsewhere) if is_row_constant(elsewhere, operands) else None


def _replaced(formula: Formula, test: Formula, truth: bool) -> Formula:
    """The formula where `test` is known."""
    if formula == test:
        return _constant(truth)
    if not children(formula):
        return formula
    name, *rest = formula
    changed = [_replaced(a, test, truth) if isinstance(a, tuple) else a for a in rest]
    if name == "where" and changed[0][0] == "constant":
        chosen: Formula = changed[1] if changed[0][1] else changed[2]
        return chosen
    if name == "cast" and changed[0][0] == "constant" and changed[1] not in HALVES:
        return _constant(_CASTS.get(changed[1], int)(changed[0][1]))
    return (name, *changed)


def _constant(value: bool | int | float) -> Formula:
    return ("constant", value, repr(value))
