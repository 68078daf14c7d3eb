"""What a program looks like: equal for programs that are built alike."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.graph.dim import Dim, Size
from magmadnn.graph.node import CONSTANT, Node
from magmadnn.graph.program import Program

LEAST = 16  # smaller sizes are numbers: axes are numbered below, and rules ask for 0 and 1
LONGEST = 2_000  # nodes of a program whose template is kept: longer ones take memory, and seldom come again
_LARGEST = 1 << 16  # bytes of a constant that is compared


class NotComparedError(Exception):
    """A program holds something that is not compared by value."""


def look_of(program: Program) -> Hashable:
    """Equal for programs that are built alike, names included: ops, inputs, attributes, sizes, constants.

    Raises:
        NotComparedError: where something has no value that could be compared.
    """
    numbers: dict[Node, int] = {}
    paths: dict[int, tuple[str, ...]] = {}  # many nodes have one and the same
    entries = []
    for node in program.nodes():
        numbers[node] = len(numbers)
        if id(node.path) not in paths:
            paths[id(node.path)] = tuple(map(str, node.path))
        inputs = tuple([numbers[i] for i in node.inputs])
        value = look_of_constant(node.value) if node.op is CONSTANT else None
        held = node.attributes
        attributes = tuple([(k, plain(v)) for k, v in held.items()]) if held else ()
        names = (str(node.name), paths[id(node.path)])
        entries.append((id(node.op), inputs, node.shape, node.dtype, attributes, value, names))
    outputs = tuple(numbers[n] for n in program.outputs)
    # a variable that is only written is no node of the program
    updates = tuple((numbers.get(t, t.spec), numbers[v]) for t, v in program.updates)
    if any(t not in numbers for t, _ in program.updates):
        raise NotComparedError
    return tuple(entries), outputs, updates


@dataclass(frozen=True)
class Structure:
    """A program but for its sizes.

    Attributes:
        key: equal for programs that differ in these only.
        sizes: the numbers, in the order in which they come first.
    """

    key: Hashable
    sizes: tuple[int, ...]


def structure_of(program: Program, *, names: bool = False) -> Structure:
    """A program with the numbers of its sizes taken out; `names`: those of nodes and scopes count too.

    Raises:
        NotComparedError: where something has no value that could be compared.
    """
    numbers: dict[Node, int] = {}
    places: dict[int, int] = {}
    paths: dict[int, tuple[str, ...]] = {}
    shapes: dict[int, tuple[Hashable, ...]] = {}

    def taken(size: Size) -> Hashable:
        if isinstance(size, int) and size >= LEAST:
            return ("size", places.setdefault(size, len(places)))
        return size

    entries = []
    for node in program.nodes():
        numbers[node] = len(numbers)
        op, spec, held, value = node.op, node.spec, node.attributes, None
        own, shape = spec.shape, shapes.get(id(spec.shape))
        if op is CONSTANT:
            value, shape = look_of_constant(node.value), own
        elif shape is None:
            shape = shapes[id(own)] = tuple([taken(size) for size in own])
        attributes: tuple[Hashable, ...] = ()
        if held:
            attributes = tuple(
                [(k, "shape" if is_shape(v, node) else plain(v)) for k, v in held.items()]
            )
        inputs = tuple([numbers[i] for i in node.inputs]) if node.inputs else ()
        entry: tuple[Hashable, ...] = (id(op), inputs, shape, spec.dtype, attributes, value)
        if names:
            name, path = node.name, paths.get(id(node.path))
            if path is None:
                path = paths[id(node.path)] = tuple(map(str, node.path))
            entry = (*entry, name if type(name) is str else str(name), path)
        entries.append(entry)
    if any(target not in numbers for target, _ in program.updates):
        raise NotComparedError
    outputs = tuple(numbers[n] for n in program.outputs)
    updates = tuple((numbers[t], numbers[v]) for t, v in program.updates)
    return Structure((tuple(entries), outputs, updates), tuple(places))


def is_open(size: Size) -> bool:
    """Whether a size is taken out of a structure."""
    return isinstance(size, int) and size >= LEAST


def is_shape(value: Any, node: Node) -> bool:
    """Whether an attribute is the shape of the result, with sizes that are taken out."""
    return isinstance(value, tuple) and value == node.shape and any(map(is_open, value))


def look_of_constant(value: Any) -> Hashable:
    """Equal for arrays of the same bytes, shape and dtype.

    Raises:
        NotComparedError: of a large one.
    """
    array = np.asarray(value)
    if array.nbytes > _LARGEST:
        raise NotComparedError
    return array.dtype, array.shape, array.tobytes()


def plain(value: Any) -> Hashable:
    """Equal for attributes that mean the same: 1, 1.0 and True do not, nor do 0.0 and -0.0.

    Raises:
        NotComparedError: for anything that is no number, text, size or dtype.
    """
    if isinstance(value, (tuple, list)):
        return (type(value), *map(plain, value))
    if isinstance(value, float):
        return (float, value.hex())
    if value is None or isinstance(value, (bool, int, str, Dim, np.dtype, type)):
        return (type(value), value)
    raise NotComparedError
