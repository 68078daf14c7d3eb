"""Kernels around potrf, the Cholesky factor of a positive definite matrix."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.backends.cuda.nodes.matrices import is_together
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import FAULTS

from .small.definite import small_cholesky
from .small.group import fits
from .surroundings import INFO, Around, launch_of


@dataclass(frozen=True)
class CopyOfMatrices:
    """A stack of matrices, copied.

    Slots: `count`, elements in all; `columns`, of a matrix; `x0_step`, from one source to the next; `x0`;
    `result`.

    Attributes:
        dtype: of the elements.
        mirrored: whether what is below the diagonal is above it too.
    """

    dtype: str
    mirrored: bool
    slots = ("count", "columns", "x0_step", "x0", "result")

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = f"i64 count, i64 columns, i64 x0_step, const {item} *x0, {item} *result"
        mirror = """  const i64 row = inside / columns, column = inside % columns;
  if (column > row) inside = column * columns + row;
"""
        mirror = mirror if self.mirrored else ""
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 size = columns * columns;
  i64 inside = at % size;
{mirror}  if (at < count) result[at] = x0[at / size * x0_step + inside];
}}
"""


@dataclass(frozen=True)
class LowerTriangles:
    """Zeros above the diagonals, and a word that is set where the function said something other than 0.

    The function may write above the diagonal: that for many small matrices (potrfBatched) does.

    Attributes:
        dtype: of the elements.
        mirrored: whether the factors are above the diagonal, turned, and come below it.
    """

    dtype: str
    mirrored: bool
    slots = ("count", "columns", "matrices", "result", INFO, FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = (
            f"i64 count, i64 columns, i64 matrices, {item} *result, const int *info, i64 *faults"
        )
        moved = """  const i64 first = at - inside, row = inside / columns, column = inside % columns;
  result[first + column * columns + row] = result[at];
"""
        moved = moved if self.mirrored else ""
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 inside = at % (columns * columns);
  if (at < matrices && info[at] != 0) faults[0] = 1;
  if (at >= count || inside % columns <= inside / columns) return;
{moved}  result[at] = {item}(0);
}}
"""


def around_potrf(kernel: Library, values: dict[str, int]) -> Around:
    """The matrices, of which the function makes factors; what is above those, and what the function says."""
    count, n = values["count"], values["columns"]
    if fits(n):
        return Around(small_cholesky(kernel.dtype, n, values), (), calls=False)
    mirrored = not is_together(values["matrices"], n)
    before = launch_of(CopyOfMatrices(kernel.dtype, mirrored), count, values)
    after = launch_of(LowerTriangles(kernel.dtype, mirrored), count, values)
    return Around(before, after=after)
