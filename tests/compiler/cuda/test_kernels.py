"""Fused kernels as CUDA C++: primitives against NumPy, reductions of all sizes, CUDA's compiler."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.compiler.cuda.fused import columns as columns_text
from magmadnn.compiler.cuda.fused import cut_columns, cut_rows
from magmadnn.compiler.cuda.fused.columns import ColumnsVariant
from magmadnn.compiler.cuda.fused.draw import DrawKeys, DrawVariant
from magmadnn.compiler.cuda.fused.moves import AddPickedVariant, MoveVariant, PickVariant
from magmadnn.compiler.cuda.fused.put_rows import PutRows
from magmadnn.compiler.cuda.fused.rows import RowsVariant
from magmadnn.compiler.cuda.fused.step_ends import Advance, Fetch, FetchPart, KeepAll
from magmadnn.compiler.cuda.module import OPTIONS, choose, module_text, symbol
from magmadnn.compiler.cuda.text.finite import LookFinite, LookWithin
from magmadnn.compiler.cuda.text.variant import Chip, Launch, Variant
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.formula import DTYPES, PRIMITIVES, REAL_FUNCTIONS, TRUTHS
from magmadnn.compiler.kernels.moves import AddPicked, Move, Pick
from magmadnn.compiler.kernels.operands import COLUMN, ROW, SCALAR, Operand, Result
from magmadnn.compiler.kernels.rows import Reduction, Rows, Stage, pointwise
from magmadnn.compiler.lower import row_blocks
from magmadnn.compiler.lower.row_blocks import in_blocks
from magmadnn.graph import scalar
from magmadnn.memory import as_dtype
from tests.compiler.cuda.nvrtc import ARCHITECTURES, compiled
from tests.compiler.exact_draw import ON_X86
from tests.runtime.cuda.emulator import emulated_device, needs_compiler, run_launch

X, Y = ("argument", 0), ("argument", 1)
F4 = "float32"
UNARY = {"negative", "absolute", "sign", "floor", "ceil", "logical_not", "isnan"} | (
    REAL_FUNCTIONS - {"divide", "power"}
)
CHIP = Chip(60, 4, 48 << 10)


def run(kernel: Any, shape: tuple[int, int], **arrays: np.ndarray) -> None:
    """Run a kernel over a matrix of `shape`, with arrays given by their slots' names."""
    values = {"row0": 0, "row1": shape[0], "column0": 0, "column1": shape[1]}
    for name, array in arrays.items():
        values[name] = array.ctypes.data
        if f"{name}_row" in kernel.slots:
            values[f"{name}_row"] = array.strides[0] // array.itemsize
    launch = choose(kernel, values, CHIP)
    if launch is not None:
        run_all([launch])


def run_all(launches: list[Launch]) -> None:
    """Compile and run launches one after the other."""
    with emulated_device() as engine:
        variants = list(dict.fromkeys(one.variant for one in launches))
        image = engine.compile(module_text(variants), ())
        functions = engine.load(image, [symbol(k) for k in range(len(variants))])
        for one in launches:
            run_launch(functions[variants.index(one.variant)], one.grid, one.block, one.arguments)


def samples(dtype: str, count: int = 37) -> np.ndarray:
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.random(count) < 0.5
    if dtype.startswith("float"):
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 1e-30, 7e4]
        return np.r_[special, rng.standard_normal(count - len(special)) * 3].astype(dtype)
    limits = np.iinfo(dtype)
    edges = [limits.min, limits.max, 0, 1, 2, limits.max - 1]
    return np.r_[edges, rng.integers(0, 100, count - len(edges))].astype(dtype)


