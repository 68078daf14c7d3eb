"""Kernels of QR with exchanges of columns, as LAPACK's geqp3: matrices [m, n] that lie column by column.

Of the columns in front of it, a block of reflections has changed all in front of the block, and in columns
behind it rows of R alone: what it does to the others is F, one row for each column, until a product of
matrices does it for all (Quintana-Orti, Sun and Bischof, A BLAS-3 version of the QR factorization with column
pivoting, 1998). Lengths of what is left of columns are kept as in Drmac and Bujanovic, On the failure of
rank-revealing QR factorization software, 2008; one of which few digits are left is computed anew at once.

A step is two launches, whose arguments are the same for all steps: which it is lies in memory. So the steps
of a block are a graph that is launched again for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN

from .moved import parameters

BLOCK = 32  # columns between two products of the whole rest
THREADS = 128  # of a block that has columns
ROWS, _MANY = 128, 1024  # of a block that looks for the longest column, and its threads
TOGETHER = 256  # rows from which on a block has a column, of which a warp has one else

_TEXT = r"""
namespace pivoted {
constexpr int BLOCK = @BLOCK, THREADS = @THREADS, ROWS = @ROWS, MANY = @MANY;
constexpr u32 ALL = 0xffffffffu;
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }

// Real and complex numbers T alike: REAL is what their sizes are.
template <class REAL> struct Complex { REAL x, y; };
#define REALS template <class REAL> __device__ __forceinline__
REALS Complex<REAL> operator+(Complex<REAL> a, Complex<REAL> b) { return {a.x + b.x, a.y + b.y}; }
REALS Complex<REAL> operator-(Complex<REAL> a, Complex<REAL> b) { return {a.x - b.x, a.y - b.y}; }
REALS Complex<REAL> operator-(Complex<REAL> a) { return {-a.x, -a.y}; }
REALS Complex<REAL> operator*(Complex<REAL> a, Complex<REAL> b) {
  return {fma(a.x, b.x, -a.y * b.y), fma(a.x, b.y, a.y * b.x)};
}
REALS Complex<REAL> &operator+=(Complex<REAL> &a, Complex<REAL> b) { return a = a + b; }
REALS Complex<REAL> &operator-=(Complex<REAL> &a, Complex<REAL> b) { return a = a - b; }
REALS REAL added(REAL a, REAL b, REAL c) { return fma(a, b, c); }
REALS Complex<REAL> added(Complex<REAL> a, Complex<REAL> b, Complex<REAL> c) {
  return {fma(a.x, b.x, fma(-a.y, b.y, c.x)), fma(a.x, b.y, fma(a.y, b.x, c.y))};
}
REALS REAL squared(REAL a, REAL c) { return fma(a, a, c); }
REALS REAL squared(Complex<REAL> a, REAL c) { return fma(a.x, a.x, fma(a.y, a.y, c)); }
REALS REAL conjugate(REAL a) { return a; }
REALS Complex<REAL> conjugate(Complex<REAL> a) { return {a.x, -a.y}; }
REALS REAL real(REAL a) { return a; }
REALS REAL real(Complex<REAL> a) { return a.x; }
REALS REAL imaginary(REAL a) { return 0; }
REALS REAL imaginary(Complex<REAL> a) { return a.y; }
REALS REAL size_of(REAL a) { return a; }
REALS REAL size_of(Complex<REAL> a) { return root(squared(a, (REAL)0)); }
REALS REAL over(REAL a, REAL b) { return a / b; }
REALS Complex<REAL> over(Complex<REAL> a, REAL b) { return {a.x / b, a.y / b}; }
REALS REAL inverse(REAL a) { return 1 / a; }
REALS Complex<REAL> inverse(Complex<REAL> a) { return over(conjugate(a), squared(a, (REAL)0)); }
REALS REAL across(REAL a, int apart) { return __shfl_xor_sync(ALL, a, apart); }
REALS Complex<REAL> across(Complex<REAL> a, int apart) { return {across(a.x, apart), across(a.y, apart)}; }
REALS REAL of_lane(REAL a, int lane) { return __shfl_sync(ALL, a, lane); }
REALS Complex<REAL> of_lane(Complex<REAL> a, int lane) { return {of_lane(a.x, lane), of_lane(a.y, lane)}; }
#undef REALS

