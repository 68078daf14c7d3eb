"""Kernels around potrf, the Cholesky factor of a positive definite matrix."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import FAULTS

from .surroundings import INFO, Around, launch_of


@dataclass(frozen=True)
class LowerTriangles:
    """The lower triangles of a stack of matrices, with zeros above them.

    Slots: `count`, elements in all; `columns`, of a matrix; `x0_step`, from one source to the next; `x0`;
    `result`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("count", "columns", "x0_step", "x0", "result")

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = f"i64 count, i64 columns, i64 x0_step, const {item} *x0, {item} *result"
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const i64 size = columns * columns, inside = at % size;
  const bool kept = inside % columns <= inside / columns;
  result[at] = kept ? x0[at / size * x0_step + inside] : {item}(0);
}}
"""


@dataclass(frozen=True)
class LookAtInfo:
    """Sets a word where a function said something other than 0 of a matrix: 32 bits for each."""

    slots = ("matrices", INFO, FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        return f"""extern "C" __global__ void {name}(i64 matrices, const int *info, i64 *faults) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < matrices && info[at] != 0) faults[0] = 1;
}}
"""


def around_potrf(kernel: Library, values: dict[str, int]) -> Around:
    """The triangles, of which the function makes factors; what it says."""
    before = launch_of(LowerTriangles(kernel.dtype), values["count"], values)
    return Around(before, (), launch_of(LookAtInfo(), values["matrices"], values))
