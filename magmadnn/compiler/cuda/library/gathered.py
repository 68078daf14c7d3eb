"""Blocks of places of pictures as channels: a kernel that reads an image where it lies and stores no pad.

A block of threads gathers some rows of blocks of places in shared memory, each once, and writes them from
there as often as the result has them: neighbouring threads write neighbouring 16 bytes.
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
# Of a block of threads, unless one row or block of places has more.
_MOST_STORES, _MOST_BYTES = 1024, 16 << 10


@dataclass(frozen=True)
class Gathered:
    """result[n, i, j, m, (a t + b) c + k] = x[n, i s + a - before, (j + m) t + b - before, k]; 0 outside.

    Slots: `x` [images, *places, channels]; `result` [images, *blocks, beside, results].

    Attributes:
        dtype: of values in memory.
        places: of an image: height and width;
        blocks: of a result.
        channels: of an image; results: of a block in a result, those beyond its own being 0.
        strides: places of a block, s and t; before: zeros in front of each axis.
        beside: blocks of a row, m, that lie behind each other at each of the result's.
    """

    dtype: str
    places: tuple[int, int]
    blocks: tuple[int, int]
    channels: int
    results: int
    strides: tuple[int, int]
    before: tuple[int, int]
    beside: int = 1

    slots = ("x", "result")

    @property
    def together(self) -> int:
        """Neighbouring channels of a thread: a power of two that divides all."""
        return math.gcd(self.results, max(_STORE_BYTES // ITEM_BYTES[self.dtype], 1))

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a result that a block of threads writes."""
        block = self.results * ITEM_BYTES[self.dtype]
        columns = max(min(_MOST_BYTES // block - self.beside + 1, self.blocks[1]), 1)
        row = columns * self.beside * (self.results // self.together)
        nbytes = (columns + self.beside - 1) * block
        return max(min(_MOST_STORES // row, _MOST_BYTES // nbytes, self.blocks[0]), 1), columns

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: the blocks of places of a tile."""
        rows, columns = self.tile
        return rows * (columns + self.beside - 1) * self.results * ITEM_BYTES[self.dtype]

    def text(self, name: str) -> str:
        """The kernel in CUDA C++, under that name."""
        item, near, (rows, columns) = MEMORY[self.dtype], self.together, self.tile
        (height, width), (tall, wide), c = self.places, self.strides, self.channels
        lines, across = self.blocks
        read, rest = columns + self.beside - 1, self.results - tall * wide * c
        own, each = wide * c, self.beside * (self.results // near)
        parts = tall + (rest > 0)
        return f"""extern "C" __global__ void {name}(const {item} *x, {item} *result) {{
  SHARED_MEMORY({self.shared_bytes})
{BEGIN}  {item} *const blocks = ({item} *)memory;
  const int line = blockIdx.y * {rows}, begin = blockIdx.z * {columns};
  const {item} *const image = x + (i64)blockIdx.x * {height * width * c};
  for (u32 e = threadIdx.x; e < {rows * read * parts}u; e += {_THREADS}) {{
    const u32 a = e % {parts}u, block = e / {parts}u;
    {item} *const goal = blocks + block * {self.results} + a * {own};
    if (a == {tall}u) {{
#pragma unroll 8
      for (int k = 0; k < {rest}; ++k) goal[k] = {item}();
      continue;
    }}
    const int row = (line + (int)(block / {read}u)) * {tall} - {self.before[0]} + (int)a;
    const int left = (begin + (int)(block % {read}u)) * {wide} - {self.before[1]};
    const bool seen = (u32)row < {height}u;
    const {item} *const from = image + ((i64)(seen ? row : 0) * {width} + left) * {c};
#pragma unroll {min(own, 16)}
    for (int k = 0; k < {own}; ++k)
      goal[k] = seen && (u32)(left + k / {c}) < {width}u ? from[k] : {item}();
  }}
  __syncthreads();
  {item} *const image_of = result + (i64)blockIdx.x * {lines * across * self.beside * self.results};
#pragma unroll 4
  for (u32 v = threadIdx.x; v < {rows * columns * each}u; v += {_THREADS}) {{
    const u32 part = v % {each}u, place = v / {each}u, down = place / {columns}u, at = place % {columns}u;
    if (line + (int)down >= {lines} || begin + (int)at >= {across}) continue;
    const i64 to = ((i64)(line + (int)down) * {across} + begin + (int)at) * {self.beside * self.results};
    store<{near}>(image_of + to + part * {near},
        load<{near}>(blocks + (down * {read} + at) * {self.results} + part * {near}));
  }}
}}
"""


def gathered(of: Gathered, images: int, x: int, result: int) -> Launch:
    """The launch for so many images at an address."""
    down, across = (-(-n // k) for n, k in zip(of.blocks, of.tile, strict=True))
    return Launch(of, (images, down, across), (_THREADS, 1, 1), (x, result), of.shared_bytes)
