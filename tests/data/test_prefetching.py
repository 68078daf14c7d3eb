"""The thread that prepares batches: order, errors, and that it always ends."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import numpy as np
import pytest

import magmadnn.data as data
from magmadnn.errors import ArgumentError, DTypeError


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "magmadnn-prefetch"]


def wait_until(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(condition())


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert wait_until(lambda: not threads())


@pytest.mark.parametrize("depth", [1, 2, 100])
def test_items_come_in_order(depth):
    assert list(data.prefetch((i * i for i in range(57)), depth)) == [i * i for i in range(57)]


def test_any_iterable():
    assert list(data.prefetch([3, 1, 2])) == [3, 1, 2]
    assert list(data.prefetch(iter(()))) == []
    x = np.arange(20.0)
    found = np.concatenate(list(data.prefetch(data.batches(x, 3, seed=1))))
    np.testing.assert_array_equal(found, x[data.order(20, 1)])


def test_items_are_prepared_ahead_but_not_more_than_asked():
    prepared = []
    source = data.prefetch((prepared.append(i) or i for i in itertools.count()), depth=3)
    assert wait_until(lambda: len(prepared) == 4)  # three ready, one waiting for room
    time.sleep(0.02)
    assert len(prepared) == 4
    assert next(source) == 0
    assert wait_until(lambda: len(prepared) == 5)
    source.close()


def test_they_are_prepared_in_another_thread():
    names = list(data.prefetch(threading.current_thread().name for _ in range(3)))
    assert names == ["magmadnn-prefetch"] * 3


def test_an_exception_comes_where_its_item_would_have_come():
    def source():
        yield 1
        yield 2
        raise KeyError("row 3")

    items = data.prefetch(source(), depth=5)
    assert next(items) == 1
    assert next(items) == 2
    with pytest.raises(KeyError, match="row 3") as error:
        next(items)
    assert error.traceback[-1].name == "source"
    with pytest.raises(StopIteration):
        next(items)


def test_after_the_end_it_stays_at_the_end():
    items = data.prefetch([1])
    assert list(items) == [1]
    assert list(items) == []


def test_close_ends_the_thread_and_the_generator():
    closed_in = []

    def source():
        try:
            yield from itertools.count()
        finally:
            closed_in.append(threading.current_thread().name)

    kept = source()  # a second reference, so that only `close` can end it
    items = data.prefetch(kept)
    assert next(items) == 0
    began = time.monotonic()
    items.close()
    assert time.monotonic() - began < 1.0
    assert not threads()
    assert closed_in == ["magmadnn-prefetch"]
    with pytest.raises(StopIteration):
        next(items)
    items.close()


def test_a_with_block_closes():
    with data.prefetch(itertools.count()) as items:
        assert next(items) == 0
        assert len(threads()) == 1
    assert not threads()


def test_what_is_no_longer_used_is_stopped():
    items = data.prefetch(itertools.count())
    assert next(items) == 0
    assert len(threads()) == 1
    del items
    gc.collect()
    assert wait_until(lambda: not threads())


def test_leaving_a_loop_early_leaks_nothing():
    for _ in range(20):
        for item in data.prefetch(itertools.count()):
            if item == 3:
                break
    gc.collect()
    assert wait_until(lambda: not threads())


def test_many_items_under_contention():
    assert sum(data.prefetch(range(20_000), depth=1)) == 20_000 * 19_999 // 2


def test_bad_arguments():
    with pytest.raises(ArgumentError) as depth:
        data.prefetch([1], depth=0)
    assert str(depth.value) == "prefetch: depth must be at least 1, got 0"
    with pytest.raises(DTypeError) as source:
        data.prefetch(3)
    assert str(source.value) == "prefetch: expected something to iterate over, got int"
