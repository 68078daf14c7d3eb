"""Copies of many places on a device, each of its own size, as one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

COLUMNS = ("here", "there", "bytes")  # of the table
_THREADS = 256
_AT_ONCE = 4  # loads of a thread that wait together
_MOST_BLOCKS = 16  # of a copy
_MOST_ROWS = 32768  # of a launch's table


@dataclass(frozen=True)
class Copies:
    """Copy `bytes` from `here` to `there`, or the other way with `back`, for each row of a table.

    Slots: `table`, rows of `COLUMNS`; `back`. Blocks (i, k) copy row k.
    """

    slots = ("table", "back")

    def text(self, name: str) -> str:
        """The function: 16 bytes at a time where addresses allow it."""
        return f"""extern "C" __global__ void {name}(const i64 *table, i64 back) {{
{BEGIN}  const i64 *const row = table + (i64)blockIdx.y * {len(COLUMNS)};
  const i64 from = row[back ? 1 : 0], to = row[back ? 0 : 1], bytes = row[2];
  const i64 first = (i64)blockIdx.x * {_THREADS} + threadIdx.x, all = (i64)gridDim.x * {_THREADS};
  const i64 wide = (from | to) % 16 == 0 ? bytes / 16 : 0;
#pragma unroll {_AT_ONCE}
  for (i64 i = first; i < wide; i += all) ((Vec<u64, 2> *)to)[i] = ((const Vec<u64, 2> *)from)[i];
  for (i64 i = 16 * wide + first; i < bytes; i += all) ((u8 *)to)[i] = ((const u8 *)from)[i];
}}
"""


def copies(table: int, rows: int, most: int, back: bool = False) -> list[Launch]:
    """The launches for a table.

    Args:
        table: its address.
        rows: how many it has.
        most: bytes of the largest copy.
        back: whether to copy from `there` to `here`.
    """
    blocks = min(max(-(-most // (16 * _THREADS * _AT_ONCE)), 1), _MOST_BLOCKS)
    return [
        Launch(
            Copies(),
            (blocks, min(rows - first, _MOST_ROWS), 1),
            (_THREADS, 1, 1),
            (table + 8 * len(COLUMNS) * first, int(back)),
        )
        for first in range(0, rows, _MOST_ROWS)
    ]
