"""Formulas in which each conversion is written down that NumPy would make.

NumPy finds a common dtype for the operands of every single function, converts them, and wraps or rounds its
result; compiled code has rules of its own (`kernels/formula.py`): fewer dtypes in registers, and bytes that
are computed with as int32. So casts are put where the two differ, and what only constants make is computed
at once. In formulas of one floating-point dtype nothing differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from magmadnn.graph.scalar import PRIMITIVES as NUMPY
from magmadnn.memory.dtypes import as_dtype

from .kernels.formula import (
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    PRIMITIVES,
    REAL_FUNCTIONS,
    TRUTHS,
    Formula,
    constant,
)

_LOGICAL = ("logical_and", "logical_or", "logical_not")
_LIKE = {"erf": np.exp, "power": np.power}  # functions of ours that convert as these do


class Part(NamedTuple):
    """A formula and its dtype: a name; for a Python number, which follows its peers, the number's type."""

    formula: Formula
    dtype: str | type

    @property
    def is_constant(self) -> bool:
        """Whether it is known beforehand."""
        return bool(self.formula[0] == "constant")


def promoted(raw: Formula, operands: Sequence[Part], dtype: str) -> Formula | None:
    """The formula over these operands, its value in `dtype`; None for what compiled code cannot do.

    Args:
        raw: over numbered arguments.
        operands: of these numbers; each of a dtype that has a name.
        dtype: of the result.
    """
    made = _written(raw, operands)
    return None if made is None else cast(made, dtype).formula


def cast(part: Part, dtype: str) -> Part:
    """A part in another dtype."""
    if part.dtype == dtype:
        return part
    if part.is_constant and _follows(part.dtype, dtype):
        return Part(part.formula, dtype)
    if part.is_constant and dtype not in HALVES:
        with np.errstate(all="ignore"):
            value = np.asarray(_number(part)).astype(dtype)
        return Part(constant(value.item()), dtype)
    return Part(("cast", part.formula, dtype), dtype)


def _follows(given: str | type, dtype: str) -> bool:
    """Whether compiled code makes what NumPy does of a Python number that meets a dtype."""
    return given in (int, float) and (dtype in FLOATS or (given is int and dtype in INTEGERS))


def _written(raw: Formula, operands: Sequence[Part]) -> Part | None:
    name, *args = raw
    if name == "argument":
        return operands[args[0]]
    if name == "constant":
        return Part(raw, type(args[0])) if isinstance(args[0], (bool, int, float)) else None
    if name == "cast":
        inner = _written(args[0], operands)
        return None if inner is None else _converted(inner, args[1])
    parts = [_written(arg, operands) for arg in args]
    known = [part for part in parts if part is not None]
    if name not in PRIMITIVES or len(known) < len(parts):
        return None
    if all(part.is_constant for part in known):
        return _computed(name, known)
    return _applied(name, known)


def _converted(inner: Part, dtype: str) -> Part | None:
    """A conversion that the formula itself asks for."""
    if dtype not in (*DTYPES, *HALVES):
        return None
    if inner.is_constant and isinstance(inner.dtype, str):
        return cast(inner, dtype)
    return Part(("cast", inner.formula, dtype), dtype)


def _applied(name: str, parts: Sequence[Part]) -> Part | None:
    """A primitive of operands in the dtypes that NumPy converts them to, and its result as NumPy gives it."""
    found = _dtypes(name, tuple(part.dtype for part in parts))
    if found is None:
        return None
    wanted, result = found[:-1], found[-1]
    if any(dtype not in DTYPES for dtype in found):
        return None
    if name in REAL_FUNCTIONS and not wanted[0].startswith("float"):
        return None
    operands = [cast(p, d) for p, d in zip(parts, wanted, strict=True)]
    if name == "where" and operands[1].is_constant and operands[2].is_constant:
        return _choice(*operands)
    made: Formula = (name, *(part.formula for part in operands))
    return cast(Part(made, _in_registers(name, wanted)), result)


def _choice(condition: Part, yes: Part, no: Part) -> Part:
    """One of two constants, which are float64 to compiled code if nothing else is said."""
    if yes.dtype in INTEGERS:
        yes = yes._replace(formula=("cast", yes.formula, yes.dtype))
        made: Formula = ("where", condition.formula, yes.formula, no.formula)
        return cast(Part(made, _in_registers("where", ("bool", str(yes.dtype)))), str(no.dtype))
    made = ("where", condition.formula, yes.formula, no.formula)
    return cast(Part(made, "float64"), str(no.dtype))


def _in_registers(name: str, dtypes: Sequence[str]) -> str:
    """The dtype that compiled code gives a primitive of operands of one dtype."""
    if name in TRUTHS:
        return "bool"
    if name == "where":
        return "int32" if dtypes[1] == "uint8" else dtypes[1]
    return "int32" if dtypes[0] in ("bool", "uint8") else dtypes[0]


def _computed(name: str, parts: Sequence[Part]) -> Part:
    """What a primitive makes of constants."""
    with np.errstate(all="ignore"):
        value = np.asarray(NUMPY[name](*map(_number, parts)))
    return Part(constant(value.item()), as_dtype(value.dtype).name)


def _number(part: Part) -> Any:
    """A constant as NumPy would be given it."""
    value = part.formula[1]
    return np.asarray(value, part.dtype) if isinstance(part.dtype, str) else value


@lru_cache(maxsize=4096)
def _dtypes(name: str, given: tuple[str | type, ...]) -> tuple[str, ...] | None:
    """The dtypes that NumPy converts the operands of a primitive to, and that of the result."""
    kinds = [as_dtype(dtype) if isinstance(dtype, str) else dtype for dtype in given]
    if name in _LOGICAL:
        return ("bool",) * (len(given) + 1)
    if name == "where":
        chosen = np.result_type(*(np.dtype(k) if k is bool else _sample(k) for k in kinds[1:])).name
        return ("bool", chosen, chosen, chosen)
    function = _LIKE.get(name, NUMPY[name])
    assert isinstance(function, np.ufunc)
    asked = [np.dtype(k) if k is bool else k for k in kinds]
    try:
        found = function.resolve_dtypes((*asked, None))  # int and float are weak
    except TypeError:
        return None
    return tuple(dtype.name for dtype in found)


def _sample(kind: Any) -> Any:
    """What stands for an operand where a common dtype is looked for: a Python number is of no dtype."""
    return kind if isinstance(kind, np.dtype) else kind(0)
