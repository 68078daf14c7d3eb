"""Drafts over other nodes than those that they were made for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.regions.draft import Draft, Lowered, Work
from magmadnn.compiler.regions.region import Region
from magmadnn.graph.dim import substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op

_NONE: Mapping[str, int] = MappingProxyType({})


def over_leaves(draft: Draft, leaves: Mapping[Node, Node]) -> Draft:
    """A draft over other leaves; what does not depend on them, and stand-ins of values, are shared."""
    new = dict(leaves)
    for node in draft.program.nodes():
        if node not in new:
            new[node] = renewed(node, new)
    return copied(draft, new, draft.layouts.renewed(new))


def copied(
    draft: Draft, new: Mapping[Node, Node], layouts: Layouts, sizes: Mapping[str, int] = _NONE
) -> Draft:
    """A draft of other nodes.

    Args:
        draft: after all passes.
        new: what stands for each of its nodes.
        layouts: of these.
        sizes: numbers for symbols in it.
    """
    regions = {
        region: replace(
            region,
            rows=substitute(region.rows, sizes),
            columns=substitute(region.columns, sizes),
            nodes=[new[n] for n in region.nodes],
            numbers={new[n] for n in region.numbers},
            elements={new[n] for n in region.elements},
        )
        for region in draft.regions
    }
    return Draft(
        draft.program.renewed(new),
        tuple(regions.values()),
        layouts,
        {regions[r]: frozenset(regions[b] for b in bs) for r, bs in draft.before.items()},
        {new[value]: new[target] for value, target in draft.in_place.items()},
        {regions[r]: phase for r, phase in draft.phases.items()},
        tuple(_work(work, regions, new, sizes) for work in draft.work),
    )


def renewed(node: Node, new: Mapping[Node, Node]) -> Node:
    """A node over others; itself where nothing of it depends on a model."""
    name, path = node.name, node.path
    if type(name) is not str or path:  # as most are that have been copied before
        name, path = str(name), named(node)
    if not node.inputs and name is node.name and path is node.path and not isinstance(node.op, Op):
        return node
    inputs = tuple([new[i] for i in node.inputs])
    return Node(node.op, inputs, node.spec, node.attributes, name, node.value, path, None)


def _work(
    work: Work,
    regions: Mapping[Region, Region],
    new: Mapping[Node, Node],
    sizes: Mapping[str, int],
) -> Work:
    lowered = work.lowered
    if lowered is not None:
        lowered = Lowered(
            lowered.kernel,
            _moved(lowered.reads, new),
            _moved(lowered.writes, new),
            tuple((slot, substitute(number, sizes)) for slot, number in lowered.numbers),
            tuple((slot, substitute(shape, sizes)) for slot, shape in lowered.shapes),
        )
    room = None if work.room is None else new[work.room]
    needed = tuple(new[n] for n in work.needed)
    return Work(regions[work.region], needed, lowered, work.phase, room)


def _moved(
    slots: Iterable[tuple[str, Node, str]], new: Mapping[Node, Node]
) -> tuple[tuple[str, Node, str], ...]:
    return tuple((slot, new[node], spread) for slot, node, spread in slots)


def named(node: Node) -> tuple[object, ...]:
    """The scopes of a node as text, which keeps no layer alive."""
    path = node.path
    for scope in path:
        if type(scope) is not str:
            return tuple(map(str, path))
    return path
