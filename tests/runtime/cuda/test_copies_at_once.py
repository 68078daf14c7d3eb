"""Rows gathered, and arrays copied, by one launch."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.runtime.cuda.data.arrays import copied, empty
from magmadnn.runtime.cuda.data.copies import CopiesAtOnce
from magmadnn.runtime.cuda.data.rows import GatheredRows
from tests.runtime.cuda.devices import DEVICES, on

DRAW = np.random.default_rng(3)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_several_arrays(device: str) -> None:
    """Of several dtypes, and batches that become smaller and larger again."""
    with on(device):
        host = [
            DRAW.normal(size=(300, 7)).astype(np.float32),
            DRAW.integers(0, 9, 300),
            DRAW.normal(size=(300, 2, 3)),
            DRAW.integers(0, 255, (300, 5)).astype(np.uint8),
        ]
        there = [copied(array, 0) for array in host]
        rows = GatheredRows(there, 40)
        for count in (40, 13, 0, 40, 1, 39, 13):
            order = DRAW.integers(0, 300, count)
            for found, array in zip(rows.take(order), host, strict=True):
                assert found.shape == (count, *array.shape[1:]) and found.dtype == array.dtype
                np.testing.assert_array_equal(np.asarray(found), array[order])


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_to_places_that_change(device: str) -> None:
    shapes = [("float32", 1000), ("int64", 1), ("float64", 0), ("bfloat16", 77)]
    assert CopiesAtOnce.can(shapes)
    assert not CopiesAtOnce.can([]) and not CopiesAtOnce.can([("float32", 1)] * 65)
    assert not CopiesAtOnce.can([("complex64", 3)])
    with on(device):
        copies = CopiesAtOnce(shapes, 0)
        for turn in range(4):
            if turn != 1:  # the same places once
                host = [
                    DRAW.integers(0, 99, n).astype(np.int64).astype(_dtype(d)) for d, n in shapes
                ]
                sources = [copied(array, 0) for array in host]
                goals = [empty(array.shape, array.dtype, 0) for array in host]
            copies.begin([one.place for one in sources], [one.place for one in goals])
            device_engine(0).wait()
            for goal, array in zip(goals, host, strict=True):
                np.testing.assert_array_equal(np.asarray(goal), array)
                if array.size:
                    device_memory(0).fill(goal.place, b"\1", goal.nbytes)


def _dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
