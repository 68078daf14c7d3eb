"""Blocks of places of pictures as channels: a kernel that reads an image where it lies and stores no pad.

A thread writes neighbouring channels of one block, a load's width of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.formula import ITEM_BYTES

_THREADS = 256
_STORE_BYTES = 16


@dataclass(frozen=True)
class Gathered:
    """result[n, i, j, (a t + b) c + k] = x[n, i s + a - before, j t + b - before, k]; 0 for what is outside.

    Slots: `x` [images, *places, channels]; `result` [images, *blocks, results].

    Attributes:
        dtype: of values in memory.
        places: of an image: height and width;
        blocks: of a result.
        channels: of an image; results: of a result, those beyond the blocks' own being 0.
        strides: places of a block, s and t; before: zeros in front of each axis.
    """

    dtype: str
    places: tuple[int, int]
    blocks: tuple[int, int]
    channels: int
    results: int
    strides: tuple[int, int]
    before: tuple[int, int]

    slots = ("x", "result")

    @property
    def together(self) -> int:
        """Neighbouring channels of a thread: a power of two that divides all."""
        return math.gcd(self.results, max(_STORE_BYTES // ITEM_BYTES[self.dtype], 1))

    @property
    def threads(self) -> int:
        """Of an image."""
        return math.prod(self.blocks) * (self.results // self.together)

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        item, each, c = MEMORY[self.dtype], self.together, self.channels
        groups, own = self.results // each, math.prod(self.strides) * c
        (height, width), (tall, wide) = self.places, self.strides
        return f"""extern "C" __global__ void {name}(const {item} *x, {item} *result) {{
{BEGIN}  const u32 at = blockIdx.y * {_THREADS} + threadIdx.x;
  if (at >= {self.threads}u) return;
  const u32 block = at / {groups}u, first = at % {groups}u * {each}u;
  const int top = (int)(block / {self.blocks[1]}u) * {tall} - {self.before[0]};
  const int left = (int)(block % {self.blocks[1]}u) * {wide} - {self.before[1]};
  const {item} *const image = x + (i64)blockIdx.x * {height * width * c};
  Vec<{item}, {each}> made;
#pragma unroll
  for (u32 k = 0; k < {each}u; ++k) {{
    const u32 channel = first + k, place = channel / {c}u;
    const int row = top + (int)(place / {wide}u), column = left + (int)(place % {wide}u);
    const bool inside = channel < {own}u && (u32)row < {height}u && (u32)column < {width}u;
    made.at[k] = inside ? image[(row * {width} + column) * {c} + (int)(channel % {c}u)] : {item}();
  }}
  store<{each}>(result + ((i64)blockIdx.x * {math.prod(self.blocks)} + block) * {self.results} + first, made);
}}
"""


def gathered(of: Gathered, images: int, x: int, result: int) -> Launch:
    """The launch for so many images at an address."""
    grid = (images, -(-of.threads // _THREADS), 1)
    return Launch(of, grid, (_THREADS, 1, 1), (x, result))
