"""CUDA C++ of calls among the GPUs of one machine, each of which writes into the others' memory.

Every GPU has an inbox and flags, which the others write. A call cuts its elements into chunks that fit into
an inbox, and a chunk among the blocks of a grid; block b of a GPU meets block b of the others only. Sums in
two ways:

- once: each GPU sends its elements to all others; all add up all that came: (P - 1) n elements sent, one
  meeting;
- twice: each GPU adds up a part of each block's elements, which the others send to it, and sends the sums to
  all: 2 (P - 1) / P n elements, two meetings.

Where a GPU gives each other one n elements of its own, those for rank r lie `apart` elements behind those for
rank r - 1; with apart = 0 all get the same. So `sum_once` is a sum too of which each GPU has its share, and
`pass_once` brings elements as they are, from each GPU to all or to one each.

Sums are in the order of ranks on every GPU: all have the same bits, whichever way and number of blocks.

An inbox has two halves, which chunks take in turn. Where a block writes for chunk k + 1 another GPU has read
for chunk k - 1: that GPU's same block has come to a meeting of chunk k since, and so have all its blocks if
chunk k was of an earlier call. So within a call a block has the same place in each chunk, and all blocks meet
the others for every chunk, even those without elements of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

THREADS: Final = 512  # of a block
MOST_RANKS: Final = 8
PACK: Final = 16  # bytes that a thread reads or writes at a time,
IN_FLIGHT: Final = 8  # and how many of these it begins, of all ranks, before it waits for the first


_BYTES: Final = {"float": 4, "double": 8, "unsigned short": 2, "unsigned char": 1}


class Numbers(NamedTuple):
    """How elements are read, added up and written.

    Attributes:
        element: what there is in memory.
        total: what it is added up in.
        wide: from `element` x to `total`.
        narrow: from `total` x to `result`.
        result: what sums are stored as.
        item: bytes of an element.
    """

    element: str
    total: str
    wide: str
    narrow: str
    result: str
    item: int

    @property
    def lanes(self) -> int:
        """Elements of a pack."""
        return PACK // self.item

    @property
    def packs_of_sums(self) -> int:
        """Packs of sums of one pack's elements."""
        return self.lanes * _BYTES[self.result] // PACK


_ROUNDED = "(unsigned short)((bits_of(x) + 0x7fffu + (bits_of(x) >> 16 & 1u)) >> 16)"
_HALF = ("unsigned short", "float", "float_of((unsigned)(x) << 16)")
NUMBERS: Final = {
    ("float32", "float32"): Numbers("float", "float", "(x)", "(x)", "float", 4),
    ("float64", "float64"): Numbers("double", "double", "(x)", "(x)", "double", 8),
    # what is no number stays none: rounding could carry its last bits away
    ("bfloat16", "bfloat16"): Numbers(
        *_HALF, f"(x != x ? (unsigned short)0x7fc0 : {_ROUNDED})", "unsigned short", 2
    ),
    ("bfloat16", "float32"): Numbers(*_HALF, "(x)", "float", 2),
}

_BYTES_AS_THEY_ARE: Final = Numbers(
    "unsigned char", "unsigned char", "(x)", "(x)", "unsigned char", 1
)

