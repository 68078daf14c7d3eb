"""Products whose bits depend on nothing but the operands' values: not on the layout, nor on how many
workers there are.

Each element of C is one worker's: no sum is cut between workers. Its tile, of fixed size and at a fixed
place of C, is multiplied by the library in a call of one shape, leaf by leaf of the summed axis, and leaves
are added in order. Rows and columns of the tile that this worker does not have are zero, and change nothing
in the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.dmath.arrays.team import Array
from magmadnn.dmath.layouts.layout import Box
from magmadnn.dmath.products.arithmetic import Arithmetic

TILE = 256  # rows and columns of a tile
LEAF = 512  # of the axis that is summed over


def fixed_product(xp: Any, a: Array, b: Array, box: Box, how: Arithmetic) -> Array:
    """A block of C = A B, which covers `box` of C, from its rows of A and columns of B."""
    a, b, dtype = (*(x.astype(how.operand, copy=False) for x in (a, b)), how.sums)
    (m0, m1), (n0, n1) = box
    shape = (m1 - m0, n1 - n0)
    out = xp.empty(shape, dtype) if a.shape[1] else xp.zeros(shape, dtype)
    for k in range(0, a.shape[1], LEAF):
        columns = range(n0 - n0 % TILE, n1, TILE)
        rights = [(at, *_tile(xp, b[k : k + LEAF].T, at, n0, n1, dtype)) for at in columns]
        for row in range(m0 - m0 % TILE, m1, TILE):
            left, r0, r1 = _tile(xp, a[:, k : k + LEAF], row, m0, m1, dtype)
            for column, right, c0, c1 in rights:
                term = (left @ right.T)[r0 - row : r1 - row, c0 - column : c1 - column]
                into = out[r0 - m0 : r1 - m0, c0 - n0 : c1 - n0]
                if k:
                    into += term
                else:
                    into[...] = term
    return out


def _tile(
    xp: Any, strip: Array, first: int, low: int, high: int, dtype: np.dtype[Any]
) -> tuple[Array, int, int]:
    """Rows `first` to `first + TILE` of an operand, [TILE, LEAF], with zeros where there are none; and
    which are there.
    """
    start, stop = max(first, low), min(first + TILE, high)
    tile = xp.zeros((TILE, LEAF), dtype)
    tile[start - first : stop - first, : strip.shape[1]] = strip[start - low : stop - low]
    return tile, start, stop