def test_every_primitive_has_its_expression() -> None:
    assert set(PRIMITIVES) <= set(scalar.PRIMITIVES)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_primitives_mean_what_they_mean_in_numpy(dtype: str) -> None:
    """All primitives that a dtype has, in one module, on special values in all pairs."""
    a = samples(dtype)
    left, right = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(a, a, indexing="ij"))
    launches, expected, made = [], [], []
    for name in sorted(PRIMITIVES - {"where"}):
        if name in REAL_FUNCTIONS and not dtype.startswith("float"):
            continue
        operands = [left] if name in UNARY else [left, right]
        wanted = _expected(name, operands)
        if wanted is None:
            continue
        formula = (name, *(X, Y)[: len(operands)])
        result = np.full(left.size, 77, wanted.dtype)
        kernel = pointwise(
            tuple(Operand(f"x{k}", dtype) for k in range(len(operands))),
            Result("y", wanted.dtype.name, formula),
        )
        values = {"row0": 0, "row1": 1, "column0": 0, "column1": left.size, "y": result.ctypes.data}
        values |= {f"x{k}": x.ctypes.data for k, x in enumerate(operands)}
        values |= {slot: 0 for slot in kernel.slots if slot.endswith("_row")}
        launch = choose(kernel, values, CHIP)
        assert launch is not None
        launches.append(launch)
        expected.append((name, wanted))
        made.append(result)
    run_all(launches)
    for (name, wanted), result in zip(expected, made, strict=True):
        close = name in REAL_FUNCTIONS - {"divide", "sqrt"}
        if close:
            np.testing.assert_array_max_ulp(
                result[np.isfinite(wanted)], wanted[np.isfinite(wanted)], 4
            )
        same = ~np.isfinite(wanted) if close else np.ones(wanted.shape, bool)
        np.testing.assert_array_equal(result[same], wanted[same], err_msg=name)
        if wanted.dtype.kind == "f":
            zeros = wanted == 0
            np.testing.assert_array_equal(
                np.signbit(result[zeros]), np.signbit(wanted[zeros]), name
            )


@needs_compiler
@pytest.mark.skipif(not ON_X86, reason="what is out of range is not the same in NumPy elsewhere")
def test_conversions_are_numpys() -> None:
    """Between all dtypes, in range, at its ends and beyond, all in one module."""
    beyond = [127, 128, 200, 255, 256, -1, -128, -129, 3e9, -3e9, 1e19, -1e19, 2.0**31, 2.0**63]
    launches, made = [], []
    for source in DTYPES:
        given = samples(source)
        if source.startswith("float"):
            given = np.r_[given, np.array(beyond, source)]
        for goal in DTYPES:
            y = np.full(given.size, 77 % 2, goal)
            kernel = pointwise((Operand("x", source),), Result("y", goal, ("cast", X, goal)))
            values = {
                "row0": 0,
                "row1": 1,
                "column0": 0,
                "column1": given.size,
                "x_row": 0,
                "y_row": 0,
            }
            values |= {"x": given.ctypes.data, "y": y.ctypes.data}
            launch = choose(kernel, values, CHIP)
            assert launch is not None
            launches.append(launch)
            made.append((given, goal, y))
    run_all(launches)
    for given, goal, y in made:
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(y, given.astype(goal), err_msg=f"{given.dtype} {goal}")


def _expected(name: str, operands: list[np.ndarray]) -> np.ndarray | None:
    """What NumPy gives; None where it refuses, or computes in a dtype that formulas do not have."""
    kind = operands[0].dtype
    if kind in (np.bool_, np.uint8) and name not in TRUTHS:
        operands = [x.astype(np.int32) for x in operands]  # as formulas compute
    with np.errstate(all="ignore"):
        found = np.asarray(scalar.PRIMITIVES[name](*operands))
    return found if found.dtype.name in DTYPES else None


@needs_compiler
@pytest.mark.parametrize("columns", [1, 2, 7, 32, 100, 129, 528, 4099, 20000])
@pytest.mark.parametrize("rows", [1, 5])
def test_softmax_of_rows_of_all_lengths(rows: int, columns: int) -> None:
    x = np.random.default_rng(5).standard_normal((rows, columns)).astype(F4) * 3
    y, top, total = np.full_like(x, 9), ("value", "top"), ("value", "total")
    power = ("exp", ("subtract", X, top))
    kernel = Rows(
        (Operand("x", F4),),
        (
            Stage(reduce=(Reduction("top", "maximum", X),)),
            Stage(reduce=(Reduction("total", "add", power),)),
            Stage(store=(Result("y", F4, ("divide", power, total)),)),
        ),
    )
    run(kernel, x.shape, x=x, y=y)
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(y, exact, rtol=32 * np.finfo(F4).eps)


@needs_compiler
@pytest.mark.parametrize("rows", [0, 1, 3, 100, 1000])
@pytest.mark.parametrize("columns", [1, 33])
def test_sums_over_rows(rows: int, columns: int) -> None:
    x = np.random.default_rng(5).standard_normal((rows, columns)).astype(F4)
    start, y = np.arange(columns, dtype=F4), np.full(columns, 9, F4)
    kernel = Columns(
        (Operand("x", F4), Operand("w", F4, ROW)),
        (Reduction("total", "add", X),),
        (Result("y", F4, ("subtract", Y, ("value", "total")), ROW),),
    )
    run(kernel, x.shape, x=x, w=start, y=y)
    exact = start - x.astype(np.float64).sum(0)
    assert np.abs(y - exact).max() <= 8 * np.finfo(F4).eps * max(rows, columns, 1)


