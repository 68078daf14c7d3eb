"""Orders of rows that native threads draw are those of `philox.permutation`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn.compiler.llvm.driver.rounds import Beside
from magmadnn.ops import philox
from magmadnn.training.many.following.orders import permutations

SEEDS = [0, 7, 2**40 + 3, 2**64 - 1]
STREAMS = [philox.stream_of("shuffle", epoch) for epoch in range(3)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 5, 64, 65, 242, 5003])
def test_each_order_is_that_of_its_seed_and_stream(count: int, threads: int) -> None:
    found = permutations(count, SEEDS, STREAMS, Beside(threads))
    assert found.shape == (4, 3, count)
    for seed, orders in zip(SEEDS, found, strict=True):
        for stream, order in zip(STREAMS, orders, strict=True):
            assert np.array_equal(order, philox.permutation(count, seed, stream))


def test_keys_whose_first_bits_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bits decide then: here all keys look alike."""

    class Idle(Beside):
        """Draws nothing."""

        def run(self, table: Any, scratch_bytes: int = 0) -> Any:
            """See `Beside`."""

    monkeypatch.setattr(np, "empty", np.zeros)
    found = permutations(11, SEEDS, STREAMS, Idle(1))
    monkeypatch.undo()
    for seed, orders in zip(SEEDS, found, strict=True):
        for stream, order in zip(STREAMS, orders, strict=True):
            assert np.array_equal(order, philox.permutation(11, seed, stream))
