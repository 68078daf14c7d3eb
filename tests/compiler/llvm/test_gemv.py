"""Products with a single row or column: every edge size, layout and width; equal bits however cut."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.llvm.gemm.epilogue import Place
from magmadnn.compiler.llvm.ir.builder import I64, Code, Value
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import host
from tests.compiler.llvm.llvm_calls import WIDTHS, gemm, matrix

DTYPES = ("float32", "float64")
KINDS = list(itertools.product(DTYPES, (False, True), (False, True), (False, True)))
LENGTHS = (1, 2, 3, 7, 8, 17, 33, 67)
DEPTHS = (0, 1, 2, 5, 7, 16, 31, 32, 33, 97)


def operands(made: Gemv, length: int, k: int, spare: int = 0):
    """A, B and C of NaN, whose rows lie `spare` elements apart; the vector packed where it has to be."""
    rng = np.random.default_rng([9, length, k])
    m, n = (length, 1) if made.column else (1, length)
    a = matrix(
        rng, *((k, m) if made.transpose_a else (m, k)), made.dtype, 0 if _packed_a(made) else spare
    )
    b = matrix(
        rng, *((n, k) if made.transpose_b else (k, n)), made.dtype, 0 if _packed_b(made) else spare
    )
    c = np.full((m, n + spare), np.nan, made.dtype)[:, :n]
    return a, b, c


def _packed_a(made: Gemv) -> bool:
    return made.along_k and not made.column and made.transpose_a


def _packed_b(made: Gemv) -> bool:
    return made.along_k and made.column and not made.transpose_b


def expected(made: Gemv, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product in twice the precision (for float64: with a bound twice as wide), and the bound."""
    a, b = (
        x.astype("f8") for x in (a.T if made.transpose_a else a, b.T if made.transpose_b else b)
    )
    unit = np.finfo(made.dtype).eps / 2 * (1 if made.dtype == "float32" else 2)
    return a @ b, (a.shape[1] + 3) * unit * (abs(a) @ abs(b)) + np.finfo(made.dtype).tiny


def in_declared_order(made: Gemv, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Partial sums p mod 32 (float64: 16), halved: exact where products are small integers."""
    count = 128 // np.dtype(made.dtype).itemsize
    a, b = a.T if made.transpose_a else a, b.T if made.transpose_b else b
    terms = (a[:, None, :] * b.T[None, :, :]).astype(made.dtype)
    room = -terms.shape[2] % count
    blocks = np.pad(terms, ((0, 0), (0, 0), (0, room))).reshape(*terms.shape[:2], -1, count)
    total = np.zeros((*terms.shape[:2], count), made.dtype)
    for i in range(blocks.shape[2]):
        total = total + blocks[:, :, i]
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total[..., 0]


@pytest.mark.parametrize(("dtype", "ta", "tb", "column"), KINDS)
def test_edge_sizes(dtype, ta, tb, column):
    made = Gemv(dtype, ta, tb, column)
    for number, (length, k) in enumerate(itertools.product(LENGTHS, DEPTHS)):
        a, b, c = operands(made, length, k, spare=number % 3)
        gemm(made, a, b, c, host())
        product, bound = expected(made, a, b)
        assert (abs(c - product) <= bound).all(), (length, k)
        around = c.base[:, c.shape[1] :]
        assert np.isnan(around).all()


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "ta", "tb", "column"), KINDS)
def test_all_edge_sizes(dtype, ta, tb, column):
    made = Gemv(dtype, ta, tb, column)
    for length, k in itertools.product(range(1, 71), range(71)):
        a, b, c = operands(made, length, k)
        gemm(made, a, b, c, host())
        product, bound = expected(made, a, b)
        assert (abs(c - product) <= bound).all(), (length, k)


@pytest.mark.parametrize(("dtype", "ta", "tb", "column"), KINDS)
def test_order_of_the_sum(dtype, ta, tb, column):
    """A chain gives the bits of `Gemm`; partial sums those of the order that is declared."""
    made = Gemv(dtype, ta, tb, column)
    for length, k in ((5, 3), (67, 129), (31, 200)):
        a, b, c = operands(made, length, k)
        if made.along_k:
            # Powers of two as the vector: products are exact, so that NumPy can follow.
            vector = b if column else a
            vector[...] = 2.0 ** np.random.default_rng(1).integers(-3, 4, vector.shape)
            other = in_declared_order(made, a, b)
        else:
            other = gemm(Gemm(dtype, ta, tb), a, b, np.empty_like(c), host())
        np.testing.assert_array_equal(gemm(made, a, b, c, host()), other)


@pytest.mark.parametrize(("dtype", "ta", "tb", "column"), KINDS)
def test_cuts_and_widths_do_not_change_bits(dtype, ta, tb, column):
    made = Gemv(dtype, ta, tb, column)
    length, k = 131, 77
    a, b, c = operands(made, length, k)
    first = gemm(made, a, b, c, host()).copy()
    for cuts in ((0, 1, 64, 65, 131), (0, 12, 120, 131)):
        pairs = itertools.pairwise(cuts)
        tiles = [(i, j, 0, 1) if column else (0, 1, i, j) for i, j in pairs]
        c[...] = np.nan
        np.testing.assert_array_equal(gemm(made, a, b, c, host(), tiles), first)
    for target in WIDTHS:
        np.testing.assert_array_equal(gemm(made, a, b, c, target), first)


@pytest.mark.parametrize("column", [False, True])
def test_longer_than_a_piece(column):
    made = Gemv("float64", column, False, column)
    a, b, c = operands(made, 5003, 13)
    gemm(made, a, b, c, host())
    product, bound = expected(made, a, b)
    assert (abs(c - product) <= bound).all()


@dataclass(frozen=True)
class Numbered:
    """c = sum + 100 row + column."""

    slots = ()

    def write(self, code: Code, frame: Frame, value: Value, place: Place) -> Value:
        number = place.row * 100 + place.column + code.lane_numbers(place.lanes, I64)
        return value + code.convert(number, value.type.element)


@pytest.mark.parametrize(("dtype", "ta", "tb", "column"), KINDS)
def test_epilogue(dtype, ta, tb, column):
    """The epilogue sees every element once, with its own row and column."""
    made, plain = Gemv(dtype, ta, tb, column, Numbered()), Gemv(dtype, ta, tb, column)
    a, b, c = operands(made, 37, 11)
    gemm(made, a, b, c, host())
    without = gemm(plain, a, b, np.empty_like(c), host())
    numbers = np.arange(37)[:, None] * 100 if column else np.arange(37)[None, :]
    np.testing.assert_array_equal(c, without + numbers.astype(dtype))
