"""Whether values that are alive at the same time have places of their own; run by the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magmadnn.compiler.regions.draft import Work
from magmadnn.errors import GraphError
from magmadnn.graph.node import Node

from .arena import Life


def verify_memory(
    lives: Sequence[Life],
    work: Sequence[Work],
    bases: Mapping[Node, Node],
    *,
    name: str,
    rooms: Sequence[Life] = (),
) -> None:
    """Check places in memory: none is used again while its value is still to be read.

    Args:
        lives: places of all values that are stored outside of variables.
        work: steps in running order.
        bases: see `Layouts`.
        name: of the pass that made them.
        rooms: places of partial results.

    Raises:
        GraphError: naming two values that share memory, or one that is given up too early.
    """
    read: dict[Node, int] = {}
    for one in work:
        for node in one.region.nodes:
            for operand in node.inputs:
                base = bases[operand]
                read[base] = max(read.get(base, 0), one.phase)
    together = (*lives, *rooms)
    for number, life in enumerate(together):
        if number < len(lives) and life.last < read.get(life.node, 0):
            raise GraphError(
                f"pass {name}: {life.node.label} is given up after phase {life.last}, "
                f"but read in phase {read[life.node]}"
            )
        for other in together[:number]:
            at_once = life.first <= other.last and other.first <= life.last
            apart = (
                life.start + life.nbytes <= other.start or other.start + other.nbytes <= life.start
            )
            if at_once and not apart:
                raise GraphError(
                    f"pass {name}: {life.node.label} and {other.node.label} share memory while both "
                    "are needed"
                )
