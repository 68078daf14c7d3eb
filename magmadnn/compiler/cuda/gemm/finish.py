"""What is done to the elements of a matrix product, as a kernel of its own after a library's product."""

from __future__ import annotations

from typing import Any

from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Rows, Stage

PRODUCT: Formula = ("product",)


def finishing(gemm: Gemm) -> Rows | None:
    """The kernel that reads the bare product from `c`, and stores all results, the main one over it."""
    finish = gemm.epilogue
    if not isinstance(finish, Finish):
        return None
    product = Operand("c", gemm.dtype)
    operands = (*finish.operands, product)
    read: Formula = ("argument", len(finish.operands))
    results = [
        Result(r.name, r.dtype, substituted(r.formula, PRODUCT, read), r.spread)
        for r in finish.results
    ]
    main = substituted(finish.formula, PRODUCT, read)
    if main != read:
        results.append(Result("c", gemm.dtype, main))
    return Rows(operands, (Stage(store=tuple(results)),), gemm.dtype)


def finishing_slots(slot: str) -> str:
    """The slot of the product that one of the finishing kernel's means."""
    return "ldc" if slot == "c_row" else slot


def substituted(formula: Any, old: Formula, new: Formula) -> Any:
    """The formula with another leaf in place of `old`."""
    if formula == old:
        return new
    if not isinstance(formula, tuple):
        return formula
    return tuple(substituted(part, old, new) for part in formula)
