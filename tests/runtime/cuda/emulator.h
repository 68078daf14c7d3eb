// CUDA C++ on the processor, as kernels see it; `emulator.cpp` runs them. A thread gives way where it waits for
// those of its warp or its block, and goes on once all of them wait there; where they never do, the process ends.
// What a kernel reads before others have written it is garbage here as there.
//
// Each module of kernels is compiled with this. So what some kernel does not call is `inline`, which leaves it out
// of the code, and what runs threads is compiled once, and linked to each.
//
// Only headers of C: those of C++ take longer to compile than most kernels. A function that has two overloads in
// CUDA has them below; that of doubles does not stand in for one of floats, since -Wfloat-conversion is an error.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __grid_constant__
#define __constant__ static
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
// Before the first thread has begun, it holds garbage.
#define SHARED_MEMORY(bytes) \
  alignas(16) static char memory[bytes + 1]; \
  if (current == 0) memset(memory, 0xCB, sizeof memory);

struct Index { unsigned x, y, z; };
// Each module of kernels has its own of what follows.
#pragma GCC visibility push(hidden)
extern Index threadIdx, blockIdx, blockDim, gridDim;

static const unsigned MOST_THREADS = 2048;
enum State : char { RUNS, AT_WARP, AT_BLOCK, AT_CLUSTER, AT_PAIR, FINISHED };
extern unsigned current;  // the thread that runs
extern uint64_t slots[MOST_THREADS];
// Blocks of a cluster run side by side: their number, and their threads.
extern unsigned cluster, block_threads;
extern void (*body)(void *);
extern void *body_data;
void wait(State where);
void run_blocks(const unsigned *grid, const unsigned *block);
#pragma GCC visibility pop

static inline void __syncthreads() { wait(AT_BLOCK); }
static inline void __syncwarp() { wait(AT_WARP); }
static inline unsigned atomicAdd(unsigned *p, unsigned v) {  // no thread gives way within it
  const unsigned before = *p;
  *p = before + v;
  return before;
}

template <typename T> T __shfl_xor_sync(unsigned, T value, int apart) {
  memcpy(&slots[current], &value, sizeof(T));
  wait(AT_WARP);
  T other;
  memcpy(&other, &slots[current ^ apart], sizeof(T));
  wait(AT_WARP);
  return other;
}
template <typename T> T __shfl_sync(unsigned, T value, int lane) {
  memcpy(&slots[current], &value, sizeof(T));
  wait(AT_WARP);
  T other;
  memcpy(&other, &slots[current / 32 * 32 + lane % 32], sizeof(T));
  wait(AT_WARP);
  return other;
}
template <typename T> T __shfl_up_sync(unsigned, T value, unsigned apart) {
  memcpy(&slots[current], &value, sizeof(T));
  wait(AT_WARP);
  T other = value;
  if (current % 32 >= apart) memcpy(&other, &slots[current - apart], sizeof(T));
  wait(AT_WARP);
  return other;
}
static inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static inline double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, 8); return x; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }

template <int... I> struct Numbers {};
template <typename... P> struct Call {
  void (*function)(P...);
  const int64_t *values;
  template <int... I> void unpacked(Numbers<I...>) { function((P)values[I]...); }
  static void run(void *self) { ((Call *)self)->unpacked(Numbers<__integer_pack(sizeof...(P))...>()); }
};

// All arguments as one, which kernels number.
template <int N> struct Arguments;
template <int N> struct CallOfArray {
  void (*function)(Arguments<N>);
  const int64_t *values;
  static void run(void *self) {
    CallOfArray *own = (CallOfArray *)self;
    own->function(*(const Arguments<N> *)own->values);
  }
};

template <typename... P>
void launch(void (*function)(P...), const int64_t *values, const unsigned *grid, const unsigned *block) {
  Call<P...> call{function, values};
  body = Call<P...>::run;
  body_data = &call;
  run_blocks(grid, block);
}
template <int N>
void launch(void (*function)(Arguments<N>), const int64_t *values, const unsigned *grid, const unsigned *block) {
  CallOfArray<N> call{function, values};
  body = CallOfArray<N>::run;
  body_data = &call;
  run_blocks(grid, block);
}

