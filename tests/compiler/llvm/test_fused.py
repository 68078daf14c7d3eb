"""Fused kernels: every primitive against NumPy, reductions, softmax, losses, normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from magmadnn.compiler.kernels import formula
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import frozen
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Reduction, Rows, Stage, pointwise
from magmadnn.compiler.llvm.expressions.formulas import ITEMS, PRIMITIVES, memory_item
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.ir.values import item_bytes
from magmadnn.compiler.llvm.kernel import llvm_text
from magmadnn.errors import DTypeError
from tests.compiler.llvm.llvm_calls import WIDTHS, call

X, Y = ("argument", 0), ("argument", 1)
F4 = "float32"


def constant(value: float) -> tuple:
    return ("constant", value)


def value(name: str) -> tuple:
    return ("value", name)


def run(made: Any, shape: tuple[int, int], target=None, tiles=None, **arrays: np.ndarray) -> None:
    """Run a kernel over a matrix of `shape`, with arrays given by their slots' names."""
    slots = dict(arrays)
    for name, array in arrays.items():
        if f"{name}_row" in made.slots:
            slots[f"{name}_row"] = array.strides[0] // array.itemsize
    rows, columns = shape
    for row0, row1, column0, column1 in tiles or [(0, rows, 0, columns)]:
        edges = {"row0": row0, "row1": row1, "column0": column0, "column1": column1}
        call(made, target or host(), **edges, **slots)


def samples(dtype: str, count: int = 37) -> np.ndarray:
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.random(count) < 0.5
    if dtype.startswith("float"):
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 1e-3]
        return np.concatenate([rng.standard_normal(count - 10) * 3, special]).astype(dtype)
    low = 0 if dtype == "uint8" else -9
    return np.concatenate([rng.integers(low, 9, count - 2), [0, 7]]).astype(dtype)


UNARY = {
    "negative": np.negative, "absolute": np.absolute, "sign": np.sign, "floor": np.floor,
    "ceil": np.ceil, "isnan": np.isnan, "logical_not": np.logical_not,
}  # fmt: skip
BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "floor_divide": np.floor_divide,
    "remainder": np.remainder, "minimum": np.minimum, "maximum": np.maximum, "equal": np.equal,
    "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
}  # fmt: skip
EXACT = {**UNARY, **BINARY}


