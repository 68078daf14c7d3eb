"""The CUDA C++ text of products C = A^T B with short k, such as weight gradients.

A is stored [k, m] and B [k, n], and tiles of both lie in shared memory with all of their k, as they are.
Lane (g, t) takes neighbouring rows and columns there too (see `gemm_product.py`), so a warp holds runs of
eight columns and finishes its elements from its registers. If both operands are known early, all that is left
to do after earlier kernels is to store.
"""

from __future__ import annotations

OUTER = r"""
namespace gemm {

template <class S, class Arithmetic, class F> struct Outer {
  typedef typename Arithmetic::Item T;
  static constexpr int M = S::M, N = S::N, K = S::K, MT = S::MT, NT = S::NT, WN = S::WN, STEPS = S::STEPS;
  static constexpr int THREADS = 32 * S::WM * WN, ROWS = 16 * MT * S::WM, COLUMNS = 8 * NT * WN;
  static constexpr int ACROSS = (N + COLUMNS - 1) / COLUMNS, LA = ROWS + 8, LB = COLUMNS + 8;
  static constexpr int QUADS = MT * NT;  // fours of neighbouring elements that a lane finishes
  static constexpr bool EARLY = S::EARLY_A && S::EARLY_B;
  static constexpr bool HOLD = QUADS * F::READS <= 8;  // what formulas read is fetched before it is needed

  template <int COUNT, int V, int LINE, class Stored>
  static __device__ __forceinline__ void fetch(Stored *to, const Stored *from, int ld, int start, int end) {
    constexpr int CHUNKS = COUNT / V;
    for (int x = threadIdx.x; x < STEPS * 16 * CHUNKS; x += THREADS) {
      const int k = x / CHUNKS, i = x % CHUNKS * V;
      copy<V>(to + k * LINE + i, from + k * ld + start + i, k < K && start + i < end);
    }
  }
  template <class Slots> static __device__ __forceinline__ void run(const Slots &s, int block, char *memory) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row0 = block / ACROSS * ROWS, column0 = block % ACROSS * COLUMNS;
    const int y0 = warp / WN * 16 * MT, x0 = warp % WN * 8 * NT;
    const int row = row0 + y0 + 2 * MT * g, column = column0 + x0 + 8 * t;
    auto *a = (decltype(s.a))memory, *b = a + STEPS * 16 * LA;
    T c[MT][NT][4];
    typename F::Values held[HOLD ? QUADS : 1];
    if (S::EARLY_A) fetch<ROWS, S::VA, LA>(a, s.a, S::LDA, row0, M);
    if (S::EARLY_B) fetch<COLUMNS, S::VB, LB>(b, s.b, S::LDB, column0, N);
    if (HOLD && !EARLY && S::EARLY_FINISH) hold(s, held, row, column);
    if (!EARLY) {
      wait_for_earlier_kernels();
      if (!S::EARLY_A) fetch<ROWS, S::VA, LA>(a, s.a, S::LDA, row0, M);
      if (!S::EARLY_B) fetch<COLUMNS, S::VB, LB>(b, s.b, S::LDB, column0, N);
      if (HOLD && !S::EARLY_FINISH) hold(s, held, row, column);
    }
    wait_for_copies();
    __syncthreads();
    if (!EARLY) let_later_kernels_start();
    sum(c, a + y0 + 2 * MT * g + t * LA, b + x0 + 4 * g + t * LB);
    if (EARLY) {
      if (HOLD && S::EARLY_FINISH) hold(s, held, row, column);
      wait_for_earlier_kernels();
      let_later_kernels_start();
      if (HOLD && !S::EARLY_FINISH) hold(s, held, row, column);
    }
#pragma unroll
    for (int x = 0; x < QUADS; x++) {
      const int m = x / NT, i = half(x), j = first(x);
      const int y = row + 2 * m + i / 2, z = column + 4 * (i % 2) + 8 * j;
      if (y >= M || z >= N) continue;
      const T total[4] = {c[m][j][i], c[m][j + 1][i], c[m][j + 2][i], c[m][j + 3][i]};
      if (!HOLD) F::read(s, held[0], y, z);
      F::finish(s, held[HOLD ? x : 0], y, z, total);
    }
  }
  // Which of a tile's four sums, and of four neighbouring tiles the first, quad x is made of.
  static __device__ __forceinline__ int half(int x) { return x / (NT / 2) % 2 * 2 + x / (NT / 4) % 2; }
  static __device__ __forceinline__ int first(int x) { return x % (NT / 4) * 4; }

  // Of each step, lane t takes k = t, t + 4, t + 8, t + 12, so that lanes meet other banks.
  template <class Stored>
  static __device__ __forceinline__ void sum(T (&c)[MT][NT][4], const Stored *a, const Stored *b) {
#pragma unroll
    for (int x = 0; x < MT * NT * 4; x++) c[x / (NT * 4)][x / 4 % NT][x % 4] = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      T va[MT][2][4], vb[NT][4];
#pragma unroll
      for (int q = 0; q < 4; q++) {
#pragma unroll
        for (int r = 0; r < 2 * MT; r++) va[r / 2][r % 2][q] = widened(a[(16 * i + 4 * q) * LA + r]);
#pragma unroll
        for (int j = 0; j < NT; j++) vb[j][q] = widened(b[(16 * i + 4 * q) * LB + 32 * (j / 4) + j % 4]);
      }
      typename Arithmetic::A left[MT];
      typename Arithmetic::B right[NT];
#pragma unroll
      for (int m = 0; m < MT; m++) left[m] = Arithmetic::rows(va[m]);
#pragma unroll
      for (int j = 0; j < NT; j++) right[j] = Arithmetic::columns(vb[j]);
      Arithmetic::multiply(c, left, right);
    }
  }
  template <class Slots, class Values>
  static __device__ __forceinline__ void hold(const Slots &s, Values *held, int row, int column) {
#pragma unroll
    for (int x = 0; x < QUADS; x++) {
      const int y = row + 2 * (x / NT) + half(x) / 2, z = column + 4 * (half(x) % 2) + 8 * first(x);
      if (y < M && z < N) F::read(s, held[HOLD ? x : 0], y, z);
    }
  }
};

}  // namespace gemm
"""