@needs_compiler
@pytest.mark.parametrize("dtype", [F4, "bfloat16", "float64"])
@pytest.mark.parametrize(("rows", "columns"), [(700, 128), (641, 520), (640, 1034)])
def test_sums_over_many_rows_are_the_same_in_groups_of_columns(
    rows: int, columns: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(5).standard_normal((rows, columns)).astype(as_dtype(dtype))
    total = "float64" if dtype == "float64" else F4
    y, z = (np.full(columns, 9, total) for _ in range(2))
    kernel = Columns(
        (Operand("x", dtype),),
        (Reduction("total", "add", X, total),),
        (Result("y", total, ("value", "total"), ROW),),
    )
    run(kernel, x.shape, x=x, y=y)
    monkeypatch.setattr(cut_columns, "width_for", lambda *_: 1)
    run(kernel, x.shape, x=x, y=z)
    np.testing.assert_array_equal(y, z)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(0), atol=2e-5 * rows)


@needs_compiler
@pytest.mark.parametrize(("columns", "block"), [(64, (8, 64)), (128, (16, 32))])
def test_several_sums_over_blocks_of_rows(
    columns: int, block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # gradients of two normalisations: narrow blocks have more lanes, three sums share memory in turn
    monkeypatch.setattr(row_blocks, "_PIECES", 8)  # long blocks of few rows
    rows, width = 16384, 8
    rng = np.random.default_rng(5)
    x, dy = (rng.standard_normal((rows, columns)).astype(ml_dtypes.bfloat16) for _ in range(2))
    mean = rng.standard_normal(columns).astype(F4)
    dy_of, centred = ("argument", 1), ("subtract", X, ("argument", 2))
    formulas = (("multiply", centred, dy_of), dy_of, ("multiply", centred, centred))
    kernel = Columns(
        (Operand("x", "bfloat16"), Operand("dy", "bfloat16"), Operand("mean", F4, ROW)),
        tuple(Reduction(f"t{k}", "add", f) for k, f in enumerate(formulas)),
        tuple(Result(f"y{k}", F4, ("value", f"t{k}"), ROW) for k in range(3)),
    )
    y = [np.full(columns, 9, F4) for _ in range(3)]
    arrays = {"x": x, "dy": dy, "mean": mean, **{f"y{k}": one for k, one in enumerate(y)}}
    values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns}
    values |= {name: one.ctypes.data for name, one in arrays.items()}
    values |= {f"{name}_row": columns for name in ("x", "dy")}
    room = np.zeros(3 * 256 * columns, F4)
    cut = in_blocks(kernel, values, room.ctypes.data)
    assert cut is not None
    launch = choose(cut.first, cut.values[0], Chip())
    assert launch is not None and isinstance(launch.variant, ColumnsVariant)
    assert (*launch.block[:2], launch.variant.width) == (*block, width)
    declared = re.findall(r"__shared__ float (\w+)\[(\d+)\]\[(\d+)\]", launch.variant.text("f"))
    assert len(declared) == 2 and all(int(a) * int(b) * 4 == 8192 for _, a, b in declared)
    joined = choose(cut.last, cut.last_values, Chip())
    assert joined is not None
    run_all([launch, joined])
    wide, g = x.astype(np.float64) - mean, dy.astype(np.float64)
    for one, terms in zip(y, (wide * g, g, wide * wide), strict=True):
        bound = (rows / 2048 + 24) * 2.0**-24 * np.abs(terms).sum(0)
        assert (np.abs(one - terms.sum(0)) <= bound).all()


