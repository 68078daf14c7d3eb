"""Variables are saved, looked at and restored whole, whatever their size, dtype and the number of threads."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from magmadnn.runtime.cpu.sliced.slices import Saved

SIZES = (
    1,
    7,
    65,
    1000,
    65_536,
    70_001,
    300_003,
)  # in bytes or elements: below and across the parts


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_was_saved_comes_back(threads: int) -> None:
    rng = np.random.default_rng(0)
    dtypes = ("float32", "float64", "int64", "bool", ml_dtypes.bfloat16)
    memories = [(rng.random(n) * 3).astype(dtype) for n in SIZES for dtype in dtypes]
    memories += [memories[-1][1:70_000], np.zeros((0, 3), np.float32), np.ones((), np.float32)]
    before = [m.copy() for m in memories]
    saved = Saved(memories, threads)
    parts = [task.arguments for task in saved._saves()]
    assert sum(end - start for start, end, *_ in parts) == sum(m.nbytes for m in memories)
    saved.save()
    for memory in memories:
        memory[...] = 0
    saved.restore()
    for memory, old in zip(memories, before, strict=True):
        np.testing.assert_array_equal(memory, old)


@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found(dtype: str, value: float) -> None:
    memories = [np.ones(n, dtype) for n in SIZES]
    saved = Saved(memories, 2)
    assert saved.are_finite()
    for memory in memories:
        for place in {0, len(memory) // 2, len(memory) - 1}:
            memory[place] = value
            assert not saved.are_finite(), (len(memory), place)
            memory[place] = 1
    assert saved.are_finite()


def test_large_numbers_and_integers_are_finite() -> None:
    largest = np.full(10_001, np.finfo(np.float32).max)
    tiny = np.full(10_001, np.finfo(np.float64).smallest_subnormal)
    assert Saved([largest, tiny, np.arange(5), np.zeros(0)], 1).are_finite()
