"""What matrices that are there are computed by at once: stacks by native threads, single ones by LAPACK.

Each function gives None where it does not take its operands, or where something is wrong with them: the op's
NumPy function then computes, or says what is wrong.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from magmadnn.graph.op import Array

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


@cache
def lapack() -> Any:
    """SciPy's module of LAPACK; None where it is not installed."""
    try:
        return import_module("scipy.linalg.lapack")
    except ImportError:
        return None


def routine(name: str, a: Array) -> Any:
    """LAPACK's function for an array's dtype; None where SciPy is not installed."""
    found = lapack()
    return None if found is None else getattr(found, _LETTERS[a.dtype.char] + name)


def is_finite(x: Array) -> bool:
    """Whether all numbers are; a sum says so in half the time, unless it overflows."""
    return bool(np.isfinite(np.add.reduce(x, axis=None)) or np.isfinite(x).all())


def _stack(
    function: str, settings: tuple[bool, ...], operands: tuple[Array, ...], matrix: tuple[int, int]
) -> Array | None:
    """By native threads, where all are of one dtype that they know."""
    first = operands[0].dtype.char
    if first not in "fd" or any(x.dtype.char != first for x in operands):
        return None
    from magmadnn.runtime.cpu.matrices.stacks import on_stack

    return on_stack(function, settings, operands, matrix)


def _are_many(*operands: Array) -> bool:
    """Whether there is more than one matrix, and no size is 0."""
    return all(x.size for x in operands) and any(math.prod(x.shape[:-2]) > 1 for x in operands)


def factor_at_once(a: Array) -> Array | None:
    """The Cholesky factor: potrf of the transpose, which has it in the order of columns."""
    if _are_many(a):
        return _stack("potrf", (), (a,), a.shape[-2:])
    if a.ndim != 2 or not a.size or a.dtype.char not in _LETTERS:
        return None
    function = routine("potrf", a)
    if function is None:
        return None
    factor, wrong = function(a.T, lower=0, clean=1)
    return None if wrong else factor.T


def triangle_at_once(a: Array, b: Array, lower: bool, transpose: bool) -> Array | None:
    """Solutions by a triangle."""
    if _are_many(a, b):
        return _stack("trsm", (lower, transpose), (a, b), b.shape[-2:])
    if a.ndim != 2 or b.ndim != 2 or not (a.size and b.size) or a.dtype.char not in _LETTERS:
        return None
    function = routine("trtrs", a)
    if function is None or b.dtype != a.dtype:
        return None
    x, wrong = function(a.T, b, lower=not lower, trans=not transpose)
    return None if wrong else x


def solution_at_once(a: Array, b: Array, transpose: bool, of: str) -> Array | None:
    """Solutions by factors of the transpose, which lies in the order of columns."""
    if _are_many(a, b):
        return _stack("gesv", (transpose,), (a, b), b.shape[-2:])
    if a.ndim != 2 or b.ndim != 2 or not (a.size and b.size) or a.dtype.char not in _LETTERS:
        return None
    factorise, solve = routine("getrf", a), routine("getrs", a)
    if factorise is None or b.dtype != a.dtype or not (is_finite(a) and is_finite(b)):
        return None
    factors, exchanges, wrong = factorise(a.T)
    if wrong:
        return None
    x: Array = solve(factors, exchanges, b, trans=0 if transpose else 1)[0]
    return x
