// Runs kernels on the processor: blocks one after the other, the threads of a block as fibers.
#include "emulator.h"
#include <ucontext.h>

Index threadIdx, blockIdx, blockDim, gridDim;
unsigned current;
uint64_t slots[MOST_THREADS];
unsigned cluster = 1, block_threads;
void (*body)(void *);
void *body_data;

static State states[MOST_THREADS];
// Where each thread goes on, where fibers wait for another thread, and where the one goes on that lets them.
// Jumps of the compiler's own take a few instructions.
typedef void *Jump[5];
static Jump threads[MOST_THREADS], idle[MOST_THREADS], scheduler;
static unsigned begun, unfinished, idle_count;  // threads of a block are begun in their order
static unsigned first_block;  // of a cluster
static void stand(unsigned t) {
  const unsigned u = t % block_threads, k = first_block + t / block_threads;
  threadIdx = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
  blockIdx = {k % gridDim.x, k / gridDim.x % gridDim.y, k / gridDim.x / gridDim.y};
}

void wait(State where) {
  states[current] = where;
  if (!__builtin_setjmp(threads[current])) __builtin_longjmp(scheduler, 1);
}

// Blocks run in an order that is drawn: a kernel must not count on any.
static unsigned drawn() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(state >> 33);
}

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

void run_blocks(const unsigned *grid, const unsigned *block) {
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
