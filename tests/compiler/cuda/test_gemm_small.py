"""Products by single threads, on the emulated device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from magmadnn.compiler.cuda.gemm.small import can_be_small, small_gemm
from magmadnn.compiler.kernels.gemm import Gemm, Loading
from tests.compiler.cuda.test_gemm import (
    assert_close,
    biased,
    multiplied,
    placed,
    positive,
    run,
    slots,
    updated,
)
from tests.runtime.cuda.emulator import needs_compiler

# A row; odd edges; wide loads; k shorter than a thread takes at a time; a column of results; more parts of k
# than rows.
SIZES = [(1, 37, 41), (13, 11, 23), (16, 20, 64), (19, 12, 3), (16, 1, 70), (3, 2, 130)]


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(dtype: str) -> None:
    asked = [
        (Gemm(dtype, transpose_a, transpose_b), sizes)
        for transpose_a, transpose_b, sizes in itertools.product(
            (False, True), (False, True), SIZES
        )
    ]
    memory = [placed(gemm, sizes) for gemm, sizes in asked]
    run(
        *(
            small_gemm(gemm, slots(gemm, arrays, sizes))
            for (gemm, sizes), arrays in zip(asked, memory, strict=True)
        )
    )
    for (gemm, sizes), arrays in zip(asked, memory, strict=True):
        assert_close(arrays["c"], multiplied(gemm, arrays), sizes[2])


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_any_size_have_the_same_bits(dtype: str) -> None:
    kinds = [Gemm(dtype, a, b) for a, b in itertools.product((False, True), (False, True))]
    kinds += [Gemm(dtype, epilogue=biased(dtype)), Gemm(dtype, epilogue=positive(dtype))]
    kinds += [Gemm(dtype, transpose_a=True, epilogue=updated(dtype), unread=True)]
    asked = list(itertools.product(kinds, SIZES))
    ways = []
    for any_size in (False, True):
        memory = [placed(gemm, sizes) for gemm, sizes in asked]
        launches = [
            small_gemm(gemm, slots(gemm, arrays, sizes), any_size)
            for (gemm, sizes), arrays in zip(asked, memory, strict=True)
        ]
        run(*launches)
        ways.append((memory, {launch.variant for launch in launches}))
    (given, variants), (free, fewer) = ways
    for arrays, others in zip(given, free, strict=True):
        for name, array in arrays.items():
            assert array.tobytes() == others[name].tobytes()
    assert len(fewer) < len(variants) == len(asked)


@needs_compiler
def test_what_is_done_to_elements() -> None:
    forward = Gemm("float32", epilogue=biased("float32"))
    update = Gemm("float32", transpose_a=True, epilogue=updated("float32"), unread=True)
    backward = Gemm("float64", transpose_b=True, epilogue=positive("float64"))
    sizes = (18, 14, 35)
    memory = [placed(gemm, sizes) for gemm in (forward, update, backward)]
    old = memory[1]["x0"].copy()
    run(
        *(
            small_gemm(gemm, slots(gemm, arrays, sizes))
            for gemm, arrays in zip((forward, update, backward), memory, strict=True)
        )
    )
    expected = 1 / (1 + np.exp(-(multiplied(forward, memory[0]) + memory[0]["x0"])))
    assert_close(memory[0]["c"], expected, sizes[2])
    assert_close(memory[1]["y0"], old - memory[1]["x1"] * multiplied(update, memory[1]), sizes[2])
    assert np.isnan(memory[1]["c"]).all()  # nobody reads it
    product = multiplied(backward, memory[2])
    assert_close(
        memory[2]["c"], np.where(product > 0, product * memory[2]["x0"][:, None], 0), sizes[2]
    )
    assert np.array_equal(memory[2]["y0"], product > 0)


def test_products_of_halves_have_no_such_kernel() -> None:
    assert can_be_small(Gemm("float32", epilogue=biased("float32")))
    half = Loading.widening("bfloat16")
    assert not can_be_small(Gemm("float32", load_a=half, load_b=half))
