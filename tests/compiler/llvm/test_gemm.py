"""GEMM kernels: every edge size, transpose and stride; equal bits however the work is cut."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import COLUMN, SCALAR, Operand, Result
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.gemm.blocking import Blocking
from magmadnn.compiler.llvm.gemm.epilogue import Place
from magmadnn.compiler.llvm.gemm.gemm import blocking_for, gemm_scratch_bytes, layout, tile_for
from magmadnn.compiler.llvm.ir.builder import I64, Code, Value
from magmadnn.compiler.llvm.ir.frame import Slots
from magmadnn.compiler.llvm.ir.target import Target, assembly, host, named
from magmadnn.compiler.llvm.kernel import llvm_text
from tests.compiler.llvm.llvm_calls import WIDTHS, gemm, matrix

DTYPES = ("float32", "float64")
BOTH = list(itertools.product((False, True), repeat=2))
KINDS = list(itertools.product(DTYPES, (False, True), (False, True)))
# Blocks so small that every loop turns and every copy is made, and ones that make no copy at all.
SMALL = Blocking(
    7, 12, 64, pack_a_rows=1, pack_a_columns=1, pack_b_rows=1, group=2, far_group=3, unroll=3
)
FEW = replace(SMALL, kept_bytes=5000)  # copies of B serve all rows in blocks of few columns only
PLAIN = Blocking(
    10**4, 12, 64, pack_a_rows=10**6, pack_a_columns=10**6, pack_b_rows=10**6, kept_bytes=0
)


def operands(made: Gemm, m: int, n: int, k: int, seed: int, spare: int = 0):
    rng = np.random.default_rng([seed, m, n, k])
    a = matrix(rng, *((k, m) if made.transpose_a else (m, k)), made.dtype, spare)
    b = matrix(rng, *((n, k) if made.transpose_b else (k, n)), made.dtype, 2 * spare)
    return a, b, matrix(rng, m, n, made.dtype, 3 * spare)


def truth(made: Gemm, a, b):
    """The product in float64 and a bound on the error of one chain of FMAs per element."""
    a, b = (
        x.astype("f8") for x in (a.T if made.transpose_a else a, b.T if made.transpose_b else b)
    )
    unit = np.finfo(made.dtype).eps / 2
    k = a.shape[1]
    bound = (k + 3) * unit * (abs(a) @ abs(b))
    if made.dtype == "float64":
        bound *= 2  # the product to compare with has errors of its own
    return a @ b, bound + np.finfo(made.dtype).tiny


def check(made: Gemm, m: int, n: int, k: int, target=None, spare: int = 0):
    a, b, c = operands(made, m, n, k, 1, spare)
    expected, bound = truth(made, a, b)
    around = c.base.copy() if spare else None
    gemm(made, a, b, c, target or host())
    wrong = abs(c - expected) > bound
    assert not wrong.any(), f"{m} x {n} x {k}: {np.argwhere(wrong)[:5].tolist()}"
    if around is not None:
        np.testing.assert_array_equal(c.base[:, n:], around[:, n:])


@pytest.mark.parametrize(("dtype", "ta", "tb"), KINDS)
def test_edge_sizes(dtype, ta, tb):
    made = Gemm(dtype, ta, tb)
    rng = np.random.default_rng(2)
    for _ in range(2):  # each size of 1 to 20 for m, n and k, twice
        for m, n, k in zip(*(1 + rng.permutation(20) for _ in range(3)), strict=True):
            check(made, m, n, k)
    for m, n, k in rng.integers(1, 71, (12, 3)):
        check(made, m, n, k, spare=3)


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "ta", "tb"), KINDS)
def test_all_edge_sizes(dtype, ta, tb):
    made = Gemm(dtype, ta, tb)
    for m, n, k in itertools.product(range(1, 21), repeat=3):
        check(made, m, n, k)
    for m, n, k in np.random.default_rng(3).integers(1, 71, (400, 3)):
        check(made, m, n, k, spare=1)


@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_many_blocks(ta, tb):
    """All blocks of k, rows and columns, and both paths of every copy."""
    for blocking in (SMALL, PLAIN, None):
        made = Gemm("float32", ta, tb, blocking=blocking)
        check(made, 53, 151, 41, spare=1)
    check(Gemm("float32", ta, tb), 37, 83, 1301)


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k"),
    [
        pytest.param("float32", 2041, 4093, 803, marks=pytest.mark.long),
        ("float64", 2041, 2041, 803),
    ],
)
def test_sums_of_whole_tiles_wait_beside_copies_of_b(dtype, m, n, k):
    """Half of the columns, made a whole number of tiles, is more than blocks have, unless that is one too."""
    check(Gemm(dtype), m, n, k)


@pytest.mark.parametrize("cpu", [None, "x86-64-v3", "x86-64-v4", "znver4", "apple-m1"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_whole_tiles(cpu, dtype):
    made, target = Gemm(dtype), host() if cpu is None else named(cpu)
    tile, blocking = tile_for(made, target), blocking_for(made, target)
    assert (blocking.rows % tile.rows, blocking.columns % tile.columns) == (0, 0)


@pytest.mark.parametrize(
    ("cpu", "depth"), [("znver3", 256), ("znver4", 512), ("sapphirerapids", 128)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_deeper_where_a_vector_takes_two_turns(cpu, depth, dtype):
    assert blocking_for(Gemm(dtype), named(cpu)).depth == depth


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_whole_pages_apart(dtype):
    """Strides that make the kernel copy B though C has few rows."""
    check(Gemm(dtype), 29, 1024, 31)
    check(
        Gemm(dtype, blocking=SMALL), 13, 1100, 31
    )  # in groups of three panels, the last one smaller


def test_empty_sum():
    """k = 0: the sum is 0, so C becomes 0."""
    check(Gemm("float32"), 7, 19, 0)


def test_c_is_not_read():
    made = Gemm("float32")
    a, b, c = operands(made, 13, 21, 5, 3)
    c[...] = np.nan
    gemm(made, a, b, c, host())
    expected, bound = truth(made, a, b)
    assert (abs(c - expected) <= bound).all()


@pytest.mark.parametrize(
    ("ta", "tb"),
    [pytest.param(*both, marks=() if sum(both) == 1 else pytest.mark.long) for both in BOTH],
)
def test_cuts_do_not_change_bits(ta, tb):
    """Tiles of the work, blocks, copies and vector width: all the same bits."""
    plain = Gemm("float32", ta, tb)
    m, n, k = 67, 149, 37

    def result(made, target=host(), tiles=None):  # noqa: B008 - the host is one constant object
        a, b, c = operands(made, m, n, k, 4)
        return gemm(made, a, b, c, target, tiles)

    first = result(plain)
    cuts = [(0, 31, 67), (0, 6, 7, 48, 67)], [(0, 149), (0, 16, 17, 100, 149)]
    for rows, columns in itertools.product(*cuts):
        tiles = [(*i, *j) for i in itertools.pairwise(rows) for j in itertools.pairwise(columns)]
        np.testing.assert_array_equal(result(plain, tiles=tiles), first)
    for blocking in (SMALL, FEW, PLAIN):
        np.testing.assert_array_equal(result(replace(plain, blocking=blocking)), first)
    for target in WIDTHS:
        np.testing.assert_array_equal(result(plain, target), first)


NEVER = 10**6
# Depths and heights of blocks; neither A nor B copied, one of them, both; panels of B copied at a time.
BLOCKINGS = [
    replace(
        SMALL,
        depth=depth,
        rows=rows,
        pack_a_rows=1 if copy_a else NEVER,
        pack_a_columns=1 if copy_a else NEVER,
        crowded_panels=0 if copy_a else NEVER,
        pack_b_rows=1 if copy_b else NEVER,
        pack_b_colliding_rows=1 if copy_b else NEVER,
        kept_bytes=SMALL.kept_bytes if copy_b else 0,
        group=group,
        far_group=group,
    )
    for depth, rows, copy_a, copy_b, group in (
        (3, 6, False, False, 1),
        (5, 12, False, True, 1),
        (7, 6, True, False, 2),
        (3, 12, True, True, 4),
    )
]


@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_blocks_and_copies_do_not_change_bits(ta, tb):
    """What the rule chooses by sizes, chosen for all: the same bits, and the right ones."""
    made = Gemm("float32", ta, tb, blocking=SMALL)
    others = [replace(made, blocking=blocking) for blocking in BLOCKINGS]
    kernel.load([made, *others])  # together they compile faster
    for m, n, k in ((37, 149, 59), (10, 33, 7), (1, 17, 20)):
        a, b, c = operands(made, m, n, k, 4)
        expected, bound = truth(made, a, b)
        first = gemm(made, a, b, c.copy(), host())
        assert (abs(first - expected) <= bound).all()
        for other in others:
            np.testing.assert_array_equal(gemm(other, a, b, c.copy(), host()), first)


@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: str(t.vector_bytes))
def test_vector_widths(target):
    every = [Gemm(dtype, *transposes) for dtype in DTYPES for transposes in BOTH]
    kernel.load(every, target)  # together they compile faster
    for made in every:
        check(made, 23, 137, 19, target)


@dataclass(frozen=True)
class BiasAndSquare:
    """c = (sum + bias[column])**2 + 100 row + column."""

    slots = ("bias",)

    def write(self, code: Code, slots: Slots, value: Value, place: Place) -> Value:
        bias = slots.array("bias", value.type.element).vector(place.column, place.lanes, place.mask)
        total = value + bias
        number = place.row * 100 + place.column + code.lane_numbers(place.lanes, I64)
        return total * total + code.convert(number, value.type.element)


@pytest.mark.parametrize("dtype", DTYPES)
def test_epilogue(dtype):
    """The epilogue sees every element once, with its own row and column."""
    rng = np.random.default_rng(5)
    for n, tiles in ((5, None), (53, [(0, 9, 0, 32), (0, 9, 32, 53), (9, 17, 0, 53)])):
        made = Gemm(dtype, epilogue=BiasAndSquare(), blocking=SMALL)
        a, b, c = operands(made, 17, n, 23, 6)
        bias = rng.standard_normal(n).astype(dtype)
        total, bound = truth(made, a, b)
        gemm(made, a, b, c, host(), tiles, bias=bias)
        number = 100 * np.arange(17)[:, None] + np.arange(n)
        expected = (total + bias) ** 2 + number
        unit = np.finfo(dtype).eps
        allowed = 2 * abs(total + bias) * bound + bound**2 + 4 * unit * (abs(expected) + 1)
        assert (abs(c - expected) <= allowed).all()


def update_of(dtype: str, rate: float) -> Finish:
    """w - rate * product, written over w."""
    step = ("multiply", ("product",), ("constant", rate))
    new = ("subtract", ("argument", 0), step)
    return Finish((Operand("w", dtype),), (Result("w", dtype, new),), ("product",))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(47, 53, 11), (13, 16, 40), (5, 3, 700)])
@pytest.mark.parametrize("blocking", [None, SMALL])
def test_an_update_in_place_needs_no_product_in_memory(dtype, m, n, k, blocking):
    plain = Gemm(dtype, transpose_a=True, blocking=blocking)
    made = replace(plain, epilogue=update_of(dtype, 0.25), unread=True)
    a, b, c = operands(made, m, n, k, 3)
    w, room = matrix(np.random.default_rng(4), m, n, dtype, 5), np.full_like(c, np.nan)
    expected = w - np.array(0.25, dtype) * gemm(plain, a, b, c, host())
    outside = w.base[:, n:].copy()
    gemm(made, a, b, room, host(), w=w, w_row=w.strides[0] // w.itemsize)
    np.testing.assert_array_equal(w, expected)
    np.testing.assert_array_equal(w.base[:, n:], outside)
    if blocking is None and k < 100:  # sums of a single block of k stay out of memory
        assert np.isnan(room).all()


GATE = ("where", ("greater", ("argument", 0), ("constant", 0.0)), ("product",), ("constant", 0.0))
LIGHT = ("add", GATE, ("multiply", ("argument", 1), ("argument", 2)))
COSTLY = ("add", LIGHT, ("multiply", ("constant", 0.0), ("exp", ("argument", 2))))


@pytest.mark.parametrize("blocking", [None, SMALL])
@pytest.mark.parametrize(("m", "n", "k"), [(67, 37, 11), (24, 32, 9), (31, 16, 40), (5, 3, 7)])
def test_light_and_costly_ends_give_the_same(m, n, k, blocking):
    """In registers or from memory, for one tile or for some: operands of all spreads, both results."""
    rng = np.random.default_rng([m, n, k])
    x, rows, number = (rng.standard_normal(s).astype("f4") for s in ((m, n), (m,), (1,)))
    operands_ = (
        Operand("x", "float32"),
        Operand("r", "float32", COLUMN),
        Operand("s", "float32", SCALAR),
    )
    found = []
    for formula in (LIGHT, COSTLY):
        twice = Result("y", "float32", ("add", formula, ("argument", 0)))
        made = Gemm("float32", epilogue=Finish(operands_, (twice,), formula), blocking=blocking)
        a, b, c = operands(made, m, n, k, 3)
        y = np.full((m, n), np.nan, "f4")
        gemm(made, a, b, c, host(), x=x, x_row=n, r=rows, s=number, y=y, y_row=n)
        found.append((c, y))
    product = gemm(Gemm("float32", blocking=blocking), a, b, np.zeros_like(c), host())
    expected = np.where(x > 0, product, np.float32(0)) + rows[:, None] * number
    for c, y in found:
        np.testing.assert_array_equal(c, expected)
        np.testing.assert_array_equal(y, expected + x)


@pytest.mark.parametrize(
    "name", ["x86-64-v3", "x86-64-v4", "znver4", "znver5", "apple-m1", "neoverse-v2"]
)
def test_other_targets(name):
    """The tile of another machine holds its sums in registers: FMAs in the loop, nothing spilt."""
    target = named(name)
    loop = tile_loop(llvm_text([Gemm("float32")], target), target)
    fmas = [line for line in loop if "vfmadd" in line or "fmla" in line]
    steps = blocking_for(Gemm("float32"), target).unroll
    assert len(fmas) == steps * (12 if target.vector_registers == 16 else 24)
    stack = [line for line in loop if "rsp" in line or "[sp" in line]
    assert not [line for line in stack if "mm" in line or name in ("apple-m1", "neoverse-v2")]
    assert len(stack) <= steps // 2  # addresses, once for all steps written out


def tile_loop(text: str, target: Target) -> list[str]:
    """The loop over k of the largest tile, as assembly."""
    blocks = [block for block in _loops(assembly(text, target)) if "fm" in "".join(block)]
    return max(blocks, key=lambda block: sum("vfmadd" in x or "fmla" in x for x in block))


def _loops(listing: str) -> Iterator[list[str]]:
    """The instructions of every block of an assembly listing that jumps back to its own label."""
    label, block = "", list[str]()
    for line in listing.splitlines():
        if line and not line[0].isspace() and ":" in line:
            label, block = line.split(":")[0], []
        elif line.startswith("\t") and not line.startswith("\t."):
            block.append(line)
            if label and line.split()[-1] == label:
                yield list(block)


def guarded(values: np.ndarray) -> np.ndarray:
    """A copy of `values` whose end is the end of readable memory."""
    pages = -(-values.nbytes // mmap.PAGESIZE)
    raw = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    memory = np.frombuffer(raw, np.uint8)
    end = pages * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    last = ctypes.c_void_p(memory.ctypes.data + end)
    assert libc.mprotect(last, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    made = memory[end - values.nbytes : end].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


@pytest.mark.parametrize("blocking", [None, SMALL])
@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_nothing_is_read_beyond_the_matrices(ta, tb, blocking):
    """Matrices end where memory ends: one element too far would end the process."""
    made = Gemm("float32", ta, tb, blocking=blocking)
    rng = np.random.default_rng(8)
    for m, n, k in [*rng.integers(1, 21, (25, 3)), (7, 70, 9), (30, 17, 33)]:
        a, b, c = (guarded(x) for x in operands(made, m, n, k, 9))
        expected, bound = truth(made, a, b)
        gemm(made, a, b, c, host())
        assert (abs(c - expected) <= bound).all()


def used(made: Gemm, m: int, n: int, k: int, ld: int) -> set[str]:
    """Which parts of scratch memory a product of matrices with rows `ld` elements apart writes first in."""
    rng = np.random.default_rng(7)
    a, b = (
        rng.standard_normal((rows, ld)).astype(made.dtype)
        for rows in (k if made.transpose_a else m, k)
    )
    c, scratch = np.zeros((m, n), made.dtype), kernel.scratch(gemm_scratch_bytes(made, host()))
    scratch[:] = 0xA5
    sizes = {"row0": 0, "row1": m, "column0": 0, "column1": n, "k": k}
    (loaded,) = kernel.load([made])
    loaded(kernel.block(made, **sizes, a=a, lda=ld, b=b, ldb=ld, c=c, ldc=n), scratch)
    left = a[:, :m].T if made.transpose_a else a[:, :k]
    sums, unit = (abs(left).astype("f8") @ abs(b[:, :n])).max(), np.finfo(made.dtype).eps / 2
    np.testing.assert_allclose(
        c, left.astype("f8") @ b[:, :n].astype("f8"), rtol=0, atol=2 * (k + 3) * unit * sums
    )
    starts = layout(made, host())
    return {x for x in ("panel", "block") if (scratch[starts[x] :][:64] != 0xA5).any()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [False, True])
def test_what_crowds_caches_is_copied_where_vectors_are_narrow_or_much_is_multiplied(dtype, turned):
    """Rows of 4096 bytes: B for 16 and 150 rows; A, stored transposed, for 96 and 480 columns."""
    made, ld, side = (
        Gemm(dtype, turned),
        4096 // np.dtype(dtype).itemsize,
        "block" if turned else "panel",
    )
    few, many = ((256, 96), (256, 480)) if turned else ((16, 96), (150, 96))
    wide = host().vector_bytes >= 64
    assert (side in used(made, *few, 256, ld)) == (not wide)
    assert side in used(made, *many, 256, ld)


@pytest.mark.parametrize(("cpu", "announced"), [("x86-64-v3", False), ("x86-64-v4", True)])
def test_rows_of_a_below_a_tile_are_announced_beside_vectors_of_a_line(cpu, announced):
    for turned in (False, True):
        assert ("_below" in llvm_text([Gemm("float32", turned)], named(cpu))) == (
            announced and turned
        )
