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
THREADS = 128  # of a block of any kernel
TOGETHER = 1024  # rows from which on a block has a column, of which a warp has one else

_TEXT = r"""
namespace pivoted {
constexpr int BLOCK = @BLOCK, THREADS = @THREADS;
constexpr u32 ALL = 0xffffffffu;
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }

// What is left of a length is computed anew below the first, the square root of half the distance from 1 to
// the next number. Squares from the second on have all digits.
template <class REAL> struct Limits;
template <> struct Limits<double> {
  static constexpr double cancelled = 0x1p-26 * 0.70710678, least = 0x1p-970;
};
template <> struct Limits<float> {
  static constexpr float cancelled = 0x1p-12f, least = 0x1p-103f;
};

template <int THREADS_OF_COLUMN, class REAL> __device__ __forceinline__ REAL summed(REAL x, REAL *room) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(ALL, x, apart);
  if constexpr (THREADS_OF_COLUMN > 32) {
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = room[0];
    for (int w = 1; w < THREADS / 32; ++w) x += room[w];
    __syncthreads();
  }
  return x;
}

// The length of each column, twice: of what is left of it, and when that was last computed.
template <class REAL> __device__ __forceinline__ void
lengths(const REAL *a, REAL *norms, i64 *order, i64 *state, i64 m, i64 n) {
  __shared__ REAL room[THREADS / 32];
  const i64 j = blockIdx.x;
  REAL sum = 0;
  for (i64 i = threadIdx.x; i < m; i += THREADS) sum = fma(a[j * m + i], a[j * m + i], sum);
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
template <class REAL> __device__ __forceinline__ void
longest(REAL *a, const REAL *f, REAL *c, const REAL *norms, REAL *parts, i64 *state, i64 m, i64 n,
        i64 steps) {
  __shared__ REAL lengths_of[THREADS / 32], by[BLOCK], values[THREADS];
  __shared__ int places[THREADS / 32];
  const int t = threadIdx.x, lane = t % 32;
  const i64 row = state[0];
  if (row >= steps) {
    if (blockIdx.x == 0 && t == 0) state[1] = row;
    return;
  }
  const int k = (int)(row % BLOCK);
  const i64 first = row - k;
  REAL most = -1;
  int at = (int)row;
  for (i64 j = row + t; j < n; j += THREADS)
    if (norms[j] > most) most = norms[j], at = (int)j;
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    const REAL other = __shfl_xor_sync(ALL, most, apart);
    const int place = __shfl_xor_sync(ALL, at, apart);
    if (other > most || (other == most && place < at)) most = other, at = place;
  }
  if (lane == 0) lengths_of[t / 32] = most, places[t / 32] = at;
  __syncthreads();
  most = lengths_of[0], at = places[0];
  for (int w = 1; w < THREADS / 32; ++w)
    if (lengths_of[w] > most || (lengths_of[w] == most && places[w] < at))
      most = lengths_of[w], at = places[w];
  if (t < k) by[t] = f[(i64)at * BLOCK + t];
  __syncthreads();
  const i64 i = (i64)blockIdx.x * THREADS + t;
  REAL x = 0;
  if (i < m) {
    x = a[at * m + i];
    if (at != row) a[at * m + i] = a[row * m + i];
    if (i < row) a[row * m + i] = x;
    else {
#pragma unroll 8
      for (int q = 0; q < k; ++q) x = fma(-a[(first + q) * m + i], by[q], x);
      c[i] = x;
    }
  }
  values[t] = i > row && i < m ? x : 0;
  __syncthreads();
  const i64 begin = (i64)blockIdx.x * THREADS;
  for (int q = t / 32; q <= k; q += THREADS / 32) {
    REAL sum = 0;
#pragma unroll
    for (int e = lane; e < THREADS; e += 32) {
      const REAL y = q == k ? values[e] : begin + e < m ? a[(first + q) * m + begin + e] : 0;
      sum = fma(y, values[e], sum);
    }
    sum = summed<32>(sum, values);
    if (lane == 0) parts[blockIdx.x * (BLOCK + 1) + (q == k ? BLOCK : q)] = sum;
  }
  if (blockIdx.x == 0 && t == 0) state[1] = row, state[2] = at;
}

// The reflection of `c`, column state[1], which changed places with column state[2]: what it makes of the
// column, of the row of R, of F, and of lengths. The first `heads` blocks write the column, the others have
// columns behind it.
template <int THREADS_OF_COLUMN, class REAL> __device__ __forceinline__ void
reflected(REAL *a, REAL *f, const REAL *c, REAL *norms, const REAL *parts, i64 *state, i64 *order,
          REAL *scales, i64 m, i64 n, i64 steps, i64 heads) {
  __shared__ REAL room[THREADS / 32], sums[BLOCK + 1], by[BLOCK], above[BLOCK];
  const int t = threadIdx.x, lane = t % 32;
  const i64 row = state[1], at = state[2];
  if (row >= steps) return;
  const int k = (int)(row % BLOCK);
  const i64 first = row - k;
  if (t <= k) {
    const int q = t == k ? BLOCK : t;
    REAL sum = 0;
    for (i64 b = 0; b < heads; ++b) sum += parts[b * (BLOCK + 1) + q];
    sums[q] = sum;
  }
  __syncthreads();
  const REAL head = c[row], rest = sums[BLOCK];
  REAL beta = head, scale = 0, less = 0;
  const REAL square = fma(head, head, rest);
  if (rest > 0 && square > Limits<REAL>::least) {  // else it is nothing beside the largest number
    beta = root(square);
    if (head > 0) beta = -beta;
    scale = (beta - head) / beta;
    less = 1 / (head - beta);
  }
  if ((i64)blockIdx.x < heads) {
    const i64 i = (i64)blockIdx.x * THREADS + t;
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
    above[t] = a[(first + t) * m + row];
    by[t] = fma(less, sums[t], above[t]);
  }
  __syncthreads();
  constexpr int TOGETHER = THREADS_OF_COLUMN, COLUMNS = THREADS / TOGETHER;
  const i64 j = row + 1 + ((i64)blockIdx.x - heads) * COLUMNS + t / TOGETHER, from = j == at ? row : j;
  if (j >= n) return;  // a warp, or all
  REAL *const x = a + j * m;
  const REAL mine = lane < k ? f[from * BLOCK + lane] : 0, old = x[row];
  REAL length = norms[from], known = norms[n + from], dot = 0;
#pragma unroll 8
  for (i64 i = row + 1 + t % TOGETHER; i < m; i += TOGETHER) dot = fma(x[i], c[i], dot);
  dot = summed<TOGETHER>(dot, room);
  const REAL taken = summed<32>(lane < k ? mine * by[lane] : 0, room);
  const REAL made = summed<32>(lane < k ? mine * above[lane] : 0, room);
  const REAL next = scale * (fma(less, dot, old) - taken), r = old - made - next;
  if (j == at && t % TOGETHER < k) f[j * BLOCK + lane] = mine;
  if (t % TOGETHER == 0) {
    f[j * BLOCK + k] = next;
    x[row] = r;
  }
  if (length > 0) {
    const REAL part = r / length, beside = length / known, left = fma(-part, part, (REAL)1);
    if (left * beside * beside <= Limits<REAL>::cancelled) {  // few digits are left of it
      REAL sum = 0;
      for (i64 i = row + 1 + t % TOGETHER; i - t % TOGETHER < m; i += TOGETHER) {
        const i64 place = i < m ? i : m - 1;
        REAL y = fma(-(c[place] * less), next, x[place]);
        for (int q = 0; q < k; ++q) y = fma(-a[(first + q) * m + place], __shfl_sync(ALL, mine, q), y);
        if (i < m) sum = fma(y, y, sum);
      }
      length = known = root(summed<TOGETHER>(sum, room));
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
LIBRARY = _TEXT.replace("@BLOCK", str(BLOCK)).replace("@THREADS", str(THREADS))
_SLOTS = {
    "lengths": ("a", "norms", "order", "state", "m", "n"),
    "longest": ("a", "f", "c", "norms", "parts", "state", "m", "n", "steps"),
    "reflected": (
        "a", "f", "c", "norms", "parts", "state", "order", "scales", "m", "n", "steps", "heads",
    ),
}  # fmt: skip
_NUMBERS, _WORDS = ("a", "f", "c", "norms", "parts", "scales"), ("state", "order")


@dataclass(frozen=True)
class PivotedPart:
    """A kernel of a step, or the one before all steps.

    Slots: `a`, the matrix; `f`, [n, BLOCK]; `c`, m numbers; `norms`, 2 n; `parts`, `BLOCK` + 1 for each
    `THREADS` rows; `state`, three words; `order`, n words, counted from 0; `scales`, of reflections; `steps`,
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
        """Names of the parameters, in order."""
        return _SLOTS[self.part]

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        numbers = dict.fromkeys(_NUMBERS, f"{item} *")
        kinds = parameters(self.slots, **numbers, **dict.fromkeys(_WORDS, "i64 *"))
        by = f"{self.part}<{self.together}>" if self.together else self.part
        return f"""extern "C" __global__ void __launch_bounds__({THREADS}) {name}({kinds}) {{
{BEGIN}  pivoted::{by}({", ".join(self.slots)});
}}
"""
