"""Gradients of a convolution by those of what is pooled of its result, which are spread as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from magmadnn.backends.cpu.forks import cached_property

from .filters import FewFilters
from .inputs import MOST_PLACES, MOST_SUMS, FewInputs
from .sizes import THREADS, largest_divisor, together
from .text import head, weights_as_they_lie

_CHANNELS = 3  # of a thread: a few more threads than with all of them
_MOST_WINDOWS, _MOST_READ = 14, 24  # of a thread at once: windows, columns of an image


@dataclass(frozen=True)
class FewPooledInputs(FewInputs):
    """The gradient for images, by gradients of what is pooled.

    Windows and pooling windows are those of `FewPooled`.

    Slots: `images`; `w` [*size, channels, outputs]; `y`, gradients, and `index` [images, *pooled, outputs];
    `result`, x.

    Attributes:
        pool: height and width of a pooling window.
    """

    pool: tuple[int, int]
    slots: ClassVar[tuple[str, ...]] = ("images", "w", "y", "index", "result")

    @cached_property
    def channels(self) -> int:
        """Channels of an image that a thread computes."""
        return largest_divisor(self.of.channels, _CHANNELS)

    def threads(self, images: int) -> int:
        """How many there are for so many images."""
        return super().threads(images) * (self.of.channels // self.channels)

    @cached_property
    def places(self) -> int:
        """Neighbouring places that a thread computes: whole widths of pooling windows."""
        of, wide = self.of, self.pool[1]
        most = min(MOST_PLACES, max(MOST_SUMS // of.channels, 1))
        fit = (n for n in range(most, wide, -1) if n % wide == 0 and of.places[1] % n == 0)
        return next(fit, wide)

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item, (below, beside) = self.of, self.of.item, self.pool
        (height, width), (tall, wide) = of.places, of.size
        rows, columns = of.windows[0] // below, of.windows[1] // beside
        o, c, near, pieces = of.outputs, of.channels, together(of.outputs), width // self.places
        read = sorted({p - s for p in range(self.places) for s in range(wide)})
        # A thread's first place is a multiple of a pooling window's width.
        homes = [divmod(of.padding[1] % beside + at, beside) for at in read]
        kind, own, groups = f"Vec<{item}, {near}>", self.channels, c // self.channels
        loads = ""
        for number, home in enumerate(sorted({home for home, _ in homes})):
            loads += f"""        {kind} g{number};
        Vec<u8, {near}> n{number};
        {{ const int column = right + {home};
          const bool inside = (u32)column < {columns}u;
          const int there = (inside ? column : 0) * {o} + k;
          g{number} = load<{near}>(from + there);
          n{number} = load<{near}>(chosen + there);
          if (!inside) g{number} = {{}}; }}
"""
        numbers = {home: k for k, home in enumerate(sorted({home for home, _ in homes}))}
        spread = "".join(
            f"        a[{i}].at[{j}] = n{numbers[home]}.at[{j}] == down + {rest} ? "
            f"g{numbers[home]}.at[{j}] : {item}(0);\n"
            for i, (home, rest) in enumerate(homes)
            for j in range(near)
        )
        return f"""{head(name, self.slots, item, of.filter_bytes)}
{weights_as_they_lie(of)}  __syncthreads();
  const u32 at = blockIdx.x * {THREADS} + threadIdx.x;
  if (at >= (u32)images * {height * pieces * groups}u) return;
  const u32 group = at % {groups}, piece = at / {groups};
  const u32 line = piece / {pieces}, first = piece % {pieces} * {self.places};
  const int low = (int)(line % {height}) + {of.padding[0]};
  const int right = ((int)first + {of.padding[1]}) / {beside};
  const i64 image = (i64)(line / {height}) * {rows * columns * o};
  {item} total[{self.places}][{own}] = {{}};
#pragma unroll 1
  for (int r = 0; r < {tall}; ++r) {{
    const int above = low - r;
    if (above < 0 || above >= {rows * below}) continue;
    const int down = above % {below} * {beside};
    const {item} *const from = y + image + above / {below} * {columns * o};
    const u8 *const chosen = index + image + above / {below} * {columns * o};
    const {item} *const filter = filters + r * {wide * c * o} + group * {own * o};
#pragma unroll 1
    for (int k = 0; k < {o}; k += {near}) {{
{loads}      {kind} a[{len(read)}];
{spread}{self._products(read)}    }}
  }}
  {item} *const to = result + ((i64)line * {width} + first) * {c} + group * {own};
{self._stores()}}}
"""


@dataclass(frozen=True)
class FewPooledFilters(FewFilters):
    """Parts of the gradient for filters, by gradients of what is pooled.

    Slots: `images`; `each`, rows of windows of a block; `x` [images, *places, channels]; `y`, gradients, and
    `index` [images, *pooled, outputs]; `result` [blocks, *size, channels, outputs].

    Attributes:
        pool: height and width of a pooling window.
    """

    pool: tuple[int, int]
    slots: ClassVar[tuple[str, ...]] = ("images", "each", "x", "y", "index", "result")

    @cached_property
    def windows(self) -> int:
        """Neighbouring windows that a thread takes at once: whole pooling windows."""
        columns, wide = self.of.windows[1], self.pool[1]
        for count in range(min(_MOST_WINDOWS, columns) // wide * wide, wide, -wide):
            read = self.of.columns_read(count, self.taps)
            if columns % count == 0 and len(read) <= _MOST_READ:
                return count
        return wide

    def _row(self) -> str:
        of, (below, beside) = self.of, self.pool
        (rows, columns), o = of.windows, of.outputs
        line = columns // beside * o
        row = f"window / {rows} * {rows // below} + window % {rows} / {below}"
        return f"""      const i64 line = ({row}) * {line};
      const {of.item} *const beside = y + line + group * {together(o)};
      const u8 *const chosen = index + line + group * {together(o)};
      const int down = (int)(window % {rows} % {below}) * {beside};
"""

    def _gradients(self, windows: int) -> str:
        of, wide, each = self.of, self.pool[1], together(self.of.outputs)
        lines = f"        const int pooled = q / {wide} * {of.outputs};\n"
        for j in range(windows // wide):
            lines += f"""        {{ const int there = pooled + {j * of.outputs};
          const Vec<{of.item}, {each}> g = load<{each}>(beside + there);
          const Vec<u8, {each}> n = load<{each}>(chosen + there);
"""
            for s in range(wide):
                for i in range(each):
                    value = f"n.at[{i}] == down + {s} ? g.at[{i}] : {of.item}(0)"
                    lines += f"          b[{j * wide + s}].at[{i}] = {value};\n"
            lines += "        }\n"
        return lines
