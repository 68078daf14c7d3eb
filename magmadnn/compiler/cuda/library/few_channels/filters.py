"""The gradient for filters: a sum over all places, by parts that a second kernel adds in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.kernels.formula import ITEM_BYTES

from .sizes import Few, taps_at_once, together
from .text import head

OUTPUTS, LANES = 8, 32  # of a block of the kernel that adds parts
_THREADS = 256
_MOST_SUMS, _MOST_READ = 32, 24  # of a thread: sums; columns of an image that it reads at once
_WINDOWS = (7, 6, 5, 4)  # neighbouring windows of a row that a thread takes at once


@dataclass(frozen=True)
class FewFilters:
    """Parts of w = for each filter and tap the sum over windows of x times y: the gradient for filters.

    A thread has some taps of a row of a filter, one channel, and a few filters. It goes through rows of
    windows, some neighbours at a time. Several have the same of different rows, and are added in order.

    Slots: `images`; `each`, rows of windows of a block; `x` [images, *places, channels]; `y` [images,
    *windows, outputs]; `result` [blocks, *size, channels, outputs].

    Attributes:
        of: sizes.
    """

    of: Few
    slots: ClassVar[tuple[str, ...]] = ("images", "each", "x", "y", "result")

    @cached_property
    def taps(self) -> int:
        """Neighbours of a row of a filter that a thread has."""
        return taps_at_once(self.of.size[1], _MOST_SUMS // together(self.of.outputs))

    @cached_property
    def windows(self) -> int:
        """Neighbouring windows that it takes at once; what is left of a row comes behind them."""
        columns = self.of.windows[1]
        for count in (*(n for n in _WINDOWS if columns % n == 0), *_WINDOWS, 3, 2):
            if count <= columns and len(self.of.columns_read(count, self.taps)) <= _MOST_READ:
                return count
        return 1

    @property
    def owners(self) -> int:
        """How many threads of a block sum different elements."""
        groups = self.of.outputs // together(self.of.outputs)
        return self.of.taps // self.taps * groups

    @property
    def lanes(self) -> int:
        """How many threads share the work of one such sum, each with other rows of windows."""
        return max(_THREADS // self.owners, 1)

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps; those beyond `owners` times `lanes` have nothing to do."""
        return -(-self.owners * self.lanes // 32) * 32

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: a sum of each thread that has one."""
        return self.lanes * self.of.filter_bytes

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item = self.of, self.of.item
        (height, width), (rows, columns), (_, wide) = of.places, of.windows, of.size
        each, o, c = together(of.outputs), of.outputs, of.channels
        count, parts = of.taps * o, wide // self.taps
        models = of.of_model(x="x", y="y", result=f"(i64)gridDim.x * {count}")
        return f"""{head(name, self.slots, item, self.shared_bytes)}
{models}  const u32 lane = threadIdx.x / {self.owners}, own = threadIdx.x % {self.owners};
  const u32 group = own % {o // each}, rest = own / {o // each};
  const int k = rest % {c}, tap = rest / {c} % {parts} * {self.taps}, r = rest / {c * parts};
  {item} total[{self.taps}][{each}] = {{}};
  const i64 first = (i64)blockIdx.x * each, all = images * {rows};
  const i64 last = first + each < all ? first + each : all;
  if (lane < {self.lanes})
#pragma unroll 1
    for (i64 window = first + lane; window < last; window += {self.lanes}) {{
      const int row = (int)(window % {rows}) * {of.strides[0]} - {of.padding[0]} + r * {of.dilation[0]};
      if ((u32)row >= {height}u) continue;
      const {item} *const from = x + (window / {rows} * {height} + row) * {width * c} + k;
{self._row()}      int q = 0;
#pragma unroll 2
      for (; q + {self.windows} <= {columns}; q += {self.windows}) {{
{self._added(self.windows)}      }}
{self._added(columns % self.windows)}    }}
  if (lane < {self.lanes})
#pragma unroll
    for (int s = 0; s < {self.taps}; ++s)
#pragma unroll
      for (int i = 0; i < {each}; ++i)
        filters[lane * {count} + ((r * {wide} + tap + s) * {c} + k) * {o} + group * {each} + i] = total[s][i];
  __syncthreads();
  for (u32 e = threadIdx.x; e < {count}; e += blockDim.x) {{
    {item} sum = filters[e];
#pragma unroll 4
    for (int other = 1; other < {self.lanes}; ++other) sum += filters[other * {count} + e];
    result[(i64)blockIdx.x * {count} + e] = sum;
  }}
}}
"""

    def _added(self, windows: int) -> str:
        """Lines that add the products of so many windows from `q` on."""
        if windows == 0:
            return ""
        of, each = self.of, together(self.of.outputs)
        read = of.columns_read(windows, self.taps)
        lines = f"""        const int left = q * {of.strides[1]} + tap * {of.dilation[1]} - {of.padding[1]};
        {of.item} a[{len(read)}];
        Vec<{of.item}, {each}> b[{windows}];
"""
        for i, at in enumerate(read):
            value = f"{of.inside('column')} ? from[column * {of.channels}] : {of.item}(0)"
            lines += f"        {{ const int column = left + {at}; a[{i}] = {value}; }}\n"
        lines += self._gradients(windows)
        for j in range(windows):
            for s in range(self.taps):
                at = read.index(j * of.strides[1] + s * of.dilation[1])
                lines += "".join(
                    f"        total[{s}][{i}] = fma(a[{at}], b[{j}].at[{i}], total[{s}][{i}]);\n"
                    for i in range(each)
                )
        return lines

    def _row(self) -> str:
        """Lines that say where gradients of a row of windows are."""
        each, row = together(self.of.outputs), self.of.windows[1] * self.of.outputs
        return f"      const {self.of.item} *const beside = y + window * {row} + group * {each};\n"

    def _gradients(self, windows: int) -> str:
        """Lines that read those of so many windows from `q` on."""
        each, o = together(self.of.outputs), self.of.outputs
        return "".join(
            f"        b[{j}] = load<{each}>(beside + (q + {j}) * {o});\n" for j in range(windows)
        )


@dataclass(frozen=True)
class FewSums:
    """The sums of parts, in a fixed order, as filters [outputs, taps].

    Slots: `parts`, how many; `x` [parts, taps, outputs]; `result`.

    Attributes:
        dtype: of the elements.
        taps, outputs: of filters.
        is_many: as in `Few`.
    """

    dtype: str
    taps: int
    outputs: int
    is_many: bool = False
    slots = ("parts", "x", "result")

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: a sum of each thread that has one."""
        return OUTPUTS * LANES * ITEM_BYTES[self.dtype]

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        item, count = MEMORY[self.dtype], self.taps * self.outputs
        own = (
            f"  x += (i64)blockIdx.y * parts * {count};\n  result += (i64)blockIdx.y * {count};\n"
            if self.is_many
            else ""
        )
        return f"""{head(name, self.slots, item, self.shared_bytes)}
{own}  const u32 lane = threadIdx.x / {OUTPUTS}, e = blockIdx.x * {OUTPUTS} + threadIdx.x % {OUTPUTS};
  {item} total = 0;
  if (e < {count}u)
#pragma unroll 8
    for (i64 part = lane; part < parts; part += {LANES}) total += x[part * {count} + e];
  filters[threadIdx.x] = total;
  __syncthreads();
  if (lane != 0 || e >= {count}u) return;
#pragma unroll
  for (int other = 1; other < {LANES}; ++other) total += filters[other * {OUTPUTS} + threadIdx.x];
  result[e % {self.outputs} * {self.taps} + e / {self.outputs}] = total;
}}
"""
