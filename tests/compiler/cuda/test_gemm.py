"""Own matrix products for GPUs, on the emulated device and through the compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda.engine import KernelNode, MatrixNode
from magmadnn.compiler.cuda.gemm.cut import _LARGE_TILES, _OUTER_TILES, Cut, cut_for
from magmadnn.compiler.cuda.gemm.gemm import GemmVariant, choose_gemm, hastened
from magmadnn.compiler.cuda.module import OPTIONS, module_text, symbol
from magmadnn.compiler.cuda.text.variant import Chip, Launch
from magmadnn.compiler.kernels.gemm import Finish, Gemm, Loading
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.memory import as_dtype
from magmadnn.runtime.cuda.running import graphs
from magmadnn.runtime.cuda.schedule.hazards import edges_of
from magmadnn.runtime.cuda.schedule.launch import Item
from tests.compiler.cuda.nvrtc import ARCHITECTURES, compiled
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

H100 = Chip(90, 132, 227 << 10)
SMALL = Chip(80, 4, 48 << 10)
PRODUCT, X, RATE = ("product",), ("argument", 0), ("argument", 1)
ONE = ("constant", 1, "1")


def sigmoid(x: Any) -> Any:
    return ("divide", ONE, ("add", ONE, ("exp", ("multiply", ("constant", -1.0, "-1.0"), x))))


def biased(dtype: str) -> Finish:
    return Finish((Operand("x0", dtype, "row"),), (), sigmoid(("add", PRODUCT, X)))


def updated(dtype: str) -> Finish:
    """x0 - x1 * product over x0, whose own memory is called y0 too."""
    new = Result("y0", dtype, ("subtract", X, ("multiply", RATE, PRODUCT)))
    return Finish((Operand("x0", dtype), Operand("x1", dtype, "scalar")), (new,), PRODUCT)


def momentum(dtype: str) -> Finish:
    """The same, plus two matrices: more than a thread holds for all of its elements."""
    finish = updated(dtype)
    more = (Operand("x2", dtype), Operand("x3", dtype))
    formula = finish.results[0].formula
    for k in (2, 3):
        formula = ("add", formula, ("argument", k))
    return replace(
        finish, operands=(*finish.operands, *more), results=(Result("y0", dtype, formula),)
    )


def positive(dtype: str) -> Finish:
    """Where the product is positive, and it times a number of the row there."""
    kept = (
        "where",
        ("greater", PRODUCT, ("constant", 0, "0")),
        ("multiply", PRODUCT, X),
        ("constant", 0, "0"),
    )
    mask = Result("y0", "bool", ("greater", PRODUCT, ("constant", 0, "0")))
    return Finish((Operand("x0", dtype, "column"),), (mask,), kept)


def halves(dtype: str) -> dict[str, Loading]:
    """Both factors stored in half precision."""
    return dict.fromkeys(("load_a", "load_b"), Loading.widening(dtype))


def slots(gemm: Gemm, arrays: dict[str, np.ndarray], sizes: tuple[int, int, int]) -> dict[str, int]:
    m, n, k = sizes
    values = {"row0": 0, "row1": m, "column0": 0, "column1": n, "k": k, "ldc": n}
    values |= {"lda": m if gemm.transpose_a else k, "ldb": k if gemm.transpose_b else n}
    for slot in gemm.slots:
        if slot in arrays:
            values[slot] = arrays[slot].ctypes.data
        elif slot.endswith("_row"):
            values[slot] = n
    return values


def placed(gemm: Gemm, sizes: tuple[int, int, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Operands with random elements, results with garbage; `y0` lies in the memory of a whole `x0`."""
    (m, n, k), rng = sizes, np.random.default_rng(seed)
    shapes = {
        "a": (k, m) if gemm.transpose_a else (m, k),
        "b": (n, k) if gemm.transpose_b else (k, n),
    }
    spreads = {"full": (m, n), "row": (n,), "column": (m,), "scalar": ()}
    finish = gemm.epilogue
    assert finish is None or isinstance(finish, Finish)
    for operand in finish.operands if finish else ():
        shapes[operand.name] = spreads[operand.spread]
    arrays = {
        name: np.array(rng.standard_normal(shape), as_dtype(gemm.dtype))
        for name, shape in shapes.items()
    }
    if gemm.halves is not None:
        arrays |= {slot: arrays[slot].astype(as_dtype(gemm.halves)) for slot in "ab"}
    arrays["c"] = np.full((m, n), np.nan, gemm.dtype)
    for result in finish.results if finish else ():
        alias = arrays.get("x0")
        same = alias is not None and alias.shape == (m, n)
        arrays[result.name] = alias if same else np.full((m, n), 7, result.dtype)
    return arrays


