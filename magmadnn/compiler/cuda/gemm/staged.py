"""The CUDA C++ text of products of stacks, whose tiles pass through shared memory while others are multiplied.

Small products are short of time (`product.py`); those of a stack are short of bandwidth: each matrix of
parameters is read once, and as many bytes as there are must be under way. So tiles are copied into shared
memory ahead of the arithmetic, without registers in between, and two blocks share a multiprocessor.

* `Staged`: C = A B or A B^T, A stored [m, k]. Tiles of DEEP k, of which STAGES - 1 are under way.
* `Looped`: C = A^T B with short k, as `Outer`. A block keeps its columns of B and goes through rows of
  A, so that B is not read again for each tile; what formulas read of a tile is under way while it is multiplied.

Lines of A may be rows of a larger array, found by an order of rows (`Lines`): then no copy of a batch is made.
"""

from __future__ import annotations

STAGED = r"""
namespace gemm {

// Line i of an operand whose lines lie one after the other.
template <class Stored> struct Straight {
  const Stored *first;
  i64 step;
  __device__ __forceinline__ const Stored *at(int i) const { return first + i * step; }
  __device__ __forceinline__ void find(const Stored **, int, int, int) {}
};
// Line i is row order[begin + i] of an array; where the lines of a tile lie is kept in shared memory.
template <class Stored> struct Picked {
  const Stored *first;
  i64 step;
  const i64 *order;  // none: as they lie
  i64 begin;
  const Stored **lines;
  __device__ __forceinline__ const Stored *at(int i) const { return lines[i]; }
  __device__ __forceinline__ void find(const Stored **room, int from, int count, int end) {
    const auto row = [&](i64 number) { return order ? order[number] : number; };
    lines = room;
    for (int i = threadIdx.x; i < count; i += blockDim.x)
      room[i] = from + i < end ? first + row(begin + from + i) * step : first;
    __syncthreads();
  }
};

template <class S, class Arithmetic, class F> struct Staged {
  typedef typename Arithmetic::Item T;
  static constexpr int M = S::M, N = S::N, K = S::K, MT = S::MT, NT = S::NT, WM = S::WM, WN = S::WN;
  static constexpr int DEEP = S::DEEP, STAGES = S::STAGES, CHUNKS = (K + DEEP - 1) / DEEP, THREADS = 32 * WM * WN;
  static constexpr int ROWS = 16 * MT * WM, COLUMNS = 8 * NT * WN, ACROSS = (N + COLUMNS - 1) / COLUMNS;
  static constexpr int A_SIZE = ROWS * DEEP, SIZE = A_SIZE + COLUMNS * DEEP, PIECES = DEEP / 4;

  // Lines lie without gaps, their pieces of four elements in an order that depends on the line, so that lanes
  // that load together meet other banks: of A (and B stored [n, k]) lanes load pieces of k, 4t on, of lines
  // that differ in g; of B stored [k, n] pieces of columns, 4g on, of lines that differ in t.
  static __device__ __forceinline__ int along_k(int line, int g, int k) {
    return line * DEEP + (k / 4 ^ (g / 2 & 3 | g % 2 * 4)) * 4;
  }
  static __device__ __forceinline__ int along_n(int k, int column) {
    return k * COLUMNS + (column / 4 ^ k / 4 % 4 * 2) * 4;
  }
  // Column of the block that lane group g has in tile j of its warp: four tiles are neighbours for a lane.
  static __device__ __forceinline__ int column_of(int j, int g) { return 32 * (j / 4) + 4 * g + j % 4; }

  template <class A>
  static __device__ __forceinline__ void fetch(T *to, const A &lines, const T *b, int chunk, int rows,
                                               int columns) {
    const int k0 = chunk * DEEP;
    for (int x = threadIdx.x; x < ROWS * PIECES; x += THREADS) {
      const int line = x / PIECES, k = x % PIECES * 4;
      const bool there = line < rows && k0 + k < K;
      copy<4>(to + along_k(line, line % 8, k), there ? lines.at(line) + k0 + k : b, there);
    }
    to += A_SIZE;
    if constexpr (S::TB) {
      for (int x = threadIdx.x; x < COLUMNS * PIECES; x += THREADS) {
        const int line = x / PIECES, k = x % PIECES * 4;
        const bool there = line < columns && k0 + k < K;
        copy<4>(to + along_k(line, line / 4 % 8, k), there ? b + (i64)line * S::LDB + k0 + k : b, there);
      }
    } else {
      for (int x = threadIdx.x; x < DEEP * COLUMNS / 4; x += THREADS) {
        const int k = x / (COLUMNS / 4), column = x % (COLUMNS / 4) * 4;
        const bool there = column < columns && k0 + k < K;
        copy<4>(to + along_n(k, column), there ? b + (i64)(k0 + k) * S::LDB + column : b, there);
      }
    }
  }
  // 16 k from k0 on, of which lane t takes four from 4t on.
  static __device__ __forceinline__ void multiply(T (&c)[MT][1][NT][4], const T *a, int y0, int x0, int k0,
                                                  int g, int t) {
    const T *const b = a + A_SIZE;
    typename Arithmetic::B right[NT];
#pragma unroll
    for (int j = 0; j < NT; j += 4) {
      T v[4][4], w[4][4];
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const int column = x0 + column_of(j, g);
        near<4>(v[q], b + (S::TB ? along_k(column + q, g, k0 + 4 * t) : along_n(k0 + 4 * t + q, column)));
      }
#pragma unroll
      for (int x = 0; x < 16; x++) w[x / 4][x % 4] = S::TB ? v[x / 4][x % 4] : v[x % 4][x / 4];
#pragma unroll
      for (int q = 0; q < 4; q++) right[j + q] = Arithmetic::columns(w[q]);
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
      T v[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) near<4>(v[h], a + along_k(y0 + 16 * m + 8 * h + g, g, k0 + 4 * t));
      const typename Arithmetic::A left[1] = {Arithmetic::rows(v)};
      Arithmetic::multiply(c[m], left, right);
    }
  }
  template <class Slots, class A>
  static __device__ __forceinline__ void run(const Slots &s, int block, char *memory, A lines) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row0 = block / ACROSS * ROWS, column0 = block % ACROSS * COLUMNS;
    const int y0 = warp / WN * 16 * MT, x0 = warp % WN * 8 * NT;
    T *const tiles = (T *)memory;
    const T *const b = s.b + (S::TB ? (i64)column0 * S::LDB : column0);
    wait_for_earlier_kernels();
    lines.find((const T **)(tiles + STAGES * SIZE), row0, ROWS, M);
    if constexpr (!S::PICKED) lines.first += row0 * lines.step;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
      if (i < CHUNKS) fetch(tiles + i * SIZE, lines, b, i, M - row0, N - column0);
      end_of_copies();
    }
    let_later_kernels_start();
    T c[MT][1][NT][4];
#pragma unroll
    for (int x = 0; x < MT * NT * 4; x++) c[x / (NT * 4)][0][x / 4 % NT][x % 4] = 0;
#pragma unroll 1
    for (int i = 0, now = 0; i < CHUNKS; i++) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      const int next = i + STAGES - 1, there = now ? now - 1 : STAGES - 1;
      if (next < CHUNKS) fetch(tiles + there * SIZE, lines, b, next, M - row0, N - column0);
      end_of_copies();
#pragma unroll
      for (int k = 0; k < DEEP; k += 16) multiply(c, tiles + now * SIZE, y0, x0, k, g, t);
      now = now + 1 < STAGES ? now + 1 : 0;
    }
#pragma unroll
    for (int x = 0; x < MT * 2; x++)
#pragma unroll
      for (int j = 0; j < NT; j += 4)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int row = row0 + y0 + 8 * x + g, column = column0 + x0 + 8 * j + 8 * t + 4 * e;
          if (row >= M || column >= N) continue;
          T total[4];
#pragma unroll
          for (int q = 0; q < 4; q++) total[q] = c[x / 2][0][j + q][x % 2 * 2 + e];
          typename F::Values held;
          F::read(s, held, row, column);
          F::finish(s, held, row, column, total);
        }
  }
};

template <class S, class Arithmetic, class F> struct Looped : Outer<S, Arithmetic, F> {
  typedef Outer<S, Arithmetic, F> Tile;
  typedef typename Arithmetic::Item T;
  static constexpr int M = S::M, N = S::N, K = S::K, MT = S::MT, NT = S::NT, WN = S::WN, STEPS = S::STEPS;
  static constexpr int THREADS = Tile::THREADS, ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, QUADS = MT * NT;
  static constexpr int ACROSS = (N + COLUMNS - 1) / COLUMNS, TILES = (M + ROWS - 1) / ROWS;
  static constexpr int EACH = (TILES + S::SPLIT - 1) / S::SPLIT;  // tiles of a block
  static constexpr int A_SIZE = STEPS * 16 * Tile::LA;
  static constexpr bool HOLD = QUADS * F::READS <= 24;  // what formulas read is fetched before it is needed

  template <class A> static __device__ __forceinline__ void fetch_a(T *to, const A &lines, int row0) {
    for (int x = threadIdx.x; x < STEPS * 16 * (ROWS / 4); x += THREADS) {
      const int k = x / (ROWS / 4), row = x % (ROWS / 4) * 4;
      const bool there = k < K && row0 + row < M;
      copy<4>(to + k * Tile::LA + row, lines.at(there ? k : 0) + (there ? row0 + row : 0), there);
    }
  }
  template <class Work>
  static __device__ __forceinline__ void each(int row, int column, const Work &work) {
#pragma unroll
    for (int x = 0; x < QUADS; x++) {
      const int y = row + 2 * (x / NT) + Tile::half(x), z = column + Tile::right(x);
      if (y < M && z < N) work(x, y, z);
    }
  }
  template <class Slots, class A>
  static __device__ __forceinline__ void run(const Slots &s, int block, char *memory, A lines) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int first = block / ACROSS * EACH, last = first + EACH < TILES ? first + EACH : TILES;
    const int column0 = block % ACROSS * COLUMNS;
    const int y0 = warp / WN * 16 * MT, x0 = warp % WN * 8 * NT;
    T *const a = (T *)memory, *const b = a + 2 * A_SIZE;
    wait_for_earlier_kernels();
    lines.find((const T **)(b + STEPS * 16 * Tile::LB), 0, K, K);
    Tile::template fetch<COLUMNS, 4, Tile::LB>(b, s.b, S::LDB, column0, N, 0, STEPS);
    fetch_a(a, lines, first * ROWS);
    end_of_copies();
    let_later_kernels_start();
#pragma unroll 1
    for (int tile = first, now = 0; tile < last; tile++, now ^= 1) {
      const int row = tile * ROWS + y0 + 2 * MT * g, column = column0 + x0 + 8 * t;
      if (tile + 1 < last) fetch_a(a + (now ^ 1) * A_SIZE, lines, (tile + 1) * ROWS);
      end_of_copies();
      typename F::Values held[HOLD ? QUADS : 1];
      if (HOLD) each(row, column, [&](int x, int y, int z) { F::read(s, held[x], y, z); });
      wait_for_copies<1>();
      __syncthreads();
      T c[MT][NT][4];
#pragma unroll
      for (int x = 0; x < MT * NT * 4; x++) c[x / (NT * 4)][x / 4 % NT][x % 4] = 0;
      Tile::template sum<0, STEPS>(c, a + now * A_SIZE + y0 + 2 * MT * g + t * Tile::LA,
                                   b + x0 + 4 * g + t * Tile::LB);
      __syncthreads();
      each(row, column, [&](int x, int y, int z) {
        const int h = 2 * Tile::half(x), e = x % 2;
        T total[4];
#pragma unroll
        for (int q = 0; q < 4; q++) total[q] = c[x / NT][Tile::first(x) + q][h + e];
        if (!HOLD) F::read(s, held[0], y, z);
        F::finish(s, held[HOLD ? x : 0], y, z, total);
      });
    }
  }
};

}  // namespace gemm
"""
