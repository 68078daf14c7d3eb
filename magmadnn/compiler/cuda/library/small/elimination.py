"""L and U of small matrices, and solutions by them: a thread has a row, or of a transpose a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.library.moved import parameters
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.moves import FAULTS

from .group import TAIL, from_lane, head_of, lanes_of, launch

_AT_ONCE = 4  # right sides that a group works on


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
        item, n, lanes = MEMORY[self.dtype], self.n, lanes_of(self.n)
        kinds = parameters(self.slots, x0=f"const {item} *", result=f"{item} *", faults="i64 *")
        head = head_of(name, kinds, self.dtype, lanes, room_of(n))
        return f"""{head}  {item} a[{n}];
  for (u32 e = lane; e < {n * n}; e += {lanes}) {{
    const {item} x = is_there ? x0[matrix * x0_step + e] : {item}(e % {n + 1} == 0);
    wrong |= !(x - x == 0);
    room[e / {n} * {n + 1} + e % {n}] = x;
  }}
  __syncwarp();
#pragma unroll
  for (u32 j = 0; j < {n}; ++j) a[j] = lane < {n} ? room[lane * {n + 1} + j] : {item}(0);
  __syncwarp();
  int place = lane, exchanged = lane;
#pragma unroll
  for (u32 k = 0; k < {n}; ++k) {{
    {item} most = lane < {n} && place >= (int)k ? (a[k] < 0 ? -a[k] : a[k]) : {item}(-1);
    int who = lane, where = place;
#pragma unroll
    for (u32 apart = {lanes // 2}; apart > 0; apart /= 2) {{
      const {item} other = __shfl_xor_sync(0xffffffffu, most, (int)apart);
      const int its_lane = __shfl_xor_sync(0xffffffffu, who, (int)apart);
      const int its_place = __shfl_xor_sync(0xffffffffu, where, (int)apart);
      if (other > most || (other == most && its_place < where)) {{
        most = other;
        who = its_lane;
        where = its_place;
      }}
    }}
    if ((int)lane == who) {{
      place = k;
#pragma unroll
      for (u32 j = 0; j < {n}; ++j)
        if (j >= k) room[j] = a[j];
    }} else if (place == (int)k) {{
      place = where;
    }}
    if (lane == k) exchanged = where;
    __syncwarp();
    const {item} pivot = room[k];
    wrong |= pivot == 0;
    if (place > (int)k && lane < {n}) {{
      const {item} factor = a[k] / pivot;
      a[k] = factor;
#pragma unroll
      for (u32 j = 0; j < {n}; ++j)
        if (j > k) a[j] = fma(-factor, room[j], a[j]);
    }}
    __syncwarp();
  }}
#pragma unroll
  for (u32 j = 0; j < {n}; ++j)
    if (lane < {n}) room[j * {n + 1} + place] = a[j];
  __syncwarp();
  if (is_there) {{
    {item} *const to = result + matrix * {n * (n + 1)};
    if (lane < {n}) to[lane] = ({item})exchanged;
    for (u32 e = lane; e < {n * n}; e += {lanes}) to[{n} + e] = room[e / {n} * {n + 1} + e % {n}];
  }}
{TAIL}"""


def room_of(n: int) -> int:
    """Elements of a group's room: rows that begin in different banks."""
    return n * (n + 1)


def small_elimination(dtype: str, n: int, values: Mapping[str, int]) -> Launch:
    """A launch that does that."""
    return launch(SmallElimination(dtype, n), dtype, lanes_of(n), room_of(n), values)


@dataclass(frozen=True)
class SmallSolutions:
    """Rows x with a x = b, or a^T x = b, by factors of a; the words as above, and for right sides.

    Slots: `matrices`; `rows`, right sides of each; `x0, x0_step`, factors; `x1, x1_step`, right sides;
    `result`; `faults`.

    Attributes:
        dtype: of the elements.
        n: rows and columns.
        transpose: whether the equations are those of the transposes.
    """

    dtype: str
    n: int
    transpose: bool
    slots = ("matrices", "rows", "x0_step", "x0", "x1_step", "x1", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function: a thread has an element of each right side, some of which run side by side."""
        item, n, lanes = MEMORY[self.dtype], self.n, lanes_of(self.n)
        kinds = parameters(
            self.slots,
            x0=f"const {item} *",
            x1=f"const {item} *",
            result=f"{item} *",
            faults="i64 *",
        )
        head = head_of(name, kinds, self.dtype, lanes, 0)
        read = f"lane * {n} + j" if self.transpose else f"j * {n} + lane"
        forward = ("lane > k", self.transpose)  # which elements change, and whether one is divided
        back = ("lane < k", not self.transpose)
        given = "x[r]" if self.transpose else from_lane("x[r]", "source")
        goal = "source" if self.transpose else "lane"
        return f"""{head}  {item} a[{n}], inverse = {item}(1);
  const {item} *const factors = x0 + (is_there ? matrix : 0) * x0_step;
  const {item} *const right = x1 + (is_there ? matrix : 0) * x1_step;
  const bool has_row = lane < {n};
#pragma unroll
  for (u32 j = 0; j < {n}; ++j) a[j] = has_row ? factors[{n} + {read}] : {item}(0);
#pragma unroll
  for (u32 k = 0; k < {n}; ++k)
    if (lane == k) {{
      wrong |= a[k] == 0;
      inverse = {item}(1) / a[k];
    }}
  const int exchange = has_row ? (int)factors[lane] : (int)lane;
  int source = lane;  // which element comes here
#pragma unroll
  for (u32 k = 0; k < {n}; ++k) {{
    const int other = {from_lane("exchange", "k")};
    const int here = {from_lane("source", "k")}, there = {from_lane("source", "other")};
    if (lane == k) source = there;
    else if ((int)lane == other) source = here;
  }}
  for (i64 row = 0; row < rows; row += {_AT_ONCE}) {{
    {item} x[{_AT_ONCE}];
#pragma unroll
    for (u32 r = 0; r < {_AT_ONCE}; ++r) {{
      x[r] = has_row && row + r < rows ? right[(row + r) * {n} + lane] : {item}(0);
      wrong |= !(x[r] - x[r] == 0);
      x[r] = {given};
    }}
{self._steps(f"u32 k = 0; k < {n}; ++k", *forward)}{self._steps(f"int k = {n - 1}; k >= 0; --k", *back)}
#pragma unroll
    for (u32 r = 0; r < {_AT_ONCE}; ++r)
      if (is_there && has_row && row + r < rows)
        result[(matrix * rows + row + r) * {n} + {goal}] = x[r];
  }}
{TAIL}"""

    def _steps(self, loop: str, changed: str, divided: bool) -> str:
        item = MEMORY[self.dtype]
        scale = "        if (lane == k) x[r] *= inverse;\n" if divided else ""
        changed = changed.replace("lane", "(int)lane").replace("k", "(int)k")
        return f"""#pragma unroll
    for ({loop}) {{
#pragma unroll
      for (u32 r = 0; r < {_AT_ONCE}; ++r) {{
{scale.replace("lane == k", "(int)lane == (int)k")}        const {item} known = {from_lane("x[r]", "k")};
        if ({changed}) x[r] = fma(-a[k], known, x[r]);
      }}
    }}
"""


def small_solutions(dtype: str, n: int, transpose: bool, values: Mapping[str, int]) -> Launch:
    """A launch that does that."""
    return launch(SmallSolutions(dtype, n, transpose), dtype, lanes_of(n), 0, values)