_COMMON: Final = """
#define ALL_AHEAD(k) _Pragma("unroll") for (int k = 0; k < AHEAD; ++k)
#define ALL_OTHERS(step) _Pragma("unroll") for (int step = 1; step < RANKS; ++step)
#define ALL_PACKS(pack) _Pragma("unroll") for (int pack = 0; pack < PACKS_OF_SUMS; ++pack)
#define ALL_RANKS(r) _Pragma("unroll") for (int r = 0; r < RANKS; ++r)

struct alignas(16) Pack { unsigned words[4]; };
struct Places { unsigned long long inbox[MOST_RANKS], flags[MOST_RANKS]; };

__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }

#ifdef __CUDA_ARCH__
__device__ __forceinline__ void publish(unsigned *flag, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned seen(const unsigned *flag) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
#else
extern "C" int sched_yield();
static void publish(unsigned *flag, unsigned value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
static unsigned seen(const unsigned *flag) {
  sched_yield();
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
#endif

// In a graph a kernel may begin while those before it run; a call waits until they are done, and then lets
// later ones begin, which wait for it.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ bool aligned(const void *source, const void *result, unsigned long long apart) {
  return ((unsigned long long)source | (unsigned long long)result | apart) % 16 == 0;
}

// A pack of elements, of which all are there and lie as packs do if WHOLE; else those that are not are 0.
template <bool WHOLE>
__device__ __forceinline__ Pack loaded(const ELEMENT *source, long long pack, long long count) {
  if (WHOLE) return ((const Pack *)source)[pack];
  Pack found = {{0u, 0u, 0u, 0u}};
  ELEMENT *items = (ELEMENT *)&found;
  for (int k = 0; k < LANES; ++k)
    if (pack * LANES + k < count) items[k] = source[pack * LANES + k];
  return found;
}

struct Sums { alignas(16) RESULT items[LANES]; };

template <bool WHOLE>
__device__ __forceinline__ void stored(RESULT *result, const Sums &sums, long long pack, long long count) {
  if (WHOLE) {
    Pack *to = (Pack *)result + pack * PACKS_OF_SUMS;
    for (int k = 0; k < PACKS_OF_SUMS; ++k) to[k] = ((const Pack *)&sums)[k];
    return;
  }
  for (int k = 0; k < LANES; ++k)
    if (pack * LANES + k < count) result[pack * LANES + k] = sums.items[k];
}

// The place of a pack that a thread reads: the last one stands for those behind it, so that no load waits for
// a branch.
__device__ __forceinline__ long long within(long long pack, long long last) {
  return pack < last ? pack : last - 1;
}

// What a thread knows of the GPUs: inboxes, its own rank's first and the others' in turn; and of the flags of
// this block one for another GPU and one of its, for a thread that meets it.
struct Gpus {
  unsigned long long inbox[RANKS];
  unsigned *told;
  const unsigned *own;
  bool meets;
};

__device__ __forceinline__ Gpus gpus_at(const Places *all, int rank) {
  Gpus gpus;
  ALL_RANKS(step) gpus.inbox[step] = all->inbox[(rank + step) % RANKS];
  const int other = (int)threadIdx.x < RANKS ? (int)threadIdx.x : rank, row = (int)blockIdx.x * MOST_RANKS;
  gpus.meets = other != rank;
  gpus.told = (unsigned *)all->flags[other] + row + rank;
  gpus.own = (const unsigned *)all->flags[rank] + row + other;
  return gpus;
}

// Wait until this block of all other GPUs has come as far; what they wrote before is seen then.
__device__ __forceinline__ void meet(const Gpus &gpus, int turn, unsigned number) {
  __syncthreads();
  if (gpus.meets) {
    const int row = turn * (int)gridDim.x * MOST_RANKS;
    publish(gpus.told + row, number);
    while ((int)(seen(gpus.own + row) - number) < 0) {}
  }
  __syncthreads();
}

// Send packs `first` to `last` of `source`, or with `apart` of what lies so many elements behind it for each
// GPU, to the place of this rank in the others' inboxes.
template <bool WHOLE>
__device__ __forceinline__ void send(
    const Gpus &gpus, const ELEMENT *source, long long count, long long apart, long long first,
    long long last, long long place, int rank) {
  for (long long i = first + threadIdx.x; i < last; i += AHEAD * blockDim.x) {
    Pack sent[RANKS][AHEAD];
    ALL_OTHERS(step) if (step == 1 || apart) ALL_AHEAD(k)
      sent[step][k] = loaded<WHOLE>(
          source + (rank + step) % RANKS * apart, within(i + k * blockDim.x, last), count);
    ALL_OTHERS(step) {
      Pack *to = (Pack *)(gpus.inbox[step] + place);
      ALL_AHEAD(k) {
        const Pack one = apart ? sent[step][k] : sent[1][k];
        if (i + k * blockDim.x < last) to[i + k * blockDim.x] = one;
      }
    }
  }
}
"""

# Chunk by chunk, where each sends all that it has: elements go to the others. The loop stays open.
_SENT: Final = """\
  const long long packs = (count + LANES - 1) / LANES, each = (chunk + gridDim.x - 1) / gridDim.x;
  unsigned number = meetings[blockIdx.x];
  for (long long start = 0; start < packs; start += chunk) {
    ++number;
    const long long half = (number & 1) * half_bytes, end = start + chunk < packs ? start + chunk : packs;
    const long long first = start + blockIdx.x * each;
    const long long limit = first + each, last = limit < end ? limit : end;
    const bool all_there = whole && last * LANES <= count;
    const long long place = half + (rank * chunk - start) * 16;
    if (all_there) send<true>(gpus, source, count, apart, first, last, place, rank);
    else send<false>(gpus, source, count, apart, first, last, place, rank);
"""

