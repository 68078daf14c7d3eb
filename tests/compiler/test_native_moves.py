"""Movements that copy, rows by number and their transpose: kernels against the reference, bit for bit."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.moves import AXES, AddPicked, Move, Pick
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.program.simplify import simplify
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.errors import DataError
from magmadnn.graph import Node, NoGradient, Op, OpKind, Spec, by_signature, promote
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.ops.movement import copy
from magmadnn.ops.slicing import slice_, unslice
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.boxes import boxes_of, rows_of
from magmadnn.runtime.cpu.native import Instance
from tests.compiler.llvm.llvm_calls import WIDTHS, call
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import variable

RNG = np.random.default_rng(3)
SHAPES = {"x": (5, 7, 11), "z": (5, 3, 11), "i": (4, 3)}
INDICES = RNG.integers(0, 5, SHAPES["i"])

Nodes = dict[str, Any]
CASES: dict[str, Callable[[Nodes], Any]] = {
    "take": lambda n: ops.take(n["x"], n["i"]),
    "take, axis 1": lambda n: ops.take(n["x"], n["i"], axis=1),
    "take of a transpose": lambda n: ops.take(ops.transpose(n["x"], (2, 1, 0)), n["i"], axis=2),
    "take of a slice": lambda n: ops.take(n["x"][:, 1:6], n["i"], axis=1),
    "scatter": lambda n: ops.scatter_add(ops.take(n["x"], n["i"], axis=1), n["i"], axis=1, count=9),
    "scatter of a broadcast": lambda n: ops.scatter_add(
        ops.broadcast_to(n["x"][0, 0], (4, 3, 11)), n["i"], count=5
    ),
    "concat": lambda n: ops.concat([n["x"], n["z"]], 1),
    "concat, last axis": lambda n: ops.concat([n["x"][:, :3], n["z"], n["z"]], 2),
    "concat of a flip": lambda n: ops.concat([ops.flip(n["x"], 2), n["z"] + n["z"]], 1),
    "stack": lambda n: ops.stack([n["x"], n["x"]], -1),
    "pad": lambda n: ops.pad(n["x"], ((1, 2), (0, 3), (2, 0))),
    "pad with ones": lambda n: ops.pad(n["x"], ((1, 2), (0, 0), (2, 0)), 1),
    "tile": lambda n: ops.tile(n["x"], (2, 1, 3)),
    "transpose in a sum": lambda n: ops.transpose(n["x"], (2, 0, 1)) + 1,
    "reshape of a transpose": lambda n: ops.reshape(ops.transpose(n["x"], (1, 0, 2)), (35, 11)),
    "reshape of a slice": lambda n: ops.reshape(n["x"][:, ::2], (20, 11)),
    "gradient of a slice": lambda n: gradient(ops.sum(n["x"][1:4, ::-2, 3] ** 2), [n["x"]])[0],
}


def made(name: str, dtype: str) -> tuple[Node, dict[Node, Any]]:
    kinds = {"x": as_dtype(dtype), "z": as_dtype(dtype), "i": np.dtype(np.int64)}
    nodes: Nodes = {k: placeholder(k, Spec(SHAPES[k], kinds[k])) for k in SHAPES}
    root = CASES[name](nodes)
    drawn = {k: RNG.integers(1, 7, SHAPES[k]).astype(kinds[k]) for k in ("x", "z")}
    values = {**drawn, "i": INDICES}
    used = set(Program.of([root]).nodes())
    return root, {node: values[k] for k, node in nodes.items() if node in used}


def dtypes_for(name: str) -> list[str]:
    """Sums are compiled for some dtypes; gradients are of real numbers."""
    if name.startswith("gradient"):
        return ["float32", "float64"]
    summed = ["float32", "float64", "int64"]
    return summed if "scatter" in name else [*summed, "bool", "bfloat16", "int16"]


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in CASES for d in dtypes_for(n)])
def test_elements_are_those_of_the_reference(name: str, dtype: str) -> None:
    root, feeds = made(name, dtype)
    native, reference = (Executable([root], executor=e) for e in ("native", "reference"))
    (a,), (b,) = native.run(feeds), reference.run(feeds)
    assert a.dtype == b.dtype
    assert np.array_equal(a, b)
    if dtype in ("float32", "float64", "int64"):
        kinds = [w.region.kind for w in native.native.plan.work]
        assert RegionKind.CALL not in kinds
        assert set(kinds) & {RegionKind.MOVE, RegionKind.GATHER, RegionKind.SCATTER}


@pytest.mark.parametrize("batch", [1, 2, 13])
def test_sizes_may_be_known_late(batch: int) -> None:
    x, i = (
        placeholder("x", Spec((BATCH, 7), np.dtype("float32"))),
        placeholder("i", Spec((BATCH,), np.dtype("int32"))),
    )
    outputs: list[Any] = [
        ops.concat([x, ops.flip(x, 0)], 1),
        ops.take(x, i),
        ops.scatter_add(x, i, count=BATCH + 3),
        ops.pad(ops.transpose(x), ((0, 2), (1, 0)), 0.5),
        x[::2] * 2.0,
        ops.concat([x[1::3], x[::-2], x[:-1:4]], 0),
        gradient(ops.sum(x[1::2, ::3] ** 2), [x])[0],
    ]
    feeds = {x: ramp(batch, 7), i: np.arange(batch, dtype=np.int32)[::-1] // 2}
    native, reference = (
        Executable(outputs, executor=e).run(feeds) for e in ("native", "reference")
    )
    for a, b in zip(native, reference, strict=True):
        assert np.array_equal(a, b)


def test_sums_of_rows_are_taken_in_order_for_any_number_of_threads() -> None:
    x, i = (
        placeholder("x", Spec((4001, 131), np.dtype("float32"))),
        placeholder("i", Spec((4001,), np.dtype("int64"))),
    )
    summed: Any = ops.scatter_add(x, i, count=17)
    feeds: dict[Any, Any] = {
        x: RNG.normal(size=(4001, 131)).astype(np.float32), i: RNG.integers(0, 17, 4001)
    }  # fmt: skip
    wanted = np.zeros((17, 131), np.float32)
    np.add.at(wanted, feeds[i], feeds[x])
    plan = native_plan(Program.of([summed, ops.take(x, i), ops.concat([x, x], 1)]))
    for threads in (1, 2, 5):
        found = Instance(plan, {}, threads).run(feeds, guard=False)
        assert found is not None
        assert np.array_equal(found[0], wanted)
        assert np.array_equal(found[1], feeds[x][feeds[i]])
        assert np.array_equal(found[2], np.concatenate([feeds[x]] * 2, 1))


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
def test_a_number_out_of_range_is_an_error_and_changes_nothing(wrong: int) -> None:
    table, i = variable("table", ramp(5, 3)), placeholder("i", Spec((2, 2), np.dtype("int64")))
    rows: Any = ops.take(table, i)
    summed: Any = ops.scatter_add(rows, i, count=5)
    before = np.array(table.value.read())
    step = Executable([], [(table, table - summed)], executor="native")
    numbers = np.array([[0, 1], [wrong, 4]])
    with pytest.raises(DataError, match=f"take: index {wrong} at \\(1, 0\\) is outside 0 to 4"):
        step.run({i: numbers})
    assert np.array_equal(table.value.read(), before)
    step.run({i: np.array([[0, 1], [1, 4]])})  # and the next run is as if nothing had been
    wanted = before.copy()
    np.subtract.at(wanted, [0, 1, 1, 4], before[[0, 1, 1, 4]])
    assert np.array_equal(table.value.read(), wanted)


@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: str(t.vector_bytes))
def test_kernels_are_right_at_any_width_and_cut(target: Any) -> None:
    source, index = ramp(2 * 5 * 37).reshape(2, 5, 37), np.array([4, 0, 2, 2, 1, 0, 3])
    faults = np.zeros(1, np.int64)
    sizes: dict[str, Any] = {
        "columns": 37,
        "count": 5,
        "picks": 7,
        "index": index,
        "faults": faults,
    }
    picked = np.zeros((2, 7, 37), np.float32)
    summed = np.ones((2, 5, 37), np.float32)
    for column0, column1 in ((0, 5), (5, 37)):
        part = {"column0": column0, "column1": column1}
        for row0, row1 in ((0, 3), (3, 14)):
            tile: dict[str, Any] = {"row0": row0, "row1": row1, **part, **sizes}
            call(Pick(4, "int64"), target, source=source, result=picked, **tile)
        rows: dict[str, Any] = {"row0": 0, "row1": 2, **part, **sizes}
        call(AddPicked("float32", "int64"), target, source=picked, result=summed, **rows)
    assert np.array_equal(picked, source[:, index])
    wanted = np.zeros_like(summed)
    for outer in range(2):
        np.add.at(wanted[outer], index, picked[outer])
    assert np.array_equal(summed, wanted)


@pytest.mark.parametrize("cut", [0, 1, 17, 52])
@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: str(t.vector_bytes))
def test_boxes_are_copied_at_any_width_and_cut(target: Any, cut: int) -> None:
    x = placeholder("x", Spec((7, 43), np.dtype("uint8")))
    root: Any = ops.pad(ops.transpose(x[:, ::-1]), ((1, 0), (2, 0)), 3)
    array = RNG.integers(1, 9, (7, 43)).astype(np.uint8)
    start, result = array[:, ::-1], np.zeros((44, 9), np.uint8)
    table, constants = boxes_of(root, result, [np.transpose(start)], {})
    assert len(table) == 3  # above, on the left, inside
    assert rows_of(table) == 1 + 43 + 43
    for row0, row1 in ((0, cut), (cut, rows_of(table))):
        call(
            Move(1, 2), target, row0=row0, row1=row1, boxes=len(table), table=table, result=result,
            x0=start.ctypes.data, x1=constants,
        )  # fmt: skip
    assert np.array_equal(result, np.pad(start.T, ((1, 0), (2, 0)), constant_values=3))


def copied(root: Any, *operands: Any) -> tuple[Any, int]:
    """What the boxes of a movement make of its operands, and how many there are."""
    result = np.full(root.shape, 77, root.dtype)
    table, constants = boxes_of(root, result, operands, {})
    places: Any = {f"x{k}": x.ctypes.data for k, x in enumerate(operands)}
    places[f"x{len(operands)}"] = constants
    kernel = Move(root.dtype.itemsize, len(operands) + 1)
    sizes = {"row0": 0, "row1": rows_of(table), "boxes": len(table)}
    call(kernel, host(), **sizes, table=table, result=result, **places)
    return result, len(table)


def seen(x: Any) -> Any:
    return placeholder("x", Spec(x.shape, x.dtype))


def test_parts_of_a_result_are_a_few_boxes() -> None:
    x = ramp(6, 5, 4, 3)
    for root, operands, count in (
        (ops.concat([seen(x), seen(x)], 0), (x, x), 2),
        (ops.concat([seen(x), seen(x)], 2), (x, x), 2),
        (ops.flip(seen(x), 1), (x,), 1),
        (ops.reshape(seen(x.T), (18, 20)), (x.T,), 1),
        (ops.broadcast_to(seen(x[:, :1]), (2, 6, 5, 4, 3)), (x[:, :1],), 1),
        (ops.pad(seen(x), ((0, 0), (1, 1), (2, 1), (0, 0)), 9), (x,), 5),
        (ops.pad(seen(x[:0]), ((2, 1), (0, 0), (0, 0), (0, 0)), 9), (x[:0],), 1),
        (ops.concat([seen(x[:0]), seen(x)], 0), (x[:0], x), 1),
    ):
        found, boxes = copied(root, *operands)
        wanted = root.op.numpy(*operands, **root.attributes)
        assert np.array_equal(found, wanted), root.label
        assert boxes == count, root.label


def test_more_axes_than_a_box_has_are_several_boxes() -> None:
    x = ramp(2, 3, 2, 3, 2, 3, 2)
    order = (6, 1, 4, 3, 2, 5, 0)
    found, boxes = copied(ops.transpose(seen(x), order), x)
    assert np.array_equal(found, x.transpose(order))
    assert boxes == 2 * 3


def test_a_long_row_is_cut_for_threads() -> None:
    x = ramp(1 << 18)
    root: Any = ops.concat([seen(x), seen(x[::-1][: 1 << 15]), seen(x[:5])], 0)
    found, boxes = copied(root, x, x[::-1][: 1 << 15], x[:5])
    assert np.array_equal(found, np.concatenate([x, x[::-1][: 1 << 15], x[:5]]))
    assert boxes == 3
    assert rows_of(boxes_of(root, np.empty(root.shape, x.dtype), [x, x, x], {})[0]) >= 18


@pytest.mark.parametrize("seed", range(40))
def test_gradients_of_any_slice_are_boxes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    shape = tuple(int(n) for n in draw.integers(1, 12, draw.integers(1, 5)))
    entries: list[Any] = []
    for size in shape:
        start, stop = (int(n) for n in draw.integers(-size - 2, size + 2, 2))
        step = int(draw.choice([-4, -3, -2, -1, 1, 2, 3, 5]))
        one = ("int", int(draw.integers(0, size)))
        entries.append(one if draw.random() < 0.2 else ("slice", start, stop, step))
    x = seen(np.zeros(shape, np.float32))
    sliced: Any = slice_(x, index=tuple(entries))
    g = draw.normal(size=sliced.shape).astype(np.float32)
    root = gradient(ops.sum(sliced * seen(g)), [x])[0]
    moved = next(n for n in Program.of([root]).nodes() if getattr(n.op, "name", "") == "_unslice")
    found, _ = copied(moved, g)
    wanted = np.zeros(shape, np.float32)
    wanted[tuple(e[1] if e[0] == "int" else slice(*e[1:]) for e in entries)] = g
    assert np.array_equal(found, wanted)


def test_a_large_pad_needs_no_table_of_its_elements() -> None:
    x = placeholder("x", Spec((64, 112, 112, 16), np.dtype("float32")))
    array = ramp(1, 1, 1, 1)
    seen = np.lib.stride_tricks.as_strided(array, x.shape, (0, 0, 0, 0))
    root: Any = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    tracemalloc.start()
    table, _ = boxes_of(root, np.empty(root.shape, np.float32), [seen], {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == 5
    assert (
        most - root.shape[0] * 114 * 114 * 16 * 4 < 100_000
    )  # beside the result, which nobody wrote


@cache
def rolled() -> Op:
    """Made within the test, after which its name is forgotten."""
    return Op(
        name="rolled_by_one",
        args=("x",),
        formula="x, its last element first",
        kind=OpKind.MOVEMENT,
        shapes=by_signature("... n -> ... n"),
        dtypes=promote,
        numpy=lambda x: np.roll(x, 1, -1),
        vjp=NoGradient("only moved here"),
        reference=lambda x: np.roll(x, 1, -1),
        samples=lambda draw: [],
    )


def test_an_op_that_tells_no_boxes_is_looked_at_element_by_element() -> None:
    x = ramp(4, 6)
    root: Any = rolled()(seen(x))
    found, boxes = copied(root, x)
    assert np.array_equal(found, np.roll(x, 1, 1))
    assert boxes == 8
    (native,) = Executable([root + 1], executor="native").run({root.inputs[0]: x})
    assert np.array_equal(native, np.roll(x, 1, 1) + 1)


@pytest.mark.parametrize("target", WIDTHS, ids=lambda t: str(t.vector_bytes))
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
@pytest.mark.parametrize("shape", [(3, 37, 41), (1, 16, 16), (2, 5, 100), (2, 64, 3)])
def test_matrices_are_turned_at_any_width_and_cut(shape: Any, dtype: str, target: Any) -> None:
    """Whole blocks of vectors, what is left of rows and of columns, and parts that begin anywhere."""
    x = RNG.integers(-100, 100, shape).astype(dtype)
    root = copy(ops.transpose(seen(x), (0, 2, 1)))
    wanted = x.transpose(0, 2, 1)
    table, _ = boxes_of(root, np.empty(root.shape, x.dtype), [wanted], {})
    item, rows = x.dtype.itemsize, rows_of(table)
    for cuts in ((0, rows), (0, 1, rows // 2 + 1, rows), (0, 19 % rows, rows)):
        result = np.zeros(root.shape, x.dtype)
        for row0, row1 in itertools.pairwise(cuts):
            call(
                Move(item, 2), target, row0=row0, row1=row1, boxes=len(table), table=table,
                result=result, x0=x.ctypes.data, x1=0,
            )  # fmt: skip
        np.testing.assert_array_equal(result, wanted)


def test_turned_planes_stand_last() -> None:
    """The axis of neighbours in the source is beside that of neighbours in the result: blocks are turned."""
    x = np.zeros((4, 5, 6, 7), np.float32)
    for order in ((3, 0, 1, 2), (1, 3, 0, 2), (0, 3, 2, 1)):
        root = copy(ops.transpose(seen(x), order))
        table, _ = boxes_of(root, np.empty(root.shape, x.dtype), [x.transpose(order)], {})
        (words,) = table
        (_, _, step), (_, to_step, apart) = words[AXES:].reshape(-1, 3)[-2:]
        assert (step, to_step) == (1, 1) and apart > 1


def test_the_gradient_of_what_takes_all_moves_nothing() -> None:
    """Of a convolution with one place in its windows, the gradient for images is a product alone."""
    x = placeholder("x", Spec((BATCH, 6, 5, 32), np.dtype(np.float32)))
    w = np.random.default_rng(2).integers(-3, 4, (1, 1, 32, 40)).astype(np.float32)
    y = ops.convolution(x, w)
    (g,) = gradient(ops.sum(ops.square(y)), [x])
    kinds = [work.region.kind for work in native_plan(Program.of([g]), check=True).work]
    assert RegionKind.MOVE not in kinds and RegionKind.GEMM in kinds
    whole = (("slice", 0, 6, 1), ("slice", 0, 5, 1))
    a = placeholder("a", Spec((6, 5), np.dtype(np.float32)))
    reverse = (("slice", 5, None, -1), ("slice", 0, 5, 1))
    values = ramp(6, 5)
    for index, wanted in ((whole, values), (reverse, values[::-1])):
        node = unslice(a, index=index, shape=(6, 5))
        assert (simplify(Program.of([node])).outputs[0] is a) is (index is whole)
        run = Executable([ops.negative(node)], executor="native", check=True)
        np.testing.assert_array_equal(run.run({a: values})[0], -wanted)
