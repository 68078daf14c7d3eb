"""The ring: places that a thread fills while others are used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from magmadnn.data.ring import Ready, Ring

SAMPLE = [np.empty((1, 3), np.float32), np.empty(1, ">i8")]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "magmadnn-reader"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not readers()


def writing(ring: Ring, pieces: list[int]) -> Callable[[], None]:
    """A reader that fills pieces of so many batches, each with its number."""

    def fill() -> None:
        number = 0
        for count in pieces:
            first = ring.wait_for_room(count)
            if first is None:
                return
            for place in range(first, first + count):
                ring.arrays[0][place * ring.rows : (place + 1) * ring.rows] = number
                number += 1
            ring.tell(first * ring.rows, (first + count) * ring.rows)
            ring.add(count)

    return fill


def used(ring: Ring, most: int) -> list[int]:
    """The numbers of the batches that are taken, each looked at as late as possible."""
    found = []
    while (ready := ring.take(most)) is not None:
        assert isinstance(ready, Ready)
        assert 1 <= ready.count <= most
        assert ready.first + ready.count <= ring.places
        time.sleep(0.0005)  # a reader that did not wait would have written over them by now
        for place in range(ready.first, ready.first + ready.count):
            rows = ring.arrays[0][place * ring.rows : (place + 1) * ring.rows]
            assert (rows == rows[0, 0]).all()
            found.append(int(rows[0, 0]))
    return found


def test_places_have_the_shape_of_rows_and_the_machines_byte_order() -> None:
    ring = Ring(SAMPLE, rows=5, places=4)
    assert [(a.shape, a.dtype) for a in ring.arrays] == [((20, 3), np.float32), ((20,), np.int64)]
    assert ring.order.tolist() == list(range(20))


@pytest.mark.parametrize("most", [1, 2, 3, 100])
@pytest.mark.parametrize("pieces", [[1] * 41, [2] * 20 + [1], [4], [], [2, 2, 2, 1]])
def test_batches_come_once_and_in_order(pieces: list[int], most: int) -> None:
    ring = Ring(SAMPLE, rows=2, places=4)
    for _ in range(2):  # each epoch begins anew
        with ring.start(writing(ring, pieces)):
            assert used(ring, most) == list(range(sum(pieces)))


def test_what_is_filled_is_told_before_it_is_given_out() -> None:
    ring = Ring(SAMPLE, rows=2, places=4)
    copy = np.zeros_like(ring.arrays[0])  # as on a device

    class Copying:
        def __init__(self) -> None:
            self.begun: list[slice] = []

        def changed(self, first: int, last: int) -> None:
            self.begun.append(slice(first, last))

        def settle(self) -> None:
            time.sleep(0.001)
            for rows in self.begun:
                copy[rows] = ring.arrays[0][rows]
            self.begun.clear()

    found = []
    with ring.start(writing(ring, [1, 2, 1, 2, 2, 1, 1]), Copying()):
        while (ready := ring.take(3)) is not None:
            rows = slice(ready.first * 2, (ready.first + ready.count) * 2)
            np.testing.assert_array_equal(copy[rows], ring.arrays[0][rows])
            found += copy[rows, 0][::2].tolist()
    assert found == list(range(10))


def test_the_reader_goes_on_while_a_copy_is_made() -> None:
    ring = Ring(SAMPLE, rows=2, places=4)
    events: list[str] = []

    class Copying:
        def changed(self, first: int, last: int) -> None:
            events.append(f"begun {first}")

        def settle(self) -> None:
            events.append("settled")

    def fill() -> None:
        for number in range(3):
            first = ring.wait_for_room(1)
            assert first is not None
            events.append(f"filled {number}")
            ring.tell(2 * first, 2 * first + 2)
            ring.add(1)

    with ring.start(fill, Copying()):
        while ring.take(1) is not None:
            pass
    one = ["settled", "begun 2", "filled 2", "settled", "begun 4", "settled"]
    assert events == ["filled 0", "begun 0", "filled 1", *one]


def test_a_reader_that_may_wait_gives_out_first() -> None:
    ring, read = Ring(SAMPLE, rows=2, places=4), threading.Event()

    def fill() -> None:
        assert ring.wait_for_room(1) is not None
        ring.add(1)
        ring.give_out()
        read.wait(30.0)

    with ring.start(fill):
        assert ring.take(1) == Ready(0, 1)
        read.set()


@pytest.mark.parametrize(("places", "count", "least"), [(8, 3, 3), (8, 3, 9), (3, 7, 9)])
def test_fewer_come_only_where_there_will_not_be_more(places: int, count: int, least: int) -> None:
    ring = Ring(SAMPLE, rows=2, places=places)

    def fill() -> None:
        for _ in range(count):
            if ring.wait_for_room(1) is None:
                return
            ring.add(1)
            ring.give_out()
            time.sleep(0.01)

    with ring.start(fill):
        assert ring.take(99, least) == Ready(0, 3)


def test_arrays_lie_in_the_memory_that_is_given() -> None:
    given: list[np.ndarray] = []

    def memory(nbytes: int) -> np.ndarray:
        given.append(np.full(nbytes, 7, np.uint8))
        return given[-1]

    ring = Ring(SAMPLE, rows=5, places=4, memory=memory)
    assert [np.shares_memory(a, g) for a, g in zip(ring.arrays, given, strict=True)] == [True, True]
    assert [(a.shape, a.dtype) for a in ring.arrays] == [((20, 3), np.float32), ((20,), np.int64)]


def test_the_reader_waits_for_room() -> None:
    ring = Ring(SAMPLE, rows=2, places=4)
    filled: list[int] = []
    write = writing(ring, [1] * 10)
    add = ring.add
    ring.add = lambda count: (filled.append(count), add(count))[1]  # type: ignore[method-assign]  # counts
    with ring.start(write):
        for _ in range(200):
            if len(filled) == 4:
                break
            time.sleep(0.005)
        time.sleep(0.05)
        assert len(filled) == 4
        assert ring.take(3) == Ready(0, 3)
        time.sleep(0.05)
        assert len(filled) == 4  # what is in use is not free
        assert ring.take(3) == Ready(3, 1)
        for _ in range(200):
            if len(filled) == 7:
                break
            time.sleep(0.005)
        assert len(filled) == 7


def test_what_fits_no_place_comes_in_its_turn() -> None:
    ring = Ring(SAMPLE, rows=2, places=4)

    def fill() -> None:
        for item in ("a", 1, 1, "b", "c", 1):
            if isinstance(item, str):
                assert ring.pass_on(item)
            else:
                assert ring.wait_for_room(item) is not None
                ring.add(item)

    with ring.start(fill):
        found: list[Any] = []
        while (taken := ring.take(1)) is not None:
            found.append(taken.count if isinstance(taken, Ready) else taken)
    assert found == ["a", 1, 1, "b", "c", 1]


def test_an_error_comes_after_what_was_filled() -> None:
    ring = Ring(SAMPLE, rows=2, places=4)

    def fill() -> None:
        writing(ring, [1, 1])()
        raise OSError("gone")

    with ring.start(fill):
        assert sum(ring.take(1).count for _ in range(2)) == 2  # type: ignore[union-attr]  # ready
        with pytest.raises(OSError, match="gone"):
            ring.take(1)
        assert ring.take(1) is None


def test_a_reader_that_waits_is_stopped() -> None:
    ring = Ring(SAMPLE, rows=2, places=4)
    ended = threading.Event()

    def fill() -> None:
        while ring.wait_for_room(1) is not None:
            ring.add(1)
        ended.set()

    with pytest.raises(KeyboardInterrupt), ring.start(fill):
        ring.take(2)
        raise KeyboardInterrupt
    assert ended.is_set()
