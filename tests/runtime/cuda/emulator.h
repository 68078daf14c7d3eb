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

static const unsigned MOST_THREADS = 1024;
enum State : char { RUNS, AT_WARP, AT_BLOCK, FINISHED };
static State states[MOST_THREADS];
// Where each thread goes on, where fibers wait for another thread, and where the one goes on that lets them.
// Jumps of the compiler's own take a few instructions.
typedef void *Jump[5];
static Jump threads[MOST_THREADS], idle[MOST_THREADS], scheduler;
static unsigned current, begun, unfinished, idle_count;  // threads of a block are begun in their order
static uint64_t slots[MOST_THREADS];

static void wait(State where) {
  states[current] = where;
  if (!__builtin_setjmp(threads[current])) __builtin_longjmp(scheduler, 1);
}
static void __syncthreads() { wait(AT_BLOCK); }
static void __syncwarp() { wait(AT_WARP); }

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
    if (begun < blockDim.x * blockDim.y * blockDim.z) {
      current = begun++;
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
static bool some_go_on(unsigned count) {
  if (!unfinished) return false;
  bool any = false;
  for (unsigned t = 0; t < count; t += 32) any |= released(t, t + 32 < count ? t + 32 : count, AT_WARP);
  any |= released(0, count, AT_BLOCK);
  if (!any) {
    fprintf(stderr, "threads wait for others that never come\n");
    abort();
  }
  return true;
}

static void run_block() {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z;
  memset(states, RUNS, count);
  begun = 0;
  unfinished = count;
  do
    for (unsigned t = 0; t < count; ++t) {
      if (states[t] != RUNS) continue;
      current = t;
      threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
      go_on();
    }
  while (some_go_on(count));
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
    unsigned k = order[n];
    blockIdx = {k % grid[0], k / grid[0] % grid[1], k / grid[0] / grid[1]};
    run_block();
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
