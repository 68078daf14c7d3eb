"""Products of stacks whose tiles pass through shared memory: on the emulated device, and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magmadnn.compiler.cuda.gemm.stacked import (
    StackedProduct,
    choose_shared,
    choose_stacked,
    picking,
)
from magmadnn.compiler.cuda.gemm.tiled import TiledProduct
from magmadnn.compiler.cuda.module import OPTIONS, module_text
from magmadnn.compiler.cuda.text.variant import Chip, Launch
from magmadnn.compiler.kernels.gemm import Finish, Gemm, Loading
from magmadnn.memory import as_dtype
from tests.compiler.cuda.nvrtc import ARCHITECTURES, compiled
from tests.compiler.cuda.test_gemm import (
    H100,
    biased,
    momentum,
    multiplied,
    positive,
    run,
    slots,
    updated,
)
from tests.runtime.cuda.emulator import needs_compiler

FOUR = Chip(80, 4, 227 << 10)
HALF, OTHER = Loading.widening("bfloat16"), Loading.widening("float16")
KINDS = {"": (False, False), "a": (True, False), "b": (False, True)}


def stack(gemm: Gemm, sizes: tuple[int, int, int], count: int) -> dict[str, np.ndarray]:
    """Operands with random elements, results with garbage, an axis of products in front."""
    (m, n, k), rng = sizes, np.random.default_rng(7)
    shapes = {
        "a": (count, k, m) if gemm.transpose_a else (count, m, k),
        "b": (count, n, k) if gemm.transpose_b else (count, k, n),
    }
    spreads = {"full": (count, m, n), "row": (n,), "column": (count, m), "scalar": ()}
    finish = gemm.epilogue
    assert finish is None or isinstance(finish, Finish)
    for operand in finish.operands if finish else ():
        shapes[operand.name] = spreads[operand.spread]
    arrays = {
        name: np.array(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()
    }
    if gemm.halves:
        arrays |= {side: arrays[side].astype(as_dtype(gemm.halves)) for side in "ab"}
    arrays["c"] = np.full((count, m, n), np.nan, np.float32)
    for result in finish.results if finish else ():
        over = arrays.get("x0")
        same = over is not None and over.shape == (count, m, n)
        arrays[result.name] = over if same else np.full((count, m, n), 7, result.dtype)
    return arrays


def tiled_launch(gemm: Gemm, arrays: dict[str, np.ndarray], sizes: Any, chip: Chip) -> Launch:
    (m, _, _), count = sizes, len(arrays["c"])
    values = slots(gemm, arrays, sizes) | {"row1": m * count}
    axes = {side: ((count, arrays[side][0].size),) for side in "ab"}
    launch = choose_stacked(gemm, values, axes, chip, True)
    assert launch is not None
    assert isinstance(launch.variant, StackedProduct)
    assert isinstance(launch.variant.product, TiledProduct)
    return launch


def each(gemm: Gemm, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The products in float64."""
    pairs = zip(arrays["a"], arrays["b"], strict=True)
    return np.stack([multiplied(gemm, {"a": a, "b": b}) for a, b in pairs])


def assert_all_close(found: np.ndarray, expected: np.ndarray, k: int) -> None:
    """Each element within the rounding of a sum of k products of about one."""
    bound = 4 * np.finfo(np.float32).eps * k
    assert np.abs(found - expected).max() < bound


@needs_compiler
@pytest.mark.parametrize("turned", KINDS)
@pytest.mark.parametrize(
    "sizes", [(64, 64, 64), (100, 132, 68), (36, 68, 100)], ids=["whole", "edges", "few rows"]
)
def test_tiles_at_edges_and_inside(turned: str, sizes: tuple[int, int, int]) -> None:
    gemm = Gemm("float32", *KINDS[turned])
    arrays = stack(gemm, sizes, 4)
    run(tiled_launch(gemm, arrays, sizes, FOUR))
    assert_all_close(arrays["c"], each(gemm, arrays), sizes[2])


@needs_compiler
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("sizes", "half"),
    [
        ((64, 64, 64), "bfloat16"),
        ((100, 136, 72), "bfloat16"),
        ((36, 68, 100), "float16"),
        ((40, 128, 200), "bfloat16"),
    ],
    ids=["whole", "edges", "fours", "chunks"],
)
def test_halves_lie_in_shared_memory_as_they_are(
    half: str, turned: str, sizes: tuple[int, int, int]
) -> None:
    """Eight are copied together where all lie so; the others four."""
    load = Loading.widening(half)
    gemm = Gemm("float32", "a" in turned, "b" in turned, load_a=load, load_b=load)
    arrays = stack(gemm, sizes, 4)
    launch = tiled_launch(gemm, arrays, sizes, FOUR)
    variant: Any = launch.variant
    lengths = sizes[0] if "a" in turned else sizes[2], sizes[2] if "b" in turned else sizes[1]
    eight = not any(size % 8 for size in lengths)
    assert variant.product.each == (8 if eight else 4)
    run(launch)
    wide = {side: arrays[side].astype(np.float64) for side in "ab"}
    assert_all_close(arrays["c"], each(gemm, arrays | wide), sizes[2])


