"""Batches that are not copied: products of stacks read the rows of data where these lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from magmadnn.compiler.cuda.gemm.stacked import picking
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.graph.node import Node
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item


def picked_rows(
    items: Sequence[Item],
    layout: Layout,
    sources: Mapping[Node, int],
    order: int,
    first: Span,
    step: int,
) -> tuple[list[Item], set[Node]]:
    """The launches of a step, and the placeholders whose rows they find themselves.

    A batch that only products of stacks read, as their left factor, needs no memory of its own.

    Args:
        items: all launches of the step.
        layout: where its values lie.
        sources: of placeholders: where the address of their array stands.
        order: where the address of the numbers of rows stands.
        first: memory of the number of batches before.
        step: further batches before.
    """
    made, found = list(items), set[Node]()
    for node, source in sources.items():
        span = layout.span(node)
        readers = [k for k, item in enumerate(made) if any(_meet(span, r) for r in item.reads)]
        picked = [
            _picking(made[k], span, layout.address(node), first, step, source, order)
            for k in readers
        ]
        if readers and None not in picked:
            found.add(node)
            for k, item in zip(readers, picked, strict=True):
                assert item is not None
                made[k] = item
    return made, found


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _picking(
    item: Item, batch: Span, address: int, first: Span, step: int, source: int, order: int
) -> Item | None:
    """The launch that reads rows of the array; None where it cannot, or reads the batch otherwise too."""
    if not isinstance(item.what, Launch):
        return None
    launch = picking(item.what, first[0], step, source, order)
    inside = [value for value in item.what.arguments if batch[0] <= value < batch[1]]
    if launch is None or inside != [address] or launch.arguments[0] != address:
        return None
    reads = (*(span for span in item.reads if not _meet(span, batch)), first)
    return replace(item, what=launch, reads=reads)
