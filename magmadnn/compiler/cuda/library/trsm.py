"""Kernels around trsm, equations whose matrix is a triangle."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import FAULTS

from .small.group import fits
from .small.substitution import small_triangles
from .surroundings import Around, launch_of


@dataclass(frozen=True)
class RightSides:
    """Copies of right sides; a word is set where an element of a diagonal is 0.

    Slots: `matrices`; `rows, columns`, of a right side; `x0`, the triangles, and `x0_step`, from one to the
    next; `x1` and `x1_step`, the right sides; `result`; `faults`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("matrices", "rows", "columns", "x0_step", "x0", "x1_step", "x1", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = {"x0": f"const {item} *", "x1": f"const {item} *", "result": f"{item} *"}
        kinds[FAULTS] = "i64 *"
        parameters = ", ".join(f"{kinds.get(slot, 'i64 ')}{slot}" for slot in self.slots)
        return f"""extern "C" __global__ void {name}({parameters}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 size = rows * columns;
  if (at < matrices * size) result[at] = x1[at / size * x1_step + at % size];
  if (at < matrices * rows && x0[at / rows * x0_step + at % rows * (rows + 1)] == 0) faults[0] = 1;
}}
"""


def around_trsm(kernel: Library, values: dict[str, int]) -> Around:
    """Copies of the right sides, which the function makes solutions."""
    if fits(values["rows"]):
        alone = small_triangles(kernel.dtype, values["rows"], kernel.settings, values)
        return Around(alone, (), calls=False)
    threads = max(values["count"], values["matrices"] * values["rows"])
    before = launch_of(RightSides(kernel.dtype), threads, values)
    return Around(before, (("x0", 0), ("result", 0)))