def run(*launches: Launch) -> None:
    """Run them one after the other; they are compiled together."""
    with emulated_device() as engine:
        names = [symbol(k) for k in range(len(launches))]
        text = module_text([launch.variant for launch in launches])
        for one, function in zip(
            launches, engine.load(engine.compile(text, OPTIONS), names), strict=True
        ):
            node = KernelNode(function, one.grid, one.block, one.shared_bytes, one.arguments)
            engine.graph([node]).launch()


def multiplied(gemm: Gemm, arrays: dict[str, np.ndarray]) -> np.ndarray:
    a, b = arrays["a"].astype(np.float64), arrays["b"].astype(np.float64)
    return np.asarray((a.T if gemm.transpose_a else a) @ (b.T if gemm.transpose_b else b))


def chosen(gemm: Gemm, arrays: dict[str, np.ndarray], sizes: tuple[int, int, int]) -> Launch:
    launch = choose_gemm(gemm, slots(gemm, arrays, sizes), SMALL, False)
    assert launch is not None
    return launch


def assert_close(got: np.ndarray, expected: np.ndarray, k: int) -> None:
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert error < 4 * np.finfo(got.dtype).eps * np.sqrt(k)


# --- what is computed --------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(dtype: str) -> None:
    asked = [
        (Gemm(dtype, transpose_a, transpose_b), sizes)
        for transpose_a in (False, True)
        for transpose_b in (False, True)
        for sizes in [(37, 41, 23), (48, 36, 68)]  # with odd edges, and with wide loads
    ]
    memory = [placed(gemm, sizes) for gemm, sizes in asked]
    run(*(chosen(g, arrays, sizes) for (g, sizes), arrays in zip(asked, memory, strict=True)))
    for (gemm, sizes), arrays in zip(asked, memory, strict=True):
        assert_close(arrays["c"], multiplied(gemm, arrays), sizes[2])


@needs_compiler
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_products_of_halves_are_exact_in_float32(half: str) -> None:
    asked = [
        (Gemm("float32", transpose_a, transpose_b, **halves(half)), sizes)
        for transpose_a in (False, True)
        for transpose_b in (False, True)
        for sizes in [(37, 41, 23), (48, 36, 68), (38, 34, 22)]  # loads of one, four and two
    ]
    memory = [placed(gemm, sizes) for gemm, sizes in asked]
    run(*(chosen(g, arrays, sizes) for (g, sizes), arrays in zip(asked, memory, strict=True)))
    for (gemm, sizes), arrays in zip(asked, memory, strict=True):
        assert arrays["a"].dtype == half
        assert_close(arrays["c"], multiplied(gemm, arrays), sizes[2])


@needs_compiler
def test_halves_are_read_and_stored_by_formulas() -> None:
    """A bias of halves; the result rounded to bfloat16, and once more in float32."""
    rounded = ("cast", ("add", PRODUCT, X), "bfloat16")
    finish = Finish(
        (Operand("x0", "bfloat16", "row"),), (Result("y0", "bfloat16", rounded),), rounded
    )
    gemm = Gemm("float32", epilogue=finish, **halves("bfloat16"))
    arrays = placed(gemm, sizes := (29, 22, 35))
    arrays["x0"] = arrays["x0"].astype(as_dtype("bfloat16"))
    arrays["y0"] = np.zeros(sizes[:2], as_dtype("bfloat16"))
    run(chosen(gemm, arrays, sizes))
    assert np.array_equal(arrays["y0"].astype(np.float32), arrays["c"])
    expected = multiplied(gemm, arrays) + arrays["x0"].astype(np.float64)
    np.testing.assert_allclose(arrays["c"], expected, rtol=2**-8, atol=2**-8)


