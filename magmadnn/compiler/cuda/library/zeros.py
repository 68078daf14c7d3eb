"""Zeros, where a function would sum over nothing."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

from .surroundings import launch_of


@dataclass(frozen=True)
class Zeros:
    """Bytes that become 0.

    Slots: `count` of them, in rows of `columns` that are `row` apart; `result`, where they are.
    """

    slots = ("count", "columns", "row", "result")

    def text(self, name: str) -> str:
        """The function."""
        parameters = "i64 count, i64 columns, i64 row, unsigned char *result"
        return f"""extern "C" __global__ void {name}({parameters}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) result[at / columns * row + at % columns] = 0;
}}
"""


def zeros(nbytes: int, result: int, columns: int = 0, row: int = 0) -> Launch:
    """A launch that makes bytes 0: so many, in rows of some that are `row` bytes apart where they are."""
    values = {
        "count": nbytes,
        "columns": columns or nbytes,
        "row": row or columns,
        "result": result,
    }
    return launch_of(Zeros(), nbytes, values)
