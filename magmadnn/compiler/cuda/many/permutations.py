"""Orders of rows for many models: drawn, and brought into one order.

Drawn are random keys of Philox, a block for each model and epoch. By their first bits they go to buckets in
shared memory, of 16 on average; the place of a key is the bucket's, and behind it how many there come before.
Where there are too many keys for a block, several take part: each draws all, and has those that begin with
its number.
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
_BUCKET = 16  # keys of a bucket on average
_COUNTS = 4 * (32 + 2)  # bytes: sums of the buckets' sizes, and how many keys come before all


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
    def buckets(self) -> int:
        """How many there are, at most 32 times 32."""
        return max(self.capacity // _BUCKET, 1)

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return _ITEM * self.capacity + 4 * self.buckets + _COUNTS

    def text(self, name: str) -> str:
        """The function."""
        taken = "\n".join(f"  const i64 {column} = mine[{k}];" for k, column in enumerate(COLUMNS))
        bits, of_share = self.buckets.bit_length() - 1, self.shares.bit_length() - 1
        sizes = {
            "THREADS": THREADS, "CAPACITY": self.capacity, "BUCKETS": self.buckets, "BUCKET_BITS": bits,
            "SHARE_BITS": of_share,
        }  # fmt: skip
        body = _BODY
        for place, what in (("counted", _COUNTED), ("brought", _BROUGHT)):
            body = body.replace(f"{{{place}}}", _EACH.replace("{taken}", what))
        return f"""extern "C" __global__ void __launch_bounds__({THREADS}) {name}(const i64 *table) {{
  SHARED_MEMORY({self.shared_bytes})
  constexpr u32 {", ".join(f"{key} = {size}" for key, size in sizes.items())};
{BEGIN}  const i64 *const mine = table + (i64)blockIdx.x * {len(COLUMNS)};
  const i64 epoch = blockIdx.y;
{taken}
{body}}}
"""


# Draws all keys, and takes those that begin with the block's number: `{taken}`.
_EACH = r"""  for (i64 pair = threadIdx.x; 2 * pair < rows; pair += THREADS) {
    const Words words = philox((u64)pair, (u64)(stream + epoch), (u64)seed);
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
      const u64 key = (u64)words.at[2 * k] << 32 | words.at[2 * k + 1];
      const u32 number = (u32)(2 * pair + k), of = SHARE_BITS ? (u32)(key >> (64 - SHARE_BITS) % 64) : 0;
      if (number >= rows) continue;
      if (of == share) {
        const u32 at = atomicAdd(ends + bucket_of(key), 1u);
        {taken}
      }
      lower += of < share;
    }
  }"""
_COUNTED, _BROUGHT = "(void)at;", "if (at < CAPACITY) keys[at] = key, numbers[at] = number;"

_BODY = r"""  const u32 share = blockIdx.z, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (epoch >= epochs || (!shuffles && share)) return;
  const auto put = [&](i64 place, i64 number) {
    if (place < first || place >= last) return;
    const i64 row = chosen ? ((const i64 *)chosen)[number] : number;
    if (place < cut) ((i64 *)whole)[epoch * (cut - first) + place - first] = row;
    else ((i64 *)rest)[epoch * (last - cut) + place - cut] = row;
  };
  if (!shuffles) {
    for (i64 place = first + threadIdx.x; place < last; place += THREADS) put(place, place);
    return;
  }
  u64 *const keys = (u64 *)memory;
  u32 *const numbers = (u32 *)(keys + CAPACITY), *const ends = numbers + CAPACITY;
  u32 *const sums = ends + BUCKETS, *const before = sums + 32;
  u32 lower = 0;
  const auto bucket_of = [&](u64 key) {
    return BUCKET_BITS ? (u32)(key << SHARE_BITS >> (64 - BUCKET_BITS) % 64) : 0u;
  };
  // sizes of buckets, and where they begin
  for (u32 i = threadIdx.x; i < BUCKETS; i += THREADS) ends[i] = 0;
  if (threadIdx.x == 0) *before = 0;
  __syncthreads();
{counted}
  if (SHARE_BITS) atomicAdd(before, lower);
  __syncthreads();
  const auto sum_before = [&](u32 own) {
    u32 sum = own;
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
      const u32 other = __shfl_up_sync(~0u, sum, apart);
      if (lane >= apart) sum += other;
    }
    return sum - own;
  };
  for (u32 i = threadIdx.x; i - lane < BUCKETS; i += THREADS) {
    const u32 own = i < BUCKETS ? ends[i] : 0, begin = sum_before(own);
    if (i < BUCKETS) ends[i] = begin;
    if (lane == 31) sums[i / 32] = begin + own;
  }
  __syncthreads();
  if (warp == 0) sums[lane] = sum_before(lane < (BUCKETS + 31) / 32 ? sums[lane] : 0);
  __syncthreads();
  for (u32 i = threadIdx.x; i < BUCKETS; i += THREADS) ends[i] += sums[i / 32];
  __syncthreads();
  // each key to its bucket, in any order: where a bucket began is where it ends then
{brought}
  __syncthreads();
  const u32 own = ends[BUCKETS - 1];
  for (u32 i = threadIdx.x; i < own; i += THREADS) {
    const u64 key = keys[i];
    const u32 number = numbers[i], bucket = bucket_of(key), begin = bucket ? ends[bucket - 1] : 0;
    u32 place = begin;
    for (u32 k = begin; k < ends[bucket]; ++k)
      place += keys[k] < key || (keys[k] == key && numbers[k] < number);
    put((i64)*before + place, number);
  }
"""


def permutations_for(rows: int, room: int) -> Permutations:
    """The kernel for so many rows at most, where a block may have so many bytes of shared memory.

    Where there are shares, a block has room for twice as many keys as it gets on average, of 1024 or more:
    that there are more has a probability below 1e-150.
    """
    fits = 1 << (_BUCKET * (room - _COUNTS - 4) // (_BUCKET * _ITEM + 4)).bit_length() - 1
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
