"""plan_memory: values that are not needed at the same time share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.memory import Arena, arena_of
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Node
from magmadnn.graph.program import Program
from tests.compiler.sample_programs import BATCH
from tests.graph.bare_nodes import placed


def arena(result: Any, batch: int = 32) -> Arena:
    return arena_of(native_plan(Program.of([result])), {"batch": batch})


def chain(x: Node, links: int, width: int) -> Any:
    """Products one after the other, each with a result of its own."""
    for _ in range(links):
        x = x @ np.ones((width, width), np.float32)
    return x


def test_before_and_after() -> None:
    """A chain of any length has two values at a time; apart it would have as many as it has links."""
    x = placed("x", BATCH, 16)
    one = 32 * 16 * 4
    for links in (2, 3, 6):
        found = arena(chain(x, links, 16))
        assert found.apart == links * one
        assert found.nbytes == 2 * one


def test_what_is_read_later_keeps_its_place() -> None:
    x = placed("x", BATCH, 16)
    early = chain(x, 1, 16)
    found = arena(ops.add(chain(early, 4, 16), early))
    first, *others = found.lives
    assert first.last >= max(life.first for life in others)
    for other in others:
        apart = (
            other.start >= first.start + first.nbytes or first.start >= other.start + other.nbytes
        )
        assert apart


@pytest.mark.parametrize("batch", [0, 1, 7, 33])
def test_nothing_that_lives_at_the_same_time_overlaps(batch: int) -> None:
    x = placed("x", BATCH, 5)
    wide = ops.concat([chain(x, 2, 5), x @ np.ones((5, 13), np.float32)], axis=1)
    found = arena(ops.tanh(chain(wide, 3, 18)), batch)
    assert found.nbytes <= found.apart
    for number, a in enumerate(found.lives):
        assert a.start % 64 == 0 and a.start + a.nbytes <= found.nbytes
        for b in found.lives[:number]:
            together = a.first <= b.last and b.first <= a.last
            assert not together or a.start >= b.start + b.nbytes or b.start >= a.start + a.nbytes


def test_text_says_what_is_saved() -> None:
    lines = str(arena(chain(placed("x", BATCH, 16), 3, 16))).splitlines()
    assert len(lines) == 4
    assert lines[0].split()[:2] == ["0", "2048"] and "phases 0 to 1" in lines[0]
    assert lines[-1] == "# arena of 4096 bytes; 2048 fewer than if nothing were shared"
