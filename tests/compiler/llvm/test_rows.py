"""Kernels over rows: what is kept beside a row, sums with one term; equal bits."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.operands import COLUMN, ROW, Operand, Result
from magmadnn.compiler.kernels.rows import (
    NARROW_ROW,
    SHORT_ROW,
    Reduction,
    Rows,
    Stage,
    place_of,
    pointwise,
)
from magmadnn.compiler.llvm.fused.row_formulas import (
    RowFormulas,
    exponentials_of,
    with_choices,
    with_signs,
)
from magmadnn.compiler.llvm.fused.rows import rows_scratch_bytes
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target, host
from magmadnn.compiler.llvm.ir.values import FLOATS
from magmadnn.compiler.llvm.kernel import llvm_text
from magmadnn.compiler.llvm.vmath import MAX_ULP, SPECIAL
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph.program import Program
from tests.compiler.llvm.llvm_calls import WIDTHS, call
from tests.compiler.sample_programs import BATCH, placed

F4, F8, I8 = "float32", "float64", "int64"
X, Y = ("argument", 0), ("argument", 1)
TOP, TOTAL = ("value", "top"), ("value", "total")
HERE = ("equal", Y, ("column",))
ZERO, NAN = ("constant", 0.0, "0.0"), ("constant", float("nan"), "nan")


def softmax(dtype: str, short: bool) -> Rows:
    e = ("exp", ("subtract", X, TOP))
    return Rows(
        (Operand("x", dtype),),
        (
            Stage(reduce=(Reduction("top", "maximum", X, dtype),)),
            Stage(reduce=(Reduction("total", "add", e, dtype),)),
            Stage(store=(Result("y", dtype, ("divide", e, TOTAL)),)),
        ),
        dtype,
        short=short,
    )


def exponentials(kernel: Rows) -> object:
    signed = with_signs(kernel)
    return exponentials_of(signed, RowFormulas(signed))


def ran(
    made: Rows, x: np.ndarray, target: Target, y: np.ndarray | None = None, **more
) -> np.ndarray:
    y = np.full_like(x, np.nan) if y is None else y
    rows, columns = x.shape
    slots = {
        "row0": 0, "row1": rows, "column0": 0, "column1": columns, "x": x, "x_row": columns,
        "y": y, "y_row": columns, **more,
    }  # fmt: skip
    call(made, target, **{s: slots[s] for s in made.slots})
    return y


def drawn(rows: int, columns: int, dtype: str = F4) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(rows, columns)).astype(dtype) * 3


@pytest.mark.parametrize("dtype", [F4, F8])
@pytest.mark.parametrize("columns", [1, 7, 31, 32, 33, 127, 8192])
def test_kept_and_computed_anew(dtype: str, columns: int) -> None:
    """Both accurate, and the same bits in vectors of any width."""
    x = drawn(3, columns, dtype)
    wide = np.exp(x.astype(F8) - x.max(1, keepdims=True))
    true = wide / wide.sum(1, keepdims=True)
    # exp of 1 ulp and its argument rounded once, 32 chains of sums, a division
    allowed = np.finfo(dtype).eps * true * (4 + columns / 16 + abs(x - x.max(1, keepdims=True)))
    for short in (True, False):
        results = [ran(softmax(dtype, short), x, target) for target in WIDTHS]
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
        assert (abs(results[0] - true) <= allowed).all()


@pytest.mark.parametrize("dtype", [F4, F8])
def test_loops_that_narrow_rows_lack_change_no_bit(dtype: str) -> None:
    for target in WIDTHS:
        for columns in (1, 2, 5, 8, 10, 17, NARROW_ROW - 1):
            x, kernel = drawn(3, columns, dtype), softmax(dtype, True)
            found = ran(replace(kernel, narrow=True), x, target)
            np.testing.assert_array_equal(found, ran(kernel, x, target))


def test_narrow_rows_have_less_code() -> None:
    def size(columns: int) -> int:
        (work,) = native_plan(Program.of([ops.softmax(placed("x", BATCH, columns))])).work
        assert work.lowered is not None
        return len(llvm_text([work.lowered.kernel], host()))

    assert size(NARROW_ROW - 1) < 0.8 * size(NARROW_ROW)


def test_exponentials_are_computed_once() -> None:
    kernel = with_signs(softmax(F4, True))
    (kept,) = RowFormulas(kernel).kept
    assert kept[0] == "exp_below_zero"
    assert rows_scratch_bytes(kernel) == 8 * SHORT_ROW
    assert rows_scratch_bytes(softmax(F4, False)) == 0


def test_only_what_is_less_than_its_largest_is_known_to_be_below_zero() -> None:
    other = Rows(
        (Operand("x", F4), Operand("y", F4)),
        (
            Stage(reduce=(Reduction("top", "maximum", X),)),
            Stage(store=(Result("z", F4, ("exp", ("subtract", Y, TOP))),)),
        ),
    )
    assert with_signs(other) == other


def test_rows_with_nan_and_infinity() -> None:
    x = drawn(4, 45)
    x[0, 3], x[1, 44], x[2, 0] = np.nan, np.inf, -np.inf
    for target in WIDTHS:
        y = ran(softmax(F4, True), x, target)
        assert np.isnan(y[:2]).any(1).all() and np.isnan(y[0]).all()
        assert y[2, 0] == 0 and abs(y[2:].sum(1) - 1 < 1e-6).all()


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", [F4, F8])
def test_extremes(dtype: str, kind: str) -> None:
    """NaN is found wherever it stands, infinities are numbers, and no column is left out."""
    extreme = Rows(
        (Operand("x", dtype),),
        (Stage(reduce=(Reduction("top", kind, X, dtype),), store_row=(Result("y", dtype, TOP, COLUMN),)),),
        dtype,
    )  # fmt: skip
    numpy = {"maximum": np.max, "minimum": np.min}[kind]
    for columns in (1, 2, 31, 32, 64, 71, 133):
        x = np.repeat(drawn(1, columns, dtype), 3 * columns + 1, axis=0)
        for place in range(columns):
            x[3 * place : 3 * place + 3, place] = np.nan, np.inf, -np.inf
        for target in WIDTHS:
            found = ran(extreme, x, target, np.zeros(len(x), dtype))
            np.testing.assert_array_equal(found, numpy(x, axis=1))


@pytest.mark.parametrize("dtype", [F4, F8])
def test_exp_below_zero(dtype: str) -> None:
    """Units in the last place against mpmath, subnormal results included; special values exactly."""
    rng = np.random.default_rng(5)
    lowest = float(np.log(np.finfo(dtype).smallest_subnormal))
    x = np.concatenate([rng.uniform(1.02 * lowest, 0, 600), -(10.0 ** rng.uniform(-30, 0, 200))])
    x = np.concatenate([x, [0.0, -0.0, -np.inf, np.nan, -3e38]]).astype(dtype)
    x = np.resize(x, 832)
    y = np.empty_like(x)
    call(_Known("exp_below_zero", dtype, 4), host(), n=x.size, x=x, y=y)
    with mpmath.workprec(120):
        for argument, found in zip(x[:800], y[:800], strict=True):
            true = mpmath.exp(mpmath.mpf(float(argument)))
            unit = mpmath.mpf(float(np.spacing(dtype_of(dtype, true))))
            assert (
                abs(mpmath.mpf(float(found)) - true)
                <= MAX_ULP["exp_below_zero"][dtype == F8] * unit
            )
    np.testing.assert_array_equal(y[800:805], np.array([1, 1, 0, np.nan, 0], dtype))


@pytest.mark.parametrize("dtype", [F4, F8])
def test_exp_scaled(dtype: str) -> None:
    """Units in the last place against mpmath, for all arguments that are told from each other."""
    rng = np.random.default_rng(7)
    low, high, power = (-131, 27, 64) if dtype == F4 else (-1063, 300, 512)
    x = np.concatenate(
        [rng.uniform(low, high, 500), rng.uniform(-5, 5, 500), -(10.0 ** rng.uniform(-30, 0, 150))]
    )
    x = np.concatenate([x, [0.0, -0.0, np.nan, np.inf, -np.inf, low]]).astype(dtype)
    x = np.resize(x, 1168)
    for lanes in (1, 4, 8, 16):
        y = np.empty_like(x)
        call(_Known("exp_scaled", dtype, lanes), host(), n=x.size, x=x, y=y)
        one = 2.0**power
        np.testing.assert_array_equal(y[1150:1154], np.array([one, one, np.nan, np.nan], dtype))
        assert y[1154] == y[1155] > np.finfo(dtype).smallest_normal
        with mpmath.workprec(120):
            for argument, found in zip(x[:1150], y[:1150], strict=True):
                true = mpmath.exp(mpmath.mpf(float(argument))) * mpmath.mpf(2) ** power
                unit = mpmath.mpf(float(np.spacing(dtype_of(dtype, true))))
                error = abs(mpmath.mpf(float(found)) - true)
                assert error <= MAX_ULP["exp_scaled"][dtype == F8] * unit


@pytest.mark.parametrize("dtype", [F4, F8])
@pytest.mark.parametrize("columns", [1, 7, 33, 100, 8192])
def test_sums_of_small_terms(dtype: str, columns: int) -> None:
    """By one walk, beside a kernel that stores the terms as well, for which it takes two."""
    e = ("exp", ("subtract", X, TOP))
    top = Stage(reduce=(Reduction("top", "maximum", X, dtype),))
    total = Reduction("total", "add", e, dtype)
    sums = (Result("y", dtype, TOTAL, COLUMN),)
    alone = Rows((Operand("x", dtype),), (top, Stage(reduce=(total,), store_row=sums)), dtype, True)
    kept = Stage(reduce=(total,), store=(Result("e", dtype, e),), store_row=sums)
    exact = Rows(alone.operands, (top, kept), dtype, True)
    assert [exponentials(one) is not None for one in (alone, exact)] == [True, False]
    rng = np.random.default_rng(6)
    low = 1.05 * float(np.log(np.finfo(dtype).smallest_subnormal))
    x = np.concatenate([
        rng.uniform(scale * low, 0, (40, columns)) for scale in (1.0, 0.8, 0.3, 0.1)
    ]).astype(dtype)  # fmt: skip
    x[5:9], x[9:12, 0], x[12] = low, 0, -np.inf
    x[13, columns // 2], x[14, 0], x[15, -1] = np.inf, np.nan, -np.inf
    found, wanted = (np.zeros(len(x), dtype) for _ in range(2))
    more = {"e": np.zeros_like(x), "e_row": columns}
    for target in WIDTHS:
        ran(alone, x, target, found)
        ran(exact, x, target, wanted, **more)
        np.testing.assert_allclose(found, wanted, 4 * np.finfo(dtype).eps)
    assert np.isfinite(wanted).sum() >= len(x) - 4


@pytest.mark.parametrize("dtype", [F4, F8])
@pytest.mark.parametrize("columns", [32, 100, 1024])
def test_softmax_wherever_the_largest_of_a_row_is(dtype: str, columns: int) -> None:
    """Near 0, where one walk serves; far from it, unlike the first or not; beside -inf, NaN and inf."""
    bound, small = (27, 50) if dtype == F4 else (300, 400)
    tops = [0, 1, -1, bound - 1, 1 - bound, bound + 1, -1 - bound, 3 * bound, -9 * bound, 3e4, -3e4]
    x = drawn(2 * len(tops) + 6, columns, dtype)
    x -= x.max(1, keepdims=True)
    for row, top in enumerate(tops):
        x[row] += dtype_of(dtype, top)
        x[row, 1::2] -= small
        x[row + len(tops)] -= small
        x[row + len(tops), [0, -1]] = min(top, 0), top
    x[-6, 1:], x[-5], x[-4, ::2] = -np.inf, -np.inf, -np.inf
    x[-3, columns // 2], x[-2, -1], x[-1, 0] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        below = x.astype(np.longdouble) - x.max(1, keepdims=True)
        true = np.exp(below)
        largest = x.max(1)
        true /= true.sum(1, keepdims=True)
        far = np.where(true > 0, abs(below), 0)
        allowed = np.finfo(dtype).eps * true * (8 + columns / 16 + far)
    for short in (True, False):
        made = softmax(dtype, short)
        last = replace(made.stages[-1], store_row=(Result("t", dtype, TOP, COLUMN),))
        made, t = replace(made, stages=(*made.stages[:-1], last)), np.zeros(len(x), dtype)
        found = [ran(made, x, target, t=t) for target in WIDTHS]
        np.testing.assert_array_equal(t, largest)
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[2], found[0])
        y, finite = found[0], np.isfinite(true).all(1)
        smallest = 2 * np.finfo(dtype).smallest_subnormal
        assert (abs(y - true)[finite] <= allowed[finite] + smallest).all()
        np.testing.assert_array_equal(np.isnan(y).any(1), ~finite)
        assert (y[np.isneginf(x)][: columns // 2] == 0).all()


@pytest.mark.parametrize("other", [F4, F8])
@pytest.mark.parametrize("columns", [1, 8, 31, 100, 1024])
def test_two_values_in_a_row_are_chosen_from(columns: int, other: str) -> None:
    """What a class makes of a row is worked out once; not where a wider operand makes it wider."""
    one = ("cast", HERE, F4)
    hot = ("multiply", ("where", ("argument", 2), NAN, one), ("argument", 3))
    made = Rows(
        (Operand("x", F4), Operand("t", I8, COLUMN), Operand("b", "bool", COLUMN),
         Operand("g", other, COLUMN)),
        (Stage(store=(Result("y", F4, ("subtract", hot, X)),)),),
    )  # fmt: skip
    formula = with_choices(made).stages[0].store[0].formula
    assert formula[1][0] == ("where" if other == F4 else "multiply")
    x = drawn(5, columns)
    t, b = np.array([0, columns - 1, columns, -1, columns // 2]), np.arange(5) == 1
    g = np.array([-0.3, 2, 3, np.inf, 0.1], other)
    wanted = np.where(b[:, None], np.nan, t[:, None] == np.arange(columns)).astype(F4)
    with np.errstate(invalid="ignore"):
        wanted = (wanted * g[:, None] - x).astype(F4)
    for target in WIDTHS:
        np.testing.assert_array_equal(ran(made, x, target, t=t, b=b, g=g), wanted)


@pytest.mark.parametrize("columns", [1, 8, 15, 16, 17, 40])
def test_long_formulas_take_two_registers(columns: int) -> None:
    """Where nothing is reduced; each element as in a vector of one register."""
    x = drawn(3, columns)
    for formula, together in (("exp", X), 2), (("add", X, X), 1):
        made = pointwise((Operand("x", F4),), Result("y", F4, formula))
        found = [ran(made, x, target) for target in WIDTHS]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])
        np.testing.assert_allclose(found[0], np.exp(x) if together == 2 else x + x, 1e-6)
        for target in WIDTHS:
            text = llvm_text([made], target)
            assert f"<{together * target.lanes(4)} x float>" in text
            assert f"<{2 * together * target.lanes(4)} x float>" not in text


def dtype_of(dtype: str, value: object) -> np.floating:
    return np.dtype(dtype).type(float(value))  # type: ignore[arg-type]  # mpmath has no types


class _Known:
    """y = f(x) for n elements, f for arguments of which something is known."""

    slots = ("n", "x", "y")

    def __init__(self, name: str, dtype: str, lanes: int) -> None:
        self.name, self.dtype, self.lanes = name, dtype, lanes

    def __repr__(self) -> str:
        return f"_Known({self.name}, {self.dtype}, {self.lanes})"

    def write(self, code, frame: Frame, target: Target) -> None:
        item, lanes = FLOATS[self.dtype], self.lanes
        x, y = frame.array("x", item), frame.array("y", item)
        with code.loop(0, frame.integer("n"), lanes) as i:
            if lanes == 1:
                y[i] = SPECIAL[self.name](code, x[i])
            else:
                y.put(i, SPECIAL[self.name](code, x.vector(i, lanes)))


# --- one column -----------------------------------------------------------------------------------


def picked(formula: tuple, dtype: str = I8) -> Rows:
    return Rows(
        (Operand("x", F4), Operand("c", dtype, COLUMN), Operand("w", F4, COLUMN)),
        (
            Stage(
                reduce=(Reduction("total", "add", formula),),
                store_row=(Result("t", F4, TOTAL, COLUMN),),
            ),
        ),
    )


def sums(made: Rows, x: np.ndarray, c: np.ndarray, w: np.ndarray, target: Target) -> np.ndarray:
    t = np.full(len(x), np.nan, F4)
    ran(made, x, target, c=c, w=w, t=t)
    return t


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_the_element_of_a_class_is_found_without_a_walk(dtype: str) -> None:
    x, c, w = drawn(5, 45), np.array([0, 44, 45, 31, 32], dtype), np.ones(5, F4)
    x[1, 44], x[3, 7] = -0.0, np.nan  # of another column
    made = picked(("where", HERE, ("multiply", X, X), ZERO), dtype)
    assert RowFormulas(made).spikes
    expected = [x[0, 0] ** 2, 0, 0, x[3, 31] ** 2, x[4, 32] ** 2]
    for target in WIDTHS:
        np.testing.assert_array_equal(sums(made, x, c, w, target), np.array(expected, F4))


def test_a_class_below_zero_is_nowhere() -> None:
    x, made = drawn(2, 9), picked(("where", HERE, X, ZERO))
    c = np.array([-1, 8])
    np.testing.assert_array_equal(sums(made, x, c, np.ones(2, F4), host()), [0, x[1, 8]])


def test_terms_elsewhere_that_are_not_zero_are_summed() -> None:
    """w where the class is, and in every other column 0 * w, which is NaN for an infinite w; or 3 w."""
    x, c = drawn(4, 45), np.array([1, 44, 9, 60])
    w = np.array([2.5, np.inf, np.nan, -1], F4)
    hot = picked(("multiply", ("cast", HERE, F4), ("argument", 2)))
    assert RowFormulas(hot).spikes
    others = ("multiply", ("subtract", ("constant", 3.0), ("cast", HERE, F4)), ("argument", 2))
    for target in WIDTHS:
        np.testing.assert_array_equal(sums(hot, x, c, w, target), [2.5, np.nan, np.nan, 0])
        finite = sums(picked(others), x, c, np.array([1, 2, 1, 1], F4), target)
        np.testing.assert_array_equal(finite, np.array([134, 268, 134, 135], F4))


def test_what_is_no_test_of_an_integer_column() -> None:
    operands = (Operand("x", F4), Operand("c", F4, COLUMN), Operand("d", I8, ROW))
    for other in (("argument", 1), ("argument", 2), ("constant", 3)):
        assert place_of(("equal", other, ("column",)), operands) is None


@pytest.mark.parametrize("short", [True, False])
def test_an_element_is_changed_where_the_class_is(short: bool) -> None:
    x, c = drawn(4, 77), np.array([76, -1, 0, 900])
    made = Rows(
        (Operand("x", F4), Operand("c", I8, COLUMN)),
        (Stage(store=(Result("y", F4, ("subtract", X, ("cast", HERE, F4))),)),),
        short=short,
    )
    expected = x - (np.arange(77) == c[:, None]).astype(F4)
    for target in WIDTHS:
        np.testing.assert_array_equal(ran(made, x, target, c=c), expected)
