"""The gradient for images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from magmadnn.backends.cpu.forks import cached_property

from .sizes import THREADS, Few, largest_divisor, taps_at_once, together
from .text import each_weight, head, stores

MOST_PLACES, MOST_SUMS = 4, 16  # of a thread, at most
_AT_ONCE, _MOST_READ = 2, 64  # groups of channels that are read at once; elements of them


@dataclass(frozen=True)
class FewInputs:
    """x = the sum over windows that see a place of y times the filter's element: the gradient for inputs.

    A thread has all channels of a few neighbouring places of a row, or of one where windows are strides
    apart.

    Slots: `images`; `w` [outputs, *size, channels]; `y` [images, *windows, outputs]; `result`, x.

    Attributes:
        of: sizes.
    """

    of: Few
    slots: ClassVar[tuple[str, ...]] = ("images", "w", "y", "result")

    @cached_property
    def taps(self) -> int:
        """Neighbours of a row of a filter that a thread takes at once."""
        return taps_at_once(self.of.size[1])

    @property
    def channels(self) -> int:
        """Channels of an image that it computes."""
        return self.of.channels

    @cached_property
    def places(self) -> int:
        """Neighbouring places that it computes."""
        if self.of.strides[1] != 1:
            return 1
        most = min(MOST_PLACES, max(MOST_SUMS // self.of.channels, 1))
        return largest_divisor(self.of.places[1], most)

    def threads(self, images: int) -> int:
        """How many there are for so many images."""
        height, width = self.of.places
        return images * height * (width // self.places)

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item = self.of, self.of.item
        (height, width), (rows, columns), (tall, wide) = of.places, of.windows, of.size
        o, c, near, pieces = of.outputs, of.channels, together(of.outputs), width // self.places
        apart = of.dilation[1]
        read = sorted({p - s * apart for p in range(self.places) for s in range(self.taps)})
        is_seen = f"before >= 0 && before % {of.strides[1]} == 0 && column < {columns}"
        loads = "".join(
            f"        {{ const int before = right + {at}, column = before / {of.strides[1]};\n"
            f"          const bool inside = {is_seen};\n"
            f"          a[{i}] = load<{near}>(from + (inside ? column : 0) * {o} + k);\n"
            f"          if (!inside) a[{i}] = {{}}; }}\n"
            for i, at in enumerate(read)
        )
        models = of.of_model(w="w", y="y", result="x")
        return f"""{head(name, self.slots, item, of.filter_bytes)}
{models}{each_weight(of)}    filters[e % {of.taps} * {o} + e / {of.taps}] = w[e];
  __syncthreads();
  const u32 at = blockIdx.x * {THREADS} + threadIdx.x;
  if (at >= (u32)images * {height * pieces}u) return;
  const u32 line = at / {pieces}, first = at % {pieces} * {self.places};
  const int low = (int)(line % {height}) + {of.padding[0]};
  const {item} *const image = y + (i64)(line / {height}) * {rows * columns * o};
  {item} total[{self.places}][{c}] = {{}};
#pragma unroll 1
  for (int r = 0; r < {tall}; ++r) {{
    const int above = low - r * {of.dilation[0]}, row = above / {of.strides[0]};
    if (above < 0 || above % {of.strides[0]} != 0 || row >= {rows}) continue;
    const {item} *const from = image + row * {columns * o};
#pragma unroll 1
    for (int tap = 0; tap < {wide}; tap += {self.taps}) {{
      const int right = (int)first + {of.padding[1]} - tap * {apart};
      const {item} *const filter = filters + (r * {wide} + tap) * {c * o};
#pragma unroll {_AT_ONCE if len(read) * near * _AT_ONCE <= _MOST_READ else 1}
      for (int k = 0; k < {o}; k += {near}) {{
        Vec<{item}, {near}> a[{len(read)}];
{loads}{self._products(read)}      }}
    }}
  }}
  {item} *const to = result + ((i64)line * {width} + first) * {c};
{self._stores()}}}
"""

    def _products(self, read: list[int]) -> str:
        """Lines that add the products of all taps and of some channels of y."""
        of, c, near = self.of, self.of.channels, together(self.of.outputs)
        own = self.channels
        kind, lines = f"Vec<{of.item}, {near}>", ""
        for s in range(self.taps):
            for i in range(own):
                at = f"filter + {(s * c + i) * of.outputs} + k"
                lines += f"        const {kind} b{s}_{i} = load<{near}>({at});\n"
            for j, i, p in product(range(near), range(own), range(self.places)):
                given = f"a[{read.index(p - s * of.dilation[1])}].at[{j}]"
                total = f"total[{p}][{i}]"
                lines += f"        {total} = fma({given}, b{s}_{i}.at[{j}], {total});\n"
        return lines

    def _stores(self) -> str:
        """Lines that store all, neighbouring elements together."""
        c, own, places = self.of.channels, self.channels, range(self.places)
        totals = [(p * c + i, f"total[{p}][{i}]") for p in places for i in range(own)]
        return stores(self.of.item, together(self.places * c if own == c else own), totals)
