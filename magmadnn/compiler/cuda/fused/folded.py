"""What of all that is done to a product's elements the device's library does itself.

A library adds a bias to each row, cuts off what is negative, rounds to half precision, or computes
C = alpha A B + beta C over C itself, which is an update by gradient descent. Where that is all, there is no
kernel after the product. Where elements are only chosen before they are rounded, the library rounds them all,
and half as much goes to the kernel that chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magmadnn.compiler.cuda.gemm.finish import PRODUCT, substituted
from magmadnn.compiler.cuda.gemm.sized import results_of
from magmadnn.compiler.kernels.formula import HALVES, Formula, constant
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import FULL, ROW, SCALAR, Operand, Result
from magmadnn.compiler.kernels.rows import Rows, Stage

_ONE, _ZERO = constant(1.0), constant(0.0)


@dataclass(frozen=True)
class Folded:
    """A product with all that is done to its elements.

    Attributes:
        result: what is stored: its slot and dtype.
        bias: slot of the numbers that are added to each row, if any are.
        positive: whether negative elements become 0.
        over: slot of the matrix that is scaled and added, if any: the library can where the result lies in
            its memory.
        scales: stores `alpha` and `beta` then, single float32, for which it reads scalars.
        after: the kernel that is left to do, over the result; None for none.
    """

    result: Result
    bias: str | None = None
    positive: bool = False
    over: str | None = None
    scales: Rows | None = None
    after: Rows | None = None


def folded(gemm: Gemm) -> Folded | None:
    """The product as a library computes it; None where a kernel is needed besides."""
    stored = results_of(gemm)
    if gemm.dtype != "float32" or len(stored) != 1:
        return None
    (result,) = stored
    if not isinstance(gemm.epilogue, Finish):
        return Folded(result)
    operands = gemm.epilogue.operands
    return _activated(result, operands) or _updated(result, operands) or _chosen(result, operands)


def _activated(result: Result, operands: tuple[Operand, ...]) -> Folded | None:
    """Bias, what is positive of it, and that rounded, each or none."""
    formula = result.formula
    if result.dtype in HALVES and formula[0] == "cast" and formula[2] == result.dtype:
        formula = formula[1]
    elif result.dtype != "float32":
        return None
    positive = formula[0] == "maximum" and _is_zero(formula[2])
    if positive:
        formula = formula[1]
    if formula == PRODUCT:
        return Folded(result, None, positive)
    name, *terms = formula
    if name != "add" or PRODUCT not in terms:
        return None
    other = terms[terms[0] == PRODUCT]
    if other[0] != "argument" or operands[other[1]].spread != ROW:
        return None
    bias = operands[other[1]]
    return Folded(result, bias.name, positive) if bias.dtype == result.dtype else None


def _chosen(result: Result, operands: tuple[Operand, ...]) -> Folded | None:
    """Where a condition holds the product, rounded, and 0 elsewhere: whatever is done first."""
    if result.dtype not in HALVES or result.formula[0] != "cast":
        return None
    _, chosen, dtype = result.formula
    if dtype != result.dtype or chosen[0] != "where":
        return None
    condition, *either = chosen[1:]
    if _mentions(condition, PRODUCT) or any(e != PRODUCT and not _is_zero(e) for e in either):
        return None
    read = substituted(result.formula, PRODUCT, ("argument", len(operands)))
    stage = Stage(store=(Result(result.name, result.dtype, read),))
    after = Rows((*operands, Operand(result.name, result.dtype)), (stage,), "float32")
    return Folded(result, after=after)


def _is_zero(formula: Formula) -> bool:
    return bool(formula[0] == "constant" and formula[1] == 0)


def _mentions(formula: Any, leaf: Formula) -> bool:
    if not isinstance(formula, tuple) or formula == leaf:
        return bool(formula == leaf)
    return any(_mentions(part, leaf) for part in formula)


def _updated(result: Result, operands: tuple[Operand, ...]) -> Folded | None:
    """A sum of multiples of the product and of a matrix, by numbers that are the same for all elements."""
    scalars = tuple(o for o in operands if o.spread == SCALAR)
    terms = _terms(result.formula, operands)
    if result.dtype != "float32" or terms is None or len(terms) != 2 or PRODUCT not in terms:
        return None
    (over,) = (leaf for leaf in terms if leaf != PRODUCT)
    if operands[over[1]].spread != FULL or operands[over[1]].dtype != "float32":
        return None
    made = (Result("alpha", "float32", terms[PRODUCT]), Result("beta", "float32", terms[over]))
    numbers = {operands.index(o): k for k, o in enumerate(scalars)}
    renamed = tuple(Result(r.name, r.dtype, _renumbered(r.formula, numbers)) for r in made)
    scales = Rows(scalars, (Stage(store=renamed),), "float32")
    return Folded(result, over=operands[over[1]].name, scales=scales)


def _terms(formula: Formula, operands: tuple[Operand, ...]) -> dict[Formula, Formula] | None:
    """The factors of the product and of matrices in a sum of such; None where it is no such sum."""
    name, *args = formula
    if formula == PRODUCT:
        return {PRODUCT: _ONE}
    if name == "argument":
        return {formula: _ONE}
    if name in ("add", "subtract"):
        left, right = (_terms(a, operands) for a in args)
        if left is None or right is None or left.keys() & right.keys():
            return None
        if name == "subtract":
            right = {leaf: ("subtract", _ZERO, factor) for leaf, factor in right.items()}
        return left | right
    if name == "multiply":
        for factor, other in (args, reversed(args)):
            if _is_scalar(factor, operands):
                found = _terms(other, operands)
                return None if found is None else _scaled(found, factor)
    return None


def _scaled(terms: Mapping[Formula, Formula], factor: Formula) -> dict[Formula, Formula]:
    return {leaf: factor if f == _ONE else ("multiply", f, factor) for leaf, f in terms.items()}


def _is_scalar(formula: Formula, operands: tuple[Operand, ...]) -> bool:
    """Whether a formula is the same for all elements, and computed from float32 only."""
    name, *args = formula
    if name == "argument":
        operand = operands[args[0]]
        return operand.spread == SCALAR and operand.dtype == "float32"
    parts = [a for a in args if isinstance(a, tuple)]
    return formula != PRODUCT and all(_is_scalar(a, operands) for a in parts)


def _renumbered(formula: Any, numbers: Mapping[int, int]) -> Any:
    if not isinstance(formula, tuple):
        return formula
    if formula[0] == "argument":
        return ("argument", numbers[formula[1]])
    return tuple(_renumbered(part, numbers) for part in formula)