@needs_compiler
@pytest.mark.parametrize("columns", [64, 128])
def test_rows_that_come_while_others_are_added(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that need many registers read early, and have the same bits; the last block is short."""
    monkeypatch.setattr(row_blocks, "_PIECES", 8)
    rows = 16387
    rng = np.random.default_rng(5)
    x, dy = (rng.standard_normal((rows, columns)).astype(ml_dtypes.bfloat16) for _ in range(2))
    of_rows = {name: rng.standard_normal(columns).astype(F4) for name in ("mean", "scale", "shift")}
    mean, scale, shift = (("argument", k) for k in (2, 3, 4))
    centred = ("subtract", X, mean)
    kept = ("greater", ("add", ("multiply", centred, scale), shift), ("constant", 0.0))
    cut_off = ("where", kept, Y, ("constant", 0.0))
    kernel = Columns(
        (
            Operand("x", "bfloat16"),
            Operand("dy", "bfloat16"),
            *(Operand(n, F4, ROW) for n in of_rows),
        ),
        (Reduction("a", "add", ("multiply", centred, cut_off)), Reduction("b", "add", cut_off)),
        (Result("y0", F4, ("value", "a"), ROW), Result("y1", F4, ("value", "b"), ROW)),
    )
    made = []
    for most, early in ((columns_text._MOST_KEPT, True), (10**6, False)):
        monkeypatch.setattr(columns_text, "_MOST_KEPT", most)
        y = [np.full(columns, 9, F4) for _ in range(2)]
        arrays = {"x": x, "dy": dy, **of_rows, "y0": y[0], "y1": y[1]}
        values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns, "x_row": columns}
        values |= {name: one.ctypes.data for name, one in arrays.items()} | {"dy_row": columns}
        room = np.zeros(2 * 256 * columns, F4)
        cut = in_blocks(kernel, values, room.ctypes.data)
        assert cut is not None
        launches = [choose(cut.first, cut.values[0], Chip())]
        launches.append(choose(cut.last, cut.last_values, Chip()))
        first, last = launches
        assert first is not None and isinstance(first.variant, ColumnsVariant) and last is not None
        assert first.variant.reads_early == early
        run_all([first, last])
        made.append(y)
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)
    wide = x.astype(F4) - of_rows["mean"]
    g = np.where(wide * of_rows["scale"] + of_rows["shift"] > 0, dy.astype(np.float64), 0)
    for one, terms in zip(made[0], (wide * g, g), strict=True):
        bound = (rows / 512 + 24) * 2.0**-24 * np.abs(terms).sum(0)
        assert (np.abs(one - terms.sum(0)) <= bound).all()


@needs_compiler
@pytest.mark.parametrize(("rows", "ahead"), [(64, 1), (6144, 2), (10007, 2)])
def test_threads_take_several_rows_that_share_operands(rows: int, ahead: int) -> None:
    """What all rows share is read once by a thread; others are those of each row."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((rows, 16)).astype(ml_dtypes.bfloat16)
    scale, shift = (rng.standard_normal(16).astype(F4) for _ in range(2))
    column, one = rng.standard_normal(rows).astype(F4), rng.standard_normal(1).astype(F4)
    operands = (
        Operand("x", "bfloat16"), Operand("a", F4, ROW), Operand("b", F4, ROW), Operand("c", F4, COLUMN),
        Operand("s", F4, SCALAR),
    )  # fmt: skip
    a, b, c, s = (("argument", k) for k in range(1, 5))
    formula = ("multiply", ("add", ("add", ("multiply", X, a), b), c), s)
    kernel = pointwise(operands, Result("y", F4, formula))
    y = np.full((rows, 16), 9, F4)
    values = dict.fromkeys(kernel.slots, 0) | {"row1": rows, "column1": 16}
    launch = choose(kernel, values | {"x_row": 16, "y_row": 16, "c_row": 1}, CHIP)
    assert launch is not None and isinstance(launch.variant, RowsVariant)
    assert launch.variant.ahead == ahead
    assert ahead == 1 or launch.grid[1] * launch.block[1] <= -(-rows // 2)
    run(kernel, x.shape, x=x, a=scale, b=shift, c=column, s=one, y=y)
    np.testing.assert_array_equal(y, (x.astype(F4) * scale + shift + column[:, None]) * one)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", F4, "float64"])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 40000), (3, 30001), (7, 9000), (9, 8200), (1031, 33), (517, 1), (6143, 7)],
)
def test_rows_of_a_thread_at_odd_sizes(
    rows: int, columns: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer rows than a thread may take, numbers that no vector divides; the result takes x's place."""
    monkeypatch.setattr(cut_rows, "_LEAST_BLOCKS", 1)
    rng = np.random.default_rng(7)
    wide = "float64" if dtype == "float64" else F4
    x = rng.standard_normal((rows, columns)).astype(as_dtype(dtype))
    scale, shift = (rng.standard_normal(columns).astype(wide) for _ in range(2))
    column = rng.standard_normal(rows).astype(wide)
    operands = (
        Operand("x", dtype), Operand("a", wide, ROW), Operand("b", wide, ROW), Operand("c", wide, COLUMN),
    )  # fmt: skip
    a, b, c = (("argument", k) for k in range(1, 4))
    kernel = pointwise(operands, Result("y", dtype, ("add", ("add", ("multiply", X, a), b), c)))
    expected = (x.astype(wide) * scale + shift + column[:, None]).astype(x.dtype)
    arrays = {"x": x, "a": scale, "b": shift, "c": column, "y": x}
    values = dict.fromkeys(kernel.slots, 0) | {"row1": rows, "column1": columns, "c_row": 1}
    values |= {"x_row": columns, "y_row": columns} | {n: o.ctypes.data for n, o in arrays.items()}
    launch = choose(kernel, values, Chip(60, 1, 48 << 10))
    assert launch is not None and isinstance(launch.variant, RowsVariant)
    assert launch.variant.ahead == 2
    run_all([launch])
    np.testing.assert_array_equal(x, expected)


@needs_compiler
@pytest.mark.parametrize("spare", [0, 1, 4])
def test_operands_of_all_spreads(spare: int) -> None:
    """Rows that lie apart, odd numbers of columns, values of a row, of a column, of all."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, 12 + spare)).astype(F4)[:, :12]
    row, column, one = (rng.standard_normal(n).astype(F4) for n in (12, 6, 1))
    mask = rng.random((6, 12)) < 0.5
    y = np.full((6, 12), 9, F4)
    operands = (
        Operand("x", F4), Operand("r", F4, ROW), Operand("c", F4, COLUMN), Operand("s", F4, SCALAR),
        Operand("m", "bool"),
    )  # fmt: skip
    arguments = [("argument", k) for k in range(5)]
    total = ("add", ("multiply", arguments[0], arguments[1]), ("add", arguments[2], arguments[3]))
    kernel = pointwise(operands, Result("y", F4, ("where", arguments[4], total, X)))
    run(kernel, x.shape, x=x, r=row, c=column, s=one, m=mask, y=y)
    np.testing.assert_array_equal(y, np.where(mask, x * row + (column[:, None] + one), x))


@pytest.mark.parametrize(("major", "architecture"), ARCHITECTURES)
def test_cudas_compiler_takes_the_text(major: int, architecture: str) -> None:
    made = compiled(module_text(list(_one_of_each())), major, [*OPTIONS, f"-arch={architecture}"])
    assert made[0].startswith(b"\x7fELF")


def _one_of_each() -> list[Variant]:
    values = {"row0": 0, "row1": 64, "column0": 0, "column1": 128, "x": 0, "y": 0, "w": 0}
    values |= {
        "x_row": 128,
        "y_row": 128,
        "outer0": 0,
        "outer1": 3,
        "x_outer": 8192,
        "y_outer": 128,
    }
    kept = Result("y", "bool", ("less", ("drawn",), ("constant", 0.5)), ROW)
    found: list[Variant] = [
        Fetch((FetchPart("uint8", F4), FetchPart("int64", "int64"), FetchPart("bool", "float64"))),
        KeepAll((F4, "int64")),
        Advance(),
        LookFinite((F4, "float64", "float16")),
        LookWithin("int32"),
        DrawKeys(),
        PutRows((1, 2, 4, 8, 16)),
        PutRows((16, 8)),
        MoveVariant(Move(4, 3)),
        PickVariant(Pick(8, "int32")),
        AddPickedVariant(AddPicked(F4, "int64")),
        DrawVariant(Draw((Operand("x", "int64", SCALAR),), (kept,))),
    ]
    for dtype in (F4, "float64"):
        formula: Any = X
        for name in sorted(PRIMITIVES - {"where"}):
            formula = (name, formula) if name in UNARY else (name, formula, X)
            formula = ("cast", formula, dtype)
        operands, total = (Operand("x", dtype),), ("value", "t")
        centred = Stage(store=(Result("y", dtype, ("subtract", X, total)),))
        kernels = [
            pointwise(operands, Result("y", dtype, formula)),
            Rows(operands, (Stage(reduce=(Reduction("t", "maximum", X, dtype),)), centred)),
            Columns(
                operands, (Reduction("t", "add", X, dtype),), (Result("y", dtype, total, ROW),)
            ),
            Columns(
                operands,
                (Reduction("t", "multiply", X, dtype),),
                (Result("y", dtype, total, ROW),),
                dtype,
                stacked=True,
            ),
        ]
        assert isinstance(kernels[2], Columns)
        found.append(ColumnsVariant(kernels[2], 32, 0, 4))
        launches = [choose(kernel, values, Chip()) for kernel in kernels]
        found += [launch.variant for launch in launches if launch is not None]
    return found
