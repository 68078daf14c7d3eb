"""Conversions of half precision: every pattern of 16 bits, and float32 of all kinds; equal bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Rows, pointwise
from magmadnn.compiler.llvm.ir.target import Target, host
from magmadnn.memory import as_dtype
from tests.compiler.llvm.llvm_calls import WIDTHS, call

# By the CPU's own conversions of float16, if it has them, and by integers.
TARGETS = [*WIDTHS, *(replace(each, halves=not host().halves) for each in WIDTHS if host().halves)]

HALVES = ("bfloat16", "float16")
X = ("argument", 0)


def ran(kernel: Rows, x: Any, target: Target, y: Any) -> Any:
    call(
        kernel, target, 64, row0=0, row1=1, column0=0, column1=x.size,
        x=x.view(np.uint16) if x.itemsize == 2 else x, x_row=x.size,
        y=y.view(np.uint16) if y.itemsize == 2 else y, y_row=x.size,
    )  # fmt: skip
    return y


def converted(x: Any, dtype: Any, target: Target) -> Any:
    x, dtype = np.ascontiguousarray(x), as_dtype(dtype)
    kernel = pointwise((Operand("x", x.dtype.name),), Result("y", dtype.name, X))
    return ran(kernel, x, target, np.zeros(x.size, dtype))


def same(got: Any, wanted: Any) -> None:
    """Equal bits; NaN where there is NaN, of the same sign: what is left of its digits is the host's."""
    kind = f"u{got.itemsize}"
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
    np.testing.assert_array_equal(got[~nan].view(kind), wanted[~nan].view(kind))


def patterns(dtype: str) -> Any:
    return np.arange(1 << 16, dtype=np.uint16).view(as_dtype(dtype))


def numbers(dtype: str) -> Any:
    """float32: bits drawn, all halves, what lies between two of them, and the neighbours of all these."""
    with np.errstate(invalid="ignore"):
        exact = patterns(dtype).astype(np.float32)
    bits = exact.view(np.uint32).astype(np.int64)
    middle = 1 << (15 if dtype == "bfloat16" else 12)
    near = [bits + at for at in (-1, 0, 1, middle - 1, middle, middle + 1)]
    subnormal = np.ldexp(
        np.arange(1, 4096, dtype=np.float32), -26
    )  # quarters of float16's least number
    draw = np.random.default_rng(11).integers(0, 1 << 32, 100_003)
    found = np.concatenate([*near, draw]).astype(np.uint32).view(np.float32)
    return np.concatenate([found, subnormal, -subnormal])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_widened_as_numpy_does(dtype: str, target: Target) -> None:
    x = patterns(dtype)
    for wide in (np.float32, np.float64):
        with np.errstate(invalid="ignore"):
            wanted = x.astype(wide)
        same(converted(x, wide, target), wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES)
def test_float32_is_rounded_as_numpy_does(dtype: str, target: Target) -> None:
    x = numbers(dtype)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        wanted = x.astype(as_dtype(dtype))
        back = wanted.astype(np.float32)
    assert np.isnan(x).sum() > 100
    same(converted(x, dtype, target), wanted)
    there_and_back = ("cast", ("cast", X, dtype), "float32")
    kernel = pointwise((Operand("x", "float32"),), Result("y", "float32", there_and_back))
    same(ran(kernel, x, target, np.zeros_like(x)), back)