@needs_compiler
@pytest.mark.parametrize(("turned", "sizes"), [("", (37, 68, 68)), ("b", (37, 67, 68))])
def test_rows_and_columns_that_are_odd(turned: str, sizes: tuple[int, int, int]) -> None:
    """Nothing is stored beyond them: what follows the results stays as it was."""
    gemm = Gemm("float32", *KINDS[turned], epilogue=biased("float32"))
    arrays = stack(gemm, sizes, 4)
    room = np.full(arrays["c"].size + 256, 7, np.float32)
    arrays["c"] = room[:-256].reshape(arrays["c"].shape)
    run(tiled_launch(gemm, arrays, sizes, FOUR))
    expected = 1 / (1 + np.exp(-(each(gemm, arrays) + arrays["x0"])))
    assert_all_close(arrays["c"], expected, sizes[2])
    assert (room[-256:] == 7).all()


@needs_compiler
def test_what_is_done_to_elements() -> None:
    sizes = (36, 68, 70 // 4 * 4)
    gemms = [
        Gemm("float32", epilogue=biased("float32")),
        Gemm("float32", transpose_b=True, epilogue=positive("float32")),
        Gemm("float32", transpose_a=True, epilogue=updated("float32"), unread=True),
        Gemm("float32", transpose_a=True, epilogue=momentum("float32"), unread=True),
    ]
    memory = [stack(gemm, sizes, 4) for gemm in gemms]
    before = [{name: array.copy() for name, array in arrays.items()} for arrays in memory]
    run(*(tiled_launch(g, a, sizes, FOUR) for g, a in zip(gemms, memory, strict=True)))
    products = [each(gemm, arrays) for gemm, arrays in zip(gemms, before, strict=True)]
    sigmoid = 1 / (1 + np.exp(-(products[0] + before[0]["x0"])))
    assert_all_close(memory[0]["c"], sigmoid, sizes[2])
    kept = np.where(products[1] > 0, products[1] * before[1]["x0"][..., None], 0)
    assert_all_close(memory[1]["c"], kept, sizes[2] * 4)
    assert np.array_equal(memory[1]["y0"], products[1] > 0)
    new = before[2]["x0"] - before[2]["x1"] * products[2]
    assert_all_close(memory[2]["x0"], new, sizes[2] * 2)
    new = before[3]["x0"] - before[3]["x1"] * products[3] + before[3]["x2"] + before[3]["x3"]
    assert_all_close(memory[3]["x0"], new, sizes[2] * 2)


@needs_compiler
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_blocks_that_go_through_rows_share_them(parts: int) -> None:
    """More blocks than tiles of rows too: the last have nothing to do."""
    sizes, gemm = (100, 72, 40), Gemm("float32", transpose_a=True)
    arrays = stack(gemm, sizes, 4)
    launch = tiled_launch(gemm, arrays, sizes, FOUR)
    variant: Any = launch.variant
    variant = replace(variant, product=replace(variant.product, split=parts))
    run(replace(launch, variant=variant, grid=(4 * variant.blocks, 1, 1)))
    assert_all_close(arrays["c"], each(gemm, arrays), sizes[2])


@needs_compiler
@pytest.mark.parametrize(
    ("turned", "rows_of_one", "ordered"),
    [("", 36, True), ("", 132, True), ("", 36, False), ("a", 36, True), ("b", 132, True)],
)
def test_rows_of_a_batch_are_found_by_an_order(
    turned: str, rows_of_one: int, ordered: bool
) -> None:
    """The third batch; each product has rows of its own, also several tiles; A's own memory is not read."""
    sizes, gemm, count = (rows_of_one, 68, 72), Gemm("float32", *KINDS[turned]), 4
    arrays = stack(gemm, sizes, count)
    lines, columns = arrays["a"].shape[1:]
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((3 * count * lines, columns), np.float32)
    order = rng.permutation(len(rows))
    launch = tiled_launch(gemm, arrays, sizes, FOUR)
    numbers = np.array([1, rows.ctypes.data, order.ctypes.data if ordered else 0], np.int64)
    at = numbers.ctypes.data
    picked = picking(launch, at, 1, at + 8, at + 16)
    assert picked is not None
    wanted = (order if ordered else np.arange(len(rows)))[2 * count * lines :]
    expected = each(gemm, {"a": rows[wanted].reshape(arrays["a"].shape), "b": arrays["b"]})
    arrays["a"][:] = np.nan
    run(picked)
    assert_all_close(arrays["c"], expected, sizes[2])


def test_what_other_kernels_are_better_for() -> None:
    """Few products, few columns, float64, exact float32, rows that cannot be moved four at a time, large
    ones of halves."""

    def is_tiled(
        sizes: Any, count: int, exact: bool = False, dtype: str = "float32", half: Any = None
    ) -> bool:
        gemm = Gemm(dtype, load_a=half, load_b=half)
        (m, n, k) = sizes
        values = {"row0": 0, "row1": m * count, "column0": 0, "column1": n, "k": k}
        values |= {"lda": k, "ldb": n, "ldc": n, "a": 0, "b": 0, "c": 0, "cuts": 0}
        axes = {"a": ((count, m * k),), "b": ((count, k * n),)}
        launch = choose_stacked(gemm, values, axes, H100, not exact)
        variant = None if launch is None else launch.variant
        return isinstance(variant, StackedProduct) and isinstance(variant.product, TiledProduct)

    assert is_tiled((128, 128, 784), 256)
    assert not is_tiled((128, 128, 784), 2)
    assert not is_tiled((128, 10, 784), 256)
    assert not is_tiled((128, 128, 784), 256, exact=True)
    assert not is_tiled((128, 128, 784), 256, dtype="float64")
    assert not is_tiled((128, 128, 785), 256)
    assert is_tiled((128, 128, 64), 512, half=HALF, exact=True)
    assert is_tiled((2048, 2048, 64), 16, half=HALF)
    assert is_tiled((2048, 64, 2048), 16, half=HALF)
    assert is_tiled((256, 256, 1024), 16, half=HALF)
    assert not is_tiled((1024, 1024, 1024), 16, half=HALF)


def test_which_products_of_one_second_factor_are_a_library_s() -> None:
    """Large ones, but for few columns in TF32."""

    def is_own(count: int, sizes: tuple[int, int, int], exact: bool = False) -> bool:
        m, n, k = sizes
        values = {"row0": 0, "row1": m * count, "column0": 0, "column1": n, "k": k}
        values |= {"lda": k, "ldb": n, "ldc": n, "a": 0, "b": 0, "c": 0, "cuts": 0}
        axes = {"a": ((count, (m + 2) * k),), "b": ((count, 0),)}
        return choose_shared(Gemm("float32"), values, axes, H100, not exact) is not None

    assert is_own(8, (32, 64, 64)) and is_own(8, (32, 64, 64), exact=True)
    assert is_own(64, (128, 64, 256)) and not is_own(64, (128, 64, 256), exact=True)
    assert is_own(256, (128, 10, 512)) and not is_own(256, (128, 10, 512), exact=True)
    assert not is_own(256, (128, 64, 512)) and not is_own(64, (128, 256, 256))


@pytest.mark.parametrize(("major", "architecture"), ARCHITECTURES)
def test_the_compiler_takes_them(major: int, architecture: str) -> None:
    variants: list[Any] = []
    for gemm, sizes in [
        (Gemm("float32", epilogue=biased("float32")), (128, 128, 784)),
        (Gemm("float32", transpose_b=True), (100, 1000, 1000)),
        (Gemm("float32", transpose_a=True, epilogue=updated("float32")), (784, 128, 128)),
        (replace(Gemm("float32"), load_a=HALF, load_b=HALF), (128, 64, 128)),
        (replace(Gemm("float32", transpose_b=True), load_a=HALF, load_b=HALF), (128, 128, 64)),
        (replace(Gemm("float32"), load_a=OTHER, load_b=OTHER), (128, 72, 200)),
        (replace(Gemm("float32", transpose_a=True), load_a=HALF, load_b=HALF), (128, 64, 128)),
    ]:
        launch = tiled_launch(gemm, stack(gemm, sizes, 4), sizes, H100)
        picked = picking(launch, 8, 0, 8, 8)
        assert (picked is None) == (gemm.transpose_a and gemm.halves is not None)
        variants += [launch.variant] if picked is None else [launch.variant, picked.variant]
    compiled(module_text(variants), major, (*OPTIONS, f"-arch={architecture}"))