// What is left of a length is computed anew below the first, the square root of half the distance from 1 to
// the next number. Squares from the second on have all digits.
template <class REAL> struct Limits;
template <> struct Limits<double> {
  static constexpr double cancelled = 0x1p-26 * 0.70710678, least = 0x1p-970;
};
template <> struct Limits<float> {
  static constexpr float cancelled = 0x1p-12f, least = 0x1p-103f;
};

template <int THREADS_OF_COLUMN, class T> __device__ __forceinline__ T summed(T x, T *room) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += across(x, apart);
  if constexpr (THREADS_OF_COLUMN > 32) {
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = room[0];
    for (int w = 1; w < THREADS / 32; ++w) x += room[w];
    __syncthreads();
  }
  return x;
}

// The largest of a warp's numbers, and the first place that has it.
template <class REAL> __device__ __forceinline__ void longest_of(REAL &most, int &at) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    const REAL other = __shfl_xor_sync(ALL, most, apart);
    const int place = __shfl_xor_sync(ALL, at, apart);
    if (other > most || (other == most && place < at)) most = other, at = place;
  }
}

// The length of each column, twice: of what is left of it, and when that was last computed.
template <class T, class REAL> __device__ __forceinline__ void
lengths(const T *a, REAL *norms, i64 *order, i64 *state, i64 m, i64 n) {
  __shared__ REAL room[THREADS / 32];
  const i64 j = blockIdx.x;
  REAL sum = 0;
  for (i64 i = threadIdx.x; i < m; i += THREADS) sum = squared(a[j * m + i], sum);
  sum = summed<THREADS>(sum, room);
  if (threadIdx.x == 0) {
    norms[j] = norms[n + j] = root(sum);
    order[j] = j;
    if (j == 0) state[0] = 0;
  }
}

// The longest column left changes places with column state[0], and goes to `c` as the reflections before it
// leave it. `parts` gets, for the rows of each block, products of the columns of these with what is below the
// diagonal, and behind them its own with itself.
template <class T, class REAL> __device__ __forceinline__ void
longest(T *a, const T *f, T *c, const REAL *norms, T *parts, i64 *state, i64 m, i64 n, i64 steps) {
  constexpr int WARPS = MANY / 32, GROUPS = MANY / ROWS, EACH = BLOCK / GROUPS, APART = ROWS / 32;
  static_assert(WARPS == 32 && EACH == 4);
  __shared__ REAL lengths_of[WARPS];
  __shared__ T by[BLOCK], taken[GROUPS][ROWS], values[ROWS], sums[WARPS][EACH + 1];
  __shared__ int places[WARPS];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, group = t / ROWS;
  const i64 row = state[0];
  if (row >= steps) {
    if (blockIdx.x == 0 && t == 0) state[1] = row;
    return;
  }
  const int k = (int)(row % BLOCK);
  const i64 first = row - k, i = (i64)blockIdx.x * ROWS + t % ROWS;
  // A thread has four of the block's columns in one row, which no choice of a column changes.
  T v[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int q = group * EACH + e;
    v[e] = q < k && i >= row && i < m ? a[(first + q) * m + i] : T{};
  }
  REAL most = -1;
  int at = (int)row;
  for (i64 j = row + t; j < n; j += MANY)
    if (norms[j] > most) most = norms[j], at = (int)j;
  longest_of(most, at);
  if (lane == 0) lengths_of[warp] = most, places[warp] = at;
  __syncthreads();
  most = lengths_of[lane], at = places[lane];
  longest_of(most, at);
  if (t < BLOCK) by[t] = t < k ? f[(i64)at * BLOCK + t] : T{};
  T x{}, y{};
  if (group == 0 && i < m) {
    x = a[at * m + i];
    y = a[row * m + i];
  }
  __syncthreads();
  T part{};
#pragma unroll
  for (int e = 0; e < EACH; ++e) part = added(v[e], by[group * EACH + e], part);
  taken[group][t % ROWS] = part;
  __syncthreads();
  if (group == 0) {
    if (i < m) {
      if (at != row) a[at * m + i] = y;
      if (i < row) a[row * m + i] = x;
      else {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) x -= taken[g][t];
        c[i] = x;
      }
    }
    values[t] = i > row && i < m ? x : T{};
  }
  __syncthreads();
  // Sums over rows: lanes halve what they add, until each has one of the four.
  const T value = values[t % ROWS], turned = conjugate(value);
  const bool odd = lane & 1, second = lane & 2;
  T low = turned * (odd ? v[2] : v[0]), high = turned * (odd ? v[3] : v[1]);
  low += across(turned * (odd ? v[0] : v[2]), 1);
  high += across(turned * (odd ? v[1] : v[3]), 1);
  T sum = second ? high : low;
  sum += across(second ? low : high, 2);
