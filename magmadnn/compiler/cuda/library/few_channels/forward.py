"""The convolution itself, with what follows it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from magmadnn.backends.cpu.forks import cached_property

from .sizes import THREADS, Few, largest_divisor, taps_at_once
from .text import each_weight, head, stores

_OUTPUTS, _PLACES = 6, 4  # of a thread, at most
_MOST_SUMS, _MOST_READ = 32, 20  # of a thread: sums; places of a row that it reads for some taps
LOADS = 48  # that begin together


@dataclass(frozen=True)
class FewForward:
    """y = the convolution of x with w, and a bias, another result and ReLU where they are wanted.

    A thread has a few outputs of a few neighbouring windows of a row. The sum of an element is over rows of
    the filter, then groups of taps, channels, and taps.

    Slots: `images`; `x` [images, *places, channels]; `w` [outputs, *size, channels]; `bias` [outputs] and
    `added`, of y's shape, where there are some; `result`, y.

    Attributes:
        of: sizes.
        biased, adds, positive: whether there is a bias; something that is added; ReLU.
    """

    of: Few
    biased: bool
    adds: bool
    positive: bool

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, in order."""
        ends = ("bias",) * self.biased + ("added",) * self.adds
        return ("images", "x", "w", *ends, "result")

    @cached_property
    def outputs(self) -> int:
        """Channels of a result that a thread computes."""
        return largest_divisor(self.of.outputs, _OUTPUTS)

    @cached_property
    def taps(self) -> int:
        """Neighbours of a row of a filter that it takes at once."""
        return taps_at_once(self.of.size[1])

    @cached_property
    def windows(self) -> int:
        """Neighbouring windows that it computes."""
        for count in range(_PLACES, 1, -1):
            read = self.of.columns_read(count, self.taps)
            few = count * self.outputs <= _MOST_SUMS and len(read) <= _MOST_READ
            if self.of.windows[1] % count == 0 and few:
                return count
        return 1

    def threads(self, images: int) -> int:
        """How many there are for so many images."""
        rows, columns = self.of.windows
        return images * rows * (columns // self.windows) * (self.of.outputs // self.outputs)

    @cached_property
    def at_once(self) -> tuple[int, int]:
        """Rows of a filter, and channels, whose places are read before the first of them is multiplied."""
        each = len(self.of.columns_read(self.windows, self.taps))
        if each * self.of.channels > LOADS:
            return 1, 1
        rows = largest_divisor(self.of.size[0], LOADS // (each * self.of.channels))
        return rows, self.of.channels

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item = self.of, self.of.item
        (height, width), (rows, columns), (tall, wide) = of.places, of.windows, of.size
        own, o, c = self.outputs, of.outputs, of.channels
        pieces, groups = columns // self.windows, o // own
        read, (tall_once, some) = of.columns_read(self.windows, self.taps), self.at_once
        loads = "".join(
            f"            {{ const int column = left + {at}; a[i][k][{number}] = "
            f"seen && {of.inside('column')} ? from[column * {c} + k] : {item}(0); }}\n"
            for number, at in enumerate(read)
        )
        each_model = {"bias": f"{of.outputs}", "added": "y"}
        ends_of = {slot: each_model[slot] for slot in self.slots[3:-1]}
        models = of.of_model(x="x", w="w", **ends_of, result="y")
        return f"""{head(name, self.slots, item, of.filter_bytes)}
{models}{each_weight(of)}    filters[e % {of.taps} * {o} + e / {of.taps}] = w[e];
  __syncthreads();
  const u32 at = blockIdx.x * {THREADS} + threadIdx.x;
  if (at >= (u32)images * {rows * pieces * groups}u) return;
  const u32 group = at % {groups}, piece = at / {groups}, line = piece / {pieces};
  const u32 first = piece % {pieces} * {self.windows};
  const int top = (int)(line % {rows}) * {of.strides[0]} - {of.padding[0]};
  const {item} *const image = x + (i64)(line / {rows}) * {height * width * c};
  {item} total[{self.windows}][{own}] = {{}};
#pragma unroll 1
  for (int r = 0; r < {tall}; r += {tall_once})
#pragma unroll 1
    for (int tap = 0; tap < {wide}; tap += {self.taps}) {{
      const int left = (int)first * {of.strides[1]} - {of.padding[1]} + tap * {of.dilation[1]};
#pragma unroll 1
      for (int channel = 0; channel < {c}; channel += {some}) {{
        {item} a[{tall_once}][{some}][{len(read)}];
#pragma unroll
        for (int i = 0; i < {tall_once}; ++i) {{
          const int row = top + (r + i) * {of.dilation[0]};
          const bool seen = (u32)row < {height}u;
          const {item} *const from = image + (seen ? row : 0) * {width * c} + channel;
#pragma unroll
          for (int k = 0; k < {some}; ++k) {{
{loads}          }}
        }}
#pragma unroll
        for (int i = 0; i < {tall_once}; ++i)
#pragma unroll
          for (int k = 0; k < {some}; ++k) {{
            const {item} *const filter =
                filters + (((r + i) * {wide} + tap) * {c} + channel + k) * {o} + group * {own};
{self._products(read)}          }}
      }}
    }}
  {item} *const to = result + ((i64)line * {columns} + first) * {o} + group * {own};
{self._ends()}{self._stores()}}}
"""

    def _products(self, read: list[int], a: str = "a[i][k]", row: str = "total[{}]") -> str:
        """Lines that add the products of all taps with one channel.

        Args:
            read: columns that the thread has.
            a: what they are called,
            row: and the sums of a window, by its number.
        """
        of, own = self.of, self.outputs
        width = math.gcd(own, of.outputs, 4)
        loads, products = "", ""
        for s, i in product(range(self.taps), range(0, own, width)):
            name, filters = f"b{s}_{i}", f"filter + {s * of.channels * of.outputs + i}"
            loads += (
                f"            const Vec<{of.item}, {width}> {name} = load<{width}>({filters});\n"
            )
            for p, j in product(range(self.windows), range(width)):
                at = read.index(p * of.strides[1] + s * of.dilation[1])
                total = f"{row.format(p)}[{i + j}]"
                products += f"            {total} = fma({a}[{at}], {name}.at[{j}], {total});\n"
        return loads + products

    def _ends(self) -> str:
        """Lines of what follows."""
        own, o = self.outputs, self.of.outputs
        given = f"      total[p][i] += (added + (to - result))[p * {o} + i];\n" * self.adds
        given += f"      total[p][i] += bias[group * {own} + i];\n" * self.biased
        given += "      if (total[p][i] < 0) total[p][i] = 0;\n" * self.positive
        if not given:
            return ""
        return f"""#pragma unroll
  for (int p = 0; p < {self.windows}; ++p)
#pragma unroll
    for (int i = 0; i < {own}; ++i) {{
{given}    }}
"""

    def _stores(self) -> str:
        """Lines that store all, neighbouring elements together."""
        own, o = self.outputs, self.of.outputs
        totals = [(p * o + i, f"total[{p}][{i}]") for p in range(self.windows) for i in range(own)]
        run = self.windows * own if own == o else own
        return stores(self.of.item, math.gcd(run, o * self.windows, 4), totals)
