"""Edges of graphs: who waits for whom, from what launches read and write."""

from __future__ import annotations

import random

from magmadnn.executor.cuda.edges import edges_of

A, B, C = (0, 10), (10, 20), (20, 30)


def test_readers_wait_for_writers_and_writers_for_readers() -> None:
    touched = [([], [A]), ([A], [B]), ([A], [C]), ([], [A])]
    assert edges_of(touched) == [(), (0,), (0,), (1, 2)]


def test_what_another_has_waited_for_is_left_out() -> None:
    assert edges_of([([], [A]), ([A], [B]), ([A, B], [C])]) == [(), (0,), (1,)]


def test_spans_may_overlap_in_part() -> None:
    assert edges_of([([], [(0, 15)]), ([(14, 16)], [C]), ([(0, 14)], [])]) == [(), (0,), (0,)]


def test_any_order_that_the_edges_allow_is_right() -> None:
    draw = random.Random(11)
    for _ in range(50):
        spans = [(k, k + draw.randint(1, 9)) for k in range(0, 30, 3)]
        touched = [
            (draw.sample(spans, draw.randint(0, 3)), draw.sample(spans, draw.randint(0, 2)))
            for _ in range(25)
        ]
        edges, done, order = edges_of(touched), set[int](), list[int]()
        while len(order) < len(touched):
            ready = [k for k in range(len(touched)) if k not in done and set(edges[k]) <= done]
            order.append(draw.choice(ready))
            done.add(order[-1])
        assert _values(touched, range(len(touched))) == _values(touched, order)


def _values(touched: list, order: object) -> list[object]:
    """What memory holds, and what each launch has read, where values tell all that they came from."""
    memory: list[object] = [None] * 60
    seen: dict[int, object] = {}
    for number in order:  # type: ignore[attr-defined]
        reads, writes = touched[number]
        seen[number] = hash(tuple(hash(memory[k]) for span in reads for k in range(*span)))
        for start, end in writes:
            memory[start:end] = [(number, seen[number])] * (end - start)
    return [memory, sorted(seen.items())]
