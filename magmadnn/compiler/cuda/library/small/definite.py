"""Cholesky factors of small matrices: a thread has a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.moves import FAULTS

from .group import TAIL, group_of_square, root_of


@dataclass(frozen=True)
class SmallCholesky:
    """Factors, with zeros above the diagonal; a word is set where a pivot is not positive, or NaN.

    Slots: `matrices`; `x0, x0_step`, the matrices; `result`; `faults`.

    Attributes:
        dtype: of the elements.
        n: rows and columns.
    """

    dtype: str
    n: int
    slots = ("matrices", "x0_step", "x0", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function: column by column, of which each is seen by all threads."""
        item, n, group = MEMORY[self.dtype], self.n, group_of_square(self.dtype, self.n)
        lanes = group.lanes
        return f"""{group.head(name, self.slots)}  {item} a[{n}];
  for (u32 e = lane; e < {n * n}; e += {lanes})
    room[e / {n} * {n + 1} + e % {n}] = is_there ? x0[matrix * x0_step + e] : {item}(1);
  {group.sync}
#pragma unroll
  for (u32 j = 0; j < {n}; ++j) a[j] = lane < {n} ? room[lane * {n + 1} + j] : {item}(1);
  {group.sync}
#pragma unroll
  for (u32 k = 0; k < {n}; ++k) {{
    {group.seen("pivot", "a[k]", "k", "k % 2")}
    wrong |= !(pivot > 0);
    const {item} root = {root_of(self.dtype)}(pivot), factor = lane == k ? root : a[k] / root;
    a[k] = factor;
    if (lane < {n}) room[lane] = factor;
    {group.sync}
#pragma unroll
    for (u32 j = 0; j < {n}; ++j)
      if (j > k) a[j] = fma(-factor, room[j], a[j]);
    {group.sync}
  }}
#pragma unroll
  for (u32 j = 0; j < {n}; ++j)
    if (lane < {n}) room[lane * {n + 1} + j] = j <= lane ? a[j] : {item}(0);
  {group.sync}
  if (is_there)
    for (u32 e = lane; e < {n * n}; e += {lanes})
      result[matrix * {n * n} + e] = room[e / {n} * {n + 1} + e % {n}];
{TAIL}"""


def small_cholesky(dtype: str, n: int, values: Mapping[str, int]) -> Launch:
    """The launch of `SmallCholesky` for a stack of n x n matrices."""
    return group_of_square(dtype, n).launch(SmallCholesky(dtype, n), values)
