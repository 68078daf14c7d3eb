"""Scalar formulas as nested tuples, and what every emitter must be able to write.

A formula is a nested tuple: `("add", ("argument", 0), ("constant", 1.0))`. `frozen` makes one of any tree
whose nodes have a `name` and `args`. Leaves are `("argument", number)`, `("constant", value)` and what a
kernel defines besides; `("cast", formula, dtype)` converts. The meanings are NumPy's: minimum and maximum
pass NaN on, floor_divide and remainder round towards minus infinity, comparisons with NaN are false but
for not_equal. Constants take the dtype of the other operand; truth values count as 0 and 1; operands of
several dtypes become the last of them in `DTYPES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Formula = tuple[Any, ...]

INTEGERS = ("uint8", "int32", "int64")
FLOATS = ("float32", "float64")
DTYPES = ("bool", *INTEGERS, *FLOATS)
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int32": 4, "int64": 8, "float32": 4, "float64": 8, "bfloat16": 2,
    "float16": 2,
}  # fmt: skip

# In memory only: what is read becomes float32, and a cast to one rounds float32. Not for every emitter.
HALVES = ("bfloat16", "float16")
KEPT = (*DTYPES, *HALVES)  # of data that lies on a GPU

# Functions of real numbers: integers are cast before.
REAL_FUNCTIONS = frozenset(
    ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "power", "sqrt", "divide")
)
TRUTHS = frozenset(
    (
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
        "logical_and", "logical_or", "logical_not", "isnan",
    )
)  # fmt: skip
PRIMITIVES = (
    REAL_FUNCTIONS
    | TRUTHS
    | {
        "add", "subtract", "multiply", "floor_divide", "remainder", "negative", "absolute", "sign",
        "floor", "ceil", "minimum", "maximum", "where",
    }
)  # fmt: skip


def constant(value: Any) -> Formula:
    """A constant; the text keeps apart what compares equal: 0.0 and -0.0, 1, 1.0 and True."""
    if value != value:
        value = math.nan  # one object, so that formulas with it are equal
    return ("constant", value, repr(value))


def frozen(expression: Any) -> Formula:
    """The formula of a tree of nodes with `name` and `args`; the values in leaves stay as they are."""
    return (
        expression.name,
        *(frozen(arg) if hasattr(arg, "args") else arg for arg in expression.args),
    )


def arguments_in(formula: Formula) -> set[int]:
    """The numbers of the operands that a formula reads."""
    if formula[0] == "argument":
        return {formula[1]}
    return {n for part in formula[1:] if isinstance(part, tuple) for n in arguments_in(part)}


def renumbered(formula: Formula, new: Mapping[int, int]) -> Formula:
    """A formula over operands that have other numbers: `new[number]`."""
    if formula[0] == "argument":
        return ("argument", new[formula[1]])
    return tuple(renumbered(part, new) if isinstance(part, tuple) else part for part in formula)


def read_again(formula: Formula, dtype: str) -> Formula:
    """A formula as it is read from memory where it was stored: halves are rounded."""
    return ("cast", formula, dtype) if dtype in HALVES else formula


def put_in(formula: Formula, number: int, value: Formula, new: Mapping[int, int]) -> Formula:
    """A formula with another in the place of an operand; the others have the numbers `new[number]`."""
    if formula[0] == "argument":
        return value if formula[1] == number else ("argument", new[formula[1]])
    return tuple(
        put_in(part, number, value, new) if isinstance(part, tuple) else part for part in formula
    )
