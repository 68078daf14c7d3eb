"""Products with factors of half precision: the bits of converting first; pairs as the instruction adds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magmadnn.compiler.kernels.gemm import Gemm, Loading
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.llvm.gemm import register_tile as gemm_tile
from magmadnn.compiler.llvm.gemm.blocking import Blocking
from magmadnn.compiler.llvm.gemm.packing.read import readers_of
from magmadnn.compiler.llvm.ir.builder import F32, Code, Value
from magmadnn.compiler.llvm.ir.target import Target, assembly, host, named, object_code
from magmadnn.compiler.llvm.kernel import llvm_text
from magmadnn.memory import as_dtype
from tests.compiler.llvm.llvm_calls import WIDTHS, gemm
from tests.compiler.llvm.test_gemm import BLOCKINGS, PLAIN, SMALL, guarded

BOTH = list(itertools.product((False, True), repeat=2))
BRAIN, HALF = Loading.widening("bfloat16"), Loading.widening("float16")
ROUNDED = Loading("float32", "bfloat16")
LOADS = [(BRAIN, BRAIN), (HALF, None), (ROUNDED, HALF), (None, ROUNDED)]
PAIRS = [(BRAIN, BRAIN), (ROUNDED, BRAIN), (ROUNDED, ROUNDED)]
IDS = ["brain", "half-left", "rounded-half", "rounded-right"]
# The usual run has each load with two of the transposes, and its neighbour with the other two.
TURNS = [
    pytest.param(*both, load, id=f"{name}-{both}", marks=() if (k + sum(both)) % 2 else pytest.mark.long)
    for k, (name, load) in enumerate(zip(IDS, LOADS, strict=True))
    for both in BOTH
]  # fmt: skip

# On which `emulated` may stand for the instruction: nothing else is made for that CPU with it.
EMULATING = [replace(target, dots=True, cpu="x86-64-v3") for target in WIDTHS]
TINY = np.finfo(np.float32).tiny  # the least number that is not subnormal


def operands(made: Gemm | Gemv, m: int, n: int, k: int, spare: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng([7, m, n, k])
    shapes = (k, m) if made.transpose_a else (m, k), (n, k) if made.transpose_b else (k, n)
    a, b = (
        rng.standard_normal((rows, columns + spare)).astype(
            as_dtype(load.stored if load else made.dtype)
        )[:, :columns]
        for (rows, columns), load in zip(shapes, (made.load_a, made.load_b), strict=True)
    )
    return a, b


def in_float32(x: Any, load: Loading | None) -> Any:
    return x if load is None else x.astype(as_dtype(load.digits)).astype(np.float32)


def plainly(made: Any, a: Any, b: Any, c: Any, **slots: Any) -> Any:
    """The product of factors that were converted before."""
    bare = replace(made, load_a=None, load_b=None)
    return gemm(bare, in_float32(a, made.load_a), in_float32(b, made.load_b), c, host(), **slots)


def by_pairs(a: Any, b: Any) -> Any:
    """Chains in the order k = 1, 0, 3, 2, ...: products are exact in float64, sums are rounded to float32.

    Subnormal factors and sums are zero, as Intel documents the instruction.
    """
    a, b = (flushed(x).astype(np.float64) for x in (a, b))
    if a.shape[1] % 2:
        a, b = np.pad(a, ((0, 0), (0, 1))), np.pad(b, ((0, 1), (0, 0)))
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], 2):
        for p in (k + 1, k):
            total = flushed((total + a[:, p, None] * b[None, p]).astype(np.float32))
    return total


def flushed(x: Any) -> Any:
    return np.where(abs(x) < TINY, np.float32(0), x)


def by_rule(made: Any, a: Any, b: Any, target: Target | None = None) -> Any:
    """What is promised: chains by pairs where the CPU has the instruction, of two factors in bfloat16."""
    if readers_of(made, target or host())[0].pairs:
        one, other = in_float32(a, made.load_a), in_float32(b, made.load_b)
        return by_pairs(one.T if made.transpose_a else one, other.T if made.transpose_b else other)
    m, n = a.shape[made.transpose_a], b.shape[not made.transpose_b]
    return plainly(made, a, b, np.zeros((m, n), np.float32))


def check(made: Any, m: int, n: int, k: int, target: Any = None, spare: int = 0) -> None:
    a, b = operands(made, m, n, k, spare)
    wanted = by_rule(made, a, b, target)
    got = gemm(made, a, b, np.full((m, n), np.nan, np.float32), target or host())
    np.testing.assert_array_equal(got, wanted, err_msg=f"{m} x {n} x {k}")


@pytest.mark.parametrize("loads", LOADS, ids=IDS)
@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_bits(ta: bool, tb: bool, loads: Any) -> None:
    made = Gemm("float32", ta, tb, load_a=loads[0], load_b=loads[1])
    rng = np.random.default_rng(2)
    for m, n, k in rng.integers(1, 21, (20, 3)):
        check(made, m, n, k)
    for m, n, k in (*rng.integers(1, 71, (5, 3)), (13, 21, 0)):
        check(made, m, n, k, spare=3)
    check(made, 37, 83, 1301)


@pytest.mark.parametrize(("ta", "tb", "loads"), TURNS)
def test_blocks_and_widths(ta: bool, tb: bool, loads: Any) -> None:
    made = Gemm("float32", ta, tb, load_a=loads[0], load_b=loads[1])
    for blocking in (SMALL, PLAIN):
        check(replace(made, blocking=blocking), 53, 151, 41, spare=1)
    check(made, 23, 137, 19, WIDTHS[(LOADS.index(loads) + 2 * ta + tb) % 3])  # all, in turn
    for blocking in BLOCKINGS[1::2]:
        check(replace(made, blocking=blocking), 37, 149, 59)


@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_subnormal_numbers(ta: bool, tb: bool) -> None:
    """They are numbers like others, but zero for the instruction of pairs."""
    made = Gemm("float32", ta, tb, load_a=BRAIN, load_b=BRAIN)
    a, b = (
        (x.astype(np.float64) * scale).astype(x.dtype)
        for x, scale in zip(operands(made, 31, 53, 9), (2.0**-126, 2.0**3), strict=True)
    )
    wanted = by_rule(made, a, b)
    assert (abs(plainly(made, a, b, np.zeros((31, 53), np.float32))) < TINY).any()
    np.testing.assert_array_equal(gemm(made, a, b, np.zeros_like(wanted), host()), wanted)


def emulated(code: Code, a: Value, b: Value, total: Value) -> Value:
    """What the instruction does where no number is subnormal."""
    for part in (0xFFFF0000 - (1 << 32), None):
        one, other = (code.bits(x & part if part else x << 16, F32) for x in (a, b))
        total = code.fma(one, other, total)
    return total


@pytest.mark.parametrize(
    ("ta", "tb", "blocking"),
    [
        pytest.param(*both, blocking, marks=() if (k + sum(both)) % 2 else pytest.mark.long)
        for both in BOTH
        for k, blocking in enumerate((None, SMALL))
    ],
)
def test_nothing_is_read_beyond_the_matrices(
    monkeypatch: Any, ta: bool, tb: bool, blocking: Blocking | None
) -> None:
    monkeypatch.setattr(gemm_tile, "pair_dot", emulated)
    for target, load in ((host(), HALF), (EMULATING[0], BRAIN)):
        made = Gemm("float32", ta, tb, blocking=blocking, load_a=BRAIN, load_b=load)
        for m, n, k in [*np.random.default_rng(8).integers(1, 21, (12, 3)), (7, 70, 9)]:
            a, b = (guarded(np.ascontiguousarray(x)) for x in operands(made, m, n, k))
            got = gemm(made, a, b, guarded(np.zeros((m, n), np.float32)), target)
            np.testing.assert_array_equal(got, by_rule(made, a, b, target))


@pytest.mark.parametrize(("ta", "tb", "loads"), TURNS)
@pytest.mark.parametrize("column", [False, True])
def test_a_single_row_or_column(column: bool, ta: bool, tb: bool, loads: Any) -> None:
    made = Gemv("float32", ta, tb, column, load_a=loads[0], load_b=loads[1])
    for length, k in itertools.product((1, 7, 33), (1, 5, 16, 97)):
        check(made, length if column else 1, 1 if column else length, k)


# --- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ta", "tb", "loads"),
    [
        pytest.param(*both, loads, marks=() if (k + sum(both)) % 2 else pytest.mark.long)
        for k, loads in enumerate(PAIRS)
        for both in BOTH
    ],
)
def test_pairs(monkeypatch: Any, loads: Any, ta: bool, tb: bool) -> None:
    """All of a kernel for AVX512-BF16 but the instruction, which two FMAs stand for.

    Widths and blockings take turns: each meets each, and all loads and transposes.
    """
    monkeypatch.setattr(gemm_tile, "pair_dot", emulated)
    made = Gemm("float32", ta, tb, load_a=loads[0], load_b=loads[1])
    sizes = np.random.default_rng(2).integers(1, 21, (12, 3))
    turn = PAIRS.index(loads) + 2 * ta + tb
    for number, blocking in enumerate((None, SMALL, PLAIN)):
        target = EMULATING[(turn + number) % 3]
        kernel = replace(made, blocking=blocking)
        for m, n, k in [*sizes, (53, 151, 41)] if blocking is None else [(53, 67, 41), (7, 37, 40)]:
            a, b = operands(made, m, n, k, spare=3)
            got = gemm(kernel, a, b, np.full((m, n), np.nan, np.float32), target)
            wanted = by_rule(kernel, a, b, target)
            np.testing.assert_array_equal(got, wanted, err_msg=f"{m} x {n} x {k}")


@pytest.mark.parametrize("cpu", ["znver5", "sapphirerapids"])
@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_the_instruction(cpu: str, ta: bool, tb: bool) -> None:
    """Made and compiled for CPUs that have it: sums of pairs in registers, no FMA."""
    target = named(cpu)
    made = Gemm("float32", ta, tb, load_a=ROUNDED, load_b=BRAIN)
    text = llvm_text([made], target)
    listing = assembly(text, target)
    assert listing.count("vdpbf16ps") >= 24 * 4  # in the largest tile, with 4 steps written out
    assert "vfmadd" not in listing
    assert object_code(text, target)


def test_pairs_are_a_matter_of_the_cpu_and_of_both_factors() -> None:
    def listing(cpu: str, *loads: Loading | None) -> str:
        target = named(cpu)
        made = Gemm("float32", load_a=loads[0], load_b=loads[1])
        return assembly(llvm_text([made], target), target)

    for cpu, *loads in (
        ("x86-64-v4", BRAIN, BRAIN), ("znver5", BRAIN, None), ("znver5", HALF, BRAIN),
        ("neoverse-v2", BRAIN, BRAIN),
    ):  # fmt: skip
        assert "dpbf16ps" not in listing(cpu, *loads)
