"""The CUDA C++ text of products of stacks, whose tiles pass through shared memory.

Small products are short of time (`product.py`); those of a stack are short of bandwidth: each matrix of
parameters is read once, and as many bytes as there are must be under way. So tiles are copied into shared
memory ahead of the arithmetic, without registers in between, and two blocks share a multiprocessor.

* `Staged`: C = A B or A B^T, A stored [m, k], or [k, m] of halves. Tiles of DEEP k, of which STAGES - 1 are
  under way.
* `Looped`: C = A^T B with short k, as `Outer`. A block keeps its columns of B and goes through rows of
  A, so that B is not read again for each tile. What formulas read of a tile is under way before its turn.

Lines of A may be rows of a larger array, found by an order of rows (`Picked`): no batch is copied then.
Halves lie in shared memory as they are, twice as many of k in a tile, and are multiplied as halves where the
device has instructions for that, else as float32. `Looped` is slower for these, and not taken.
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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// 16 k of a tile: words of two neighbouring k. Lane (g, t) has a[h][i], row g + 8h, and b[i], column g, both
// for k = 4t + 2i and the next; it adds to c as in `Tf32`.
#define MULTIPLY_HALVES(Half, name) \
  __device__ __forceinline__ void multiply_words(float (&c)[4], const u32 (&a)[2][2], \
                                                 const u32 (&b)[2], Half) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}," \
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
      : "r"(a[0][0]), "r"(a[1][0]), "r"(a[0][1]), "r"(a[1][1]), "r"(b[0]), "r"(b[1])); \
  }
MULTIPLY_HALVES(bfloat16, "bf16")
MULTIPLY_HALVES(float16, "f16")
#endif

template <class S, class Arithmetic, class F> struct Staged {
  typedef typename Arithmetic::Item T;
  typedef typename S::Stored Stored;
  static constexpr int M = S::M, N = S::N, K = S::K, MT = S::MT, NT = S::NT, WM = S::WM, WN = S::WN;
  static constexpr int DEEP = S::DEEP, STAGES = S::STAGES, CHUNKS = (K + DEEP - 1) / DEEP;
  static constexpr int THREADS = 32 * WM * WN;
  static constexpr int ROWS = 16 * MT * WM, COLUMNS = 8 * NT * WN, ACROSS = (N + COLUMNS - 1) / COLUMNS;
  static constexpr int A_SIZE = ROWS * DEEP, SIZE = A_SIZE + COLUMNS * DEEP;
  static constexpr int BUFFERS = CHUNKS < STAGES ? CHUNKS : STAGES;
  static constexpr int EACH = S::EACH, PIECES = DEEP / EACH;  // elements that are copied together
  static constexpr bool HALVES = sizeof(Stored) == 2;

  // Lines lie without gaps, their pieces of four elements in an order that depends on the line, so that lanes
  // that load together meet other banks: 8 lanes of float32, 16 of halves. Of A lane (g, t) loads piece t of
  // a step of line g, of B stored [n, k] piece t of line first_of_four(g); of B stored [k, n] piece
  // first_of_four(g) / 4 of line 4t on, where two lanes of halves meet; of A stored [k, m] neighbouring rows,
  // 2 MT of them from 2 MT g on, of line 4t on.
  static __device__ __forceinline__ int key_a(int line) {
    if (S::TA) return line / 4 % 4 * 4;
    return HALVES ? line % 4 * 4 : line / 2 % 4 | line % 2 * 4;
  }
  static __device__ __forceinline__ int key_b(int line) {
    if (HALVES) return S::TB ? line / 4 % 2 * 4 | line / 16 % 2 * 8 : line / 4 % 2 * 2;
    return S::TB ? line / 4 % 8 : line / 4 % 4;
  }

  // A tile of both. What is not there becomes zeros; addresses beyond the operands are not read.
  template <class A>
  static __device__ __forceinline__ void fetch(Stored *to, const A &lines, const Stored *b, int chunk,
                                               int rows, int columns) {
    const int k0 = chunk * DEEP;
    if constexpr (S::TA) {
      constexpr int ACROSS_A = ROWS / EACH, LINES = THREADS / ACROSS_A;
      const int line0 = threadIdx.x / ACROSS_A, row = threadIdx.x % ACROSS_A * EACH;
#pragma unroll
      for (int i = 0; i < DEEP; i += LINES) {
        const int line = line0 + i;
        Stored *const goal = to + line * ROWS + (row / 4 ^ key_a(line)) * 4;
        copy<EACH>(goal, lines.at(k0 + line) + row, row < rows && k0 + line < K);
      }
    } else {
      const int line0 = threadIdx.x / PIECES, k = threadIdx.x % PIECES * EACH;
      Stored *const goal = to + line0 * DEEP + (k / 4 ^ key_a(line0)) * 4;
#pragma unroll
      for (int i = 0; i < ROWS; i += THREADS / PIECES)
        copy<EACH>(goal + i * DEEP, lines.at(line0 + i) + k0 + k, line0 + i < rows && k0 + k < K);
    }
    to += A_SIZE;
    if constexpr (S::TB) {
      const int line0 = threadIdx.x / PIECES, k = threadIdx.x % PIECES * EACH;
      const Stored *const from = b + (i64)line0 * S::LDB + k0 + k;
#pragma unroll
      for (int i = 0; i < COLUMNS; i += THREADS / PIECES) {
        const int line = line0 + i;
        Stored *const goal = to + line * DEEP + (k / 4 ^ key_b(line)) * 4;
        copy<EACH>(goal, from + (i64)i * S::LDB, line < columns && k0 + k < K);
      }
    } else {
      constexpr int ACROSS_B = COLUMNS / EACH, LINES = THREADS / ACROSS_B;
      const int line0 = threadIdx.x / ACROSS_B, column = threadIdx.x % ACROSS_B * EACH;
      const Stored *const from = b + (i64)(k0 + line0) * S::LDB + column;
#pragma unroll
      for (int i = 0; i < DEEP; i += LINES) {
        const int line = line0 + i;
        Stored *const goal = to + line * COLUMNS + (column / 4 ^ key_b(line)) * 4;
        copy<EACH>(goal, from + (i64)i * S::LDB, column < columns && k0 + line < K);
      }
    }
  }
  static __device__ __forceinline__ void four(T (&v)[4], const Stored *at) {
    Stored x[4];
    near<4>(x, at);
#pragma unroll
    for (int q = 0; q < 4; q++) v[q] = widened(x[q]);
  }
  // 16 k from k0 on, of which lane t takes four from 4t on; a and b point to what it takes where k0 = 0.
  static __device__ __forceinline__ void multiply(T (&c)[MT][1][NT][4], const Stored *a, const Stored *b,
                                                  int k0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (HALVES) {
      multiply_halves(c, a, b, k0);
      return;
    }
#endif
    typename Arithmetic::B right[NT];
#pragma unroll
    for (int j = 0; j < NT; j += 4) {
      T v[4][4], w[4][4];
#pragma unroll
      for (int q = 0; q < 4; q++)
        four(v[q], b + (S::TB ? (8 * j + q) * DEEP : (k0 + q) * COLUMNS + 8 * j));
#pragma unroll
      for (int x = 0; x < 16; x++) w[x / 4][x % 4] = S::TB ? v[x / 4][x % 4] : v[x % 4][x / 4];
#pragma unroll
      for (int q = 0; q < 4; q++) right[j + q] = Arithmetic::columns(w[q]);
    }
    T turned[4][2 * MT];
    if constexpr (S::TA) {
#pragma unroll
      for (int q = 0; q < 4; q++) {
        Stored x[2 * MT];
        near<2 * MT>(x, a + (k0 + q) * ROWS);
#pragma unroll
        for (int r = 0; r < 2 * MT; r++) turned[q][r] = widened(x[r]);
      }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
      T v[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if constexpr (S::TA) {
#pragma unroll
          for (int q = 0; q < 4; q++) v[h][q] = turned[q][2 * m + h];
        } else
          four(v[h], a + (16 * m + 8 * h) * DEEP);
      }
      const typename Arithmetic::A left[1] = {Arithmetic::rows(v)};
      Arithmetic::multiply(c[m], left, right);
    }
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // Of words of two neighbours in two lines of k, the word of one of them.
  static __device__ __forceinline__ u32 along_k(u32 line, u32 next, int which) {
    return __byte_perm(line, next, which ? 0x7632 : 0x5410);
  }
  // The same of halves; of factors stored [k, m] and [k, n] words of two neighbours become words of two k.
  static __device__ __forceinline__ void multiply_halves(T (&c)[MT][1][NT][4], const Stored *a,
                                                         const Stored *b, int k0) {
    u32 right[NT][2];
#pragma unroll
    for (int j = 0; j < NT; j += 4) {
      u32 v[4][2];
#pragma unroll
      for (int q = 0; q < 4; q++)
        near<2>(v[q], (const u32 *)(b + (S::TB ? (8 * j + q) * DEEP : (k0 + q) * COLUMNS + 8 * j)));
#pragma unroll
      for (int x = 0; x < 8; x++) {
        const int q = x / 2, i = x % 2;
        right[j + q][i] = S::TB ? v[q][i] : along_k(v[2 * i][q / 2], v[2 * i + 1][q / 2], q % 2);
      }
    }
    u32 turned[4][MT];
    if constexpr (S::TA) {
#pragma unroll
      for (int q = 0; q < 4; q++) near<MT>(turned[q], (const u32 *)(a + (k0 + q) * ROWS));
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
      u32 left[2][2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if constexpr (S::TA) {
#pragma unroll
          for (int i = 0; i < 2; i++) left[h][i] = along_k(turned[2 * i][m], turned[2 * i + 1][m], h);
        } else
          near<2>(left[h], (const u32 *)(a + (16 * m + 8 * h) * DEEP));
      }
#pragma unroll
      for (int j = 0; j < NT; j++) multiply_words(c[m][0][j], left, right[j], Stored{});
    }
  }
#endif
  template <class Slots, class A>
  static __device__ __forceinline__ void run(const Slots &s, int block, char *memory, A lines) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row0 = block / ACROSS * ROWS, column0 = block % ACROSS * COLUMNS;
    const int y0 = warp / WN * 16 * MT, x0 = warp % WN * 8 * NT;
    Stored *const tiles = (Stored *)memory;
    const Stored *const b = s.b + (S::TB ? (i64)column0 * S::LDB : column0);
    wait_for_earlier_kernels();
    lines.find((const Stored **)(tiles + BUFFERS * SIZE), row0, ROWS, M);
    if constexpr (!S::PICKED) lines.first += S::TA ? row0 : row0 * lines.step;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
      if (i < CHUNKS) fetch(tiles + i * SIZE, lines, b, i, M - row0, N - column0);
      end_of_copies();
    }
    let_later_kernels_start();
    // What a lane takes of a tile; pieces of the next 16 k are 16 elements on or back.
    const int a0 = S::TA ? 4 * t * ROWS + ((y0 + 2 * MT * g) / 4 ^ key_a(4 * t)) * 4
                         : (y0 + g) * DEEP + (t ^ key_a(g)) * 4;
    const int b0 = A_SIZE + (S::TB ? (x0 + first_of_four(g)) * DEEP + (t ^ key_b(first_of_four(g))) * 4
                                   : 4 * t * COLUMNS + x0 + (first_of_four(g) / 4 ^ key_b(4 * t)) * 4);
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
      for (int k = 0; k < DEEP; k += 16) {
        const Stored *const tile = tiles + now * SIZE;
        multiply(c, tile + (S::TA ? a0 : a0 ^ k), tile + (S::TB ? b0 ^ k : b0), k);
      }
      now = now + 1 < STAGES ? now + 1 : 0;
    }
#pragma unroll
    for (int x = 0; x < MT * 2; x++)
#pragma unroll
      for (int j = 0; j < NT; j += 4)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int row = row0 + y0 + (S::TA ? 2 * MT * g + x : 8 * x + g);
          const int column = column0 + x0 + 8 * j + 4 * t + 16 * e;
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
  typedef typename S::Stored Stored;
  static constexpr int M = S::M, N = S::N, K = S::K, MT = S::MT, NT = S::NT, WN = S::WN, STEPS = S::STEPS;
  static constexpr int THREADS = Tile::THREADS, ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, QUADS = MT * NT;
  static constexpr int ACROSS = (N + COLUMNS - 1) / COLUMNS, TILES = (M + ROWS - 1) / ROWS;
  static constexpr int EACH = (TILES + S::SPLIT - 1) / S::SPLIT;  // tiles of a block
  static constexpr int A_SIZE = STEPS * 16 * Tile::LA;
  // What formulas read is fetched before it is needed: little of it while the tile before is multiplied.
  static constexpr bool HOLD = QUADS * F::READS <= 24, AHEAD = QUADS * F::READS <= 8;

  template <class A>
  static __device__ __forceinline__ void fetch_a(Stored *to, const A &lines, int row0) {
    constexpr int ACROSS_A = ROWS / 4, LINES = THREADS / ACROSS_A;
    const int k0 = threadIdx.x / ACROSS_A, row = threadIdx.x % ACROSS_A * 4;
#pragma unroll
    for (int i = 0; i < STEPS * 16; i += LINES)
      copy<4>(to + (k0 + i) * Tile::LA + row, lines.at(k0 + i) + row0 + row, k0 + i < K && row0 + row < M);
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
    Stored *const a = (Stored *)memory, *const b = a + 2 * A_SIZE;
    wait_for_earlier_kernels();
    lines.find((const Stored **)(b + STEPS * 16 * Tile::LB), 0, STEPS * 16, K);
    Tile::template fetch<COLUMNS, 4, Tile::LB>(b, s.b, S::LDB, column0, N, 0, STEPS);
    fetch_a(a, lines, first * ROWS);
    end_of_copies();
    let_later_kernels_start();
    typename F::Values held[HOLD ? QUADS : 1], next[AHEAD ? QUADS : 1];
    const int column = column0 + x0 + 4 * t;
    const auto hold = [&](typename F::Values *to, int tile) {
      each(tile * ROWS + y0 + 2 * MT * g, column, [&](int x, int y, int z) { F::read(s, to[x], y, z); });
    };
    if (AHEAD && first < last) hold(next, first);
#pragma unroll 1
    for (int tile = first, now = 0; tile < last; tile++, now ^= 1) {
      const int row = tile * ROWS + y0 + 2 * MT * g;
      if (tile + 1 < last) fetch_a(a + (now ^ 1) * A_SIZE, lines, (tile + 1) * ROWS);
      end_of_copies();
      if (AHEAD) {
#pragma unroll
        for (int x = 0; x < QUADS; x++) held[x] = next[x];
        if (tile + 1 < last) hold(next, tile + 1);
      } else if (HOLD)
        hold(held, tile);
      wait_for_copies<1>();
      __syncthreads();
      T c[MT][NT][4];
#pragma unroll
      for (int x = 0; x < MT * NT * 4; x++) c[x / (NT * 4)][x / 4 % NT][x % 4] = 0;
      Tile::template sum<0, STEPS>(c, a + now * A_SIZE + y0 + 2 * MT * g + t * Tile::LA,
                                   b + x0 + Tile::left(g) + t * Tile::LB);
      __syncthreads();
      each(row, column, [&](int x, int y, int z) {
        T total[4];
        Tile::take(total, c, x);
        if (!HOLD) F::read(s, held[0], y, z);
        F::finish(s, held[HOLD ? x : 0], y, z, total);
      });
    }
  }
};

}  // namespace gemm
"""
