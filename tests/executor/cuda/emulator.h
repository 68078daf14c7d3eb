// CUDA C++ on the processor: blocks run one after the other, the threads of a block as fibers. A thread
// gives way where it would wait for others; all threads of a block must wait equally often, as they do on a
// device. What a kernel reads before others have written it is garbage here as there.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

static std::vector<ucontext_t> fibers;
static std::vector<char> finished;
static ucontext_t scheduler;
static unsigned current;
static uint64_t slots[1024];

static void give_way() { swapcontext(&fibers[current], &scheduler); }
static void __syncthreads() { give_way(); }

template <typename T> T __shfl_xor_sync(unsigned, T value, int apart) {
  memcpy(&slots[current], &value, sizeof(T));
  give_way();
  T other;
  memcpy(&other, &slots[current ^ apart], sizeof(T));
  give_way();
  return other;
}
template <typename T> T __shfl_sync(unsigned, T value, int lane) {
  memcpy(&slots[current], &value, sizeof(T));
  give_way();
  T other;
  memcpy(&other, &slots[current / 32 * 32 + lane % 32], sizeof(T));
  give_way();
  return other;
}
static float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, 8); return x; }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }

static void (*body)(void *);
static void *body_data;
static void fiber() { body(body_data); finished[current] = 1; swapcontext(&fibers[current], &scheduler); }

static void run_block() {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z;
  static std::vector<char> stacks;
  const size_t size = 64 << 10;
  if (stacks.size() < count * size) stacks.resize(count * size);
  fibers.assign(count, ucontext_t());
  finished.assign(count, 0);
  for (unsigned t = 0; t < count; ++t) {
    getcontext(&fibers[t]);
    fibers[t].uc_stack.ss_sp = stacks.data() + t * size;
    fibers[t].uc_stack.ss_size = size;
    fibers[t].uc_link = nullptr;
    makecontext(&fibers[t], fiber, 0);
  }
  for (unsigned left = count; left;) {
    for (unsigned t = 0; t < count; ++t) {
      if (finished[t]) continue;
      current = t;
      threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
      swapcontext(&scheduler, &fibers[t]);
      left -= finished[t];
    }
  }
}

template <typename... P> struct Call {
  void (*function)(P...);
  const int64_t *values;
  template <size_t... I> void unpacked(std::index_sequence<I...>) { function((P)values[I]...); }
  static void run(void *self) { ((Call *)self)->unpacked(std::index_sequence_for<P...>()); }
};

template <typename... P>
void launch(void (*function)(P...), const int64_t *values, const unsigned *grid, const unsigned *block) {
  Call<P...> call{function, values};
  body = Call<P...>::run;
  body_data = &call;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) { blockIdx = {x, y, z}; run_block(); }
}
