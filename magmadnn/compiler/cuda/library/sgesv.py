"""Kernels around sgesv, solutions in mixed precision (LAPACK's dsgesv)."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import FAULTS

from .moved import parameters, turned
from .surroundings import INFO, Around, launch_of, piece

_WORD, _ITEM = 4, 8  # bytes of a count, and of an element


def bytes_of_refinement(kernel: Library, values: dict[str, int]) -> tuple[int, ...]:
    """The matrices, how many steps were made, and exchanges."""
    matrices, n = values["matrices"], values["columns"]
    return _ITEM * matrices * n * n, _WORD * matrices, _WORD * matrices * n


def around_sgesv(kernel: Library, values: dict[str, int]) -> Around:
    """The matrices, turned; right sides are read where they lie, and solutions come behind a row."""
    n = values["columns"]
    before = turned(kernel.dtype, {**values, "goal": values[piece(0)], "goal_step": n * n})
    after = launch_of(StepsMade(), values["matrices"] * n, values)
    return Around(before, (("x1", 0), ("result", n)), after)


@dataclass(frozen=True)
class StepsMade:
    """How many steps were made, in front of the solutions; a word is set where there are none.

    Slots: `matrices`; `rows, columns`, of a matrix of the result; `x1, x1_step`, right sides; `piece1`, the
    steps; `result`; `info`; `faults`.
    """

    slots = ("matrices", "rows", "columns", "x1_step", "x1", piece(1), "result", INFO, FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        kinds = parameters(
            self.slots, x1="const double *", piece1="const int *", result="double *",
            info="const int *", faults="i64 *",
        )  # fmt: skip
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= matrices * columns) return;
  const i64 matrix = at / columns, place = at % columns;
  if (info[matrix] != 0) faults[0] = 1;
  double *const first = result + matrix * rows * columns + place;
  first[0] = place ? 0.0 : (double)piece1[matrix];
  for (i64 row = 1; row < rows; ++row) {{
    const double x = first[row * columns], b = x1[matrix * x1_step + (row - 1) * columns + place];
    if (!(x - x == 0) || !(b - b == 0)) faults[0] = 1;
  }}
}}
"""
