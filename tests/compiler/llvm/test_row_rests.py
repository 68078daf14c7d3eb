"""The rest of a row, which fills no vector: its elements are stored and no others, whatever the vectors."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Rows, Stage
from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.compiler.llvm.kernel import llvm_text
from tests.compiler.llvm.llvm_calls import WIDTHS, call

X, GUARD = ("argument", 0), 77


def kernel(dtype: str, stored: str) -> Rows:
    """y = x + x, or whether x is positive."""
    formula = ("less", ("constant", 0.0, "0.0"), X) if stored == "bool" else ("add", X, X)
    stage = Stage(store=(Result("y", stored, formula),))
    return Rows((Operand("x", dtype),), (stage,), dtype)


def ran(made: Rows, x: np.ndarray, stored: str, target: Target) -> np.ndarray:
    """Rows of the result, each with eight elements behind it that are not its own."""
    rows, columns = x.shape
    y = np.full((rows, columns + 8), GUARD, np.uint8 if stored == "bool" else stored)
    slots = {
        "row0": 0, "row1": rows, "column0": 0, "column1": columns, "x": x, "x_row": columns,
        "y": y, "y_row": columns + 8,
    }  # fmt: skip
    call(made, target, **{s: slots[s] for s in made.slots})
    return y


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float32", "float32"), ("float64", "float64"), ("float32", "bool")]
)
def test_every_rest(dtype: str, stored: str) -> None:
    made = kernel(dtype, stored)
    for target in WIDTHS:
        for columns in range(1, 67):  # all rests, alone and behind whole vectors
            x = np.random.default_rng(columns).normal(size=(2, columns)).astype(dtype)
            y = ran(made, x, stored, target)
            expected = x > 0 if stored == "bool" else 2 * x
            np.testing.assert_array_equal(y[:, :columns], expected.astype(y.dtype))
            assert (y[:, columns:] == GUARD).all(), (target.vector_bytes, columns)


def test_stores_are_masked_where_masks_are_fast_only() -> None:
    for target in WIDTHS:
        text = llvm_text([kernel("float32", "float32")], target)
        assert ("llvm.masked.store" in text) == (target.vector_bytes == 64)
