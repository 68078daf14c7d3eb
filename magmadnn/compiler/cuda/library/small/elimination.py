"""L and U of small matrices, and solutions by them: a thread has a row, or of a transpose a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.variant import WARP, Launch
from magmadnn.compiler.kernels.moves import FAULTS

from .group import TAIL, Group, group_of_square
from .substitution import AT_ONCE, inverses_of, launch_of_parts, part_of, steps_of


@dataclass(frozen=True)
class SmallElimination:
    """Exchanges of rows as numbers in a row, below them L and U, turned.

    A word is set for a 0 in U, and for elements that are NaN or infinite.

    Slots: `matrices`; `x0, x0_step`, the matrices; `result`; `faults`.

    Attributes:
        dtype: of the elements.
        n: rows and columns.
    """

    dtype: str
    n: int
    slots = ("matrices", "x0_step", "x0", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function: rows stay with their threads, which know the places that they would have."""
        item, n, group = MEMORY[self.dtype], self.n, group_of_square(self.dtype, self.n)
        lanes = group.lanes
        better = "other > most || (other == most && its_place < where)"
        taken = "{ most = other; who = its_lane; where = its_place; }"
        between = f"""
    {item} *const mine = board + k % 2 * 8;
    if (lane % {WARP} == 0) {{
      mine[lane / {WARP} * 3] = most;
      mine[lane / {WARP} * 3 + 1] = ({item})who;
      mine[lane / {WARP} * 3 + 2] = ({item})where;
    }}
    {group.sync}
    {{
      const u32 at = (1 - lane / {WARP}) * 3;
      const {item} other = mine[at];
      const int its_lane = (int)mine[at + 1], its_place = (int)mine[at + 2];
      if ({better}) {taken}
    }}"""
        return f"""{group.head(name, self.slots)}  {item} a[{n}];
  for (u32 e = lane; e < {n * n}; e += {lanes}) {{
    const {item} x = is_there ? x0[matrix * x0_step + e] : {item}(e % {n + 1} == 0);
    wrong |= !(x - x == 0);
    room[e / {n} * {n + 1} + e % {n}] = x;
  }}
  {group.sync}
#pragma unroll
  for (u32 j = 0; j < {n}; ++j) a[j] = lane < {n} ? room[lane * {n + 1} + j] : {item}(0);
  {group.sync}
  int place = lane, exchanged = lane;
#pragma unroll
  for (u32 k = 0; k < {n}; ++k) {{
    {item} most = lane < {n} && place >= (int)k ? (a[k] < 0 ? -a[k] : a[k]) : {item}(-1);
    int who = lane, where = place;
#pragma unroll
    for (u32 apart = {min(lanes, WARP) // 2}; apart > 0; apart /= 2) {{
      const {item} other = __shfl_xor_sync(0xffffffffu, most, (int)apart);
      const int its_lane = __shfl_xor_sync(0xffffffffu, who, (int)apart);
      const int its_place = __shfl_xor_sync(0xffffffffu, where, (int)apart);
      if ({better}) {taken}
    }}{between if group.is_wide else ""}
    if ((int)lane == who) {{
      place = k;
#pragma unroll
      for (u32 j = 0; j < {n}; ++j)
        if (j >= k) room[j] = a[j];
    }} else if (place == (int)k) {{
      place = where;
    }}
    if (lane == k) exchanged = where;
    {group.sync}
    const {item} pivot = room[k];
    wrong |= pivot == 0;
    if (place > (int)k && lane < {n}) {{
      const {item} factor = a[k] / pivot;
      a[k] = factor;
#pragma unroll
      for (u32 j = 0; j < {n}; ++j)
        if (j > k) a[j] = fma(-factor, room[j], a[j]);
    }}
    {group.sync}
  }}
#pragma unroll
  for (u32 j = 0; j < {n}; ++j)
    if (lane < {n}) room[j * {n + 1} + place] = a[j];
  {group.sync}
  if (is_there) {{
    {item} *const to = result + matrix * {n * (n + 1)};
    if (lane < {n}) to[lane] = ({item})exchanged;
    for (u32 e = lane; e < {n * n}; e += {lanes}) to[{n} + e] = room[e / {n} * {n + 1} + e % {n}];
  }}
{TAIL}"""


def small_elimination(dtype: str, n: int, values: Mapping[str, int]) -> Launch:
    """The launch of `SmallElimination` for a stack of n x n matrices."""
    return group_of_square(dtype, n).launch(SmallElimination(dtype, n), values)


@dataclass(frozen=True)
class SmallSolutions:
    """Rows x with a x = b, or a^T x = b, by factors of a; the words as above, and for right sides.

    Slots: `matrices`; `parts`, groups of each; `rows`, right sides of each; `x0, x0_step`, factors;
    `x1, x1_step`, right sides; `result`; `faults`.

    Attributes:
        dtype: of the elements.
        n: rows and columns.
        transpose: whether the equations are those of the transposes.
    """

    dtype: str
    n: int
    transpose: bool
    slots = ("matrices", "parts", "rows", "x0_step", "x0", "x1_step", "x1", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function: a thread has an element of each right side, some of which run side by side."""
        item, n = MEMORY[self.dtype], self.n
        group = Group(self.dtype, n, 0)
        read = f"lane * {n} + j" if self.transpose else f"j * {n} + lane"
        given, goal = ("lane", "source") if self.transpose else ("source", "lane")
        forward = steps_of(group, f"int k = 0; k < {n}; ++k", ">", self.transpose)
        back = steps_of(group, f"int k = {n - 1}; k >= 0; --k", "<", not self.transpose)
        return f"""{group.head(name, self.slots)}  {item} a[{n}], inverse = {item}(1);
  const {item} *const factors = x0 + (is_there ? matrix : 0) * x0_step;
  const {item} *const right = x1 + (is_there ? matrix : 0) * x1_step;
  const bool has_row = lane < {n};
#pragma unroll
  for (u32 j = 0; j < {n}; ++j) a[j] = has_row ? factors[{n} + {read}] : {item}(0);
{inverses_of(item, n)}  int source = lane;  // which element comes here
  for (int k = {n - 1}; k >= 0; --k) {{
    const int other = (int)factors[k];
    source = source == k ? other : source == other ? k : source;
  }}
{part_of("rows")}  for (i64 row = first; row < end; row += {AT_ONCE}) {{
    {item} x[{AT_ONCE}];
#pragma unroll
    for (u32 r = 0; r < {AT_ONCE}; ++r) {{
      x[r] = has_row && row + r < end ? right[(row + r) * {n} + {given}] : {item}(0);
      wrong |= !(x[r] - x[r] == 0);
    }}
{forward}{back}#pragma unroll
    for (u32 r = 0; r < {AT_ONCE}; ++r)
      if (is_there && has_row && row + r < end)
        result[(matrix * rows + row + r) * {n} + {goal}] = x[r];
  }}
{TAIL}"""


def small_solutions(dtype: str, n: int, transpose: bool, values: Mapping[str, int]) -> Launch:
    """The launch of `SmallSolutions` for a stack, `rows` right sides of each matrix."""
    return launch_of_parts(Group(dtype, n, 0), SmallSolutions(dtype, n, transpose), values, "rows")
