"""Sizes that stand for unknown ones while a program is planned.

Whether a value is a view, and how it is walked over, is asked of arrays of these sizes; nothing is computed
with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

from magmadnn.errors import ShapeError
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op, OpKind

PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149)  # no network has such sizes by habit
MOST_SYMBOLS = len(PRIMES)  # of a program in which each has a stand-in of its own
_MOST = 1 << 24  # beyond, values would be too large even for memory that nobody touches


def stand_ins_for(nodes: Iterable[Node]) -> Sequence[int]:
    """Sizes for unknown ones, in the order in which these come: primes.

    With them no place that a movement names lies outside of its axis, and no size is negative that follows
    from one unknown size: of `x[120:, 200]`, where `x` is [batch, length], they are larger than 200.
    """
    least, seen = PRIMES[0], set[int]()
    for node in nodes:
        if id(shape := node.shape) not in seen:
            seen.add(id(shape))
            for size in shape:
                if isinstance(size, Dim):
                    least = max(least, _least_of(size))
        if isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT:
            for place in _places_in(node):
                least = max(least, place + 1)
    if least == PRIMES[0] or least > _MOST:
        return PRIMES
    return list(islice(filter(_is_prime, count(least)), len(PRIMES)))


def _least_of(size: Dim) -> int:
    """From which stand-in on a size that follows from one unknown size is not negative; 0 for others."""
    if size.never_negative or len(size.symbols) != 1:
        return 0
    (symbol,), number = size.symbols, PRIMES[0]
    while number <= _MOST:
        try:
            if size.bind({symbol: number}) > 0:
                return number
        except ShapeError:
            pass
        number *= 2
    return 0


def _places_in(node: Node) -> Iterator[int]:
    """Integers in what attributes say of axes of unknown size: a tuple with an entry for each axis."""
    shapes = [shape for shape in (node.shape, node.inputs[0].shape) if _is_unknown(shape)]
    if not shapes:
        return
    for value in node.attributes.values():
        for shape in shapes:
            if isinstance(value, tuple) and len(value) == len(shape) and value != shape:
                for entry, size in zip(value, shape, strict=True):
                    if isinstance(size, Dim):
                        yield from _integers(entry)


def _is_unknown(shape: Sequence[Any]) -> bool:
    return any(isinstance(size, Dim) for size in shape)


def _integers(entry: Any) -> Iterator[int]:
    if isinstance(entry, int):
        yield abs(entry)
    elif isinstance(entry, tuple):
        for inner in entry:
            yield from _integers(inner)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, int(number**0.5) + 1))
