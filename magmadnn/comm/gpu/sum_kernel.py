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
AHEAD: Final = 4  # and how many of these it begins before it waits for the first


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

struct alignas(16) Pack { unsigned words[4]; };
struct Gpus { unsigned long long inbox[MOST_RANKS], flags[MOST_RANKS]; };

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

// In a graph a kernel may begin while those before it run; a call waits until they are done.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ bool aligned(const void *source, const void *result, unsigned long long apart) {
  return ((unsigned long long)source | (unsigned long long)result | apart) % 16 == 0;
}

// Elements from `at` on, as far as there are any; those behind are 0.
__device__ __forceinline__ Pack loaded(const ELEMENT *source, long long at, long long count, bool whole) {
  Pack found = {{0u, 0u, 0u, 0u}};
  if (whole && at + LANES <= count) return *(const Pack *)(source + at);
  ELEMENT *items = (ELEMENT *)&found;
  for (int k = 0; k < LANES; ++k)
    if (at + k < count) items[k] = source[at + k];
  return found;
}

struct Sums { alignas(16) RESULT items[LANES]; };

__device__ __forceinline__ void stored(
    RESULT *result, const Sums &sums, long long at, long long count, bool whole) {
  if (whole && at + LANES <= count) {
    for (int k = 0; k < PACKS_OF_SUMS; ++k) ((Pack *)(result + at))[k] = ((const Pack *)&sums)[k];
    return;
  }
  for (int k = 0; k < LANES; ++k)
    if (at + k < count) result[at + k] = sums.items[k];
}

