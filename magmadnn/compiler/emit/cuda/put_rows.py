"""The kernel that puts rows where they belong: rows that came to the device in another order."""

from __future__ import annotations

from dataclasses import dataclass

from .prelude import BEGIN
from .variant import Launch

_THREADS = 256
_BLOCKS = 2048
_AT_ONCE = 4  # loads of a thread that wait together
_UNITS = {16: "Vec<u64, 2>", 8: "u64", 4: "u32", 2: "unsigned short", 1: "u8"}


@dataclass(frozen=True)
class PutRows:
    """result[order[i]] = source[i] for rows of `columns` units.

    Slots: `rows, columns, source, order, result`.

    Attributes:
        unit: bytes.
    """

    unit: int

    slots = ("rows", "columns", "source", "order", "result")

    def text(self, name: str) -> str:
        """The function."""
        unit = _UNITS[self.unit]
        kinds = f"i64 rows, i64 columns, const {unit} *source, const i64 *order, {unit} *result"
        body = [
            "  const u64 count = rows * columns, step = (u64)gridDim.x * blockDim.x;",
            f"  #pragma unroll {_AT_ONCE}",
            "  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {",
            "    const u64 row = (at | columns) >> 32 ? at / columns : (u32)at / (u32)columns;",
            "    result[order[row] * columns + at - row * columns] = source[at];",
            "  }",
        ]
        lines = "\n".join(body)
        return f'extern "C" __global__ void {name}({kinds}) {{\n{BEGIN}{lines}\n}}\n'


def put_rows(rows: int, row_bytes: int, source: int, order: int, result: int) -> Launch:
    """The launch for rows of so many bytes; `source` and `result` begin where any unit may."""
    unit = next(size for size in _UNITS if row_bytes % size == 0)
    columns = row_bytes // unit
    blocks = min(max(-(-rows * columns // (_THREADS * _AT_ONCE)), 1), _BLOCKS)
    arguments = (rows, columns, source, order, result)
    return Launch(PutRows(unit), (blocks, 1, 1), (_THREADS, 1, 1), arguments)
