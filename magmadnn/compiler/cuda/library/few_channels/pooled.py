"""The convolution and max pooling of its result, which never lies in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.kernels.formula import ITEM_BYTES

from .forward import FewForward
from .sizes import THREADS, largest_divisor
from .text import head, weights_as_they_lie

_OUTPUTS, _MOST_SUMS = 2, 24  # of a thread
_LOADS = 80  # that begin together
# Registers of a thread with up to so many loads of 4 bytes that begin together, and with more.
_FEW_LOADS, _REGISTERS = 48, (64, 160)
NOT_POSITIVE = 255  # the number of a window whose largest value is not above 0, as in the ops


@dataclass(frozen=True)
class FewPooled(FewForward):
    """result = the largest of each pooling window of a convolution with bias; index = its place's number.

    Windows of the convolution are one place apart, pooling windows lie side by side and share out all of
    them. A thread has a few outputs of one pooling window, and reads each row of the image once for all rows
    of the pooling window. Sums are those of `FewForward`.

    Slots: `images`; `x` [images, *places, channels]; `w` [*size, channels, outputs]; `bias` [outputs];
    `result` and `index` [images, *pooled, outputs], those that are wanted. With ReLU `index` is 255 where the
    largest is not above 0, so that no gradient goes there.

    Attributes:
        pool: height and width of a pooling window.
        values, numbers: whether results are wanted, and whether numbers are.
    """

    pool: tuple[int, int]
    values: bool
    numbers: bool

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, in order."""
        wanted = ("result",) * self.values + ("index",) * self.numbers
        return ("images", "x", "w", "bias", *wanted)

    @cached_property
    def outputs(self) -> int:
        """Channels of a result that a thread computes."""
        return largest_divisor(self.of.outputs, min(_OUTPUTS, _MOST_SUMS // math.prod(self.pool)))

    @property
    def windows(self) -> int:
        """Neighbouring windows of a row."""
        return self.pool[1]

    @property
    def pooled(self) -> tuple[int, int]:
        """Pooling windows: rows and columns."""
        (rows, columns), (tall, wide) = self.of.windows, self.pool
        return rows // tall, columns // wide

    def threads(self, images: int) -> int:
        """How many there are for so many images."""
        return images * math.prod(self.pooled) * (self.of.outputs // self.outputs)

    @cached_property
    def at_once(self) -> tuple[int, int]:
        """Rows of an image, and channels, whose places are read before the first of them is multiplied."""
        each = len(self.of.columns_read(self.windows, self.taps))
        if each * self.of.channels > _LOADS:
            return 1, 1
        rows = self.of.size[0] + self.pool[0] - 1
        return largest_divisor(rows, _LOADS // (each * self.of.channels)), self.of.channels

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        loads = math.prod(self.at_once) * len(self.of.columns_read(self.windows, self.taps))
        words = loads * ITEM_BYTES[self.of.dtype] // 4
        return _REGISTERS[words > _FEW_LOADS]

    @property
    def _rows_are_inside(self) -> bool:
        """Whether all rows that windows see are the image's."""
        reach = self.of.windows[0] + self.of.size[0] - 1
        return not self.of.padding[0] and reach <= self.of.places[0]

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item, own, (below, beside) = self.of, self.of.item, self.outputs, self.pool
        (height, width), (rows, columns), (tall, wide) = of.places, self.pooled, of.size
        o, c, groups = of.outputs, of.channels, of.outputs // own
        read = of.columns_read(beside, self.taps)
        tall_once, some = self.at_once
        seen = "" if self._rows_are_inside else "seen && "
        loads = "".join(
            f"            {{ const int column = left + {at}; a[i][k][{number}] = "
            f"{seen}{of.inside('column')} ? from[column * {c} + k] : {item}(0); }}\n"
            for number, at in enumerate(read)
        )
        total = f"total[down * {beside} + {{}}]"
        return f"""{head(name, self.slots, item, of.filter_bytes, ("result", "index"))}
{weights_as_they_lie(of)}  __syncthreads();
  const u32 at = blockIdx.x * {THREADS} + threadIdx.x;
  if (at >= (u32)images * {rows * columns * groups}u) return;
  const u32 group = at % {groups}, window = at / {groups}, line = window / {columns};
  const int first = (int)(window % {columns}) * {beside} - {of.padding[1]};
  const int top = (int)(line % {rows}) * {below} - {of.padding[0]};
  const {item} *const image = x + (i64)(line / {rows}) * {height * width * c};
  {item} total[{below * beside}][{own}] = {{}};
#pragma unroll 1
  for (int begin = 0; begin < {tall + below - 1}; begin += {tall_once})
#pragma unroll 1
    for (int tap = 0; tap < {wide}; tap += {self.taps}) {{
      const int left = first + tap;
#pragma unroll 1
      for (int channel = 0; channel < {c}; channel += {some}) {{
        {item} a[{tall_once}][{some}][{len(read)}];
#pragma unroll
        for (int i = 0; i < {tall_once}; ++i) {{
          const int row = top + begin + i;
          const bool seen = (u32)row < {height}u;
          const {item} *const from = image + (seen ? row : 0) * {width * c} + channel;
#pragma unroll
          for (int k = 0; k < {some}; ++k) {{
{loads}          }}
        }}
#pragma unroll
        for (int i = 0; i < {tall_once}; ++i)
#pragma unroll
          for (int down = 0; down < {below}; ++down) {{
            const int r = begin + i - down;
            if ((u32)r >= {tall}u) continue;
#pragma unroll
            for (int k = 0; k < {some}; ++k) {{
              const {item} *const filter =
                  filters + ((r * {wide} + tap) * {c} + channel + k) * {o} + group * {own};
{self._products(read, "a[i][k]", total)}            }}
          }}
      }}
    }}
{self._largest()}}}
"""

    def _largest(self) -> str:
        """Lines that end the sums, take the first of the largest, or the first NaN, and store."""
        own, o, item = self.outputs, self.of.outputs, self.of.item
        width = math.gcd(own, 4)
        bias = f"    const {item} raised = bias[group * {own} + i];\n" * self.biased
        added = " + raised" * self.biased
        cut = "      if (a < 0) a = 0;\n" * self.positive
        lines = f"""  const i64 goal = (i64)window * {o} + group * {own};
  {item} most[{own}];
  u8 chosen[{own}];
#pragma unroll
  for (int i = 0; i < {own}; ++i) {{
{bias}#pragma unroll
    for (int p = 0; p < {math.prod(self.pool)}; ++p) {{
      {item} a = total[p][i]{added};
{cut}      const bool nan = a != a && most[i] == most[i];
      if (p == 0 || a > most[i] || nan) {{
        most[i] = a;
        chosen[i] = (u8)p;
      }}
    }}
"""
        if self.positive:
            lines += f"    if (!(most[i] > 0)) chosen[i] = {NOT_POSITIVE};\n"
        lines += "  }\n"
        for slot, kind, name in (("result", item, "most"), ("index", "u8", "chosen")):
            for first in range(0, own, width) if slot in self.slots else ():
                values = ", ".join(f"{name}[{first + j}]" for j in range(width))
                made = f"Vec<{kind}, {width}>{{{{{values}}}}}"
                lines += f"  store<{width}>({slot} + goal + {first}, {made});\n"
        return lines
