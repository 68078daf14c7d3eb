"""Sums of rows and columns added to a vector, in whatever order is fastest: dMath's AddRowColSumMatrix."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Array, accumulated
from magmadnn.dmath.functions.reducing import once, partial_layout, reduced_dtype
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.layouts.moves import traffic, within

_ONE_ROUND = 4096  # bytes of a vector from which an all-reduce of two rounds is worth it


def add_sums(v: Parts, x: Parts, axis: int, alpha: float, beta: float) -> None:
    """v = alpha * (sum of x over an axis) + beta * v, in place.

    A worker adds up its part of `x` as the library's product with ones does it, if elements are float32;
    for float64 that is no quicker than a sum. Then its sums go where `v` lies at once; or, where that sends
    fewer bytes, all workers get them by one all-reduce.

    Args:
        v: any layout; of the shape of `x` without the axis.
        x: any layout.
        axis: counted from 0.
        alpha: of the sums.
        beta: of `v`; 0: `v` is not read.
    """
    team, x = x.team, once(x)
    lies, dtype = partial_layout(x.layout, (axis,)), accumulated(reduced_dtype("sum", x.dtype))
    sums = _local(x, lies, dtype, axis)
    if by_all_reduce(lies, v.layout, dtype.itemsize):
        whole = team.xp.zeros(v.shape, dtype)
        everywhere = tuple((0, n) for n in v.shape)
        for number, block in sums.items():
            whole[within(lies.boxes[number], everywhere)] = block
        _count(v, whole.nbytes)
        team.comm.all_reduce(whole, whole)
        found = {n: whole[within(v.layout.boxes[n], everywhere)] for n in v.blocks}
    else:
        found = remap(Parts(team, lies, dtype, sums), v.layout, share=True).blocks
    v.data.version += 1
    for number, block in v.blocks.items():
        scaled = found[number] * dtype.type(alpha) if dtype.kind in "fc" else found[number] * alpha
        if beta:  # halves are rounded once
            wide = block.astype(np.result_type(block.dtype, dtype), copy=False)
            scaled = scaled + wide * beta
        block[...] = scaled


def by_all_reduce(lies: Layout, target: Layout, itemsize: int) -> bool:
    """Whether sums become known to all workers: where that sends fewer bytes than to send them to `target`.

    Args:
        lies: of the partial sums.
        target: where they have to go.
        itemsize: bytes of an element.
    """
    count = prod(lies.shape)
    if not lies.partial or count * itemsize <= _ONE_ROUND:
        return False
    return int(traffic(lies, target).sum()) > 2 * (lies.workers - 1) * count


def _local(x: Parts, lies: Layout, dtype: np.dtype[Any], axis: int) -> dict[int, Array]:
    """This worker's sums, by number of the block of `lies`."""
    xp, sums = x.team.xp, dict[int, Array]()
    for number, block in x.blocks.items():
        place = np.unravel_index(number, x.layout.grid)
        into = lies.block_at([int(p) for i, p in enumerate(place) if i != axis])
        value = xp.asarray(_summed(xp, block, dtype, axis))
        sums[into] = sums[into] + value if into in sums else value
    for number in lies.held[x.team.rank]:
        if number not in sums:  # the axis is empty
            sums[number] = xp.zeros([high - low for low, high in lies.boxes[number]], dtype)
    return sums


def _summed(xp: Any, block: Array, dtype: np.dtype[Any], axis: int) -> Array:
    """The sum of a block over an axis."""
    flat = block.ndim == 2 and min(block.strides) == block.itemsize
    if not flat or block.dtype != np.float32 or dtype != np.float32:
        return block.sum(axis=axis, dtype=dtype)
    ones = xp.ones(block.shape[axis], dtype)
    return block @ ones if axis else ones @ block


def _count(v: Parts, nbytes: int) -> None:
    """What an all-reduce of an array sends: each worker two of its shares to each other one."""
    count, others = v.team.count, v.team.size - 1
    sent = 2 * others * nbytes // v.team.size
    count.sent_bytes += sent
    count.planned_bytes += sent
    count.messages += 2 * others
