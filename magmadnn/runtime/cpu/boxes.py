"""The boxes of a movement: which parts of its result come from where, as strides.

An op says it itself (`Op.boxes`), or its NumPy function gives a view of its operand. Neither takes longer for
large values than for small ones. Only for an op that does neither each element is looked at (`runs.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.kernels.moves import AXES, BOX_WORDS, FIRST_ROW, OUTER_AXES
from magmadnn.graph.dim import substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op

from .runs import runs_of

_LONGEST_ROW = 1 << 14  # elements, so that threads can share a long one

Axis = tuple[
    int, int, int
]  # elements along it; from one to the next in the result, and in the source
Box = tuple[int, int, int, list[Axis]]  # source; its first element there, and in the result; axes


def boxes_of(
    node: Node, result: Array, operands: Sequence[Array], sizes: Mapping[str, int]
) -> tuple[NDArray[np.int64], Array]:
    """The table of a `Move`, and the constants that are its last source.

    Args:
        node: a movement whose operands all have its dtype.
        result: memory that its result may lie in; parts of it may be operands, which are left out.
        operands: arrays that lie as its operands do, with any strides.
        sizes: of symbolic dimensions.
    """
    op = node.op
    assert isinstance(op, Op)
    attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
    if op.boxes is not None:
        parts = list(op.boxes(result, *operands, **attributes))
    else:
        seen = np.asarray(op.numpy(*operands, **attributes)) if len(operands) == 1 else result
        if not np.may_share_memory(seen, operands[0]) and result.size:
            return runs_of(node, operands, sizes)
        parts = [(result, (0, seen))]
    boxes, constants = list[Box](), list[Any]()
    for goal, source in parts:
        to = _between(goal, result)
        if isinstance(source, tuple):
            number, seen = source
            if goal.ctypes.data == seen.ctypes.data and goal.strides == seen.strides:
                continue  # it lies there already
            boxes.append((number, _between(seen, operands[number]), to, _axes(goal, seen)))
        else:
            constants.append(source)
            nowhere = np.broadcast_to(result[(0,) * result.ndim], goal.shape) if goal.size else goal
            boxes.append((len(operands), len(constants) - 1, to, _axes(goal, nowhere)))
    return table_of(boxes), np.array(constants or [0]).astype(node.dtype)


def _between(view: Array, whole: Array) -> int:
    """Elements from the first of an array to the first of a view of it."""
    return int(view.ctypes.data - whole.ctypes.data) // whole.itemsize


def _axes(goal: Array, source: Array) -> list[Axis]:
    """The axes of a box, as few as possible; the last one has the smallest step in the result."""
    item, axes = goal.itemsize, list[Axis]()
    steps = zip(goal.shape, goal.strides, source.strides, strict=True)
    for length, to, step in sorted(steps, key=lambda axis: -axis[1]):
        if length == 1:
            continue
        made = (length, to // item, step // item)
        if axes and axes[-1][1:] == (length * made[1], length * made[2]):
            made = (axes.pop()[0] * length, *made[1:])
        axes.append(made)
    return axes


def table_of(boxes: Sequence[Box]) -> NDArray[np.int64]:
    """Boxes as words, as `kernels/moves.py` says; those of too many axes become several."""
    words, first = list[tuple[int, ...]](), 0
    for source, place, to, axes in (part for box in boxes for part in _cut(box)):
        outer = [(1, 1, 1)] * (OUTER_AXES + 1 - len(axes))
        numbers = itertools.chain.from_iterable([*outer, *_by_planes(axes)])
        words.append((source, place, to, first, *numbers))
        first += int(np.prod([length for length, _, _ in axes[:-1]], dtype=np.int64))
    return np.array(words, np.int64).reshape(len(words), BOX_WORDS)


def _cut(box: Box) -> Iterator[Box]:
    """A box as boxes that a table can hold: of some elements, of few axes, of rows that are not too long."""
    source, place, to, axes = box
    if any(length == 0 for length, _, _ in axes):
        return
    if len(axes) > OUTER_AXES + 1:
        length, to_step, step = axes[0]
        for k in range(length):
            yield from _cut((source, place + k * step, to + k * to_step, axes[1:]))
    elif len(axes) <= OUTER_AXES and axes and axes[-1][0] > _LONGEST_ROW:
        *outer, (length, to_step, step) = axes
        whole, rest = divmod(length, _LONGEST_ROW)
        long = (whole, _LONGEST_ROW * to_step, _LONGEST_ROW * step)
        yield source, place, to, [*outer, long, (_LONGEST_ROW, to_step, step)]
        done = whole * _LONGEST_ROW
        last = (rest, to_step, step)
        yield from _cut((source, place + done * step, to + done * to_step, [*outer, last]))
    else:
        yield source, place, to, axes


def _by_planes(axes: list[Axis]) -> list[Axis]:
    """The same, with the axis of neighbours in the source beside that of neighbours in the result.

    Where these are not one: kernels turn square blocks of the two.
    """
    beside = [axis for axis in axes[:-1] if axis[2] == 1]
    if not beside or axes[-1][1:] == (1, 1):
        return axes
    others = [axis for axis in axes[:-1] if axis is not beside[-1]]
    return [*others, beside[-1], axes[-1]]


def rows_of(table: NDArray[np.int64]) -> int:
    """How many rows the boxes of a table have."""
    if not len(table):
        return 0
    last = table[-1]
    return int(last[FIRST_ROW] + np.prod(last[AXES:-3:3]))
