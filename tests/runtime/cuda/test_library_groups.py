"""Groups of launches around calls of the device's library: their order is legal, and none waits for more."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.runtime.cuda.schedule.hazards import edges_of
from magmadnn.runtime.cuda.schedule.launch import Item
from magmadnn.runtime.cuda.schedule.merging.library_groups import groups_around_libraries

PLACES = 9


def drawn(seed: int) -> list[Item]:
    """Launches that read and write some of a few places; every third or so is a call."""
    rng = random.Random(seed)
    items = []
    for number in range(rng.randrange(1, 40)):
        spans = [(k, k + 1) for k in rng.sample(range(PLACES), rng.randrange(1, 4))]
        call = MatrixNode("potrf", "float32", (), number, 1, ((),), (), 0, 0)
        what = call if rng.random() < 0.3 else cast(Any, number)
        items.append(Item(what, tuple(spans[1:]), tuple(spans[:1])))
    return items


def touches(items: list[Item]) -> list[Any]:
    return [(item.reads, item.writes) for item in items]


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_groups_is_legal_and_groups_wait_for_the_same_calls(seed: int) -> None:
    items = drawn(seed)
    groups = groups_around_libraries(items)
    order = [item for group in groups for item in group]
    assert len(order) == len(items) and {id(i) for i in order} == {id(i) for i in items}
    place = {id(item): k for k, item in enumerate(order)}
    behind: dict[int, set[int]] = {}
    for item, edges in zip(items, edges_of(touches(items)), strict=True):
        assert all(place[id(items[k])] < place[id(item)] for k in edges)
        behind[id(item)] = {
            call
            for k in edges
            for call in behind[id(items[k])] | {k}
            if isinstance(items[call].what, MatrixNode)
        }
    for group in groups:
        if any(isinstance(item.what, MatrixNode) for item in group):
            assert len(group) == 1
        assert all(behind[id(item)] == behind[id(group[0])] for item in group)


def test_without_calls_there_is_one_group_in_the_given_order() -> None:
    items = [Item(cast(Any, k), ((k, k + 1),), ((k + 1, k + 2),)) for k in range(5)]
    assert groups_around_libraries(items) == [items]
