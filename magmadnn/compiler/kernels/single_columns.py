"""Formulas over a row that are true, or other than 0, in a single column.

A formula that compares a class with the number of the column is true in one column only. What has such a
formula, and is the same in all other columns, is a `Spike`; a sum of it that is 0 there needs no walk over
the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .formula import HALVES, Formula
from .operands import Operand, row_constant
from .rows import START, Reduction

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
