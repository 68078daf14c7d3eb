"""What is known of a kernel over rows before its code is written: what is kept, picked, the same in a row."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.kernels.formula import REAL_FUNCTIONS, Formula
from magmadnn.compiler.kernels.operands import Operand
from magmadnn.compiler.kernels.rows import (
    COLUMN_NUMBER,
    LEAVES,
    Reduction,
    Rows,
    Spike,
    Stage,
    children,
    is_row_constant,
    parts,
    spike,
    spike_of,
)
from magmadnn.compiler.llvm.vmath import SPECIAL

# Instructions for a vector, roughly.
_REAL = REAL_FUNCTIONS | set(SPECIAL)
_COSTS = {
    **dict.fromkeys(_REAL, 20),
    "divide": 5,
    "sqrt": 5,
    "floor_divide": 20,
    "remainder": 20,
}
_WORTH_KEEPING = 8  # a store and a load cost less
_FOLLOW = ("add", "subtract", "multiply", "negative", "absolute", "maximum", "minimum")


class RowFormulas:
    """The formulas of a kernel, stage by stage.

    Attributes:
        spikes: reductions that need no walk.
        kept: formulas that a stage computes and later ones read, with that stage's number.
        uses: for each stage, those of `kept` that it reads.
    """

    def __init__(self, kernel: Rows) -> None:
        self.operands = kernel.operands
        reductions = [r for stage in kernel.stages for r in stage.reduce]
        found = [(r, spike_of(r, kernel.operands)) for r in reductions]
        self.spikes: dict[Reduction, Spike] = {r: spike for r, spike in found if spike}
        self.kept: dict[Formula, int] = {}
        self.uses: list[set[Formula]] = [set() for _ in kernel.stages]
        if kernel.short:
            self._keep([self.of(kernel, n) for n in range(len(kernel.stages))])

    def of(self, kernel: Rows, stage: int) -> list[Formula]:
        """What is computed for each element in a stage."""
        one = kernel.stages[stage]
        reduced = [r.formula for r in one.reduce if r not in self.spikes]
        return [*reduced, *(result.formula for result in one.store)]

    def _keep(self, stages: Sequence[Sequence[Formula]]) -> None:
        seen: dict[Formula, int] = {}
        for number, formulas in enumerate(stages):
            for formula in formulas:
                self._look(formula, number, seen)
            for formula in formulas:
                for part in parts(formula):
                    seen.setdefault(part, number)

    def _look(self, formula: Formula, stage: int, seen: dict[Formula, int]) -> None:
        if formula[0] in LEAVES or is_row_constant(formula, self.operands):
            return
        if formula in seen and _is_float(formula) and cost(formula) >= _WORTH_KEEPING:
            self.kept.setdefault(formula, seen[formula])
            self.uses[stage].add(formula)
            return
        for part in children(formula):
            self._look(part, stage, seen)


@dataclass(frozen=True)
class Exponentials:
    """A stage for the largest element of a row, and the next one for the sum of exp(element - largest).

    Attributes:
        stage: the number of the first.
        largest, total: what they reduce.
        scaled: the sum of exp(element) that may take the place of both.
    """

    stage: int
    largest: Reduction
    total: Reduction
    scaled: Reduction


def exponentials_of(kernel: Rows, formulas: RowFormulas) -> Exponentials | None:
    """Two such stages that walk for nothing else, of a kernel `with_signs`; None if there are none."""
    for number, pair in enumerate(itertools.pairwise(kernel.stages)):
        walked = [r for stage in pair for r in stage.reduce if r not in formulas.spikes]
        if len(walked) != 2 or any(stage.store for stage in pair):
            continue
        first, second = walked
        terms = ("exp_below_zero", ("subtract", first.formula, ("value", first.name)))
        kept = {f for f, stage in formulas.kept.items() if stage in (number, number + 1)}
        if (second.kind, second.formula, second.dtype) == ("add", terms, first.dtype):
            if kept <= {terms}:
                scaled = replace(second, formula=("exp_scaled", first.formula))
                return Exponentials(number, first, second, scaled)
    return None


def with_choices(kernel: Rows) -> Rows:
    """The kernel with a choice of two numbers where a part of what is stored has only two values in a row."""

    def changed(formula: Formula) -> Formula:
        if not children(formula):
            return formula
        two = spike(formula, kernel.operands) if _is_of(kernel, formula) else None
        if two and is_row_constant(two.here, kernel.operands):
            here, elsewhere = (
                ("cast", number, kernel.dtype) for number in (two.here, two.elsewhere)
            )
            return ("where", ("equal", two.place, COLUMN_NUMBER), here, elsewhere)
        return tuple(changed(a) if isinstance(a, tuple) else a for a in formula)

    return replace(
        kernel,
        stages=tuple(
            replace(one, store=tuple(replace(r, formula=changed(r.formula)) for r in one.store))
            for one in kernel.stages
        ),
    )


def _is_of(kernel: Rows, formula: Formula) -> bool:
    """Whether a formula is known to be a number of the kernel's dtype."""
    wider = kernel.dtype != "float64" and any(
        p == ("cast", *p[1:2], "float64")
        or (p[0] == "argument" and kernel.operands[p[1]].dtype == "float64")
        for p in parts(formula)
    )
    return not wider and _has_cast(formula, kernel.dtype)


def _has_cast(formula: Formula, dtype: str) -> bool:
    """Whether a cast to the dtype makes the formula one of it, unless another part is wider."""
    if formula[0] == "cast":
        return bool(formula[2] == dtype)
    passed = formula[2:] if formula[0] == "where" else children(formula)
    return formula[0] in (*_FOLLOW, "where") and any(_has_cast(part, dtype) for part in passed)


def with_signs(kernel: Rows) -> Rows:
    """The kernel with a faster exp where the argument is an element minus the largest of its row."""
    maxima = {
        ("value", r.name): r.formula
        for stage in kernel.stages
        for r in stage.reduce
        if r.kind == "maximum"
    }

    def changed(formula: Formula) -> Formula:
        if not children(formula):
            return formula
        made: Formula = tuple(changed(a) if isinstance(a, tuple) else a for a in formula)
        if made[0] == "exp" and made[1][0] == "subtract":
            element, largest = made[1][1:]
            if largest in maxima and maxima[largest] == element:
                return ("exp_below_zero", made[1])
        return made

    def stage(one: Stage) -> Stage:
        return Stage(
            tuple(replace(r, formula=changed(r.formula)) for r in one.reduce),
            tuple(replace(r, formula=changed(r.formula)) for r in one.store),
            tuple((name, changed(f)) for name, f in one.then),
            tuple(replace(r, formula=changed(r.formula)) for r in one.store_row),
        )

    if not maxima:
        return kernel
    return replace(kernel, stages=tuple(map(stage, kernel.stages)))


def cost(formula: Formula, known: Container[Formula] = ()) -> int:
    """How much work a formula is for a vector of elements, in instructions; what is known is loaded."""
    if formula in known:
        return 1
    return _COSTS.get(formula[0], 1) + sum(cost(part, known) for part in children(formula))


def row_parts(formula: Formula, operands: Sequence[Operand]) -> Iterator[Formula]:
    """The largest parts, other than constants, that are the same in all columns of a row."""
    if formula[0] == "constant":
        return
    if is_row_constant(formula, operands):
        yield formula
        return
    for part in children(formula):
        yield from row_parts(part, operands)


def _is_float(formula: Formula) -> bool:
    """Whether the value is known to be a floating-point number."""
    if formula[0] in _FOLLOW:
        return any(_is_float(part) for part in children(formula))
    return formula[0] in _REAL
