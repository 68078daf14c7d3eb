// CUDA C++ on the processor: blocks run one after the other, the threads of a block as fibers. A thread
// gives way where it waits for those of its warp or its block, and goes on once all of them wait there; where
// they never do, the process ends. What a kernel reads before others have written it is garbage here as there.
//
// Only headers of C: those of C++ take longer to compile than most kernels. A function that has two overloads in
// CUDA has them below; that of doubles does not stand in for one of floats, since -Wfloat-conversion is an error.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

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
static Index threadIdx, blockIdx, blockDim, gridDim;

static const unsigned MOST_THREADS = 2048;
enum State : char { RUNS, AT_WARP, AT_BLOCK, AT_CLUSTER, AT_PAIR, FINISHED };
static State states[MOST_THREADS];
// Where each thread goes on, where fibers wait for another thread, and where the one goes on that lets them.
// Jumps of the compiler's own take a few instructions.
typedef void *Jump[5];
static Jump threads[MOST_THREADS], idle[MOST_THREADS], scheduler;
static unsigned current, begun, unfinished, idle_count;  // threads of a block are begun in their order
static uint64_t slots[MOST_THREADS];
// Blocks of a cluster run side by side: their number, their threads, and the number of the first one.
static unsigned cluster = 1, block_threads, first_block;
static void stand(unsigned t) {
  const unsigned u = t % block_threads, k = first_block + t / block_threads;
  threadIdx = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
  blockIdx = {k % gridDim.x, k / gridDim.x % gridDim.y, k / gridDim.x / gridDim.y};
}

static void wait(State where) {
  states[current] = where;
  if (!__builtin_setjmp(threads[current])) __builtin_longjmp(scheduler, 1);
}
static void __syncthreads() { wait(AT_BLOCK); }
static void __syncwarp() { wait(AT_WARP); }
static unsigned atomicAdd(unsigned *p, unsigned v) {  // no thread gives way within it
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
static float fma(float a, float b, float c) { return fmaf(a, b, c); }
static float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, 8); return x; }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }

// Blocks run in an order that is drawn: a kernel must not count on any.
static unsigned drawn() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(state >> 33);
}

static void (*body)(void *);
static void *body_data;
// One thread after the other, until there is none that has not begun: then it waits for another block, of any
// kernel of the module. So threads that wait for none share one fiber.
static void fiber() {
  for (;;) {
    body(body_data);
    states[current] = FINISHED;
    --unfinished;
    if (begun < block_threads * cluster) {
      current = begun++;
      if (cluster > 1) {
        stand(current);
        continue;
      }
      if (++threadIdx.x < blockDim.x) continue;
      threadIdx.x = 0;
      if (++threadIdx.y < blockDim.y) continue;
      threadIdx.y = 0;
      ++threadIdx.z;
    } else if (!__builtin_setjmp(idle[idle_count++])) {
      __builtin_longjmp(scheduler, 1);
    }
  }
}
static void go_on() {
  if (__builtin_setjmp(scheduler)) return;
  if (current < begun) __builtin_longjmp(threads[current], 1);
  ++begun;
  if (idle_count) __builtin_longjmp(idle[--idle_count], 1);
  static ucontext_t fresh;
  const size_t size = 64 << 10;
  getcontext(&fresh);
  fresh.uc_stack.ss_sp = malloc(size);
  fresh.uc_stack.ss_size = size;
  makecontext(&fresh, fiber, 0);
  setcontext(&fresh);
}

// Let those go on who all wait for each other: threads `from` to `to`.
static bool released(unsigned from, unsigned to, State where) {
  bool any = false;
  for (unsigned t = from; t < to; ++t) {
    if (states[t] != where && states[t] != FINISHED) return false;
    any |= states[t] == where;
  }
  for (unsigned t = from; t < to; ++t)
    if (states[t] == where) states[t] = RUNS;
  return any;
}
// Two warps of a block, half of its threads apart.
static bool pairs_go_on(unsigned from) {
  bool any = false;
  const unsigned half = block_threads / 2;
  for (unsigned w = from; w < from + half; w += 32) {
    bool all = true;
    for (unsigned t = w; t < w + 32; ++t) all &= states[t] == AT_PAIR && states[t + half] == AT_PAIR;
    for (unsigned t = w; all && t < w + 32; ++t) states[t] = states[t + half] = RUNS;
    any |= all;
  }
  return any;
}
static unsigned idle_rounds;  // in which nobody was let go on, though some threads look again and again
static bool some_go_on(unsigned count) {
  if (!unfinished) return false;
  bool any = false;
  for (unsigned t = 0; t < count; t += 32) any |= released(t, t + 32 < count ? t + 32 : count, AT_WARP);
  for (unsigned t = 0; t < count; t += block_threads) any |= released(t, t + block_threads, AT_BLOCK);
  if (cluster > 1) {
    any |= released(0, count, AT_CLUSTER);
    for (unsigned t = 0; t < count; t += block_threads) any |= pairs_go_on(t);
    idle_rounds = any ? 0 : idle_rounds + 1;
    for (unsigned t = 0; !any && t < count && idle_rounds < 10000; ++t) any |= states[t] == RUNS;
  }
  if (!any) {
    fprintf(stderr, "threads wait for others that never come\n");
    abort();
  }
  return true;
}

