"""The runs of a movement: where each stretch of its result comes from, found out by NumPy itself.

The op's NumPy function is applied to the places of its operands' elements in place of their values. What
comes out says for every element of the result which element of which operand it is, or that it is a
constant, and neighbours whose sources are evenly spaced are one run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.kernels.moves import BOX_WORDS, FIRST_ROW, PLACE, SOURCE, TO
from magmadnn.graph.dim import bind_shape, substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op
from magmadnn.memory.dtypes import is_floating

_APART = 1 << 40  # between the places of two operands, more than memory has
_LONGEST = 1 << 14  # elements of a run, so that threads can share a long one


def runs_of(
    node: Node, operands: Sequence[Array], sizes: Mapping[str, int]
) -> tuple[NDArray[np.int64], Array]:
    """The table of a `Move`, and the constants that are its last source.

    Args:
        node: a movement whose operands all have its dtype.
        operands: their arrays, with any strides.
        sizes: of symbolic dimensions.
    """
    source, place, constants = _elements(node, operands, sizes)
    return _table(source, place), constants


@dataclass(frozen=True)
class RowRuns:
    """What every row of a movement's result is made of, its leading axes being rows.

    Attributes:
        table: of a `Move`, for the first row.
        constants: its last source.
        steps: for each source, elements from one row's to the next's along each leading axis.
    """

    table: NDArray[np.int64]
    constants: Array
    steps: tuple[tuple[int, ...], ...]


def runs_of_rows(
    node: Node, operands: Sequence[Array], sizes: Mapping[str, int], axes: int
) -> RowRuns | None:
    """The runs of the first row of the result; None where rows are not made alike.

    Args:
        node: as for `runs_of`.
        operands: likewise.
        sizes: likewise.
        axes: how many leading axes number the rows.
    """
    source, place, constants = _elements(node, operands, sizes)
    rows = bind_shape(node.shape[:axes], sizes)
    count = math.prod(rows)
    if not source.size or len(constants) > 1:
        return None
    source, place = source.reshape(count, -1), place.reshape(*rows, -1)
    first, moved = place[(0,) * axes], place[(0,) * axes]
    steps = np.zeros((axes, len(operands) + 1), np.int64)
    for axis, length in enumerate(rows):
        if length > 1:
            second = place[tuple(int(k == axis) for k in range(axes))]
            np.put(steps[axis], source[0], second - first)
        numbers = np.arange(length).reshape([-1 if k == axis else 1 for k in range(axes)])
        moved = moved + numbers[..., None] * steps[axis][source[0]]
    if (source != source[:1]).any() or (place != moved).any():
        return None
    return RowRuns(_table(source[0], first), constants, tuple(map(tuple, steps.T.tolist())))


@dataclass(frozen=True)
class Boxes:
    """What a movement's result is made of, where its operands lie in it as they are.

    Attributes:
        starts: for each operand the indices of its first element in the result.
        around: the value of all other elements, of no elements where there are none.
    """

    starts: tuple[tuple[int, ...], ...]
    around: Array


def boxes_of(node: Node, operands: Sequence[Array], sizes: Mapping[str, int]) -> Boxes | None:
    """The boxes of a movement; None where operands do not lie in its result as they are, or more than one
    value is around them.

    Args:
        node: as for `runs_of`.
        operands: likewise.
        sizes: likewise.
    """
    source, place, around = _elements(node, operands, sizes)
    shape = bind_shape(node.shape, sizes)
    source, place = source.reshape(shape), place.reshape(shape)
    starts = []
    for number, (operand, places) in enumerate(zip(operands, _places(operands), strict=True)):
        found = np.argwhere(source == number)
        if not len(found) or operand.ndim != len(shape):
            return None
        start = found.min(axis=0)
        box = tuple(slice(s, s + n) for s, n in zip(start, operand.shape, strict=True))
        expected = places - (number * _APART + _APART // 2)
        whole = len(found) == operand.size and source[box].shape == operand.shape
        if not whole or (source[box] != number).any() or (place[box] != expected).any():
            return None
        starts.append(tuple(int(s) for s in start))
    return Boxes(tuple(starts), around) if around.size < 2 else None


def _elements(
    node: Node, operands: Sequence[Array], sizes: Mapping[str, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """For each element of the result its source and its place there; the constants, the last source."""
    op = node.op
    assert isinstance(op, Op)
    attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
    kind = np.dtype(np.float64) if is_floating(node.dtype) else np.dtype(np.int64)
    # Places are even, then odd; what does not change between the two is a constant.
    found, other = (
        op.forward([(2 * p + odd).astype(kind) for p in _places(operands)], attributes, kind)
        for odd in (0, 1)
    )
    constant = (found == other) | (found != found)
    constants = found[constant].astype(node.dtype)
    moved = np.where(constant, 0, found).astype(np.int64).ravel() >> 1
    source, place = moved // _APART, moved % _APART - _APART // 2
    flat = constant.ravel()
    source[flat], place[flat] = len(operands), np.arange(constants.size)
    data = constants.view(np.uint8).reshape(constants.size, node.dtype.itemsize)
    if (data == data[:1]).all():
        constants, place[flat] = constants[:1], 0
    return source, place, constants


def _places(operands: Sequence[Array]) -> list[NDArray[np.int64]]:
    """For each operand its elements' places relative to its first, above those of operands before."""
    made = []
    for number, array in enumerate(operands):
        places = np.full(array.shape, number * _APART + _APART // 2, np.int64)
        for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
            steps = np.arange(size) * (stride // array.itemsize)
            places += steps.reshape([-1 if k == axis else 1 for k in range(array.ndim)])
        made.append(places)
    return made


def _table(source: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Evenly spaced elements of one source, each a box of one row."""
    count = source.size
    if not count:
        return np.zeros((0, BOX_WORDS), np.int64)
    steps = np.diff(place)
    jump = np.diff(source) != 0
    # A step like no other where the source changes, so that it begins a run of its own.
    steps[jump] = _APART + np.arange(count - 1)[jump]
    turns = np.flatnonzero(np.diff(steps)) + 1
    first = np.concatenate([[0], turns]).astype(np.int64)[: count - 1]
    lengths = np.diff(np.concatenate([first, [count - 1]]))
    # Stretches of one step, each of which ends at the element where the next one begins. A single step leads
    # to a new run; between two longer stretches that element belongs to the first.
    begins = np.zeros(count, bool)
    begins[0] = True
    single = lengths == 1
    begins[first[single] + 1] = True
    begins[first[1:][~single[1:] & ~single[:-1]] + 1] = True
    starts = np.flatnonzero(begins)
    starts = np.unique(np.concatenate([starts, np.arange(0, count, _LONGEST)]))
    elements = np.diff(np.concatenate([starts, [count]]))
    table = np.ones((len(starts), BOX_WORDS), np.int64)
    table[:, SOURCE], table[:, PLACE] = source[starts], place[starts]
    table[:, TO], table[:, FIRST_ROW] = starts, np.arange(len(starts))
    table[:, -3] = elements
    several = elements > 1
    table[several, -1] = steps[starts[several]]
    return table
