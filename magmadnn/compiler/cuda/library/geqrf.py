"""Kernels before geqrf, matrices as reflections and triangles, and orgqr, the products of the reflections."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.library import Library

from .moved import parameters, turned
from .small.group import fits
from .small.reflections import small_columns, small_reflections
from .surroundings import Around, launch_of

_FEW, _NARROW = 1, 32  # so few matrices of more rows or columns are computed faster by the library


def _is_small(values: dict[str, int], *sizes: int) -> bool:
    """Whether a group of threads computes each matrix: many at once, or small ones."""
    return fits(*sizes) and (values["matrices"] > _FEW or max(sizes) <= _NARROW)


def around_geqrf(kernel: Library, values: dict[str, int]) -> Around:
    """The matrices, turned, behind room for what scales reflections."""
    m, n, item = values["height"], values["width"], ITEM_BYTES[kernel.dtype]
    if _is_small(values, m, n):
        return Around(small_reflections(kernel.dtype, m, n, values), (), calls=False)
    places = {"goal": values["result"] + m * item, "goal_step": values["rows"] * m}
    before = turned(kernel.dtype, {**values, **places})
    after = None
    if m > n:  # there are fewer reflections than rows
        after = launch_of(ScalesBehind(kernel.dtype), values["matrices"] * m, values)
    return Around(before, (("result", 0), ("result", m)), after)


@dataclass(frozen=True)
class ScalesBehind:
    """Zeros behind what scales the reflections: as many as there are rows more than columns.

    Slots: `matrices`; `rows, columns`, of a matrix of the result; `width`, of one that was factorised;
    `result`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("matrices", "rows", "columns", "width", "result")

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(self.slots, result=f"{item} *")
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < matrices * columns && at % columns >= width)
    result[at / columns * rows * columns + at % columns] = {item}(0);
}}
"""


@dataclass(frozen=True)
class Reflections:
    """The first columns that reflections left, zeros where the result has more.

    Slots: `matrices`; `rows, columns`, of a matrix of the result; `height`, of an operand, whose first row is
    no column; `x0, x0_step`; `result`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("matrices", "rows", "columns", "height", "x0_step", "x0", "result")

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(self.slots, x0=f"const {item} *", result=f"{item} *")
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 size = rows * columns, inside = at % size;
  if (at >= matrices * size) return;
  const bool given = inside / columns < height - 1;
  result[at] = given ? x0[at / size * x0_step + columns + inside] : {item}(0);
}}
"""


def around_orgqr(kernel: Library, values: dict[str, int]) -> Around:
    """Copies of the reflections, which the function makes columns of Q."""
    m, count, given = values["columns"], values["rows"], values["height"] - 1
    if _is_small(values, m, count):
        alone = small_columns(kernel.dtype, m, count, min(m, count, given), values)
        return Around(alone, (), calls=False)
    before = launch_of(Reflections(kernel.dtype), values["count"], values)
    return Around(before, (("x0", 0), ("result", 0)))
