"""Reflections of small matrices, and columns of their products: a thread has a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.moves import FAULTS

from .group import TAIL, Group, root_of

_AT_ONCE = 4  # steps in the text
# Numbers below the first have reciprocals beyond the range, unless they are times the second, exactly.
_STEPS_UP = {"float32": ("0x1p-100f", "0x1p60f"), "float64": ("0x1p-1000", "0x1p500")}


@dataclass(frozen=True)
class SmallReflections:
    """What scales reflections in a row, below it the columns that they leave, as LAPACK's geqrf.

    A word is set for elements that are NaN or infinite.

    Slots: `matrices`; `x0, x0_step`, the matrices; `result`; `faults`.

    Attributes:
        dtype: of the elements.
        m, n: rows and columns.
    """

    dtype: str
    m: int
    n: int
    slots = ("matrices", "x0_step", "x0", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function: each reflection is made by one thread, and seen by all."""
        item, m, n, group = MEMORY[self.dtype], self.m, self.n, _group(self)
        lanes, steps = group.lanes, min(self.m, self.n)
        head = group.head(name, self.slots)
        below = f"#pragma unroll\n      for (u32 i = 0; i < {m}; ++i)\n        if (i > j)"
        small, large = _STEPS_UP[self.dtype]
        return f"""{head}  {item} a[{m}], mine = {item}(0);
#pragma unroll
  for (u32 i = 0; i < {m}; ++i) {{
    a[i] = is_there && lane < {n} ? x0[matrix * x0_step + i * {n} + lane] : {item}(0);
    wrong |= !(a[i] - a[i] == 0);
  }}
  {item} *const own = room + lane * {m + 1}, *const seen = room + {n * (m + 1)};
#pragma unroll 1
  for (u32 done = 0; done < {steps}; done += {_AT_ONCE}) {{
#pragma unroll
  for (u32 j = 0; j < {min(_AT_ONCE, m)}; ++j) {{
    const u32 k = done + j;
    if (k >= {steps}) break;
    if (lane == k) {{
      {item} most = {item}(0), sum = {item}(0);
{below} most = a[i] > most ? a[i] : -a[i] > most ? -a[i] : most;
      if (most > 0) {{
        // One division of each: a[i] / unit is (a[i] up) less, where less is finite for any unit.
        const {item} first = a[j] < 0 ? -a[j] : a[j], unit = first > most ? first : most;
        const {item} up = unit < {small} ? {large} : {item}(1), less = 1 / (unit * up);
{below} {{
          a[i] = a[i] * up * less;
          sum = fma(a[i], a[i], sum);
        }}
        const {item} head = a[j] * up * less;
        const {item} part = {root_of(self.dtype)}(fma(head, head, sum)), size = unit * part;
        const {item} beta = a[j] < 0 ? size : -size;
        mine = (beta - a[j]) / beta;
        const {item} scale = 1 / (head < 0 ? head - part : head + part);
{below} a[i] *= scale;
        a[j] = beta;
      }}
      seen[{m}] = mine;
      own[k] = a[j];
{below} {{
          seen[i] = a[i];
          if (done + i < {m}) own[done + i] = a[i];
        }}
    }}
    {group.sync}
    const {item} scale = seen[{m}];
    if (lane > k) {{
      {item} taken = a[j];
{below} taken = fma(seen[i], a[i], taken);
      taken *= scale;
      a[j] -= taken;
{below} a[i] = fma(-seen[i], taken, a[i]);
      if (lane < {n}) own[k] = a[j];
    }}
    {group.sync}
  }}
  // What is left begins at 0 again: so all places in a are known, though most steps are one text.
#pragma unroll
  for (u32 i = 0; i < {m}; ++i) a[i] = i + {_AT_ONCE} < {m} ? a[i + {_AT_ONCE}] : {item}(0);
  }}
  if (is_there) {{
    {item} *const to = result + matrix * {(n + 1) * m};
    for (u32 e = lane; e < {m * n}; e += {lanes}) to[{m} + e] = room[e / {m} * {m + 1} + e % {m}];
    if (lane < {min(m, n)}) to[lane] = mine;
    for (u32 e = {min(m, n)} + lane; e < {m}; e += {lanes}) to[e] = {item}(0);
  }}
{TAIL}"""


def _group(variant: SmallReflections) -> Group:
    """Columns begin in different banks; behind them is a reflection with its scale."""
    return Group(variant.dtype, variant.n, (variant.n + 1) * (variant.m + 1))


def small_reflections(dtype: str, m: int, n: int, values: Mapping[str, int]) -> Launch:
    """The launch of `SmallReflections` for a stack of m x n matrices."""
    variant = SmallReflections(dtype, m, n)
    return _group(variant).launch(variant, values)


@dataclass(frozen=True)
class SmallColumns:
    """The first columns of products of reflections, each a row.

    Slots: `matrices`; `x0, x0_step`, what the kernel above makes; `result`; `faults`, which it leaves alone.

    Attributes:
        dtype: of the elements.
        m: rows of the product.
        count: columns.
        given: reflections.
    """

    dtype: str
    m: int
    count: int
    given: int
    slots = ("matrices", "x0_step", "x0", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function: the last reflection first."""
        item, m, count, group = MEMORY[self.dtype], self.m, self.count, _group_of_columns(self)
        lanes = group.lanes
        head = group.head(name, self.slots)
        below = f"#pragma unroll\n    for (u32 i = 0; i < {m}; ++i)\n      if ((int)i > k)"
        return f"""{head}  {item} q[{m}];
  for (u32 e = lane; e < {(self.given + 1) * m}; e += {lanes})
    room[e] = is_there ? x0[matrix * x0_step + e] : {item}(0);
  {group.sync}
#pragma unroll
  for (u32 i = 0; i < {m}; ++i) q[i] = i == lane ? {item}(1) : {item}(0);
#pragma unroll
  for (int k = {self.given - 1}; k >= 0; --k) {{
    const {item} *const v = room + (k + 1) * {m};
    {item} taken = q[k];
{below} taken = fma(v[i], q[i], taken);
    taken *= room[k];
    q[k] -= taken;
{below} q[i] = fma(-v[i], taken, q[i]);
  }}
  {group.sync}
  if (lane < {count}) {{
#pragma unroll
    for (u32 i = 0; i < {m}; ++i) room[lane * {m + 1} + i] = q[i];
  }}
  {group.sync}
  if (is_there)
    for (u32 e = lane; e < {m * count}; e += {lanes})
      result[matrix * {m * count} + e] = room[e / {m} * {m + 1} + e % {m}];
{TAIL}"""


def _group_of_columns(variant: SmallColumns) -> Group:
    """With room for reflections, and then for columns."""
    m, count = variant.m, variant.count
    return Group(variant.dtype, count, max((variant.given + 1) * m, count * (m + 1)))


def small_columns(dtype: str, m: int, count: int, given: int, values: Mapping[str, int]) -> Launch:
    """The launch of `SmallColumns` for a stack: `count` columns of `given` reflections of m rows."""
    variant = SmallColumns(dtype, m, count, given)
    return _group_of_columns(variant).launch(variant, values)
