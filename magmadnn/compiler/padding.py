"""Values with constants around them that no kernel stores: readers find each element by its indices.

A pad, a shift with zeros, the gradient of a slice: the record of such an op tells (`Op.boxes`) that its
result is its operand, and around it one constant. A kernel over rows reads that without a copy: an
element whose indices lie inside of the operand along all axes is the operand's, any other is the constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from magmadnn.compiler.kernels.formula import Formula, constant
from magmadnn.graph.dim import substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op
from magmadnn.memory.dtypes import is_floating


class Axis(NamedTuple):
    """An axis by which rows are numbered.

    Attributes:
        size: how many indices there are.
        step: elements of the operand from one to the next.
        first: the first index that is the operand's,
        end: and that behind the last.
    """

    size: int
    step: int
    first: int
    end: int


class Padding(NamedTuple):
    """How an operand lies in a larger matrix.

    Attributes:
        fill: the constant, as a formula.
        axes: of the rows, as few as can be; at least one.
        origin: elements from the element whose indices are all 0, were there one, to the operand's first.
        left: the first column that is the operand's,
        right: and that behind the last.
        columns: of the matrix.
    """

    fill: Formula
    axes: tuple[Axis, ...]
    origin: int
    left: int
    right: int
    columns: int

    @property
    def has_edges(self) -> bool:
        """Whether there are constants within rows."""
        return (self.left, self.right) != (0, self.columns)


def padding_of(
    node: Node, source: Array, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> Padding | None:
    """How the operand of a movement lies in its result; None where that is not one constant around it.

    Args:
        node: the movement.
        source: its operand, with any strides.
        shape: of its result.
        sizes: of symbolic dimensions.
    """
    op = node.op
    if not isinstance(op, Op) or op.boxes is None or not shape:
        return None
    goal = np.broadcast_to(np.empty((), np.uint8), shape)
    result = np.lib.stride_tricks.as_strided(
        goal, shape, _packed(shape)
    )  # of which nothing is touched
    attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
    inside: list[tuple[Array, Array]] = []
    fills: dict[str, Any] = {}
    for part, given in op.boxes(result, source, **attributes):
        if isinstance(given, tuple):
            inside.append((part, given[1]))
        elif part.size:
            fills[repr(given)] = given
    inside = [pair for pair in inside if pair[0].size]
    if len(inside) > 1 or len(fills) > 1 or (not inside and source.size):
        return None
    fill = np.asarray(next(iter(fills.values()), 0)).astype(node.dtype)
    kept = constant(float(fill) if is_floating(node.dtype) else fill.item())
    if not inside:
        return Padding(kept, (Axis(1, 0, 0, 0),), 0, 0, 0, shape[-1])
    part, seen = inside[0]
    firsts = _indices(
        part.__array_interface__["data"][0] - result.__array_interface__["data"][0], shape
    )
    apart = _distances(part, result, firsts)
    if apart is None:
        return None
    if seen.shape[-1] > 1 and seen.strides[-1] != seen.itemsize:
        return None
    steps = [
        s // seen.itemsize if n > 1 else 0 for n, s in zip(seen.shape, seen.strides, strict=True)
    ]
    rows = list(zip(shape, steps, firsts, part.shape, apart, strict=True))[:-1]
    axes = _fewest([axis for row in rows for axis in _axes(*row)])
    begin = (seen.ctypes.data - source.ctypes.data) // source.itemsize
    origin = sum(axis.step * axis.first for axis in axes) + firsts[-1] - begin
    return Padding(kept, tuple(axes), origin, firsts[-1], firsts[-1] + part.shape[-1], shape[-1])


def _distances(part: Array, whole: Array, firsts: Sequence[int]) -> list[int] | None:
    """How far apart a view's indices are along each axis, from `firsts` on; None where it is no such part.

    One of another shape, as of a reshape, may have the same strides: it goes beyond an axis. Indices that are
    apart are so in all of the axis, and none along the last.
    """
    if part.ndim != whole.ndim:
        return None
    found: list[int] = []
    sizes = zip(part.shape, part.strides, whole.strides, firsts, whole.shape, strict=True)
    for n, one, step, first, size in sizes:
        apart = one // step if n > 1 and step and one > 0 else 1
        is_part = n == 1 or one == apart * step
        if not is_part or first + (n - 1) * apart >= size or (apart > 1 and size % apart):
            return None
        found.append(apart)
    return found if found[-1] == 1 else None


def _axes(size: int, step: int, first: int, count: int, apart: int) -> list[Axis]:
    """An axis, of which so many indices are the operand's; two where these are apart."""
    if apart == 1:
        return [Axis(size, step, first, first + count)]
    begin, place = divmod(first, apart)
    return [Axis(size // apart, step, begin, begin + count), Axis(apart, 0, place, place + 1)]


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Steps of bytes that follow each other."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.insert(0, step)
        step *= max(size, 1)
    return tuple(steps)


def _indices(place: int, shape: tuple[int, ...]) -> list[int]:
    """The indices of an element by its number."""
    found = []
    for step in _packed(shape):
        found.append(place // step)
        place %= step
    return found


def _fewest(axes: list[Axis]) -> list[Axis]:
    """As few axes as can be: such as have no edges and follow each other are one; at least one."""
    found: list[Axis] = []
    for axis in axes:
        whole = (axis.first, axis.end) == (0, axis.size)
        if axis.size == 1 and whole:
            continue
        if found and whole and found[-1].step == axis.step * axis.size:
            before = found.pop()
            size, first, end = (n * axis.size for n in (before.size, before.first, before.end))
            axis = Axis(size, axis.step, first, end)
        found.append(axis)
    return found or [Axis(1, 0, 0, 1)]
