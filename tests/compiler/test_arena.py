"""Places of values in one piece of memory."""

from __future__ import annotations

import random

from magmadnn.compiler.plan.arena import Life, bytes_alive
from magmadnn.compiler.plan.memory import by_size
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder

NODE = placeholder(Spec((1,), "float32"), "x")


def test_places_by_size_never_overlap_while_both_live() -> None:
    """And no room is left below a value, where it could begin."""
    draw = random.Random(3)
    for _ in range(200):
        lives = []
        for _ in range(draw.randint(1, 30)):
            first = draw.randint(0, 12)
            lives.append(Life(NODE, 0, draw.randint(0, 1000), first, first + draw.randint(0, 6)))
        placed = by_size(lives)
        assert [(p.nbytes, p.first, p.last) for p in placed] == [
            (life.nbytes, life.first, life.last) for life in lives
        ]
        for k, one in enumerate(placed):
            assert one.start % 64 == 0
            for other in placed[:k]:
                if one.first <= other.last and other.first <= one.last:
                    ends = one.start + max(one.nbytes, 1), other.start + max(other.nbytes, 1)
                    assert ends[0] <= other.start or ends[1] <= one.start


def test_a_large_value_that_comes_late_gets_the_place_of_small_ones() -> None:
    """In the order of computation 2,000 units are taken: the last begins behind what lives beside it."""
    unit = 1 << 20
    lives = [Life(NODE, 0, 700 * unit, 0, 1), Life(NODE, 0, 300 * unit, 1, 3)]
    lives.append(Life(NODE, 0, 1000 * unit, 2, 3))
    placed = by_size(lives)
    assert max(bytes_alive(lives)) == 1300 * unit
    assert [p.start // unit for p in placed] == [0, 1000, 0]
