"""Max pooling of pictures: kernels that read an image once, or twice for its gradient, and store no pad.

A thread has some neighbouring channels of one window, or of one place. Of the places of a window the first
is taken that is largest, or the first NaN. A place sums the gradients of the windows that took it, from the
last to the first, in float32 at least; so results are the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES, literal, register_dtype
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.formula import HALVES, ITEM_BYTES

_THREADS = 256
_LOAD_BYTES = 16  # of a thread at once
_MOST_SUMS = 32  # of a thread, in registers
_NONE = 255  # no place of a window has this number


@dataclass(frozen=True)
class Pooled:
    """What is pooled, but for the number of images.

    Attributes:
        dtype: of values in memory.
        places: of an image: height and width;
        windows: of a result.
        channels: of both.
        size, strides: of windows along both axes; padding: before each axis.
    """

    dtype: str
    places: tuple[int, int]
    windows: tuple[int, int]
    channels: int
    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]

    @property
    def together(self) -> int:
        """Neighbouring channels of a thread: a power of two that divides all."""
        return math.gcd(self.channels, _LOAD_BYTES // ITEM_BYTES[self.dtype])

    @property
    def item(self) -> str:
        """The C++ type of values in memory."""
        return MEMORY[self.dtype]

    @property
    def kind(self) -> str:
        """The C++ type of values in registers."""
        return TYPES[register_dtype(self.dtype)]

    def seen(self, text: str) -> str:
        """A value in memory as one in a register."""
        return f"as_float({text})" if self.dtype in HALVES else text

    def kept(self, text: str) -> str:
        """A value in a register as one in memory."""
        return f"as_{self.item}({text})" if self.dtype in HALVES else text

    def head(self, name: str, parameters: str, counts: tuple[int, int], each: int) -> str:
        """The beginning of a function, each of whose threads has one of so many rows and columns of an image.

        And of its channels `each` that are neighbours.
        """
        groups = self.channels // each
        return f"""extern "C" __global__ void {name}({parameters}) {{
{BEGIN}  const u32 at = blockIdx.y * {_THREADS} + threadIdx.x;
  if (at >= {math.prod(counts) * groups}u) return;
  const u32 place = at / {groups}u, first = at % {groups}u * {each}u;
  const int row = (int)(place / {counts[1]}u), column = (int)(place % {counts[1]}u);
"""


@dataclass(frozen=True)
class Largest:
    """result = the largest of each window; index = the number of its place.

    Slots: `x` [images, *places, channels]; `result` and `index` [images, *windows, channels], those that are
    wanted.

    Attributes:
        of: sizes.
        values, numbers: whether results are wanted, and whether numbers are.
    """

    of: Pooled
    values: bool
    numbers: bool

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, in order."""
        return ("x", *["result"] * self.values, *["index"] * self.numbers)

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item, kind, each = self.of, self.of.item, self.of.kind, self.of.together
        (height, width), (tall, wide) = of.places, of.size
        kinds = {"x": f"const {item} *", "result": f"{item} *", "index": "u8 *"}
        parameters = ", ".join(kinds[slot] + slot for slot in self.slots)
        goal = f"((i64)blockIdx.x * {math.prod(of.windows)} + place) * {of.channels} + first"
        stored = ""
        if self.values:
            stored += f"""  Vec<{item}, {each}> made;
#pragma unroll
  for (int i = 0; i < {each}; ++i) made.at[i] = {of.kept("largest[i]")};
  store_at_once(result + goal, made);
"""
        stored += "  store(index + goal, number);\n" if self.numbers else ""
        return f"""{of.head(name, parameters, of.windows, each)}
  const int top = row * {of.strides[0]} - {of.padding[0]}, left = column * {of.strides[1]} - {of.padding[1]};
  const {item} *const image = x + (i64)blockIdx.x * {math.prod(of.places) * of.channels} + first;
  const int begin = (top < 0 ? -top : 0) * {wide} + (left < 0 ? -left : 0);
  {kind} largest[{each}];
  Vec<u8, {each}> number;
#pragma unroll
  for (int i = 0; i < {each}; ++i) {{
    largest[i] = {literal(-math.inf, register_dtype(of.dtype)).text};
    number.at[i] = (u8)begin;
  }}
#pragma unroll
  for (int r = 0; r < {tall}; ++r) {{
    if ((u32)(top + r) >= {height}u) continue;
#pragma unroll
    for (int s = 0; s < {wide}; ++s) {{
      if ((u32)(left + s) >= {width}u) continue;
      const Vec<{item}, {each}> part = load<{each}>(image + ((top + r) * {width} + left + s) * {of.channels});
#pragma unroll
      for (int i = 0; i < {each}; ++i) {{
        const {kind} a = {of.seen("part.at[i]")};
        if (!(a <= largest[i]) && largest[i] == largest[i]) {{  // larger, or the first NaN
          largest[i] = a;
          number.at[i] = (u8)(r * {wide} + s);
        }}
      }}
    }}
  }}
  const i64 goal = {goal};
{stored}}}
"""


@dataclass(frozen=True)
class OfInputs:
    """result = for each place the sum of the gradients of the windows that took it.

    A thread has a block of places, as many as windows are apart along each axis: the same windows have all of
    them, and are read once. Of a place those count whose number it has there. Where that would be more sums
    than a thread has registers, it has a single place.

    Slots: `g`, `index`, and where `positive` what was pooled, `y`, [images, *windows, channels]; `result`
    [images, *places, channels].

    Attributes:
        of: sizes.
        positive: whether gradients count only where y is above 0.
    """

    of: Pooled
    positive: bool

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, in order."""
        return ("g", "index", *["y"] * self.positive, "result")

    @property
    def together(self) -> int:
        """Neighbouring channels of a thread."""
        most = _MOST_SUMS // math.prod(self.block)
        return min(self.of.together, 1 << (most.bit_length() - 1))

    @property
    def block(self) -> tuple[int, int]:
        """Places of a thread along both axes."""
        return self.of.strides if math.prod(self.of.strides) <= _MOST_SUMS else (1, 1)

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of an image along both axes; they are counted from where the first window begins."""
        of = self.of
        reach = zip(of.places, of.padding, self.block, strict=True)
        rows, columns = (-(-(count + before) // b) - before // b for count, before, b in reach)
        return rows, columns

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        of, item, kind, each = self.of, self.of.item, self.of.kind, self.together
        (rows, columns), (tall, wide), (down, along) = of.windows, of.size, of.strides
        (height, width), (above, left), (tall_block, wide_block) = of.places, of.padding, self.block
        per_row, per_column = down // tall_block, along // wide_block
        kinds = {"index": "const u8 *", "result": f"{item} *"}
        parameters = ", ".join(kinds.get(slot, f"const {item} *") + slot for slot in self.slots)
        pooled = f"const Vec<{item}, {each}> pooled = load<{each}>(y + from);\n      "
        taken = f"{of.seen('pooled.at[i]')} > 0 ? chosen.at[i] : {_NONE}"
        return f"""{of.head(name, parameters, self.blocks, each)}
  const int block = row + {above // tall_block}, beside = column + {left // wide_block};
  const int low = block / {per_row}, right = beside / {per_column};  // the last windows that reach there,
  const int tap0 = block % {per_row}, tap1 = beside % {per_column};  // and where the block begins in them
  const i64 image = (i64)blockIdx.x * {rows * columns * of.channels} + first;
  {kind} total[{tall_block}][{wide_block}][{each}] = {{}};
#pragma unroll
  for (int r = 0; r < {-(-tall // down)}; ++r) {{
    if ((u32)(low - r) >= {rows}u) continue;
#pragma unroll
    for (int s = 0; s < {-(-wide // along)}; ++s) {{
      if ((u32)(right - s) >= {columns}u) continue;
      const i64 from = image + ((low - r) * {columns} + right - s) * {of.channels};
      const Vec<{item}, {each}> given = load<{each}>(g + from);
      {pooled if self.positive else ""}const Vec<u8, {each}> chosen = load<{each}>(index + from);
#pragma unroll
      for (int i = 0; i < {each}; ++i) {{
        const int number = {taken if self.positive else "chosen.at[i]"};
        const {kind} one = {of.seen("given.at[i]")};
#pragma unroll
        for (int a = r * {down}; a < {tall} && a < r * {down} + {tall_block}; ++a)
#pragma unroll
          for (int b = s * {along}; b < {wide} && b < s * {along} + {wide_block}; ++b) {{
            {kind} &sum = total[a - r * {down}][b - s * {along}][i];
            const bool within = a + tap0 < {tall} && b + tap1 < {wide};
            if (within && number == (a + tap0) * {wide} + b + tap1) sum = sum + one;
          }}
      }}
    }}
  }}
  {item} *const goal = result + (i64)blockIdx.x * {height * width * of.channels} + first;
#pragma unroll
  for (int a = 0; a < {tall_block}; ++a)
#pragma unroll
    for (int b = 0; b < {wide_block}; ++b) {{
      const int y0 = block * {tall_block} + a - {above}, x0 = beside * {wide_block} + b - {left};
      if ((u32)y0 >= {height}u || (u32)x0 >= {width}u) continue;
      Vec<{item}, {each}> made;
#pragma unroll
      for (int i = 0; i < {each}; ++i) made.at[i] = {of.kept("total[a][b][i]")};
      store_at_once(goal + (y0 * {width} + x0) * {of.channels}, made);
    }}
}}
"""


def largest(of: Pooled, images: int, x: int, result: int, index: int) -> Launch:
    """The largest of each window, their numbers, or both: addresses, 0 for what is not wanted."""
    variant = Largest(of, bool(result), bool(index))
    wanted = tuple(at for at in (result, index) if at)
    return _launch(variant, images, of.windows, of.together, (x, *wanted))


def of_inputs(of: Pooled, images: int, given: Sequence[int], result: int) -> Launch:
    """The gradient for the image; `given` are addresses of gradients, numbers, and what was pooled."""
    variant = OfInputs(of, len(given) > 2)
    return _launch(variant, images, variant.blocks, variant.together, (*given, result))


def _launch(
    variant: Largest | OfInputs,
    images: int,
    counts: tuple[int, int],
    each: int,
    arguments: tuple[int, ...],
) -> Launch:
    threads = math.prod(counts) * (variant.of.channels // each)
    return Launch(variant, (images, -(-threads // _THREADS), 1), (_THREADS, 1, 1), arguments)