template <typename F>
void launch_clusters(F function, const int64_t *values, const unsigned *grid, const unsigned *block, unsigned blocks) {
  cluster = blocks;
  launch(function, values, grid, block);
  cluster = 1;
}

// What blocks of a cluster do together: `compiler/cuda/clusters/prelude.py`.
#define __cluster_dims__(...)
#define CLUSTER_MEMORY(bytes) \
  alignas(128) static char memories[4][bytes]; \
  if (current == 0) clusters::begin(memories, sizeof memories); \
  clusters::memory_bytes = bytes; \
  clusters::all_memory = memories[0]; \
  char *const memory = memories[current / block_threads];
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
namespace clusters {
// Barriers of some threads of a block, and that of a cluster where who has arrived goes on.
static unsigned arrived[4][20], rounds[4][20], cluster_arrived, cluster_rounds, own_round[MOST_THREADS];
static inline void begin(void *memories, size_t bytes) {
  memset(memories, 0xCB, bytes);
  memset(arrived, 0, sizeof arrived);
  cluster_arrived = 0;
}
static inline void group_arrive(int barrier, unsigned threads) {
  const unsigned block = current / block_threads;
  if (++arrived[block][barrier] < threads) return;
  arrived[block][barrier] = 0;
  ++rounds[block][barrier];
}
static inline void group_sync(int barrier, unsigned threads) {
  const unsigned block = current / block_threads, round = rounds[block][barrier];
  group_arrive(barrier, threads);
  while (rounds[block][barrier] == round) wait(RUNS);
}
static inline void cluster_arrive() {
  own_round[current] = cluster_rounds;
  if (++cluster_arrived < block_threads * cluster) return;
  cluster_arrived = 0;
  ++cluster_rounds;
}
static inline void cluster_arrive_relaxed() { cluster_arrive(); }
static inline void cluster_wait() {
  while (cluster_rounds == own_round[current]) wait(RUNS);
}
template <int N> void registers_less() {}
template <int N> void registers_more() {}
static inline void fence_copies() {}
static inline void copies_commit() {}
template <int N> void copies_wait() {}
static inline void tiles_begin() {}
static inline void tiles_commit() {}
template <int N> void tiles_wait() {}
template <int N> void tiles_held(float (&)[N]) {}
static char *all_memory;
static size_t memory_bytes;
static unsigned operands[MOST_THREADS][6];
static inline unsigned rank_of() { return current / block_threads; }
template <typename T> T *there(T *p, unsigned rank) {
  const size_t apart = (size_t)((char *)p - all_memory) - rank_of() * memory_bytes;
  if (apart >= memory_bytes || rank >= cluster) {
    fprintf(stderr, "an address outside of the block's memory\n");
    abort();
  }
  return (T *)(all_memory + rank * memory_bytes + apart);
}
static inline void store_there(float4 *p, unsigned rank, float4 v) { *there(p, rank) = v; }
template <typename T> T load_there(const T *p, unsigned rank) { return *there((T *)p, rank); }
static inline void cluster_barrier() { wait(AT_CLUSTER); }
static inline void pair_barrier(int) { wait(AT_PAIR); }
static inline unsigned tf32(float v) { return (__float_as_uint(v) + 0x1000u) & ~0x1fffu; }
static inline void multiply(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const unsigned own[6] = {a0, a1, a2, a3, b0, b1}, warp = current / 32 * 32, lane = current % 32;
  memcpy(operands[current], own, sizeof own);
  wait(AT_WARP);
  for (unsigned c = 0; c < 4; ++c) {
    const unsigned row = lane / 4 + c / 2 * 8, column = lane % 4 * 2 + c % 2;
    double sum = d[c];
    for (unsigned k = 0; k < 8; ++k) {
      const unsigned a = operands[warp + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2];
      const unsigned b = operands[warp + column * 4 + k % 4][4 + k / 4];
      sum += (double)__uint_as_float(a & ~0x1fffu) * (double)__uint_as_float(b & ~0x1fffu);
    }
    d[c] = (float)sum;
  }
  wait(AT_WARP);
}
struct Signal { int bytes; short waited; unsigned short phase; };  // still to come; of its one thread; how often it was
typedef unsigned long long Word;
static inline void look(Signal *s) {
  if (s->waited || s->bytes) return;
  ++s->phase;
  s->waited = 1;
}
static inline void make_signal(Word *signal) { *(Signal *)signal = {0, 1, 0}; }
static inline void signals_are_made() {}
static inline void expect(Word *signal, unsigned bytes) {
  Signal *s = (Signal *)signal;
  s->bytes += (int)bytes;
  --s->waited;
  look(s);
}
static inline void copy_row(float *to, const float *from, unsigned bytes, Word *signal) {
  if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) {
    fprintf(stderr, "a copy of a row that is not aligned\n");
    abort();
  }
  memcpy(there(to, rank_of()), from, bytes);
  ((Signal *)signal)->bytes -= (int)bytes;
  look((Signal *)signal);
}
static inline void wait_for(Word *signal, unsigned parity) {
  while ((((Signal *)signal)->phase & 1) == (parity & 1)) wait(RUNS);
}
static inline void send(void *to, const void *from, unsigned bytes, Word *signal, unsigned rank) {
  if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) {
    fprintf(stderr, "a copy that is not aligned\n");
    abort();
  }
  memcpy(there((char *)to, rank), from, bytes);
  Signal *s = (Signal *)there(signal, rank);
  s->bytes -= (int)bytes;
  look(s);
}
static inline void copy_quad(void *to, const float *from) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16) {
    fprintf(stderr, "a copy that is not aligned\n");
    abort();
  }
  memcpy(there((char *)to, rank_of()), from, 16);
}
// A tile's place: 16 bytes a row of 4 numbers, 8 rows; `lead` bytes to the next 4 numbers, `stride` to 8 rows.
static inline uint64_t tile(const void *p, unsigned lead, unsigned stride) {
  const uint64_t at = (const char *)p - all_memory - rank_of() * memory_bytes;
  return at >> 4 | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}