// Of a cluster, some blocks come further than others.
static unsigned drawn();
static void run_block() {
  block_threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned count = block_threads * cluster;
  memset(states, RUNS, count);
  begun = 0;
  unfinished = count;
  idle_rounds = 0;
  do {
    unsigned resting = cluster > 1 ? drawn() : 0;
    for (unsigned t = 0; t < count; ++t) {
      if (states[t] != RUNS || (resting >> t / block_threads & 1 && t < begun)) continue;
      current = t;
      stand(t);
      go_on();
    }
  } while (some_go_on(count));
}

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

static void run_blocks(const unsigned *grid, const unsigned *block) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  const unsigned count = grid[0] * grid[1] * grid[2];
  unsigned *order = (unsigned *)malloc(count * sizeof(unsigned));
  for (unsigned k = 0; k < count; ++k) order[k] = k;
  for (unsigned k = count; k > 1; --k) {
    unsigned other = drawn() % k, last = order[k - 1];
    order[k - 1] = order[other];
    order[other] = last;
  }
  for (unsigned n = 0; n < count; ++n) {
    first_block = order[n];
    if (first_block % cluster == 0) run_block();
  }
  free(order);
}

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
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
namespace clusters {
// Barriers of some threads of a block, and that of a cluster where who has arrived goes on.
static unsigned arrived[4][20], rounds[4][20], cluster_arrived, cluster_rounds, own_round[MOST_THREADS];
static void begin(void *memories, size_t bytes) {
  memset(memories, 0xCB, bytes);
  memset(arrived, 0, sizeof arrived);
  cluster_arrived = 0;
}
static void group_arrive(int barrier, unsigned threads) {
  const unsigned block = current / block_threads;
  if (++arrived[block][barrier] < threads) return;
  arrived[block][barrier] = 0;
  ++rounds[block][barrier];
}
static void group_sync(int barrier, unsigned threads) {
  const unsigned block = current / block_threads, round = rounds[block][barrier];
  group_arrive(barrier, threads);
  while (rounds[block][barrier] == round) wait(RUNS);
}
static void cluster_arrive() {
  own_round[current] = cluster_rounds;
  if (++cluster_arrived < block_threads * cluster) return;
  cluster_arrived = 0;
  ++cluster_rounds;
}
static void cluster_arrive_relaxed() { cluster_arrive(); }
static void cluster_wait() {
  while (cluster_rounds == own_round[current]) wait(RUNS);
}
template <int N> void registers_less() {}
template <int N> void registers_more() {}
static void fence_copies() {}
static void copies_commit() {}
template <int N> void copies_wait() {}
static void tiles_begin() {}
static void tiles_commit() {}
template <int N> void tiles_wait() {}
template <int N> void tiles_held(float (&)[N]) {}
static char *all_memory;
static size_t memory_bytes;
static unsigned operands[MOST_THREADS][6];
static unsigned rank_of() { return current / block_threads; }
template <typename T> T *there(T *p, unsigned rank) {
  const size_t apart = (size_t)((char *)p - all_memory) - rank_of() * memory_bytes;
  if (apart >= memory_bytes || rank >= cluster) {
    fprintf(stderr, "an address outside of the block's memory\n");
    abort();
  }
  return (T *)(all_memory + rank * memory_bytes + apart);
}
static void store_there(float4 *p, unsigned rank, float4 v) { *there(p, rank) = v; }
template <typename T> T load_there(const T *p, unsigned rank) { return *there((T *)p, rank); }
static void cluster_barrier() { wait(AT_CLUSTER); }
static void pair_barrier(int) { wait(AT_PAIR); }
static unsigned tf32(float v) { return (__float_as_uint(v) + 0x1000u) & ~0x1fffu; }
static void multiply(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
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
static void look(Signal *s) {
  if (s->waited || s->bytes) return;
  ++s->phase;
  s->waited = 1;
}
static void make_signal(Word *signal) { *(Signal *)signal = {0, 1, 0}; }
static void signals_are_made() {}
static void expect(Word *signal, unsigned bytes) {
  Signal *s = (Signal *)signal;
  s->bytes += (int)bytes;
  --s->waited;
  look(s);
}
static void copy_row(float *to, const float *from, unsigned bytes, Word *signal) {
  if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) {
    fprintf(stderr, "a copy of a row that is not aligned\n");
    abort();
  }
  memcpy(there(to, rank_of()), from, bytes);
  ((Signal *)signal)->bytes -= (int)bytes;
  look((Signal *)signal);
}
static void wait_for(Word *signal, unsigned parity) {
  while ((((Signal *)signal)->phase & 1) == (parity & 1)) wait(RUNS);
}
static void send(void *to, const void *from, unsigned bytes, Word *signal, unsigned rank) {
  if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) {
    fprintf(stderr, "a copy that is not aligned\n");
    abort();
  }
  memcpy(there((char *)to, rank), from, bytes);
  Signal *s = (Signal *)there(signal, rank);
  s->bytes -= (int)bytes;
  look(s);
}
static void copy_quad(void *to, const float *from) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16) {
    fprintf(stderr, "a copy that is not aligned\n");
    abort();
  }
  memcpy(there((char *)to, rank_of()), from, 16);
}
// A tile's place: 16 bytes a row of 4 numbers, 8 rows; `lead` bytes to the next 4 numbers, `stride` to 8 rows.
static uint64_t tile(const void *p, unsigned lead, unsigned stride) {
  const uint64_t at = (const char *)p - all_memory - rank_of() * memory_bytes;
  return at >> 4 | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}
static float of_tile(uint64_t tile, unsigned row, unsigned k) {
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
static int of_group() { return 16 + current % block_threads / 128; }
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
static void wait_for_numbers() {}
}
