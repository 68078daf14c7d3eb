"""When a thread begins with the order of the next epoch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from magmadnn.data import order
from magmadnn.training.loop import sources
from magmadnn.training.loop.sources import ArraySource

ROWS, SIZE = 6_000, 1_000


@pytest.mark.parametrize("device", [None, 0])
def test_the_next_order_waits_for_the_first_steps_on_a_gpu(
    device: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the processor it begins at once. What is drawn is used, and is the same."""
    begun: list[int] = []

    def at_once(compute: Callable[..., Any], rows: int, seed: int, number: int) -> Future[Any]:
        begun.append(number)
        made: Future[Any] = Future()
        made.set_result(compute(rows, seed, number))
        return made

    monkeypatch.setattr(sources, "ahead", at_once)
    monkeypatch.setattr(sources, "_orders", {})
    monkeypatch.setattr(
        sources, "order_of", lambda rows, seed, number, device: order(rows, seed, number)
    )
    x = np.zeros((ROWS, 1), "float32")
    source = ArraySource([x], [x], None, seed=5, device=device)
    for epoch in range(3):
        take = source.taking(epoch, SIZE)
        assert take is not None
        early = [1, 2, 3][: epoch + (device is None)]
        assert begun == early
        first = take(2)
        assert begun == early, "the first steps were not sent yet"
        rest = take(9)
        assert begun == [1, 2, 3][: epoch + 1]
        assert take(1) is None
        assert first is not None and rest is not None
        assert first.rows is not None and rest.rows is not None
        found = np.concatenate([first.rows, rest.rows])
        np.testing.assert_array_equal(found, order(ROWS, 5, epoch))
    assert begun == [1, 2, 3]