static inline float of_tile(uint64_t tile, unsigned row, unsigned k) {
  const unsigned at = (tile & 0x3fff) << 4, lead = (tile >> 16 & 0x3fff) << 4, stride = (tile >> 32 & 0x3fff) << 4;
  const unsigned place = at + k / 4 * lead + row / 8 * stride + row % 8 * 16 + k % 4 * 4;
  if (place + 4 > memory_bytes) {
    fprintf(stderr, "a tile outside of the block's memory\n");
    abort();
  }
  unsigned v;
  memcpy(&v, all_memory + rank_of() * memory_bytes + place, 4);
  return __uint_as_float(v & ~0x1fffu);
}
template <int N, typename F> void add_tiles(float (&d)[N], F left, uint64_t b, int add) {
  const unsigned lane = current % 32, warp = current / 32 % 4;
  for (unsigned i = 0; i < N; ++i) {
    const unsigned row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double sum = add ? d[i] : 0;
    for (unsigned k = 0; k < 8; ++k) sum += (double)left(row, k) * (double)of_tile(b, column, k);
    d[i] = (float)sum;
  }
}
static inline int of_group() { return 16 + current % block_threads / 128; }
template <int N>
void multiply_tiles(float (&d)[N], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint64_t b, int add) {
  const unsigned own[4] = {a0, a1, a2, a3}, first = current / 128 * 128;
  memcpy(operands[current], own, sizeof own);
  group_sync(of_group(), 128);
  const auto left = [&](unsigned row, unsigned k) {
    const unsigned thread = first + row / 16 * 32 + row % 8 * 4 + k % 4;
    return __uint_as_float(operands[thread][row / 8 % 2 + k / 4 * 2] & ~0x1fffu);
  };
  add_tiles(d, left, b, add);
  group_sync(of_group(), 128);
}
template <int N> void multiply_tiles(float (&d)[N], uint64_t a, uint64_t b, int add) {
  group_sync(of_group(), 128);
  add_tiles(d, [&](unsigned row, unsigned k) { return of_tile(a, row, k); }, b, add);
  group_sync(of_group(), 128);
}
template <typename T> void copy_number(T *to, const T *from) { *there(to, rank_of()) = *from; }
static inline void wait_for_numbers() {}
}
