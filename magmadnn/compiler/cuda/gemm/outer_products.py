"""The CUDA C++ text of products C = A^T B with short k, such as weight gradients.

A is stored [k, m] and B [k, n], and tiles of both lie in shared memory with all of their k, as they are.
Lane (g, t) takes neighbouring rows and columns there too (see `product.py`), so it finishes fours of
neighbouring elements from its registers. Sums begin when the first steps of k are there. If both operands are
known early, all that is left to do after earlier kernels is to store.

Sums of B's columns, which are a bias' gradient, can be made by the way: see `summed.py`.
"""

from __future__ import annotations

OUTER = r"""
namespace gemm {

// No sums of columns.
struct NoSums { static constexpr int LANES = 0; };

// The first of four neighbouring columns, each of another tile, that lane group g takes of B; lanes that
// store together store neighbouring fours.
__device__ __forceinline__ int first_of_four(int g) { return g % 2 * 16 + g / 2 * 4; }

template <class S, class Arithmetic, class F> struct Outer {
  typedef typename Arithmetic::Item T;
  static constexpr int M = S::M, N = S::N, K = S::K, MT = S::MT, NT = S::NT, WN = S::WN, STEPS = S::STEPS;
  static constexpr int THREADS = 32 * S::WM * WN, ROWS = 16 * MT * S::WM, COLUMNS = 8 * NT * WN;
  static constexpr int PACK = NT % 4 ? 2 : 4;  // neighbouring columns that a lane takes of B
  static constexpr int LA = ROWS + 8, LB = COLUMNS + (PACK == 4 ? 4 : 8);  // so that lanes meet other banks
  // Rows and columns of a block: as many in each, so that none is late; a tile may have more.
  static constexpr int DOWN = (M + ROWS - 1) / ROWS, DY = (M + 8 * DOWN - 1) / (8 * DOWN) * 8;
  static constexpr int ACROSS = (N + COLUMNS - 1) / COLUMNS, DX = (N + 8 * ACROSS - 1) / (8 * ACROSS) * 8;
  // Steps that are waited for together.
  static constexpr int CHUNK = S::EAGER ? 2 : STEPS, CHUNKS = (STEPS + CHUNK - 1) / CHUNK;
  static constexpr int QUADS = MT * NT;        // fours of neighbouring elements that a lane finishes
  static constexpr bool EARLY = S::EARLY_A && S::EARLY_B;
  static constexpr bool HOLD = QUADS * F::READS <= 8;  // what formulas read is fetched before it is needed
  // A block that has a multiprocessor for itself fetches last what it needs last.
  static constexpr bool LAST = THREADS > 256;
  // Quads that are finished together.
  static constexpr int GROUP = HOLD ? QUADS : F::READS > 3 ? 1 : F::READS == 3 ? 2 : QUADS % 4 ? 3 : 4;

  // Some steps of k of a tile.
  template <int COUNT, int V, int LINE, class Stored>
  static __device__ __forceinline__ void fetch(Stored *to, const Stored *from, int ld, int start, int end,
                                               int step, int steps) {
    constexpr int PIECES = COUNT / V;
    for (int x = threadIdx.x + step * 16 * PIECES; x < (step + steps) * 16 * PIECES; x += THREADS) {
      const int k = x / PIECES, j = x % PIECES * V;
      copy<V>(to + k * LINE + j, from + k * ld + start + j, k < K && start + j < end);
    }
  }
  // The first element of a lane, and where those of its block end.
  struct Corner { int row, column, last_row, last_column; };
  // work(quad, row, column) for some of a lane's quads.
  template <class Work>
  static __device__ __forceinline__ void some(const Corner &at, int from, const Work &work) {
#pragma unroll
    for (int x = from; x < from + GROUP; x++) {
      const int y = at.row + 2 * (x / NT) + half(x), z = at.column + right(x);
      if (y < at.last_row && z < at.last_column) work(x, y, z);
    }
  }
  // Of a quad: which of two rows it is in, the first of the tiles that it is from, how far right it begins.
  static __device__ __forceinline__ int half(int x) { return PACK == 4 ? x % NT / 2 % 2 : x % NT % 2; }
  static __device__ __forceinline__ int first(int x) { return PACK == 4 ? x % NT / 4 * 4 : x % NT / 2 * 2; }
  static __device__ __forceinline__ int right(int x) { return 8 * first(x) + (PACK == 4 ? x % 2 * 16 : 0); }
  // The first column that lane group g takes of B.
  static __device__ __forceinline__ int left(int g) { return PACK == 4 ? first_of_four(g) : 2 * g; }
  // The four elements of a quad.
  static __device__ __forceinline__ void take(T (&total)[4], const T (&c)[MT][NT][4], int x) {
    const int h = 2 * half(x), e = PACK == 4 ? x % 2 : 0;
#pragma unroll
    for (int q = 0; q < 4; q++) total[q] = c[x / NT][first(x) + q % PACK][h + e + q / PACK];
  }

  // sums: what is done to the sum of each of B's columns, which the first blocks add.
  template <class Slots, class Sums = NoSums>
  static __device__ __forceinline__ void run(const Slots &s, int block, char *memory,
                                             const Sums &sums = Sums()) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row0 = block / ACROSS * DY, column0 = block % ACROSS * DX;
    const int y0 = warp / WN * 16 * MT, x0 = warp % WN * 8 * NT;
    const Corner at{row0 + y0 + 2 * MT * g, column0 + x0 + 4 * t, row0 + DY < M ? row0 + DY : M,
                   column0 + DX < N ? column0 + DX : N};
    auto *a = (decltype(s.a))memory, *b = a + STEPS * 16 * LA;
    T c[MT][NT][4];
    typename F::Values held[GROUP];
    const auto hold = [&](int from) {
      some(at, from, [&](int x, int y, int z) { F::read(s, held[x - from], y, z); });
    };
    const auto fetch_a = [&](int i, int steps) {
      fetch<DY, S::VA, LA>(a, s.a, S::LDA, row0, M, i, steps);
    };
    const auto fetch_b = [&](int i, int steps) {
      fetch<DX, S::VB, LB>(b, s.b, S::LDB, column0, N, i, steps);
    };
    if (!EARLY) {
      if (S::EARLY_A) fetch_a(0, STEPS);
      if (S::EARLY_B) fetch_b(0, STEPS);
      if (HOLD && S::EARLY_FINISH && !LAST) hold(0);
      wait_for_earlier_kernels();
    }
#pragma unroll
    for (int i = 0; i < STEPS; i += CHUNK) {
      const int steps = i + CHUNK < STEPS ? CHUNK : STEPS - i;
      if (EARLY || !S::EARLY_A) fetch_a(i, steps);
      if (EARLY || !S::EARLY_B) fetch_b(i, steps);
      end_of_copies();
    }
    if (!EARLY && S::EAGER) let_later_kernels_start();
    if (HOLD && (EARLY ? S::EAGER && S::EARLY_FINISH : LAST || !S::EARLY_FINISH)) hold(0);
#pragma unroll
    for (int x = 0; x < MT * NT * 4; x++) c[x / (NT * 4)][x / 4 % NT][x % 4] = 0;
    multiply<0>(c, a + y0 + 2 * MT * g + t * LA, b + x0 + left(g) + t * LB);
    if (EARLY) {
      if (HOLD && S::EARLY_FINISH && !S::EAGER) hold(0);
      wait_for_earlier_kernels();
      let_later_kernels_start();
      if (HOLD && !S::EARLY_FINISH) hold(0);
    }
#pragma unroll
    for (int from = 0; from < QUADS; from += GROUP) {
      if (!HOLD) hold(from);
      some(at, from, [&](int x, int y, int z) {
        T total[4];
        take(total, c, x);
        F::finish(s, held[x - from], y, z, total);
      });
    }
    if constexpr (Sums::LANES > 0)
      if (block < ACROSS) add(sums, b, (T *)memory, column0, at.last_column);
  }
  // Sums of columns: lanes add rows that lie LANES apart in order, and their results are added two by two.
  template <class Sums, class Stored>
  static __device__ __forceinline__ void add(const Sums &sums, const Stored *b, T *totals, int first,
                                             int last) {
    __syncthreads();  // nobody reads A any more
    for (int x = threadIdx.x; x < DX * Sums::LANES; x += THREADS) {
      T total = Sums::none();
#pragma unroll
      for (int i = 0; i < (K + Sums::LANES - 1) / Sums::LANES; i++) {
        const int k = x / DX + i * Sums::LANES;
        if (k < K) total = Sums::both(total, widened(b[k * LB + x % DX]));
      }
      totals[x] = total;
    }
    __syncthreads();
    for (int x = threadIdx.x; x < DX && first + x < last; x += THREADS) {
      T all[Sums::LANES];
#pragma unroll
      for (int i = 0; i < Sums::LANES; i++) all[i] = totals[x + i * DX];
#pragma unroll
      for (int half = Sums::LANES / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) all[i] = Sums::both(all[i], all[i + half]);
      sums.finish(first + x, all[0]);
    }
  }
  // All chunks from one on, each as soon as it is there.
  template <int FROM, class Stored>
  static __device__ __forceinline__ void multiply(T (&c)[MT][NT][4], const Stored *a, const Stored *b) {
    if constexpr (FROM < CHUNKS) {
      wait_for_copies<CHUNKS - 1 - FROM>();
      __syncthreads();
      if (FROM == 0 && !EARLY && !S::EAGER) let_later_kernels_start();
      sum<FROM * CHUNK, FROM < CHUNKS - 1 ? (FROM + 1) * CHUNK : STEPS>(c, a, b);
      multiply<FROM + 1>(c, a, b);
    }
  }
  // Of each step, lane t takes k = t, t + 4, t + 8, t + 12, so that lanes meet other banks.
  template <int FROM, int TO, class Stored>
  static __device__ __forceinline__ void sum(T (&c)[MT][NT][4], const Stored *a, const Stored *b) {
#pragma unroll
    for (int i = FROM; i < TO; i++) {
      T va[MT][2][4], vb[NT][4];
#pragma unroll
      for (int q = 0; q < 4; q++) {
        Stored x[2 * MT], y[NT];
        near<2 * MT>(x, a + (16 * i + 4 * q) * LA);
#pragma unroll
        for (int j = 0; j < NT; j += PACK) near<PACK>(y + j, b + (16 * i + 4 * q) * LB + j * 8);
#pragma unroll
        for (int r = 0; r < 2 * MT; r++) va[r / 2][r % 2][q] = widened(x[r]);
#pragma unroll
        for (int j = 0; j < NT; j++) vb[j][q] = widened(y[j]);
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
};

}  // namespace gemm
"""