@needs_compiler
def test_bias_and_activation() -> None:
    gemm = Gemm("float32", epilogue=biased("float32"))
    arrays = placed(gemm, sizes := (29, 22, 35))
    run(chosen(gemm, arrays, sizes))
    expected = 1 / (1 + np.exp(-(multiplied(gemm, arrays) + arrays["x0"])))
    assert_close(arrays["c"], expected, sizes[2])


@needs_compiler
@pytest.mark.parametrize(
    "sizes", [(64, 48, 19), (33, 10, 50)]
)  # with all of k at once, and in parts
def test_update_in_place(sizes: tuple[int, int, int]) -> None:
    gemm = Gemm("float32", transpose_a=True, epilogue=updated("float32"), unread=True)
    arrays = placed(gemm, sizes)
    expected = arrays["x0"] - arrays["x1"] * multiplied(gemm, arrays)
    run(chosen(gemm, arrays, sizes))
    assert_close(arrays["y0"], expected, sizes[2])
    assert np.isnan(arrays["c"]).all()  # nobody reads it


@needs_compiler
def test_truth_values_and_numbers_of_rows() -> None:
    gemm = Gemm("float64", transpose_b=True, epilogue=positive("float64"))
    arrays = placed(gemm, sizes := (21, 27, 18))
    run(chosen(gemm, arrays, sizes))
    product = multiplied(gemm, arrays)
    expected = np.where(product > 0, product * arrays["x0"][:, None], 0)
    assert_close(arrays["c"], expected, sizes[2])
    assert np.array_equal(arrays["y0"], product > 0)


@needs_compiler
def test_what_is_read_early_changes_nothing() -> None:
    for transpose in (False, True):
        gemm = Gemm("float32", transpose_a=transpose, epilogue=updated("float32"))
        launches, memory = [], []
        for early in ((), ("b", "finish"), ("a", "b"), ("a", "b", "finish")):
            arrays = placed(gemm, sizes := (40, 34, 50))
            launch = chosen(gemm, arrays, sizes)
            launches.append(hastened(launch, frozenset(early), H100))
            memory.append(arrays)
        run(*launches)
        assert all(np.array_equal(memory[0]["y0"], arrays["y0"]) for arrays in memory)
        assert not np.array_equal(memory[0]["y0"], placed(gemm, sizes)["y0"])


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_of_weight_gradients_change_no_bit(dtype: str) -> None:
    """Tiles that blocks share evenly, and that one does not fill; updates of few and of many reads."""
    for finish, sizes in ((updated(dtype), (101, 67, 35)), (momentum(dtype), (34, 98, 16))):
        gemm = Gemm(dtype, transpose_a=True, epilogue=finish, unread=True)
        launches, memory = [], []
        for down, across, *warps in (*_OUTER_TILES, *_LARGE_TILES):
            arrays = placed(gemm, sizes)
            launch = chosen(gemm, arrays, sizes)
            assert isinstance(launch.variant, GemmVariant) and launch.variant.cut.whole_k
            cut = replace(launch.variant.cut, tile=(down, across), warps=(warps[0], warps[1], 1))
            grid = (cut.blocks(*sizes[:2]), 1, 1)
            variant = replace(launch.variant, cut=cut)
            launches.append(replace(launch, variant=variant, grid=grid, block=(cut.threads, 1, 1)))
            memory.append(arrays)
        before = placed(gemm, sizes)
        run(*launches)
        step = before["x1"] * multiplied(gemm, before)
        others = sum(before[f"x{k}"] for k in range(2, len(finish.operands)))
        for arrays in memory:
            assert np.array_equal(arrays["y0"], memory[0]["y0"])
            assert_close(arrays["y0"], before["x0"] - step + others, sizes[2])


@needs_compiler
def test_sums_of_a_row_do_not_depend_on_other_rows() -> None:
    gemm = Gemm("float32")
    arrays = placed(gemm, sizes := (50, 40, 60))
    run(chosen(gemm, arrays, sizes))
    part = {**arrays, "a": arrays["a"][7:], "c": np.full((43, 40), np.nan, np.float32)}
    run(chosen(gemm, part, (43, 40, 60)))
    assert np.array_equal(part["c"], arrays["c"][7:])


