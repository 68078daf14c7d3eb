"""The CUDA C++ text of products whose operands go from memory straight into registers.

A warp computes a tile of 16 MT x 8 NT elements. Small products are short of time, not of bandwidth, and a
load that is not passed on through shared memory is the shortest way there is. What makes these loads wide is
that both the order of k inside a step and the order of rows and columns inside a tile are free:

* Of a step of 16 k, lane (g, t) = (lane / 4, lane % 4) takes k = 4t .. 4t + 3: of A for rows g and g + 8,
  of B for column g.
* Where an operand lies the other way round (A stored [k, m], B stored [k, n]), lane g takes neighbouring rows
  or columns instead, one for each tile of the warp: again one wide load.

k is cut into WK parts, one for each warp that shares a tile. The parts are added in their order through
shared memory, where rows and columns get back into order, and each thread finishes four neighbouring
elements. What is known before earlier kernels are done is read before they are: their end and these loads
take place together.
"""

from __future__ import annotations

PRODUCT = r"""
namespace gemm {

// Block `block` of C = A B: S says all sizes and how they are cut, F what is done to the elements.
template <class S, class Arithmetic, class F> struct Product {
  typedef typename Arithmetic::Item T;
  typedef typename Arithmetic::A Left;
  typedef typename Arithmetic::B Right;
  static constexpr int M = S::M, N = S::N, K = S::K, MT = S::MT, NT = S::NT;
  static constexpr int STEPS = S::STEPS, AHEAD = S::AHEAD, THREADS = 32 * S::WM * S::WN * S::WK;
  static constexpr int ROWS = 16 * MT * S::WM, COLUMNS = 8 * NT * S::WN;
  static constexpr bool EAGER = S::EAGER;
  static constexpr int DOWN = S::DOWN, ACROSS = (N + COLUMNS - 1) / COLUMNS;
  // Rows of a block: as many in each, so that none is late; a tile may have more.
  static constexpr int STEP = S::TA ? ROWS : (M + DOWN - 1) / DOWN;
  static constexpr int LINE = COLUMNS + (S::TB ? 8 : 4);  // lanes that store together meet other banks
  static constexpr int QUADS = STEP * COLUMNS / 4, EACH = (QUADS + THREADS - 1) / THREADS;
  static constexpr bool HOLD = EACH * F::READS <= 8;  // what formulas read is fetched with the operands
  static constexpr int PACK = NT < 4 ? NT : 4;        // neighbouring columns that a lane loads
  static constexpr bool WHOLE_K = S::WK * STEPS * 16 == K, WHOLE_N = N % COLUMNS == 0;
  static constexpr bool WHOLE_M = M % STEP == 0 && STEP == ROWS;

  // Row and column of the warp's tile that lane group g has in tile i, half h, and in tile j.
  static __device__ __forceinline__ int row_of(int i, int h, int g) {
    return S::TA ? 2 * MT * g + 2 * i + h : 16 * i + 8 * h + g;
  }
  static __device__ __forceinline__ int column_of(int j, int g) {
    return S::TB ? 8 * j + g : 8 * PACK * (j / PACK) + PACK * g + j % PACK;
  }
  // The operands of step i. a and b point at what lane (g, t) takes first, `rows`, `columns` and k are there.
  template <class Stored>
  static __device__ __forceinline__ void load_a(T (&v)[MT][2][4], const Stored *a, int i, int rows, int k) {
    if constexpr (!S::TA) {
#pragma unroll
      for (int m = 0; m < 2 * MT; m++) {
        const int row = row_of(m / 2, m % 2, 0);
        const int left = WHOLE_M || row < rows ? (WHOLE_K ? 4 : k - 16 * i) : 0;
        load_line<4, S::VA, S::NEAR_A>(v[m / 2][m % 2], a + row * S::LDA + 16 * i, left);
      }
    } else {
#pragma unroll
      for (int q = 0; q < 4; q++) {
        T x[2 * MT];
        const int left = WHOLE_K || 16 * i + q < k ? (WHOLE_M ? 2 * MT : rows) : 0;
        load_line<2 * MT, S::VA, S::NEAR_A>(x, a + (16 * i + q) * S::LDA, left);
#pragma unroll
        for (int r = 0; r < 2 * MT; r++) v[r / 2][r % 2][q] = x[r];
      }
    }
  }
  template <class Stored>
  static __device__ __forceinline__ void load_b(T (&v)[NT][4], const Stored *b, int i, int columns, int k) {
    if constexpr (S::TB) {
#pragma unroll
      for (int j = 0; j < NT; j++) {
        const int left = WHOLE_N || column_of(j, 0) < columns ? (WHOLE_K ? 4 : k - 16 * i) : 0;
        load_line<4, S::VB>(v[j], b + column_of(j, 0) * S::LDB + 16 * i, left);
      }
    } else {
#pragma unroll
      for (int x = 0; x < NT / PACK * 4; x++) {
        const int q = x % 4, j = x / 4 * PACK, column = column_of(j, 0);
        const int left = WHOLE_K || 16 * i + q < k ? (WHOLE_N ? PACK : columns - column) : 0;
        T y[PACK];
        load_line<PACK, S::VB>(y, b + (16 * i + q) * S::LDB + column, left);
#pragma unroll
        for (int p = 0; p < PACK; p++) v[j + p][q] = y[p];
      }
    }
  }
  static __device__ __forceinline__ void prepare(Left (&ready)[MT], const T (&v)[MT][2][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++) ready[m] = Arithmetic::rows(v[m]);
  }
  static __device__ __forceinline__ void prepare(Right (&ready)[NT], const T (&v)[NT][4]) {
#pragma unroll
    for (int j = 0; j < NT; j++) ready[j] = Arithmetic::columns(v[j]);
  }
  // Where a lane works, and what it holds of the operands, of the sums and of what formulas read. AHEAD steps
  // are under way; of an operand that is known early, all of them.
  struct State {
    const typename S::Stored *a, *b;
    int wk, wm, wn, g, t, row0, rows, column0, left_rows, columns, k;
    T va[S::EARLY_A ? STEPS : AHEAD][MT][2][4], vb[S::EARLY_B ? STEPS : AHEAD][NT][4], c[MT][NT][4];
    typename F::Values held[HOLD ? EACH : 1];
  };
  template <class Slots> static __device__ __forceinline__ void begin(const Slots &s, int block, State &h) {
    const int warp = threadIdx.x / 32;
    h.g = threadIdx.x % 32 / 4, h.t = threadIdx.x % 4;
    h.wk = warp / (S::WM * S::WN), h.wm = warp / S::WN % S::WM, h.wn = warp % S::WN;
    h.row0 = block / ACROSS * STEP, h.column0 = block % ACROSS * COLUMNS;
    const int y0 = h.wm * 16 * MT + row_of(0, 0, h.g), x0 = h.column0 + h.wn * 8 * NT + column_of(0, h.g);
    const int k0 = h.wk * STEPS * 16 + 4 * h.t;
    h.rows = M - h.row0 < STEP ? M - h.row0 : STEP, h.columns = N - x0, h.k = K - k0;
    h.left_rows = h.rows - y0;
    h.a = s.a + (S::TA ? k0 * S::LDA + h.row0 + y0 : (h.row0 + y0) * S::LDA + k0);
    h.b = s.b + (S::TB ? x0 * S::LDB + k0 : k0 * S::LDB + x0);
#pragma unroll
    for (int x = 0; x < MT * NT * 4; x++) h.c[x / (NT * 4)][x / 4 % NT][x % 4] = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      if constexpr (S::EARLY_A) load_a(h.va[i], h.a, i, h.left_rows, h.k);
      if constexpr (S::EARLY_B) load_b(h.vb[i], h.b, i, h.columns, h.k);
    }
    if (HOLD && S::EARLY_FINISH) hold(s, h);
  }
  // What was not known early; A by itself where it is made by the same block.
  template <class Slots> static __device__ __forceinline__ void fetch(const Slots &s, State &h, bool with_a) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (!S::EARLY_A && with_a) load_a(h.va[i], h.a, i, h.left_rows, h.k);
      if constexpr (!S::EARLY_B) load_b(h.vb[i], h.b, i, h.columns, h.k);
    }
    if (HOLD && !S::EARLY_FINISH) hold(s, h);
  }
  static __device__ __forceinline__ void fetch_a(State &h) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if constexpr (!S::EARLY_A) load_a(h.va[i], h.a, i, h.left_rows, h.k);
  }
  static __device__ __forceinline__ void sum(State &h) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      Left left[MT];
      Right right[NT];
      prepare(left, h.va[S::EARLY_A ? i : i % AHEAD]);
      prepare(right, h.vb[S::EARLY_B ? i : i % AHEAD]);
      if (i + AHEAD < STEPS) {
        if constexpr (!S::EARLY_A) load_a(h.va[i % AHEAD], h.a, i + AHEAD, h.left_rows, h.k);
        if constexpr (!S::EARLY_B) load_b(h.vb[i % AHEAD], h.b, i + AHEAD, h.columns, h.k);
      }
      Arithmetic::multiply(h.c, left, right);
    }
  }
  template <class Slots> static __device__ __forceinline__ void end(const Slots &s, State &h, char *memory) {
    T (*sums)[ROWS][LINE] = (T (*)[ROWS][LINE])memory;
#pragma unroll
    for (int x = 0; x < 4 * MT; x++)
#pragma unroll
      for (int j = 0; j < NT; j++) {
        const int m = x / 4, i = x / 2 % 2, e = x % 2;
        const int y = h.wm * 16 * MT + row_of(m, i, h.g), z = h.wn * 8 * NT + column_of(j, 2 * h.t + e);
        sums[h.wk][y][z] = h.c[m][j][2 * i + e];
      }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int quad = threadIdx.x + e * THREADS, y = quad / (COLUMNS / 4), x = quad % (COLUMNS / 4) * 4;
      if ((QUADS % THREADS && quad >= QUADS) || y >= h.rows || h.column0 + x >= N) continue;
      T total[4];
#pragma unroll
      for (int i = 0; i < S::WK; i++)
#pragma unroll
        for (int q = 0; q < 4; q++) total[q] = i ? total[q] + sums[i][y][x + q] : sums[0][y][x + q];
      if (!HOLD) F::read(s, h.held[0], h.row0 + y, h.column0 + x);
      F::finish(s, h.held[HOLD ? e : 0], h.row0 + y, h.column0 + x, total);
    }
  }
  template <class Slots> static __device__ __forceinline__ void run(const Slots &s, int block, char *memory) {
    State h;
    begin(s, block, h);
    wait_for_earlier_kernels();
    fetch(s, h, true);
    // Not before: what they read early would be in the way of what is read here.
    if (EAGER) let_later_kernels_start();
    sum(h);
    if (!EAGER) let_later_kernels_start();
    end(s, h, memory);
  }
  // What the formulas read for the elements that this thread finishes.
  template <class Slots> static __device__ __forceinline__ void hold(const Slots &s, State &h) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int quad = threadIdx.x + e * THREADS, y = quad / (COLUMNS / 4), x = quad % (COLUMNS / 4) * 4;
      if ((QUADS % THREADS == 0 || quad < QUADS) && y < h.rows && h.column0 + x < N)
        F::read(s, h.held[HOLD ? e : 0], h.row0 + y, h.column0 + x);
    }
  }
};

}  // namespace gemm
"""