_SUMS: Final = (
    """
// The sum of a pack of each rank, in their order.
template <int K>
__device__ __forceinline__ Sums added(const Pack (&packs)[RANKS][K], int k) {
  Sums sums;
  _Pragma("unroll") for (int lane = 0; lane < LANES; ++lane) {
    TOTAL total = 0;
    ALL_RANKS(r) {
      const ELEMENT x = ((const ELEMENT *)&packs[r][k])[lane];
      total = r ? total + (TOTAL)WIDE : (TOTAL)WIDE;
    }
    const TOTAL x = total;
    sums.items[lane] = NARROW;
  }
  return sums;
}

// The sums of packs that others sent, `apart` packs from each other in an inbox, and of own ones; if SENDS
// they are sent to a place in the others' inboxes too, the first packs of all sums before the second ones:
// what threads side by side write lies side by side.
template <bool WHOLE, bool SENDS>
__device__ __forceinline__ void add_up(
    const Gpus &gpus, const Pack *inbox, long long apart, const ELEMENT *source, RESULT *result,
    long long count, long long from, long long last, int rank, long long place) {
  for (long long i = threadIdx.x; i < last; i += AHEAD * blockDim.x) {
    Pack packs[RANKS][AHEAD];
    ALL_RANKS(r) ALL_AHEAD(k) {
      const long long at = within(i + k * blockDim.x, last);
      if (WHOLE) packs[r][k] = *(r == rank ? (const Pack *)source + from + at : inbox + r * apart + at);
      else packs[r][k] = r == rank ? loaded<false>(source, from + at, count) : inbox[r * apart + at];
    }
    Sums sums[AHEAD];
    ALL_AHEAD(k) sums[k] = added(packs, k);
    if (SENDS) ALL_OTHERS(step) ALL_PACKS(pack) {
      Pack *to = (Pack *)(gpus.inbox[step] + place) + pack * last;
      ALL_AHEAD(k) if (i + k * blockDim.x < last)
        to[i + k * blockDim.x] = ((const Pack *)&sums[k])[pack];
    }
    ALL_AHEAD(k) if (i + k * blockDim.x < last)
      stored<WHOLE>(result, sums[k], from + i + k * blockDim.x, count);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_once(
    const ELEMENT *source, RESULT *result, long long count, const Places *all, unsigned *meetings,
    long long half_bytes, long long chunk, long long apart, int rank) {
  const Gpus gpus = gpus_at(all, rank);
  wait_for_earlier_kernels();
  const bool whole = aligned(source, result, apart * sizeof(ELEMENT));
"""
    + _SENT
    + """    meet(gpus, 0, number);
    const Pack *inbox = (const Pack *)(gpus.inbox[0] + half) + first - start;
    const ELEMENT *kept = source + rank * apart;
    const long long own = last - first;
    if (all_there) add_up<true, false>(gpus, inbox, chunk, kept, result, count, first, own, rank, 0);
    else add_up<false, false>(gpus, inbox, chunk, kept, result, count, first, own, rank, 0);
  }
  __syncthreads();
  if (threadIdx.x == 0) meetings[blockIdx.x] = number;
}

// Copy the sums of others' parts of a block from the inbox.
template <bool WHOLE>
__device__ __forceinline__ void take_sums(
    const Pack *sums, RESULT *result, long long count, long long block, long long each, long long packs,
    int rank) {
  for (long long i = threadIdx.x; i < each; i += AHEAD * blockDim.x) {
    Sums found[RANKS][AHEAD];
    ALL_OTHERS(step) ALL_AHEAD(k) ALL_PACKS(pack) {
      const long long before = ((rank + step) % RANKS * PACKS_OF_SUMS + pack) * each;
      ((Pack *)&found[step][k])[pack] = sums[before + within(i + k * blockDim.x, each)];
    }
    ALL_OTHERS(step) ALL_AHEAD(k) {
      const long long at = i + k * blockDim.x, pack = block + (rank + step) % RANKS * each + at;
      if (at < each && (WHOLE || pack < packs)) stored<WHOLE>(result, found[step][k], pack, count);
    }
  }
}

// Send the others' parts of a block to them.
template <bool WHOLE>
__device__ __forceinline__ void send_parts(
    const Gpus &gpus, const ELEMENT *source, long long count, long long block, long long each,
    long long place, int rank) {
  for (long long i = threadIdx.x; i < each; i += AHEAD * blockDim.x) {
    Pack sent[RANKS][AHEAD];
    ALL_OTHERS(step) ALL_AHEAD(k) {
      const long long part = block + (rank + step) % RANKS * each;
      sent[step][k] = loaded<WHOLE>(source, part + within(i + k * blockDim.x, each), count);
    }
    ALL_OTHERS(step) {
      Pack *to = (Pack *)(gpus.inbox[step] + place);
      ALL_AHEAD(k) if (i + k * blockDim.x < each) to[i + k * blockDim.x] = sent[step][k];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_twice(
    const ELEMENT *source, RESULT *result, long long count, const Places *all, unsigned *meetings,
    long long half_bytes, long long chunk, int rank) {
  const Gpus gpus = gpus_at(all, rank);
  wait_for_earlier_kernels();
  const bool whole = aligned(source, result, 0);
  const long long packs = (count + LANES - 1) / LANES;
  const long long each = chunk / ((long long)gridDim.x * RANKS);  // packs of a part; `chunk` is a multiple
  unsigned number = meetings[blockIdx.x];
  for (long long start = 0; start < packs; start += chunk) {
    ++number;
    const long long half = (number & 1) * half_bytes, sums_at = half + chunk * 16;
    const long long block = start + blockIdx.x * each * RANKS, part = block + rank * each;
    const bool all_there = whole && (block + each * RANKS) * LANES <= count;
    const long long place = half + (rank * (long long)gridDim.x + blockIdx.x) * each * 16;
    if (all_there) send_parts<true>(gpus, source, count, block, each, place, rank);
    else send_parts<false>(gpus, source, count, block, each, place, rank);
    meet(gpus, 0, number);
    const Pack *inbox = (const Pack *)(gpus.inbox[0] + half) + blockIdx.x * each;
    const long long apart = gridDim.x * each, to = sums_at + (part - start) * (long long)sizeof(Sums);
    if (all_there) add_up<true, true>(gpus, inbox, apart, source, result, count, part, each, rank, to);
    else add_up<false, true>(gpus, inbox, apart, source, result, count, part, each, rank, to);
    meet(gpus, 1, number);
    const Pack *sums = (const Pack *)(gpus.inbox[0] + sums_at) + (block - start) * PACKS_OF_SUMS;
    if (all_there) take_sums<true>(sums, result, count, block, each, packs, rank);
    else take_sums<false>(sums, result, count, block, each, packs, rank);
  }
  __syncthreads();
  if (threadIdx.x == 0) meetings[blockIdx.x] = number;
}
"""
)

