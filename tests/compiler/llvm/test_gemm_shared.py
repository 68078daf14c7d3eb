"""A factor that is copied once for all parts of a product: the same bits as each part reading it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.gemm.blocking import Blocking
from magmadnn.compiler.llvm.gemm.gemm import blocking_for, gemm_scratch_bytes, tile_for
from magmadnn.compiler.llvm.gemm.packing.shared import Panels, shared_layout
from magmadnn.compiler.llvm.ir.target import Target, host
from tests.compiler.llvm.llvm_calls import WIDTHS, gemm, matrix

SMALL = Blocking(7, 12, 64, group=2, far_group=3, unroll=3)  # every loop turns
SIDES = [("a", False, False), ("a", False, True), ("a", True, False), ("a", True, True)]
SIDES += [("b", False, False), ("b", True, False)]
SIZES = [(67, 149, 37), (6, 16, 7), (5, 3, 1), (12, 100, 23), (1, 17, 20), (50, 48, 21)]


def shared(made: Gemm, side: str, a, b, c, target: Target, cuts: list[int]):
    """The product in parts of whole panels, one factor copied for all of them, panels from the last."""
    made = replace(made, shared=side)
    tile, k = tile_for(made, target), a.shape[0 if made.transpose_a else 1]
    panels = Panels(made.dtype, side, side == "a" and made.transpose_a, tile)
    length = c.shape[0 if side == "a" else 1]
    layout = shared_layout(panels, blocking_for(made, target).depth, length, k)
    copy = kernel.scratch(layout.nbytes).view(made.dtype)
    copy[:] = np.nan  # what is not copied must not be read
    source = a if side == "a" else b
    copies, product = kernel.load([panels, made], target)
    ld = source.strides[0] // source.itemsize
    for first in reversed(range(0, layout.panels, 2)):
        slots = {"first": first, "last": min(first + 2, layout.panels), "length": length, "k": k}
        slots |= {
            "steps": layout.steps,
            "block": layout.block,
            "source": source,
            "ld": ld,
            "goal": copy,
        }
        copies(kernel.block(panels, **slots), kernel.scratch(64))
    scratch = kernel.scratch(gemm_scratch_bytes(made, target))
    lds = {f"ld{n}": x.strides[0] // x.itemsize for n, x in zip("abc", (a, b, c), strict=True)}
    factors = {"a": a, "b": b} | {side: copy}
    along = ("column", "row") if side == "a" else ("row", "column")
    unit = tile.columns if side == "a" else tile.rows
    size = c.shape[1 if side == "a" else 0]
    ends = [0, *(x * unit for x in cuts if x * unit < size), size]
    for start, end in itertools.pairwise(ends):
        part = {
            f"{along[0]}0": start,
            f"{along[0]}1": end,
            f"{along[1]}0": 0,
            f"{along[1]}1": length,
        }
        slots = {**part, "k": k, **factors, "c": c, **lds, f"ld{side}": layout.block}
        product(kernel.block(made, **slots), scratch)
    return c


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
@pytest.mark.parametrize(("side", "ta", "tb"), SIDES)
@pytest.mark.parametrize("blocking", [None, SMALL], ids=["by rule", "small"])
def test_bits(side: str, ta: bool, tb: bool, dtype: str, blocking: Blocking | None) -> None:
    made = Gemm(dtype, ta, tb, blocking=blocking)
    for m, n, k in (*SIZES, (40, 70, 700)):
        rng = np.random.default_rng([m, n, k])
        a = matrix(rng, *((k, m) if ta else (m, k)), dtype, 3)
        b = matrix(rng, *((n, k) if tb else (k, n)), dtype, 5)
        c = matrix(rng, m, n, dtype, 2)
        expected = gemm(made, a, b, np.zeros_like(c), host())
        found = shared(made, side, a, b, c, host(), [1, 2, 5])
        np.testing.assert_array_equal(found, expected, f"{m} x {n} x {k}")


@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: str(t.vector_bytes))
def test_vector_widths(target: Target) -> None:
    for side, ta, tb in SIDES:
        made = Gemm("float32", ta, tb)
        rng = np.random.default_rng(0)
        a, b = (
            matrix(rng, *((37, 67) if ta else (67, 37)), "float32"),
            rng.random((37, 149), "float32"),
        )
        b = np.ascontiguousarray(b.T) if tb else b
        c = np.zeros((67, 149), np.float32)
        expected = gemm(made, a, b, np.zeros_like(c), target)
        np.testing.assert_array_equal(shared(made, side, a, b, c, target, [1]), expected)
