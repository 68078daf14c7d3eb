"""How work is cut for threads."""

from __future__ import annotations

from itertools import pairwise

import pytest

from magmadnn.runtime.cpu.cuts import even_ends, even_parts, halves, shrinking_ends


@pytest.mark.parametrize("length", [1, 6, 47, 100, 528, 784, 2051])
@pytest.mark.parametrize(
    ("step", "least"), [(1, 1.0), (6, 24.0), (16, 16.0), (16, 40.5), (64, 64.0)]
)
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_parts_cover_everything_and_shrink(
    length: int, step: int, least: float, threads: int
) -> None:
    ends = shrinking_ends(length, step, threads, least)
    sizes = [b - a for a, b in pairwise((0, *ends))]
    assert ends[-1] == length
    assert all(end % step == 0 for end in ends[:-1])
    assert all(a >= b for a, b in pairwise(sizes[:-1]))
    assert all(size >= min(least, length) / 2 for size in sizes)


def test_no_thread_is_left_with_much_more_than_its_share() -> None:
    """Threads draw parts one after the other; who comes late finds small ones."""
    for threads in (2, 4):
        busy = [0.0] * threads
        for start, end in pairwise((0, *shrinking_ends(528, 16, threads, 16))):
            busy[busy.index(min(busy))] += end - start
        assert max(busy) <= 528 / threads + 16


def test_two_threads_share_the_eleventh_of_eleven_tiles() -> None:
    ends = shrinking_ends(528, 48, 2, 48)
    parts = [(float(b - a), {"column0": a, "column1": b}) for a, b in pairwise((0, *ends))]
    busy = [0.0, 0.0]
    for cost, _ in [*parts[:-1], *halves(parts[-1], "row", 100, 8)]:
        busy[busy.index(min(busy))] += cost
    assert max(busy) <= 528 / 2 + 2  # halves of 100 rows are 48 and 52


@pytest.mark.parametrize(
    ("cost", "length", "ends"),
    [(2.0, 100, [48, 100]), (9.0, 16, [8, 16]), (1.9, 100, [100]), (9.0, 7, [7]), (9.0, 1, [1])],
)
def test_a_part_is_halved_where_that_pays(cost: float, length: int, ends: list[int]) -> None:
    slots = {"column0": 480, "column1": 528}
    parts = halves((cost, slots), "row", length, 8)
    assert [part["row1"] for _, part in parts] == ends
    assert [part["row0"] for _, part in parts] == [0, *ends[:-1]]
    assert all(part.items() >= slots.items() for _, part in parts)
    assert sum(each for each, _ in parts) == pytest.approx(cost)


@pytest.mark.parametrize(("rows", "columns", "threads"), [(100, 784, 2), (7, 3, 2), (47, 9001, 4)])
def test_copies_are_cut_evenly(rows: int, columns: int, threads: int) -> None:
    parts = even_parts(rows, columns, threads)
    assert [a for a, _ in parts] == [0, *(b for _, b in parts[:-1])]
    assert parts[-1][1] == rows
    assert len(parts) == (1 if rows * columns < 20_000 else threads)


@pytest.mark.parametrize("length", [1, 63, 64, 130, 528, 784, 2051])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_rows_of_a_vector_are_cut_into_equal_parts(length: int, parts: int) -> None:
    ends = even_ends(length, 64, parts)
    sizes = [b - a for a, b in pairwise((0, *ends))]
    assert ends[-1] == length
    assert len(ends) <= parts
    assert all(end % 64 == 0 for end in ends[:-1])
    assert max(sizes) <= length / parts + 64
