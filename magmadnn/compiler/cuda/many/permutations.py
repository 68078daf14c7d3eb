"""Orders of rows for many models: drawn, and brought into one order.

Drawn are random keys of Philox, sorted in shared memory, a block for each model and epoch. Where there are
too many, several blocks do that: each draws all keys, and sorts those that begin with its number.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.fused.draw import PHILOX
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

THREADS = 512
MOST = 1 << 19  # rows: each block draws all keys
_CAPACITY = 1 << 14  # keys and numbers that a block sorts at most
# numbers of a model in the table, in this order
COLUMNS = (
    "epochs", "rows", "shuffles", "seed", "stream", "first", "cut", "last", "whole", "rest", "chosen",
)  # fmt: skip
_ITEM = 12  # bytes of a key and a number
_COUNTS = 16  # bytes: how many keys a share has, and how many come before them


@dataclass(frozen=True)
class Permutations:
    """The orders of `ops.philox.permutation`: blocks (k, e, s) make that of model k in epoch e.

    Slots: `table`, the numbers of `COLUMNS` for each model: how many `epochs` and `rows`; whether it
    `shuffles`, by `seed` and, in its first epoch, `stream`; of the order the places from `first` on go to
    `whole`, from `cut` on to `rest`, those from `last` on nowhere, epoch by epoch; `chosen`: which rows are
    meant, 0 for all.

    Attributes:
        capacity: rows that a block sorts at most, a power of 2 from 2 to 2^14.
        shares: blocks of an order, a power of 2.
    """

    capacity: int
    shares: int = 1

    slots = ("table",)
    libraries = (PHILOX,)

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return _ITEM * self.capacity + _COUNTS

    def text(self, name: str) -> str:
        """The function: a bitonic sort, equal keys by number."""
        taken = "\n".join(f"  const i64 {column} = mine[{k}];" for k, column in enumerate(COLUMNS))
        half = self.capacity // 2
        drawn = _ALL.format(half=half, threads=THREADS)
        if self.shares > 1:
            size = {"shift": 64 - (self.shares.bit_length() - 1), "capacity": self.capacity}
            drawn = _SHARE.format(**size, threads=THREADS)
        return f"""extern "C" __global__ void __launch_bounds__({THREADS}) {name}(const i64 *table) {{
  SHARED_MEMORY({self.shared_bytes})
{BEGIN}  const i64 *const mine = table + (i64)blockIdx.x * {len(COLUMNS)};
  const i64 epoch = blockIdx.y;
{taken}
  if (epoch >= epochs) return;
  u64 *const keys = (u64 *)memory;
  u32 *const numbers = (u32 *)(memory + {8 * self.capacity});
  u32 *const counts = (u32 *)(memory + {_ITEM * self.capacity});
{drawn}
  if (shuffles) {{
#pragma unroll 1
    for (u32 size = 2; size <= {self.capacity}; size *= 2) {{
#pragma unroll 1
      for (u32 stride = size / 2; stride > 0; stride /= 2) {{
        __syncthreads();
        for (u32 pair = threadIdx.x; pair < {half}; pair += {THREADS}) {{
          const u32 low = 2 * pair - (pair & (stride - 1)), high = low + stride;
          const u64 a = keys[low], b = keys[high];
          const u32 m = numbers[low], n = numbers[high];
          if ((a > b || (a == b && m > n)) == !(low & size)) {{
            keys[low] = b;
            keys[high] = a;
            numbers[low] = n;
            numbers[high] = m;
          }}
        }}
      }}
    }}
  }}
  __syncthreads();
  const i64 begin = before > first ? before : first, end = before + own < last ? before + own : last;
  for (i64 place = begin + threadIdx.x; place < end; place += {THREADS}) {{
    const i64 number = shuffles ? numbers[place - before] : place;
    const i64 row = chosen ? ((const i64 *)chosen)[number] : number;
    if (place < cut) ((i64 *)whole)[epoch * (cut - first) + place - first] = row;
    else ((i64 *)rest)[epoch * (last - cut) + place - cut] = row;
  }}
}}
"""


# All keys; what is behind them comes last.
_ALL = r"""  for (u32 pair = threadIdx.x; pair < {half}; pair += {threads}) {{
    const Words words = philox(pair, (u64)(stream + epoch), (u64)seed);
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {{
      const u32 i = 2 * pair + k;
      keys[i] = i < rows ? (u64)words.at[2 * k] << 32 | words.at[2 * k + 1] : ~0ull;
      numbers[i] = i;
    }}
  }}
  const i64 before = 0, own = rows;"""

# Those whose first bits are the block's number, in any order, and how many have a lower one.
_SHARE = r"""  const u32 share = blockIdx.z;
  if (!shuffles && share) return;
  if (threadIdx.x < 2) counts[threadIdx.x] = 0;
  __syncthreads();
  u32 lower = 0;
  if (shuffles)
    for (i64 pair = threadIdx.x; 2 * pair < rows; pair += {threads}) {{
      const Words words = philox((u64)pair, (u64)(stream + epoch), (u64)seed);
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {{
        const u64 key = (u64)words.at[2 * k] << 32 | words.at[2 * k + 1];
        const u32 of = (u32)(key >> {shift});
        if (2 * pair + k >= rows || of > share) continue;
        if (of < share) {{
          ++lower;
          continue;
        }}
        const u32 at = atomicAdd(counts, 1u);
        if (at < {capacity}) {{
          keys[at] = key;
          numbers[at] = (u32)(2 * pair + k);
        }}
      }}
    }}
  atomicAdd(counts + 1, lower);
  __syncthreads();
  const i64 before = counts[1], own = shuffles ? (i64)counts[0] : rows;
  if (shuffles)
    for (i64 i = own + threadIdx.x; i < {capacity}; i += {threads}) {{
      keys[i] = ~0ull;
      numbers[i] = ~0u;
    }}"""


def permutations_for(rows: int, room: int) -> Permutations:
    """The kernel for so many rows at most, where a block may have so many bytes of shared memory.

    Where there are shares, a block has room for twice as many keys as it gets on average, of 1024 or more:
    that there are more has a probability below 1e-150.
    """
    fits = 1 << ((room - _COUNTS) // _ITEM).bit_length() - 1
    capacity, needed = min(fits, _CAPACITY), max(1 << max(rows - 1, 1).bit_length(), 2)
    return Permutations(min(needed, capacity), 2 * needed // capacity if needed > capacity else 1)


_THREADS, _MOST_BLOCKS = 256, 1024


@dataclass(frozen=True)
class Interleaved:
    """result[(step * models + k) * batch + i] = orders[k * length + first + step * batch + i].

    Slots: addresses `orders` and `result`; `models`; `length`, numbers of a model in `orders`; `first` of
    them that is taken; `batch`, rows of a model in a step; `count`, numbers of the result.
    """

    slots = ("orders", "result", "models", "length", "first", "batch", "count")

    def text(self, name: str) -> str:
        """The function."""
        kinds = ["const i64 *orders", "i64 *result", *(f"i64 {slot}" for slot in self.slots[2:])]
        return f"""extern "C" __global__ void {name}({", ".join(kinds)}) {{
{BEGIN}  const i64 all = (i64)gridDim.x * {_THREADS};
  for (i64 at = (i64)blockIdx.x * {_THREADS} + threadIdx.x; at < count; at += all) {{
    const i64 row = at % batch, turn = at / batch;
    result[at] = orders[turn % models * length + first + turn / models * batch + row];
  }}
}}
"""


def interleaved(
    orders: int, result: int, models: int, length: int, first: int, batch: int, steps: int
) -> Launch:
    """The launch that makes one order of those of all models, for so many steps; as `Interleaved`."""
    count = steps * models * batch
    blocks = min(max(-(-count // _THREADS), 1), _MOST_BLOCKS)
    arguments = (orders, result, models, length, first, batch, count)
    return Launch(Interleaved(), (blocks, 1, 1), (_THREADS, 1, 1), arguments)
