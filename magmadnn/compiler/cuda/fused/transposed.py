"""Movements that swap the axis along which elements lie: tiles go through shared memory.

Element by element a warp would read as many pieces of memory as it has threads. So a block reads rows of a
tile as they lie and writes columns of it, as rows of the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.moves import AXES, OUTER_AXES, PLACE, SOURCE, TO

_THREADS = 256
_TILE = 64  # elements along both axes
_LEAST = 16  # of a tile that is worth it
_WORD = 4  # bytes of a load or a store
_ITEMS = {1: "u8", 2: "unsigned short", 4: "u32"}
_OTHERS = OUTER_AXES - 1


@dataclass(frozen=True)
class Transposed:
    """result[.., d, a] = x[.., a, d] for all d and a: `across` elements a, `down` elements d.

    Slots: `result`, `x`, both at their first element; `across`, and elements of x from one a to the next;
    `down`, and elements of the result from one d to the next; for each further axis its length, and its steps
    in the result and in x.

    Attributes:
        item_bytes: of an element: 1, 2 or 4.
        together: elements that are read and written together along either axis.
    """

    item_bytes: int
    together: int

    slots = (
        "result", "x", "across", "step", "down", "to_step",
        *(f"{name}{k}" for k in range(_OTHERS) for name in ("length", "to", "from")),
    )  # fmt: skip

    @property
    def row(self) -> int:
        """Elements from one row of a tile in shared memory to the next: rows begin in different banks."""
        return _TILE + _WORD // self.item_bytes

    @property
    def shared_bytes(self) -> int:
        """Of a tile."""
        return _TILE * self.row * self.item_bytes

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        item, near = _ITEMS[self.item_bytes], self.together
        parts = _TILE // near  # of a row
        rounds = _TILE * parts // _THREADS
        kinds = [f"{item} *result", f"const {item} *x", *(f"i64 {s}" for s in self.slots[2:])]
        others = "".join(
            f"""  result += rest % length{k} * to{k};
  x += rest % length{k} * from{k};
  rest /= length{k};
"""
            for k in range(_OTHERS)
        )
        return f"""extern "C" __global__ void {name}({", ".join(kinds)}) {{
  SHARED_MEMORY({self.shared_bytes})
{BEGIN}  {item} *const tile = ({item} *)memory;
  const u32 tiles = ((u32)down + {_TILE - 1}u) / {_TILE}u;
  const i64 a0 = (i64)(blockIdx.x / tiles) * {_TILE}, d0 = (i64)(blockIdx.x % tiles) * {_TILE};
  i64 rest = blockIdx.y;
{others}  Vec<{item}, {near}> read[{rounds}];
#pragma unroll
  for (int k = 0; k < {rounds}; ++k) {{
    const int e = k * {_THREADS} + threadIdx.x, a = e / {parts}, d = e % {parts} * {near};
    if (a0 + a < across && d0 + d < down) read[k] = load<{near}>(x + (a0 + a) * step + d0 + d);
  }}
#pragma unroll
  for (int k = 0; k < {rounds}; ++k) {{
    const int e = k * {_THREADS} + threadIdx.x, a = e / {parts}, d = e % {parts} * {near};
    if (a0 + a < across && d0 + d < down)
      for (int j = 0; j < {near}; ++j) tile[(d + j) * {self.row} + a] = read[k].at[j];
  }}
  __syncthreads();
#pragma unroll
  for (int k = 0; k < {rounds}; ++k) {{
    const int e = k * {_THREADS} + threadIdx.x, d = e / {parts}, a = e % {parts} * {near};
    if (a0 + a < across && d0 + d < down)
      store<{near}>(result + (d0 + d) * to_step + a0 + a, load<{near}>(tile + d * {self.row} + a));
  }}
}}
"""


@dataclass(frozen=True)
class Turn:
    """A movement that such a kernel does, in elements.

    Attributes:
        to, place: its first element in the result and in the source.
        across: elements along the axis on which the result's lie one after the other, and the source's step;
        down: the same of the axis on which the source's do, and the result's step.
        others: length and steps in the result and in the source of each other axis.
    """

    to: int
    place: int
    across: tuple[int, int]
    down: tuple[int, int]
    others: tuple[tuple[int, int, int], ...]


def turn_of(table: NDArray[np.int64], sources: int) -> Turn | None:
    """What a table of boxes (`kernels/moves.py`) says, if it is one box that such a kernel is worth it for.

    Args:
        table: int64 [boxes, words].
        sources: how many sources are no constants.
    """
    if len(table) != 1 or table[0, SOURCE] != 0 or not sources:
        return None
    axes = table[0, AXES:].reshape(OUTER_AXES + 1, 3).tolist()
    *outer, (length, to_step, step) = [(int(a), int(b), int(c)) for a, b, c in axes]
    down = next((a for a in outer if a[2] == 1 and a[0] >= _LEAST), None)
    if down is None or to_step != 1 or step < 2 or length < _LEAST:
        return None
    others = [axis if axis[0] > 1 else (1, 0, 0) for axis in outer if axis is not down]
    if math.prod(axis[0] for axis in others) > 65535:
        return None
    place, to = int(table[0, PLACE]), int(table[0, TO])
    return Turn(to, place, (length, step), (down[0], down[1]), tuple(others))


def transposed(turn: Turn, item_bytes: int, x: int, result: int) -> Launch | None:
    """The launch on memory at these addresses; None for elements of another size."""
    if item_bytes not in _ITEMS:
        return None
    result, x = result + turn.to * item_bytes, x + turn.place * item_bytes
    counts = (*turn.across, *turn.down, *(n for axis in turn.others for n in axis[1:]))
    even = math.gcd(_WORD // item_bytes, *counts, result // item_bytes, x // item_bytes)
    variant = Transposed(item_bytes, even)
    tiles = math.prod(-(-n // _TILE) for n in (turn.across[0], turn.down[0]))
    grid = (tiles, math.prod(axis[0] for axis in turn.others), 1)
    arguments = (result, x, *turn.across, *turn.down, *(n for axis in turn.others for n in axis))
    return Launch(variant, grid, (_THREADS, 1, 1), arguments, variant.shared_bytes)