_PASSES: Final = (
    """
// Store packs `first` to `last` of others, in the order of ranks.
template <bool WHOLE>
__device__ __forceinline__ void take(
    const Pack *inbox, long long apart, RESULT *result, long long count, long long first, long long last,
    int rank) {
  for (long long i = first + threadIdx.x; i < last; i += AHEAD * blockDim.x) {
    Pack found[RANKS][AHEAD];
    ALL_OTHERS(step) ALL_AHEAD(k)
      found[step][k] = inbox[(rank + step) % RANKS * apart + within(i + k * blockDim.x, last)];
    ALL_OTHERS(step) ALL_AHEAD(k) if (i + k * blockDim.x < last)
      stored<WHOLE>(
          result + (rank + step) % RANKS * count, *(const Sums *)&found[step][k], i + k * blockDim.x, count);
  }
}

template <bool WHOLE>
__device__ __forceinline__ void keep(
    const ELEMENT *kept, RESULT *result, long long count, long long first, long long last) {
  for (long long i = first + threadIdx.x; i < last; i += blockDim.x) {
    const Pack own = loaded<WHOLE>(kept, i, count);
    stored<WHOLE>(result, *(const Sums *)&own, i, count);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) pass_once(
    const ELEMENT *source, RESULT *result, long long count, const Places *all, unsigned *meetings,
    long long half_bytes, long long chunk, long long apart, int rank) {
  const Gpus gpus = gpus_at(all, rank);
  wait_for_earlier_kernels();
  const bool whole = aligned(source, result, apart | count);
"""
    + _SENT
    + """    const ELEMENT *kept = source + rank * apart;
    if (all_there) keep<true>(kept, result + rank * count, count, first, last);
    else keep<false>(kept, result + rank * count, count, first, last);
    meet(gpus, 0, number);
    const Pack *inbox = (const Pack *)(gpus.inbox[0] + half) - start;
    if (all_there) take<true>(inbox, chunk, result, count, first, last, rank);
    else take<false>(inbox, chunk, result, count, first, last, rank);
  }
  __syncthreads();
  if (threadIdx.x == 0) meetings[blockIdx.x] = number;
}
"""
)


def text_of(numbers: Numbers, ranks: int) -> str:
    """The kernels `sum_once` and `sum_twice` for these elements, of so many ranks."""
    return _defined(numbers, ranks) + _COMMON + _SUMS


def text_of_passes(ranks: int) -> str:
    """The kernel `pass_once`, whose elements are bytes."""
    return _defined(_BYTES_AS_THEY_ARE, ranks) + _COMMON + _PASSES


def _defined(numbers: Numbers, ranks: int) -> str:
    words = {
        "ELEMENT": numbers.element,
        "TOTAL": numbers.total,
        "RESULT": numbers.result,
        "LANES": str(numbers.lanes),
        "WIDE": numbers.wide,
        "NARROW": numbers.narrow,
        "PACKS_OF_SUMS": str(numbers.packs_of_sums),
        "MOST_RANKS": str(MOST_RANKS),
        "THREADS": str(THREADS),
        "RANKS": str(ranks),
        "AHEAD": str(max(IN_FLIGHT // ranks, 1)),
    }
    return "".join(f"#define {name} {value}\n" for name, value in words.items())
