"""Nodes as plain data, for `copy.deepcopy` and `pickle`: graphs are deeper than Python recurses."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

FIELDS = ("op", "spec", "name", "value", "path")  # what of a node is no other node


def needed(node: Any) -> tuple[Any, ...]:
    """What a node was made from, by its op or by the call of a layer."""
    return node.inputs if node.origin is None else (*node.inputs, *node.origin.inputs)


def flatten(order: Sequence[Any], itself: Any = None) -> tuple[list[Any], dict[Any, int]]:
    """Nodes with numbers in place of what they were made from, and these numbers.

    Leaves are themselves, so that what shares a variable does so afterwards too; not `itself`, which asks.

    Args:
        order: nodes, behind what they were made from.
        itself: the last one, or None.
    """
    numbers: dict[Any, int] = {}
    entries: list[Any] = []
    for node in order:
        inputs = [numbers[i] for i in node.inputs]
        origin = node.origin and node.origin.flattened(numbers)
        numbers[node] = len(entries)
        leaf = node is not itself and not inputs and origin is None
        own = None if leaf else {name: getattr(node, name) for name in FIELDS}
        entries.append(node if own is None else (inputs, origin, own, dict(node.attributes)))
    return entries, numbers


def unflatten(entries: Sequence[Any], kind: type[Any], itself: Any = None) -> list[Any]:
    """The nodes of `flatten`, made anew.

    Args:
        entries: from there.
        kind: the class of nodes.
        itself: what becomes the last one; None for one more that is made.
    """
    made: list[Any] = []
    for entry in entries:
        if isinstance(entry, kind):
            made.append(entry)
            continue
        is_itself = itself is not None and len(made) == len(entries) - 1
        node = itself if is_itself else object.__new__(kind)
        inputs, origin, own, attributes = entry
        known = {"inputs": tuple(made[i] for i in inputs), "origin": origin and origin(made)}
        known["attributes"] = MappingProxyType(attributes)
        for name, value in (own | known).items():
            object.__setattr__(node, name, value)
        made.append(node)
    return made
