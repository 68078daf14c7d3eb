"""Equations with triangles: steps that kernels share, and the kernel of small triangles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.variant import Launch, Variant
from magmadnn.compiler.kernels.moves import FAULTS

from .group import TAIL, Group

AT_ONCE = 4  # right sides that a group works on
MOST_RIGHT = 32  # right sides of a part, which is one group's


def steps_of(group: Group, loop: str, behind: str, divided: bool) -> str:
    """Elements of `x[r]` one after the other, over a loop of `k`; those behind are changed by `a[k]`.

    Args:
        group: of threads.
        loop: the head of the loop.
        behind: ">" or "<": which threads are behind that of an element.
        divided: whether an element is divided by that of the diagonal, which is `1 / inverse`.
    """
    scale = "      if ((int)lane == k) x[r] *= inverse;\n" if divided else ""
    changed = f"if ((int)lane {behind} k) x[r] = fma(-a[k], known, x[r]);"
    if not group.is_wide:
        return f"""#pragma unroll
    for ({loop}) {{
#pragma unroll
      for (u32 r = 0; r < {AT_ONCE}; ++r) {{
  {scale}        {group.seen("known", "x[r]", "k", "")}
        {changed}
      }}
    }}
"""
    item = MEMORY[group.dtype]
    return f"""#pragma unroll
    for ({loop}) {{
      {item} *const shown = board + k % 2 * {AT_ONCE};
#pragma unroll
      for (u32 r = 0; r < {AT_ONCE}; ++r) {{
  {scale}        if ((int)lane == k) shown[r] = x[r];
      }}
      {group.sync}
#pragma unroll
      for (u32 r = 0; r < {AT_ONCE}; ++r) {{
        const {item} known = shown[r];
        {changed}
      }}
    }}
    {group.sync}
"""


def inverses_of(item: str, n: int) -> str:
    """Each thread's `inverse` of the diagonal's element in its row `a`; `wrong` where that is 0."""
    return f"""#pragma unroll
  for (u32 k = 0; k < {n}; ++k)
    if (lane == k) {{
      wrong |= a[k] == 0;
      inverse = {item}(1) / a[k];
    }}
"""


def part_of(count: str) -> str:
    """The right sides from `first` to `end` that are a group's, of `count`."""
    return f"""  const i64 first = part * {MOST_RIGHT}, behind = first + {MOST_RIGHT};
  const i64 end = behind < {count} ? behind : {count};
"""


def launch_of_parts(
    group: Group, variant: Variant, values: Mapping[str, int], count: str
) -> Launch:
    """The launch of a kernel whose groups share out the right sides of a matrix, `values[count]` of them."""
    parts = -(-values[count] // MOST_RIGHT)
    return group.launch(variant, {**values, "parts": parts})


@dataclass(frozen=True)
class SmallTriangles:
    """x with op(a) x = b, of a triangle of a; a word is set where an element of a diagonal is 0.

    Slots: `matrices`; `parts`, groups of each; `columns`, of right sides; `x0, x0_step`, the matrices;
    `x1, x1_step`, right sides; `result`; `faults`.

    Attributes:
        dtype: of the elements.
        n: rows and columns.
        lower: which triangle of a is read.
        transpose: whether op is the transpose.
    """

    dtype: str
    n: int
    lower: bool
    transpose: bool
    slots = ("matrices", "parts", "columns", "x0_step", "x0", "x1_step", "x1", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function: a thread has a row of op(a), and of the columns of right sides an element each."""
        item, n = MEMORY[self.dtype], self.n
        group = Group(self.dtype, n, 0)
        read = f"j * {n} + lane" if self.transpose else f"lane * {n} + j"
        up, down = f"int k = 0; k < {n}; ++k", f"int k = {n - 1}; k >= 0; --k"
        is_lower = self.lower != self.transpose
        steps = steps_of(group, up, ">", True) if is_lower else steps_of(group, down, "<", True)
        return f"""{group.head(name, self.slots)}  {item} a[{n}], inverse = {item}(1);
  const {item} *const triangle = x0 + (is_there ? matrix : 0) * x0_step;
  const {item} *const right = x1 + (is_there ? matrix : 0) * x1_step;
  const bool has_row = lane < {n};
#pragma unroll
  for (u32 j = 0; j < {n}; ++j) a[j] = has_row ? triangle[{read}] : {item}(1);
{inverses_of(item, n)}{part_of("columns")}  for (i64 column = first; column < end; column += {AT_ONCE}) {{
    {item} x[{AT_ONCE}];
#pragma unroll
    for (u32 r = 0; r < {AT_ONCE}; ++r)
      x[r] = has_row && column + r < end ? right[lane * columns + column + r] : {item}(0);
{steps}#pragma unroll
    for (u32 r = 0; r < {AT_ONCE}; ++r)
      if (is_there && has_row && column + r < end)
        result[(matrix * {n} + lane) * columns + column + r] = x[r];
  }}
{TAIL}"""


def small_triangles(
    dtype: str, n: int, settings: tuple[bool, ...], values: Mapping[str, int]
) -> Launch:
    """The launch of `SmallTriangles` for a stack, `columns` right sides of each matrix."""
    return launch_of_parts(
        Group(dtype, n, 0), SmallTriangles(dtype, n, *settings), values, "columns"
    )