# Bytes wrap around in NumPy; the graph casts them before it subtracts.
CASES = [(n, d) for n in EXACT for d in ("float32", "float64", "int32", "int64")]
CASES += [(n, "uint8") for n in EXACT if n not in ("negative", "sign", "subtract")]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_exact_primitives(name, dtype):
    """Bit for bit what NumPy gives, special values included."""
    x = samples(dtype)
    if name in UNARY:
        operands, arrays, formula = (Operand("x", dtype),), {"x": x[None]}, (name, X)
        with np.errstate(all="ignore"):
            expected = EXACT[name](x)
    else:
        a, b = (v.ravel() for v in np.meshgrid(x, x))
        operands = (Operand("x", dtype), Operand("y", dtype))
        arrays, formula = {"x": a[None], "y": b[None]}, (name, X, Y)
        with np.errstate(all="ignore"):
            expected = EXACT[name](a, b)
    found = np.empty((1, expected.size), expected.dtype)
    made = pointwise(operands, Result("result", expected.dtype.name, formula))
    run(made, found.shape, **arrays, result=found)
    np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("source", ["bool", "uint8", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("goal", ["bool", "uint8", "int32", "int64", "float32", "float64"])
def test_casts(source, goal):
    x = samples(source)
    if source.startswith("float") and not goal.startswith("float") and goal != "bool":
        x = abs(x[np.isfinite(x)])
    made = pointwise((Operand("x", source),), Result("y", goal, ("cast", X, goal)))
    found = np.empty((1, x.size), goal)
    run(made, found.shape, x=x[None], y=found)
    np.testing.assert_array_equal(found[0], x.astype(goal))


def test_every_primitive_compiles():
    for name in PRIMITIVES:
        arguments = {"where": 3, "power": 2}.get(
            name, 2 if name in BINARY or name == "divide" else 1
        )
        operands = tuple(Operand(f"x{i}", F4) for i in range(arguments))
        formula = (name, *(("argument", i) for i in range(arguments)))
        assert llvm_text([pointwise(operands, Result("y", F4, formula))], host())


def test_integers_are_refused_where_they_would_need_rounding():
    made = pointwise((Operand("x", "int32"),), Result("y", F4, ("exp", X)))
    with pytest.raises(DTypeError, match="cast the operand first"):
        llvm_text([made], host())


@dataclass
class Tree:
    """A node as the graph's formulas have them."""

    name: str
    args: tuple


def test_frozen():
    tree = Tree("add", (Tree("argument", (0,)), Tree("constant", (2.0,))))
    assert frozen(tree) == ("add", X, constant(2.0))


def test_spreads_and_tiles():
    """Operands by row, by column and of one element; any tiles; memory beside the tile untouched."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((23, 61)).astype(F4)
    row, column = rng.standard_normal(61).astype(F4), rng.standard_normal(23).astype(F4)
    one = np.array([1.7], F4)
    operands = (
        Operand("x", F4), Operand("row", F4, "row"), Operand("column", F4, "column"),
        Operand("one", F4, "scalar"),
    )  # fmt: skip
    product = ("multiply", ("add", X, ("argument", 1)), ("argument", 2))
    made = pointwise(
        operands, Result("y", F4, ("where", ("less", X, constant(0.0)), product, ("argument", 3)))
    )
    expected = np.where(x < 0, (x + row) * column[:, None], one)
    wide = np.full((23, 70), 9, F4)
    tiles = [(0, 11, 0, 61), (11, 23, 0, 16), (11, 23, 16, 61)]
    for target in WIDTHS:
        wide[...] = 9
        run(made, x.shape, target, tiles, x=x, row=row, column=column, one=one, y=wide[:, :61])
        np.testing.assert_array_equal(wide[:, :61], expected)
        assert (wide[:, 61:] == 9).all()


def shifted() -> tuple:
    return ("subtract", X, value("top"))


SOFTMAX = Rows(
    (Operand("x", F4), Operand("y", F4)),
    (
        Stage(reduce=(Reduction("top", "maximum", X),)),
        Stage(
            reduce=(Reduction("total", "add", ("exp", shifted())),),
            store=(Result("y", F4, ("exp", shifted())),),
        ),
        Stage(store=(Result("y", F4, ("divide", Y, value("total"))),)),
    ),
)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("columns", [1, 2, 7, 10, 33, 257])
def test_softmax(columns):
    x = np.random.default_rng(columns).standard_normal((5, columns)).astype(F4) * 4
    results = []
    for target in WIDTHS:
        y = np.empty_like(x)
        run(SOFTMAX, x.shape, target, x=x, y=y)
        results.append(y)
    allowed = 8 * np.finfo(F4).eps * softmax(x) * (1 + abs(x - x.max(1, keepdims=True)))
    assert (abs(results[0] - softmax(x)) <= allowed).all()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_cross_entropy_with_gradient():
    """Loss per row and gradient of softmax and cross entropy, integer labels, in one kernel."""
    rng = np.random.default_rng(5)
    x, labels = rng.standard_normal((19, 11)).astype(F4) * 3, rng.integers(0, 11, 19)
    hit = ("equal", ("column",), Y)
    made = Rows(
        (Operand("x", F4), Operand("label", "int64", "column"), Operand("scale", F4, "scalar")),
        (
            Stage(reduce=(Reduction("top", "maximum", X),)),
            Stage(
                reduce=(
                    Reduction("total", "add", ("exp", shifted())),
                    Reduction("own", "add", ("where", hit, shifted(), constant(0.0))),
                ),
                store_row=(
                    Result(
                        "loss", F4, ("subtract", ("log", value("total")), value("own")), "column"
                    ),
                ),
            ),
            Stage(
                store=(
                    Result(
                        "g",
                        F4,
                        (
                            "multiply",
                            (
                                "subtract",
                                ("divide", ("exp", shifted()), value("total")),
                                ("cast", hit, F4),
                            ),
                            ("argument", 2),
                        ),
                    ),
                )
            ),
        ),
    )
    loss, g = np.empty(19, F4), np.empty_like(x)
    run(made, x.shape, x=x, label=labels, scale=np.array([0.25], F4), loss=loss, g=g)
    p, eye = softmax(x), np.eye(11)[labels]
    eps = np.finfo(F4).eps
    size = 1 + abs(x - x.max(1, keepdims=True)).max(1)
    assert (abs(loss + np.log((p * eye).sum(1))) <= 8 * eps * size).all()
    assert (abs(g - 0.25 * (p - eye)) <= 8 * eps * size[:, None]).all()


def test_layer_normalisation():
    rng = np.random.default_rng(6)
    x, gamma, beta = (rng.standard_normal(s).astype(F4) for s in ((13, 101), 101, 101))
    off = ("subtract", X, value("mean"))
    deviation = ("sqrt", ("add", ("divide", value("square"), ("columns",)), constant(1e-5)))
    scaled = ("multiply", ("divide", off, value("deviation")), Y)
    made = Rows(
        (Operand("x", F4), Operand("gamma", F4, "row"), Operand("beta", F4, "row")),
        (
            Stage(
                reduce=(Reduction("sum", "add", X),),
                then=(("mean", ("divide", value("sum"), ("columns",))),),
                store_row=(Result("mean", F4, value("mean"), "column"),),
            ),
            Stage(
                reduce=(Reduction("square", "add", ("multiply", off, off)),),
                then=(("deviation", deviation),),
            ),
            Stage(store=(Result("y", F4, ("add", scaled, ("argument", 2))),)),
        ),
    )
    y, mean = np.empty_like(x), np.empty(13, F4)
    run(made, x.shape, x=x, gamma=gamma, beta=beta, y=y, mean=mean)
    x8 = x.astype("f8")
    center = x8 - x8.mean(1, keepdims=True)
    expected = center / np.sqrt((center**2).mean(1, keepdims=True) + 1e-5) * gamma + beta
    eps = np.finfo(F4).eps
    assert (abs(mean - x8.mean(1)) <= 6 * eps * abs(x8).mean(1)).all()
    assert (abs(y - expected) <= 16 * eps * (1 + abs(gamma)) * (1 + abs(center))).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 3, 64, 65, 300])
def test_reductions_over_rows(rows, dtype):
    """Sums of columns, a mean and an update from them; equal bits for any tiles and widths."""
    rng, columns = np.random.default_rng(rows), 2053  # more than a piece
    x, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, columns), columns))
    made = Columns(
        (Operand("x", dtype), Operand("bias", dtype, "row")),
        (Reduction("total", "add", X, dtype), Reduction("top", "maximum", X, dtype)),
        (
            Result("bias", dtype, ("subtract", Y, ("divide", value("total"), ("rows",))), "row"),
            Result("top", dtype, value("top"), "row"),
        ),
        dtype,
    )
    results = []
    for target, tiles in [(w, None) for w in WIDTHS] + [
        (host(), [(0, rows, 0, 7), (0, rows, 7, columns)])
    ]:
        out, top = bias.copy(), np.empty(columns, dtype)
        run(made, x.shape, target, tiles, x=x, bias=out, top=top)
        np.testing.assert_array_equal(top, x.max(0))
        results.append(out)
    unit = np.finfo(dtype).eps
    allowed = unit * (min(rows, 64) / 2 + rows / 64 + 4) * (abs(x).mean(0) + abs(bias))
    assert (abs(results[0] - (bias - x.astype("f8").mean(0))) <= allowed).all()
    blocks = [np.add.reduce(x[first : first + 64], axis=0) for first in range(0, rows, 64)]
    total = np.add.reduce(blocks, axis=0)  # row by row, as NumPy sums along a leading axis
    for result in results:
        np.testing.assert_array_equal(result, bias - total / np.array(rows, dtype))


def test_nan_survives_reductions():
    x = np.random.default_rng(7).standard_normal((3, 40)).astype(F4)
    x[1, 17] = np.nan
    made = Rows(
        (Operand("x", F4),),
        (
            Stage(
                reduce=tuple(Reduction(kind, kind, X) for kind in ("maximum", "minimum", "add")),
                store_row=tuple(
                    Result(k, F4, value(k), "column") for k in ("maximum", "minimum", "add")
                ),
            ),
        ),
    )
    found = {kind: np.empty(3, F4) for kind in ("maximum", "minimum", "add")}
    run(made, x.shape, x=x, **found)
    for kind, got in found.items():
        np.testing.assert_array_equal(np.isnan(got), [False, True, False], err_msg=kind)
    np.testing.assert_array_equal(found["maximum"][[0, 2]], x.max(1)[[0, 2]])
    np.testing.assert_array_equal(found["minimum"][[0, 2]], x.min(1)[[0, 2]])


def test_every_primitive_and_dtype_of_descriptions_is_there() -> None:
    assert PRIMITIVES.keys() == formula.PRIMITIVES
    assert tuple(ITEMS) == formula.DTYPES
    sizes = {name: item_bytes(memory_item(name)) for name in (*formula.DTYPES, *formula.HALVES)}
    assert sizes == formula.ITEM_BYTES