# --- the rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [4, 8])
@pytest.mark.parametrize("transposes", [(False, False), (False, True), (True, False), (True, True)])
def test_cuts_cover_everything(item: int, transposes: tuple[bool, bool]) -> None:
    for sizes in [
        (1, 1, 1),
        (100, 528, 784),
        (528, 10, 100),
        (784, 528, 100),
        (7, 1000, 3000),
        (64, 64, 16),
    ]:
        cut = cut_for(sizes, transposes, item, 132, 227 << 10)
        assert cut is not None
        assert cut.steps * 16 * cut.warps[2] >= sizes[2]
        assert cut.threads <= 512
        assert cut.shared_bytes(transposes[1], item) <= 227 << 10
        assert 1 <= cut.ahead <= cut.steps


def test_small_products_fill_the_chip() -> None:
    cut = cut_for((100, 528, 528), (False, False), 4, 132, 227 << 10)
    assert cut == Cut(False, (2, 2), (1, 1, 11), 3, 3)
    assert cut.blocks(100, 528) == 132
    # fewer bytes that are not there yet
    cut = cut_for((100, 528, 528), (False, False), 4, 132, 227 << 10, "b")
    assert cut is not None and cut.tile == (1, 4) and cut.blocks(100, 528) == 119
    assert cut_for((100, 528, 10**6), (False, False), 4, 132, 227 << 10) is None


def test_weight_gradients_of_a_level_share_their_rounds() -> None:
    sizes, transposes = (784, 528, 100), (True, False)
    alone = cut_for(sizes, transposes, 4, 132, 227 << 10)
    assert alone is not None and alone.whole_k and alone.block == (64, 64)
    others = [(528, 528, 100)] * 2
    cut = cut_for(sizes, transposes, 4, 132, 227 << 10, (), others)
    assert cut is not None and cut.block == (96, 96)
    assert sum(cut.blocks(m, n) for m, n, _ in (sizes, *others)) == 126  # one round
    # Small tiles that share a multiprocessor where there are few.
    cut = cut_for((784, 256, 64), transposes, 4, 132, 227 << 10, (), [(256, 256, 64)])
    assert cut is not None and cut.block == (64, 32)
    # The smallest tiles that make one round, of as many layers as that.
    for layers, block, blocks in (
        (3, (112, 96), 132),
        (4, (128, 144), 108),
        (5, (128, 144), 128),
        (6, (160, 144), 116),
        (7, (160, 144), 132),
        (8, (64, 64), None),
    ):
        others = [(528, 528, 100)] * layers
        cut = cut_for(sizes, transposes, 4, 132, 227 << 10, (), others)
        assert cut is not None and cut.block == block and cut.is_large == (blocks is not None)
        if blocks is not None:
            assert sum(cut.blocks(m, n) for m, n, _ in (sizes, *others)) == blocks
    narrow = cut_for((528, 10, 100), transposes, 4, 132, 227 << 10, (), ())
    assert narrow is not None and not narrow.whole_k and narrow.blocks(528, 10) == 9


def test_large_products_are_a_librarys() -> None:
    def choice(
        sizes: tuple[int, int, int], tensor_float: bool = False, **more: Any
    ) -> Launch | None:
        gemm = Gemm("float32", **more)
        values = slots(gemm, {}, sizes) | {"a": 0, "b": 0, "c": 0}
        return choose_gemm(gemm, values, H100, tensor_float)

    assert choice((100, 528, 784), True) is not None
    assert choice((100, 528, 784)) is not None
    assert choice((4096, 4096, 4096), True) is None
    assert choice((512, 2048, 784)) is None
    assert choice((784, 528, 100), True, transpose_a=True) is not None
    assert (
        choice((784, 528, 100), transpose_a=True) is None
    )  # exact products of this kind are slower
    assert choice((100, 528, 0)) is None