#pragma unroll
  for (int apart = 4; apart < 32; apart *= 2) sum += across(sum, apart);
  if (lane < EACH) sums[warp][odd * 2 + second] = sum;
  if (group == 0) {
    const REAL own = summed<32>(squared(value, (REAL)0), lengths_of);
    if (lane == 0) sums[warp][EACH] = T{own};
  }
  __syncthreads();
  if (t < k || t == BLOCK) {
    const int from = t == BLOCK ? 0 : t / EACH * APART, which = t == BLOCK ? EACH : t % EACH;
    T all{};
#pragma unroll
    for (int w = 0; w < APART; ++w) all += sums[from + w][which];
    parts[blockIdx.x * (BLOCK + 1) + t] = all;
  }
  if (blockIdx.x == 0 && t == 0) state[1] = row, state[2] = at;
}

// The reflection of `c`, column state[1], which changed places with column state[2]: what it makes of the
// column, of the row of R, of F, and of lengths. The first `heads` blocks write the column, the others have
// columns behind it.
template <int THREADS_OF_COLUMN, class T, class REAL> __device__ __forceinline__ void
reflected(T *a, T *f, const T *c, REAL *norms, const T *parts, i64 *state, i64 *order, T *scales, i64 m,
          i64 n, i64 steps, i64 heads) {
  __shared__ T room[THREADS / 32], sums[BLOCK + 1], by[BLOCK], above[BLOCK];
  const int t = threadIdx.x, lane = t % 32;
  const i64 row = state[1], at = state[2];
  if (row >= steps) return;
  const int k = (int)(row % BLOCK);
  const i64 first = row - k;
  constexpr int TOGETHER = THREADS_OF_COLUMN, COLUMNS = THREADS / TOGETHER;
  const i64 j = row + 1 + ((i64)blockIdx.x - heads) * COLUMNS + t / TOGETHER, from = j == at ? row : j;
  const bool is_head = (i64)blockIdx.x < heads, has_column = !is_head && j < n;
  // All that is read is asked for before anything is waited for.
  T sum{}, own{}, mine{}, old{}, dot{};
  REAL length = 0, known = 0;
  if (t <= k) {
    const T *const part = parts + (t == k ? BLOCK : t);
#pragma unroll 4
    for (i64 b = 0; b < heads; ++b) sum += part[b * (BLOCK + 1)];
    own = t < k ? a[(first + t) * m + row] : T{};
  }
  const T head = c[row];
  T *const x = a + (has_column ? j : row) * m;
  if (has_column) {
    mine = lane < k ? f[from * BLOCK + lane] : T{};
    old = x[row];
    length = norms[from];
    known = norms[n + from];
#pragma unroll 8
    for (i64 i = row + 1 + t % TOGETHER; i < m; i += TOGETHER) dot = added(x[i], conjugate(c[i]), dot);
  }
  if (t <= k) sums[t == k ? BLOCK : t] = sum;
  __syncthreads();
  const REAL rest = real(sums[BLOCK]), square = squared(head, rest);
  T beta = head, scale{}, less{};
  // else it is nothing beside the largest number
  if ((rest > 0 || imaginary(head) != 0) && square > Limits<REAL>::least) {
    const REAL size = real(head) > 0 ? -root(square) : root(square);
    beta = T{size};
    scale = over(beta - head, size);
    less = inverse(head - beta);
  }
  const T back = conjugate(less);
  if (is_head) {
#pragma unroll
    for (i64 i = (i64)blockIdx.x * ROWS + t; i < ((i64)blockIdx.x + 1) * ROWS; i += THREADS)
      if (i >= row && i < m) a[row * m + i] = i == row ? beta : c[i] * less;
    if (blockIdx.x == 0 && t == 0) {
      scales[row] = scale;
      state[0] = row + 1;
      const i64 number = order[at];
      order[at] = order[row];
      order[row] = number;
    }
    return;
  }
  if (t < k) {
    above[t] = own;
    by[t] = added(back, sums[t], own);
  }
  __syncthreads();
  if (!has_column) return;  // a warp, or all
  dot = summed<TOGETHER>(dot, room);
  const T taken = summed<32>(lane < k ? mine * by[lane] : T{}, room);
  const T made = summed<32>(lane < k ? mine * above[lane] : T{}, room);
  const T next = conjugate(scale) * (added(back, dot, old) - taken), r = old - made - next;
  if (j == at && t % TOGETHER < k) f[j * BLOCK + lane] = mine;
  if (t % TOGETHER == 0) {
    f[j * BLOCK + k] = next;
    x[row] = r;
  }
  if (length > 0) {
    const REAL part = size_of(r) / length, beside = length / known, left = fma(-part, part, (REAL)1);
    if (left * beside * beside <= Limits<REAL>::cancelled) {  // few digits are left of it
      REAL sum = 0;
      for (i64 i = row + 1 + t % TOGETHER; i - t % TOGETHER < m; i += TOGETHER) {
        const i64 place = i < m ? i : m - 1;
        T y = added(-(c[place] * less), next, x[place]);
        for (int q = 0; q < k; ++q) y = added(-a[(first + q) * m + place], of_lane(mine, q), y);
        if (i < m) sum = squared(y, sum);
      }
      length = known = root(summed<TOGETHER>(sum, (REAL *)room));
    } else
      length *= root(left);
  }
  if (t % TOGETHER == 0) {
    norms[j] = length;
    norms[n + j] = known;
  }
}

}  // namespace pivoted
"""
LIBRARY = _TEXT
for _name, _value in {"BLOCK": BLOCK, "THREADS": THREADS, "ROWS": ROWS, "MANY": _MANY}.items():
    LIBRARY = LIBRARY.replace(f"@{_name}", str(_value))
_SLOTS = {
    "lengths": ("a", "norms", "order", "state", "m", "n"),
    "longest": ("a", "f", "c", "norms", "parts", "state", "m", "n", "steps"),
    "reflected": (
        "a", "f", "c", "norms", "parts", "state", "order", "scales", "m", "n", "steps", "heads",
    ),
}  # fmt: skip
_NUMBERS, _WORDS = ("a", "f", "c", "parts", "scales"), ("state", "order")
_OF_COMPLEX = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class PivotedPart:
    """A kernel of a step, or the one before all steps.

    Slots: `a`, the matrix; `f`, [n, BLOCK]; `c`, m numbers; `norms`, 2 n; `parts`, `BLOCK` + 1 for each
    `ROWS` rows; `state`, three words; `order`, n words, counted from 0; `scales`, of reflections; `steps`,
    the smaller of m and n; `heads`, blocks that have rows.

    Attributes:
        dtype: of the elements.
        part: "lengths", "longest" or "reflected".
        together: threads of a column, a warp or a block.
    """

    dtype: str
    part: str
    together: int = 0
    libraries = (LIBRARY,)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, in its order."""
        return _SLOTS[self.part]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _MANY if self.part == "longest" else THREADS

    def text(self, name: str) -> str:
        """The text of the kernel, called `name`, in CUDA."""
        real = MEMORY[_OF_COMPLEX.get(self.dtype, self.dtype)]
        item = f"pivoted::Complex<{real}>" if self.dtype in _OF_COMPLEX else real
        numbers = dict.fromkeys(_NUMBERS, f"{item} *")
        words = dict.fromkeys(_WORDS, "i64 *")
        kinds = parameters(self.slots, norms=f"{real} *", **numbers, **words)
        by = f"{self.part}<{self.together}>" if self.together else self.part
        return f"""extern "C" __global__ void __launch_bounds__({self.threads}) {name}({kinds}) {{
{BEGIN}  pivoted::{by}({", ".join(self.slots)});
}}
"""
