"""Orders of rows that a device draws: those of the host, whatever share of them a block sorts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.compiler.cuda.many.permutations import MOST, Permutations, permutations_for
from magmadnn.compiler.cuda.module import OPTIONS, module_text
from magmadnn.ops import philox
from magmadnn.runtime.cuda.data.arrays import copied
from magmadnn.runtime.cuda.many import orders
from magmadnn.runtime.cuda.many.leg import Buffer
from magmadnn.runtime.cuda.many.orders import Shuffled, can_shuffle, shuffle, table_of
from tests.compiler.cuda.nvrtc import ARCHITECTURES, compiled
from tests.runtime.cuda.devices import DEVICES, on

EPOCHS, STREAM = 2, 7


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shuffles", [True, False])
@pytest.mark.parametrize("shares", [1, 4])
@pytest.mark.parametrize("rows", [2, 101, 120])
def test_orders(
    device: str, rows: int, shares: int, shuffles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two models, one of which takes some of all rows; both legs, from a place in the order on."""
    variant = Permutations(128 if shares == 1 else 64, shares)
    monkeypatch.setattr(orders, "permutations_for", lambda rows, room: variant)
    first, cut = rows // 10, rows - rows // 5
    numbers = np.arange(rows, dtype=np.int64)[::-1] * 3
    with on(device):
        chosen, results, wanted = copied(numbers, 0), [], []
        for model in range(2):
            buffers = [Buffer(0), Buffer(0)]
            counts = (cut - first, rows - cut)
            places = [b.of(8 * EPOCHS * count) for b, count in zip(buffers, counts, strict=True)]
            results.append((buffers, counts))
            seed = 2**60 + model if shuffles else None
            given = (rows, seed, STREAM, [(first, cut), (cut, rows)], chosen if model else None)
            wanted.append((EPOCHS, Shuffled(*given), places))
        table = Buffer(0)
        shuffle(0, wanted, table.holding(table_of(wanted)))
        device_engine(0).wait()
        for model, (buffers, counts) in enumerate(results):
            found: list[Any] = []
            for buffer, count in zip(buffers, counts, strict=True):
                array = np.empty((EPOCHS, count), np.int64)
                if array.size:
                    flat = array.reshape(-1).view(np.uint8)
                    device_memory(0).copy_to_host(flat, buffer.address)
                found.append(array)
            for epoch in range(EPOCHS):
                expected = np.arange(rows)
                if shuffles:
                    expected = philox.permutation(rows, 2**60 + model, STREAM + epoch)
                expected = numbers[expected] if model else expected
                np.testing.assert_array_equal(found[0][epoch], expected[first:cut])
                np.testing.assert_array_equal(found[1][epoch], expected[cut:])


@pytest.mark.parametrize("room", [48 << 10, 64 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("rows", [1, 100, 4097, 1 << 14, 60_000, MOST])
def test_blocks_have_room(rows: int, room: int) -> None:
    """A share has at most half as many rows on average as its block sorts, one block all of them."""
    variant = permutations_for(rows, room)
    assert variant.shared_bytes <= room
    assert (
        variant.capacity >= rows
        if variant.shares == 1
        else variant.capacity * variant.shares >= 2 * rows
    )
    assert can_shuffle(rows) and not can_shuffle(MOST + 1)
    assert permutations_for(100, room) == Permutations(128)


@pytest.mark.parametrize(("major", "architecture"), ARCHITECTURES)
def test_the_text_compiles(major: int, architecture: str) -> None:
    """For one block of an order and for several."""
    variants = [permutations_for(rows, 48 << 10) for rows in (100, 60_000)]
    assert [v.shares > 1 for v in variants] == [False, True]
    image, _ = compiled(module_text(variants), major, (*OPTIONS, f"-arch={architecture}"))
    assert image