def variants() -> list[GemmVariant]:
    """One of each kind, as for the network of the papers."""
    asked = [
        ((100, 528, 784), Gemm("float32", epilogue=biased("float32")), True),
        ((100, 528, 10), Gemm("float32", transpose_b=True), True),
        ((784, 528, 100), Gemm("float32", True, epilogue=updated("float32"), unread=True), True),
        ((101, 53, 77), Gemm("float32", True, True), False),
        ((64, 48, 40), Gemm("float64", True, epilogue=updated("float64")), False),
        ((37, 41, 99), Gemm("float64", epilogue=positive("float64")), False),
        (
            (100, 528, 784),
            Gemm("float32", epilogue=biased("bfloat16"), **halves("bfloat16")),
            False,
        ),
        (
            (784, 528, 100),
            Gemm("float32", True, epilogue=updated("float32"), **halves("float16")),
            False,
        ),
    ]
    made = []
    for sizes, gemm, tensor_float in asked:
        arrays = placed(gemm, sizes)
        launch = choose_gemm(gemm, slots(gemm, arrays, sizes), H100, tensor_float)
        assert launch is not None and isinstance(launch.variant, GemmVariant)
        made += [launch.variant, hastened(launch, frozenset(("a", "b", "finish")), H100).variant]
    return made


def test_text_follows_from_the_variant() -> None:
    assert module_text(variants()) == module_text(variants())
    assert len({v.text("kernel") for v in variants()}) == len(variants())
    assert module_text(variants()).count("struct Product {") == 1


@pytest.mark.parametrize(("major", "architecture"), ARCHITECTURES)
def test_text_compiles(major: int, architecture: str) -> None:
    old = architecture in ("sm_70", "sm_75")
    some = variants()[1:8:2] if old else variants()
    options = [*OPTIONS, f"-arch={architecture}", "--ptxas-options=-v"]
    image, log = compiled(module_text(some), major, options)
    assert image.startswith(b"\x7fELF")
    if not old:
        assert log.count(" 0 bytes spill stores") == len(some)


def test_early_is_what_no_kernel_in_front_writes() -> None:
    gemm = Gemm("float32", epilogue=updated("float32"))
    launch = chosen(gemm, placed(gemm, (16, 16, 16)), (16, 16, 16))
    a, b, x, rate, y = ((64 * k, 64 * k + 64) for k in range(5))
    first = Item(launch, (b, b, b), (a,))
    second = Item(launch, (a, b, x, rate), (y,))
    third = Item(launch, (b, a, y, rate), (x,))

    def early(*row: Item) -> frozenset[str]:
        edges = edges_of([(i.reads, i.writes) for i in row])
        found = graphs._hastened(row, edges, H100)[-1].what
        assert isinstance(found, Launch) and isinstance(found.variant, GemmVariant)
        return frozenset(found.variant.early)

    assert early(second) == {"a", "b", "finish"}
    assert early(replace(first, what=other(launch)), second) == {"b", "finish"}
    # what `a` was written by is done once the kernel in front lets this one begin
    assert early(
        replace(first, what=other(launch)), replace(second, what=other(launch)), third
    ) == {"a", "b"}


def test_beside_calls_what_was_written_before_is_not_read_early() -> None:
    """There a kernel may come right after one that is several levels before it."""
    gemm = Gemm("float32", epilogue=updated("float32"))
    launch = chosen(gemm, placed(gemm, (16, 16, 16)), (16, 16, 16))
    a, b, x, rate, y = ((64 * k, 64 * k + 64) for k in range(5))
    call = MatrixNode("potrf", "float32", (), 0, 1, ((),), (), 0, 0)
    row = [
        Item(other(launch), (b, b, b), (a,)),
        Item(call, (b,), (x,)),
        Item(launch, (a, b, x, rate), (y,)),
    ]
    made = graphs.merged(row, H100)
    assert made.after == [(), (), (0, 1)]
    last = made.items[-1].launch.variant
    assert isinstance(last, GemmVariant) and set(last.early) == {"b"}


def other(launch: Launch) -> Launch:
    """A launch of another variant: one serves all launches of a product."""
    assert isinstance(launch.variant, GemmVariant)
    return replace(launch, variant=replace(launch.variant, arithmetic="tf32"))
