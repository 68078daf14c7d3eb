"""When a thread begins with the order of the next epoch, and what is kept of orders."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.data import order
from magmadnn.training.loop import sources
from magmadnn.training.loop.augmented_source import DrawnSource
from magmadnn.training.loop.own_rows import OwnRows
from magmadnn.training.loop.sources import ArraySource

ROWS, SIZE = 6_000, 1_000


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("device", [None, 0])
def test_the_next_order_waits_for_the_first_steps_on_a_gpu(
    device: int | None, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the processor it begins at once. What is drawn is used, and is the same; by several ranks too."""
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
    whole = ArraySource([x], [x], None, seed=5, device=device)
    source = OwnRows(whole, lambda count: slice(0, count)) if is_shared else whole
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


def test_an_order_that_a_thread_could_not_draw_is_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[int] = []

    def fails_once(rows: int, seed: int, number: int, device: int | None) -> Any:
        drawn.append(number)
        if drawn.count(1) == 1 and number == 1:
            raise MemoryError("of epoch 1")
        return order(rows, seed, number)

    monkeypatch.setattr(sources, "_orders", {})
    monkeypatch.setattr(sources, "order_of", fails_once)
    x = np.zeros((ROWS, 1), "float32")
    source = ArraySource([x], [x], None, seed=5)
    source.order(0)
    with pytest.raises(MemoryError, match="of epoch 1"):
        source.order(1)
    np.testing.assert_array_equal(source.order(1), order(ROWS, 5, 1))
    np.testing.assert_array_equal(source.order(2), order(ROWS, 5, 2))  # drawn ahead, once
    assert drawn.count(1) == 2 and drawn.count(2) == 1


def test_an_order_is_given_though_another_thread_has_put_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            """Others come at once, and this one goes."""

    monkeypatch.setattr(sources, "_orders", Full())
    np.testing.assert_array_equal(sources.order_of(37, 5, 2), order(37, 5, 2))


def test_threads_look_up_and_keep_one_at_a_time_and_draw_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, bool]] = []

    class Kept(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            seen.append(("look up", sources._keeping.locked()))
            return super().get(key, default)

        def __delitem__(self, key: Any) -> None:
            seen.append(("put out", sources._keeping.locked()))
            super().__delitem__(key)

        def __setitem__(self, key: Any, value: Any) -> None:
            seen.append(("keep", sources._keeping.locked()))
            super().__setitem__(key, value)

    def drawn(rows: int, seed: int, number: int) -> Any:
        seen.append(("draw", sources._keeping.locked()))
        return order(rows, seed, number)

    monkeypatch.setattr(sources, "_orders", Kept())
    monkeypatch.setattr(sources, "_ORDERS", 1)
    monkeypatch.setattr(sources, "shuffled", drawn)
    for number in (2, 2, 3):
        np.testing.assert_array_equal(sources.order_of(37, 5, number), order(37, 5, number))
    found, draws = ("look up", True), ("draw", False)
    first = [found, draws, ("keep", True)]
    assert seen == [*first, found, found, draws, ("put out", True), ("keep", True)]
    assert [*sources._orders] == [(37, 5, 3)]


def test_a_table_that_a_thread_could_not_draw_is_drawn_again() -> None:
    """Of numbers for images that the step of a GPU changes."""
    drawn: list[int] = []
    written: list[str] = []

    def fails_once(number: int) -> Any:
        drawn.append(number)
        if drawn == [1, 2]:
            raise MemoryError("of epoch 2")
        return f"table {number}"

    source: Any = object.__new__(DrawnSource)
    source._draw, source._coming, source._epoch = fails_once, None, 0
    source._table = SimpleNamespace(fill_from=written.append)
    source._begin(1)
    with pytest.raises(MemoryError, match="of epoch 2"):
        source._begin(2)
    source._begin(2)
    source._coming[1].result()
    source._begin(3)
    assert written == ["table 1", "table 2", "table 3"]
    assert drawn[:4] == [1, 2, 2, 3]  # what was drawn ahead was used