// Wait until this block of all other GPUs has come as far; what they wrote before is seen then.
__device__ __forceinline__ void meet(const Gpus &gpus, int rank, int ranks, int turn, unsigned number) {
  __syncthreads();
  const int other = (int)threadIdx.x;
  if (other < ranks && other != rank) {
    const int row = (turn * (int)gridDim.x + (int)blockIdx.x) * MOST_RANKS;
    publish((unsigned *)gpus.flags[other] + row + rank, number);
    const unsigned *own = (const unsigned *)gpus.flags[rank] + row + other;
    while ((int)(seen(own) - number) < 0) {}
  }
  __syncthreads();
}
"""

# Chunk by chunk, where each sends all that it has: elements go to the others. The loop stays open.
_SENT: Final = """\
  const long long packs = (count + LANES - 1) / LANES, each = (chunk + gridDim.x - 1) / gridDim.x;
  unsigned number = meetings[blockIdx.x];
  for (long long start = 0; start < packs; start += chunk) {
    ++number;
    const long long half = (number & 1) * half_bytes, end = start + chunk < packs ? start + chunk : packs;
    const long long first = start + blockIdx.x * each + threadIdx.x;
    const long long limit = start + (blockIdx.x + 1) * each, last = limit < end ? limit : end;
    for (long long i = first; i < last; i += AHEAD * blockDim.x) {
      Pack sent[AHEAD];
      for (int step = 1; step < ranks; ++step) {
        const int other = (rank + step) % ranks;
        if (step == 1 || apart)
          ALL_AHEAD(k) if (i + k * blockDim.x < last)
            sent[k] = loaded(source + other * apart, (i + k * blockDim.x) * LANES, count, whole);
        Pack *to = (Pack *)(gpus.inbox[other] + half) + rank * chunk - start;
        ALL_AHEAD(k) if (i + k * blockDim.x < last) to[i + k * blockDim.x] = sent[k];
      }
    }
"""

_SUMS: Final = (
    """
// The sum of what others sent to places of an inbox that lie `apart` packs from each other, and of `own`.
__device__ __forceinline__ Sums added(const Pack *place, long long apart, Pack own, int rank, int ranks) {
  TOTAL totals[LANES];
  for (int r = 0; r < ranks; ++r) {
    const Pack one = r == rank ? own : place[r * apart];
    const ELEMENT *items = (const ELEMENT *)&one;
    for (int k = 0; k < LANES; ++k) {
      const ELEMENT x = items[k];
      totals[k] = r ? totals[k] + (TOTAL)WIDE : (TOTAL)WIDE;
    }
  }
  Sums sums;
  for (int k = 0; k < LANES; ++k) {
    const TOTAL x = totals[k];
    sums.items[k] = NARROW;
  }
  return sums;
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_once(
    const ELEMENT *source, RESULT *result, long long count, const Gpus *all, unsigned *meetings,
    long long half_bytes, long long chunk, long long apart, int rank, int ranks) {
  wait_for_earlier_kernels();
  const Gpus gpus = *all;
  const bool whole = aligned(source, result, apart * sizeof(ELEMENT));
"""
    + _SENT
    + """    meet(gpus, rank, ranks, 0, number);
    const Pack *inbox = (const Pack *)(gpus.inbox[rank] + half);
    const ELEMENT *kept = source + rank * apart;
    for (long long i = first; i < last; i += AHEAD * blockDim.x) {
      Sums sums[AHEAD];
      ALL_AHEAD(k) if (i + k * blockDim.x < last) {
        const long long at = i + k * blockDim.x;
        sums[k] = added(inbox + at - start, chunk, loaded(kept, at * LANES, count, whole), rank, ranks);
      }
      ALL_AHEAD(k) if (i + k * blockDim.x < last)
        stored(result, sums[k], (i + k * blockDim.x) * LANES, count, whole);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) meetings[blockIdx.x] = number;
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_twice(
    const ELEMENT *source, RESULT *result, long long count, const Gpus *all, unsigned *meetings,
    long long half_bytes, long long chunk, int rank, int ranks) {
  wait_for_earlier_kernels();
  const Gpus gpus = *all;
  const bool whole = aligned(source, result, 0);
  const long long packs = (count + LANES - 1) / LANES, parts = (long long)gridDim.x * ranks;
  const long long each = chunk / parts;  // packs of a part; `chunk` is a multiple
  unsigned number = meetings[blockIdx.x];
  for (long long start = 0; start < packs; start += chunk) {
    ++number;
    const long long half = (number & 1) * half_bytes;
    const long long block = start + blockIdx.x * each * ranks;
    for (int step = 1; step < ranks; ++step) {
      const int other = (rank + step) % ranks;
      Pack *inbox = (Pack *)(gpus.inbox[other] + half) + (rank * (long long)gridDim.x + blockIdx.x) * each;
      const long long part = block + other * each, last = part + each < packs ? each : packs - part;
      for (long long i = threadIdx.x; i < last; i += AHEAD * blockDim.x) {
        Pack own[AHEAD];
        ALL_AHEAD(k) if (i + k * blockDim.x < last)
          own[k] = loaded(source, (part + i + k * blockDim.x) * LANES, count, whole);
        ALL_AHEAD(k) if (i + k * blockDim.x < last) inbox[i + k * blockDim.x] = own[k];
      }
    }
    meet(gpus, rank, ranks, 0, number);
    const Pack *inbox = (const Pack *)(gpus.inbox[rank] + half) + blockIdx.x * each;
    const long long part = block + rank * each, sums_at = half + chunk * 16;
    const long long own_last = part + each < packs ? each : packs - part;
    for (long long i = threadIdx.x; i < own_last; i += AHEAD * blockDim.x) {
      Sums sums[AHEAD];
      ALL_AHEAD(k) if (i + k * blockDim.x < own_last) {
        const long long at = i + k * blockDim.x;
        const Pack own = loaded(source, (part + at) * LANES, count, whole);
        sums[k] = added(inbox + at, gridDim.x * each, own, rank, ranks);
      }
      for (int step = 1; step < ranks; ++step) {
        Sums *to = (Sums *)(gpus.inbox[(rank + step) % ranks] + sums_at) + part - start;
        ALL_AHEAD(k) if (i + k * blockDim.x < own_last) to[i + k * blockDim.x] = sums[k];
      }
      ALL_AHEAD(k) if (i + k * blockDim.x < own_last)
        stored(result, sums[k], (part + i + k * blockDim.x) * LANES, count, whole);
    }
    meet(gpus, rank, ranks, 1, number);
    const Sums *sums = (const Sums *)(gpus.inbox[rank] + sums_at);
    for (int step = 1; step < ranks; ++step) {
      const long long theirs = block + (rank + step) % ranks * each;
      const long long last = theirs + each < packs ? each : packs - theirs;
      for (long long i = threadIdx.x; i < last; i += AHEAD * blockDim.x) {
        Sums found[AHEAD];
        ALL_AHEAD(k) if (i + k * blockDim.x < last) found[k] = sums[theirs + i + k * blockDim.x - start];
        ALL_AHEAD(k) if (i + k * blockDim.x < last)
          stored(result, found[k], (theirs + i + k * blockDim.x) * LANES, count, whole);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) meetings[blockIdx.x] = number;
}
"""
)

_PASSES: Final = (
    """
extern "C" __global__ void __launch_bounds__(THREADS) pass_once(
    const ELEMENT *source, RESULT *result, long long count, const Gpus *all, unsigned *meetings,
    long long half_bytes, long long chunk, long long apart, int rank, int ranks) {
  wait_for_earlier_kernels();
  const Gpus gpus = *all;
  const bool whole = aligned(source, result, apart | count);
"""
    + _SENT
    + """    const ELEMENT *kept = source + rank * apart;
    for (long long i = first; i < last; i += blockDim.x) {
      const Pack own = loaded(kept, i * LANES, count, whole);
      stored(result + rank * count, *(const Sums *)&own, i * LANES, count, whole);
    }
    meet(gpus, rank, ranks, 0, number);
    for (int step = 1; step < ranks; ++step) {
      const int other = (rank + step) % ranks;
      const Pack *inbox = (const Pack *)(gpus.inbox[rank] + half) + other * chunk - start;
      RESULT *to = result + other * count;
      for (long long i = first; i < last; i += AHEAD * blockDim.x) {
        Pack found[AHEAD];
        ALL_AHEAD(k) if (i + k * blockDim.x < last) found[k] = inbox[i + k * blockDim.x];
        ALL_AHEAD(k) if (i + k * blockDim.x < last)
          stored(to, *(const Sums *)&found[k], (i + k * blockDim.x) * LANES, count, whole);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) meetings[blockIdx.x] = number;
}
"""
)


def text_of(numbers: Numbers) -> str:
    """The kernels `sum_once` and `sum_twice` for these elements."""
    return _defined(numbers) + _COMMON + _SUMS


def text_of_passes() -> str:
    """The kernel `pass_once`, whose elements are bytes."""
    return _defined(_BYTES_AS_THEY_ARE) + _COMMON + _PASSES


def _defined(numbers: Numbers) -> str:
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
        "AHEAD": str(AHEAD),
    }
    return "".join(f"#define {name} {value}\n" for name, value in words.items())
