"""Kernels that became one: the same bits as alone, whatever the order of their blocks."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.compiler.cuda.fused.chained import Chained, chain
from magmadnn.compiler.cuda.fused.merged import MOST_ARGUMENTS, Merged, merge
from magmadnn.compiler.cuda.fused.summed import fold
from magmadnn.compiler.cuda.gemm.gemm import choose_gemm
from magmadnn.compiler.cuda.module import OPTIONS, choose, module_text
from magmadnn.compiler.cuda.text.variant import Chip, Launch
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Reduction, Rows, Stage, pointwise
from magmadnn.runtime.cuda.running.graphs import merged, with_room
from magmadnn.runtime.cuda.schedule.launch import Item
from magmadnn.runtime.cuda.schedule.merging.levels import load_of
from tests.compiler.cuda.nvrtc import ARCHITECTURES, compiled
from tests.runtime.cuda.emulator import emulated_device, needs_compiler, run_launch

CHIP = Chip(80, 4, 48 << 10)
X, Y = ("argument", 0), ("argument", 1)


def run_all(launches: list[Launch]) -> None:
    with emulated_device() as engine:
        image = engine.compile(module_text([one.variant for one in launches]), OPTIONS)
        names = [f"kernel_{k}" for k in range(len(launches))]
        for one, function in zip(launches, engine.load(image, names), strict=True):
            run_launch(function, one.grid, one.block, one.arguments)


def matrix(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def product(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, finish: Finish | None, tb: bool, **more: int
) -> Launch:
    gemm = Gemm("float32", transpose_b=tb, epilogue=finish)
    (m, k), n = a.shape, c.shape[1]
    values = {"row0": 0, "row1": m, "column0": 0, "column1": n, "k": k}
    values |= {"a": a.ctypes.data, "b": b.ctypes.data, "c": c.ctypes.data}
    values |= {"lda": k, "ldb": b.shape[1], "ldc": n, **more}
    made = choose_gemm(gemm, values, CHIP, False)
    assert made is not None
    return made


def sum_of_columns(x: np.ndarray, y: np.ndarray) -> Launch:
    reduction = Reduction("total", "add", X)
    kernel = Columns(
        (Operand("x", "float32"),),
        (reduction,),
        (Result("y", "float32", ("value", "total"), "row"),),
    )
    values = {"row0": 0, "row1": x.shape[0], "column0": 0, "column1": x.shape[1]}
    values |= {"x": x.ctypes.data, "x_row": x.shape[1], "y": y.ctypes.data}
    made = choose(kernel, values, CHIP)
    assert made is not None
    return made


def doubled(x: np.ndarray, y: np.ndarray) -> Launch:
    kernel = pointwise((Operand("x", "float32"),), Result("y", "float32", ("add", X, X)))
    values = {"row0": 0, "row1": x.shape[0], "column0": 0, "column1": x.shape[1]}
    values |= {"x": x.ctypes.data, "y": y.ctypes.data, "x_row": x.shape[1], "y_row": y.shape[1]}
    made = choose(kernel, values, CHIP)
    assert made is not None
    return made


@needs_compiler
def test_parts_do_what_they_do_alone() -> None:
    a, b = matrix(37, 53, 1), matrix(53, 29, 2)
    made = []
    for together in (False, True):
        c, sums, twice = np.full((37, 29), 7, np.float32), matrix(1, 53, 3), np.zeros_like(a)
        parts = [product(a, b, c, None, False), sum_of_columns(a, sums), doubled(a, twice)]
        run_all([merge(parts)] if together else parts)
        made.append((c, sums, twice))
    for alone, one in zip(*made, strict=True):
        np.testing.assert_array_equal(alone, one)
    np.testing.assert_array_equal(made[1][2], a + a)


@needs_compiler
@pytest.mark.parametrize("sizes", [(100, 97, 67), (3, 34, 130), (129, 64, 33)])
def test_weight_gradients_add_columns_to_the_same_bits(sizes: tuple[int, int, int]) -> None:
    k, m, n = sizes
    x, delta = matrix(k, m, 1), matrix(k, n, 2)
    made = []
    for together in (False, True):
        c, sums = np.full((m, n), 7, np.float32), np.full((1, n), 7, np.float32)
        gemm = Gemm("float32", transpose_a=True)
        values = {"row0": 0, "row1": m, "column0": 0, "column1": n, "k": k}
        values |= {"a": x.ctypes.data, "b": delta.ctypes.data, "c": c.ctypes.data}
        values |= {"lda": m, "ldb": n, "ldc": n}
        gradient, added = choose_gemm(gemm, values, CHIP, True), sum_of_columns(delta, sums)
        assert gradient is not None
        folded = fold(gradient, added)
        assert folded is not None
        run_all([folded] if together else [gradient, added])
        made.append((c, sums))
    for alone, folded_one in zip(*made, strict=True):
        np.testing.assert_array_equal(alone, folded_one)
    np.testing.assert_allclose(made[1][1][0], delta.sum(0), rtol=1e-4, atol=1e-4)
    other = sum_of_columns(matrix(k, n, 3), sums)
    assert fold(gradient, other) is None  # of another matrix


def test_one_launch_is_itself_and_equal_parts_share_their_text() -> None:
    a, y = matrix(3, 5, 1), matrix(3, 5, 2)
    one = doubled(a, y)
    assert merge([one]) is one
    both = merge([one, doubled(y, a)])
    assert isinstance(both.variant, Merged)
    assert both.variant.text("kernel").count("void run(") == 1
    assert both.grid[0] == 2 * one.grid[0] * one.grid[1]


@needs_compiler
def test_the_same_parts_are_one_call_with_their_own_memory() -> None:
    inputs = [(matrix(37, 53, k), matrix(53, 29, 9 + k)) for k in range(4)]
    made = []
    for together in (False, True):
        outputs = [np.full((37, 29), 7, np.float32) for _ in inputs]
        first, *others = (
            product(a, b, c, None, False) for (a, b), c in zip(inputs, outputs, strict=True)
        )
        twice = np.zeros((37, 53), np.float32)
        parts = [first, doubled(inputs[0][0], twice), *others]
        run_all([merge(parts)] if together else parts)
        made.append([*outputs, twice])
    for alone, one in zip(*made, strict=True):
        np.testing.assert_array_equal(alone, one)
    assert math.prod(first.grid) > 1  # a part's blocks and its number are told apart
    assert merge(parts).variant.text("kernel").count("part.run(") == 2


@needs_compiler
def test_parts_with_different_numbers_of_blocks_are_one_call() -> None:
    """Matrices of 70 to 610 rows, in no order; the text does not grow with them."""
    inputs = [matrix(rows, 8, rows) for rows in (70, 610, 230, 610, 440, 331)]
    outputs = [np.zeros_like(a) for a in inputs]
    parts = [doubled(a, b) for a, b in zip(inputs, outputs, strict=True)]
    assert len({one.variant for one in parts}) == 1
    assert len({one.grid for one in parts}) > 2
    together = merge(parts)
    run_all([together])
    for a, b in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(b, 2 * a)
    assert together.variant.text("kernel").count("part.run(") == 1


def test_a_level_with_more_arguments_than_a_kernel_can_have_is_several_launches() -> None:
    a, b = matrix(3, 5, 1), matrix(3, 5, 2)
    one = doubled(a, b)
    count = 2 * MOST_ARGUMENTS // len(one.arguments) + 1
    groups = with_room([one] * count, Chip())
    assert [len(group) * len(one.arguments) <= MOST_ARGUMENTS for group in groups] == [True] * 3
    assert [k for group in groups for k in group] == [*range(count)]


def test_a_launch_of_many_rounds_is_alone() -> None:
    """What others need would leave its blocks less room, which costs more than a launch."""
    small = doubled(matrix(3, 5, 1), matrix(3, 5, 2))
    rounds = [7, 9]
    filled = load_of([small]).resident(Chip()) * Chip().processors
    some, many = (replace(small, grid=(r * filled, 1, 1)) for r in rounds)
    assert with_room([small, some, many, small], Chip()) == [[2], [0, 1, 3]]


def test_launches_of_a_level_that_stay_apart_wait_for_what_each_has_to() -> None:
    """Beside a call, which waits for one of two large ones only."""
    small = doubled(matrix(3, 5, 1), matrix(3, 5, 2))
    many = replace(small, grid=(9 * load_of([small]).resident(Chip()) * Chip().processors, 1, 1))
    a, b, c, d, e = ((k, k + 1) for k in range(5))
    call = MatrixNode("potrf", "float32", (), 0, 1, ((),), (), 0, 0)
    items = [Item(many, (a,), (b,)), Item(many, (c,), (d,)), Item(call, (d,), (e,))]
    assert merged(items, Chip()).after == [(), (), (1,)]


class Head:
    """A last layer: product, softmax with what stands for a loss, and the gradient of the layer below."""

    def __init__(self, rows: int, deep: int, classes: int, wide: int) -> None:
        self.rows, self.sizes = rows, (deep, classes, wide)
        self.x, self.w = matrix(rows, deep, 1), matrix(deep, classes, 2)
        self.bias, self.scale = matrix(1, classes, 3), matrix(rows, 1, 4)
        self.v, self.h = matrix(wide, classes, 5), matrix(rows, wide, 6)
        nan = np.float32(np.nan)
        self.z = np.full((rows, classes), nan)
        self.bad = np.full((rows, classes), 9, np.uint8)
        self.p, self.total = np.full_like(self.z, nan), np.full((rows, 1), np.float64(np.nan))
        self.g = np.full((rows, wide), nan)

    def made(self) -> list[np.ndarray]:
        return [self.z, self.bad, self.p, self.total, self.g]

    def launches(self) -> list[Launch]:
        _, classes, wide = self.sizes
        plus = ("add", ("product",), X)
        first = Finish(
            (Operand("x0", "float32", "row"),), (Result("y0", "bool", ("isnan", plus)),), plus
        )
        bits = {"x0": self.bias.ctypes.data, "y0": self.bad.ctypes.data, "y0_row": classes}
        one = product(self.x, self.w, self.z, first, False, **bits)
        last = Finish((Operand("x0", "float32"),), (), ("multiply", ("product",), X))
        three = product(self.p, self.v, self.g, last, True, x0=self.h.ctypes.data, x0_row=wide)
        return [one, self.softmax(), three]

    def softmax(self) -> Launch:
        classes = self.sizes[1]
        power = ("exp", ("subtract", X, ("value", "top")))
        share = ("divide", ("multiply", power, ("argument", 2)), ("value", "total"))
        stages = (
            Stage(reduce=(Reduction("top", "maximum", X),)),
            Stage(reduce=(Reduction("total", "add", power),)),
            Stage(
                store=(Result("p", "float32", ("where", Y, X, share)),),
                store_row=(
                    Result("s", "float64", ("cast", ("value", "total"), "float64"), "column"),
                ),
            ),
        )
        operands = (
            Operand("z", "float32"), Operand("bad", "bool"), Operand("scale", "float32", "column")
        )  # fmt: skip
        kernel = Rows(operands, stages)
        values = {"row0": 0, "row1": self.rows, "column0": 0, "column1": classes}
        values |= {"z": self.z.ctypes.data, "bad": self.bad.ctypes.data}
        values |= {"scale": self.scale.ctypes.data, "p": self.p.ctypes.data}
        values |= {"s": self.total.ctypes.data}
        values |= {slot: classes for slot in kernel.slots if slot.endswith("_row")}
        made = choose(kernel, values, CHIP)
        assert made is not None
        return made


@needs_compiler
@pytest.mark.parametrize(
    "sizes", [(43, 67, 10, 131), (5, 16, 1, 16), (30, 300, 16, 289), (1, 7, 3, 9)]
)
def test_a_chain_does_what_its_parts_do(sizes: tuple[int, int, int, int]) -> None:
    alone, together = Head(*sizes), Head(*sizes)
    run_all(alone.launches())
    made = chain(together.launches(), CHIP)
    assert made is not None and isinstance(made.variant, Chained)
    beside = np.zeros_like(together.x)
    run_all([merge([made, doubled(together.x, beside)])])
    for a, b in zip(alone.made(), together.made(), strict=True):
        np.testing.assert_array_equal(a, b)
    z = together.x.astype(np.float64) @ together.w + together.bias
    np.testing.assert_allclose(together.z, z, rtol=0, atol=1e-5 * sizes[1])


def test_what_does_not_fit_is_no_chain() -> None:
    one, two, three = Head(30, 300, 10, 289).launches()
    assert chain(Head(43, 67, 17, 131).launches(), CHIP) is None
    assert chain([one, two, Head(44, 67, 10, 131).launches()[2]], CHIP) is None
    other = replace(two, arguments=tuple(a + (a == 10) for a in two.arguments))  # other strides
    assert chain([one, other, three], CHIP) is None
    assert chain([one, two, three], replace(CHIP, shared_bytes=1 << 10)) is None


@pytest.mark.parametrize(("major", "architecture"), ARCHITECTURES)
def test_text_compiles(major: int, architecture: str) -> None:
    head = Head(43, 67, 10, 131)
    made = chain(head.launches(), CHIP)
    assert made is not None
    both = merge([made, doubled(head.x, head.x)]).variant
    text = module_text([both, *[p.variant for p in head.launches()]])
    assert not re.search(r'extern "C"[^{]*run\(', text)
    image, _ = compiled(text, major, [*OPTIONS, f"-arch={architecture}"])
    assert image.startswith(b"\x7fELF")
