"""The CUDA C++ text of rotations of columns, by which `singular.py` finds singular values and vectors.

A thread has two columns x and y of a matrix [P, Q], or `RA` rows of them, and as many of the product of all
rotations. All pairs of columns meet once in a sweep: each y goes from thread to thread, then those that were
x meet, and those that were y. Sums over rows are those of the threads with the same columns, in one order.
"""

from __future__ import annotations

TEXT = r"""
  const u32 pair = threadIdx.x % L, part = threadIdx.x % GROUP / L, group = threadIdx.x / GROUP;
  const i64 matrix = (i64)blockIdx.x * (THREADS / GROUP) + group;
  const bool is_there = matrix < matrices;
  T *const room = (T *)memory + group * ROOM;
  T *const keys = room, *const sums = keys + 2 * L, *const u = sums + SUMS;
  int *const order = (int *)(u + UNITS);
  const auto meet = [] { if constexpr (W > 1) __syncthreads(); else __syncwarp(); };
  // Sums over rows: of the threads of a warp that have the same columns, and of warps in their order.
  int turn = 0;
  const auto summed = [&](T (&s)[3]) {
#pragma unroll
    for (u32 apart = L; apart < LANES; apart *= 2)
#pragma unroll
      for (u32 k = 0; k < 3; ++k) s[k] += __shfl_xor_sync(0xffffffffu, s[k], (int)apart);
    if constexpr (W > 1) {
      T *const here = sums + turn * (W * 3 * L);
      turn ^= 1;
      if (threadIdx.x % 32 < L)
#pragma unroll
        for (u32 k = 0; k < 3; ++k) here[(threadIdx.x / 32 * 3 + k) * L + pair] = s[k];
      __syncthreads();
#pragma unroll
      for (u32 k = 0; k < 3; ++k) {
        s[k] = here[k * L + pair];
#pragma unroll
        for (u32 w = 1; w < W; ++w) s[k] += here[(w * 3 + k) * L + pair];
      }
    }
  };
  T x[RA], y[RA], vx[RV], vy[RV], most = T(0);
  u32 ix = pair, iy = pair + L;
  bool wrong = false;
#pragma unroll
  for (u32 k = 0; k < RA; ++k) {
    const u32 i = part * RA + k;
    const bool row = is_there && i < P;
    const T *const from = x0 + matrix * x0_step;
    x[k] = row && ix < Q ? from[TALL ? i * Q + ix : ix * P + i] : T(0);
    y[k] = row && iy < Q ? from[TALL ? i * Q + iy : iy * P + i] : T(0);
    if (!(x[k] - x[k] == 0)) wrong = true, x[k] = T(0);
    if (!(y[k] - y[k] == 0)) wrong = true, y[k] = T(0);
    const T a = x[k] < 0 ? -x[k] : x[k], b = y[k] < 0 ? -y[k] : y[k], c = a > b ? a : b;
    most = c > most ? c : most;
  }
#pragma unroll
  for (u32 k = 0; k < RV; ++k) {
    vx[k] = VECTORS && part * RV + k == ix ? T(1) : T(0);
    vy[k] = VECTORS && part * RV + k == iy ? T(1) : T(0);
  }
  // The largest element gets an exponent of 0, so that no square overflows.
#pragma unroll
  for (u32 apart = 1; apart < LANES; apart *= 2) {
    const T other = __shfl_xor_sync(0xffffffffu, most, (int)apart);
    most = other > most ? other : most;
  }
  if constexpr (W > 1) {
    if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = most;
    __syncthreads();
    for (u32 w = 0; w < W; ++w) most = keys[w] > most ? keys[w] : most;
    __syncthreads();
  }
  int power = 0;
  singular::exponent(most, &power);
#pragma unroll
  for (u32 k = 0; k < RA; ++k) {
    x[k] = singular::scaled(x[k], -power);
    y[k] = singular::scaled(y[k], -power);
  }
  const auto products = [&](T (&s)[3]) {
    s[0] = s[1] = s[2] = T(0);
#pragma unroll
    for (u32 k = 0; k < RA; ++k) {
      s[0] = fma(x[k], x[k], s[0]);
      s[1] = fma(y[k], y[k], s[1]);
      s[2] = fma(x[k], y[k], s[2]);
    }
    summed(s);
  };
  // Columns by their lengths, longest first, equal ones by their numbers, whatever places they had after
  // sweeps for other matrices of a warp: the first half are x of threads, the others y.
  T found[3];
  const auto sorted = [&] {
    products(found);
    if (part == 0) {
      keys[pair] = ix < Q ? found[0] : T(-1);
      keys[pair + L] = iy < Q ? found[1] : T(-1);
      order[pair] = (int)ix;
      order[pair + L] = (int)iy;
    }
    meet();
    u32 before_x = 0, before_y = 0;
    if (part == 0) {
      const T kx = keys[pair], ky = keys[pair + L];
#pragma unroll 4
      for (u32 j = 0; j < 2 * L; ++j) {
        const T key = keys[j];
        before_x += key > kx || (key == kx && order[j] < (int)ix);
        before_y += key > ky || (key == ky && order[j] < (int)iy);
      }
    }
    meet();
    if (part == 0) {
      order[before_x] = (int)pair;
      order[before_y] = (int)(pair + L);
    }
    meet();
    const int from_x = order[pair], from_y = order[pair + L];
    const int base = (int)(threadIdx.x % 32 / L * L);
    const singular::Order places = {base + from_x % (int)L, base + from_y % (int)L,
                                    from_x < (int)L, from_y < (int)L};
    places.take(ix, iy);
    T a = found[0], b = found[1];
    places.take(a, b);
    found[0] = a;
    found[1] = b;
#pragma unroll
    for (u32 k = 0; k < RA; ++k) places.take(x[k], y[k]);
    if constexpr (VECTORS)
#pragma unroll
      for (u32 k = 0; k < RV; ++k) places.take(vx[k], vy[k]);
  };
  // Values alone are those of R^T, if A P = Q R by reflections: its columns come to right angles sooner, of
  // whatever sizes those of A are.
  if constexpr (REFLECTS) {
    bool left_x = ix < Q, left_y = iy < Q;
#pragma unroll 1
    for (u32 row = 0; row < Q; ++row) {
      T s[3] = {T(0), T(0), T(0)};
#pragma unroll
      for (u32 k = 0; k < RA; ++k) {
        const u32 i = part * RA + k;
        if (i == row) s[2] = x[k];
        if (i < row) continue;
        s[0] = fma(x[k], x[k], s[0]);
        s[1] = fma(y[k], y[k], s[1]);
      }
      summed(s);
      const T head_x = s[2];
      T longest = left_x ? s[0] : T(-1);
      u32 at = pair;
      if (left_y && s[1] > longest) longest = s[1], at = pair + L;
#pragma unroll
      for (u32 apart = 1; apart < L; apart *= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, longest, (int)apart);
        const u32 place = __shfl_xor_sync(0xffffffffu, at, (int)apart);
        if (other > longest || (other == longest && place < at)) longest = other, at = place;
      }
      const bool goes = is_there && longest > T(TINY), is_y = at >= L;
      const int lane = (int)(threadIdx.x % 32 / L * L + at % L);
      T v[RA];
      s[0] = s[1] = s[2] = T(0);
#pragma unroll
      for (u32 k = 0; k < RA; ++k) {
        const u32 i = part * RA + k;
        v[k] = __shfl_sync(0xffffffffu, is_y ? y[k] : x[k], lane);
        if (i == row) s[2] = y[k];
        if (i < row) v[k] = T(0);
        s[0] = fma(v[k], x[k], s[0]);
        s[1] = fma(v[k], y[k], s[1]);
      }
      summed(s);
      const T head = __shfl_sync(0xffffffffu, is_y ? s[2] : head_x, lane);
      const T size = head < 0 ? -singular::root(longest) : singular::root(longest);
      // (v + size e) / (size (size + head)) times (v + size e)^T
      const T scale = goes ? 1 / (size * (size + head)) : T(0);
      const T by_x = fma(size, head_x, s[0]) * scale, by_y = fma(size, s[2], s[1]) * scale;
      const bool own_x = goes && !is_y && at == pair, own_y = goes && is_y && at == pair + L;
#pragma unroll
      for (u32 k = 0; k < RA; ++k) {
        const u32 i = part * RA + k;
        const T w = i == row ? v[k] + size : v[k];
        x[k] = fma(-w, by_x, x[k]);
        y[k] = fma(-w, by_y, y[k]);
        if (own_x && i >= row) x[k] = i == row ? -size : T(0);
        if (own_y && i >= row) y[k] = i == row ? -size : T(0);
      }
      left_x = left_x && !own_x;
      left_y = left_y && !own_y;
    }
#pragma unroll
    for (u32 k = 0; k < RA; ++k) {
      const u32 i = part * RA + k;
      if (i < Q && ix < Q) u[i * (Q + 1) + ix] = x[k];
      if (i < Q && iy < Q) u[i * (Q + 1) + iy] = y[k];
    }
    meet();
#pragma unroll
    for (u32 k = 0; k < RA; ++k) {
      const u32 i = part * RA + k;
      x[k] = i < Q && ix < Q ? u[ix * (Q + 1) + i] : T(0);
      y[k] = i < Q && iy < Q ? u[iy * (Q + 1) + i] : T(0);
    }
    meet();
  }
  // What is below rounding errors of the largest singular value counts as 0.
  products(found);
  T total = found[0] + found[1];
#pragma unroll
  for (u32 apart = 1; apart < L; apart *= 2) total += __shfl_xor_sync(0xffffffffu, total, (int)apart);
  const double none = (double)total * (EPS * EPS / Q);
  bool active = is_there, late = false;
#pragma unroll 1
  for (int sweep = 0; sweep < MOST_SWEEPS; ++sweep) {
    sorted();
    late = false;
#pragma unroll 1
    for (u32 across = L; across > 0; across /= 2) {
#pragma unroll 1
      for (u32 j = 0; j < across; ++j) {
        T now[3];
        products(now);
        const double a = (double)now[0], b = (double)now[1], g = (double)now[2], gg = g * g, ab = a * b;
        if (active && a > none && b > none && gg > ab * (TOL * TOL)) {
          // tan(2 angle) = 2 g / (b - a), of which the smaller angle is taken.
          const double d = b - a, size = d < 0 ? -d : d, r = singular::inverse_root(fma(d, d, 4 * gg));
          const double w = fma(0.5 * size, r, 0.5), q = singular::inverse_root(w);
          double c = w * q, s = (d < 0 ? -g : g) * r * q;
          const double over = 0.5 * fma(c, c, fma(s, s, -1.0));
          c = fma(-over, c, c);
          s = fma(-over, s, s);
          late = late || gg > ab * (TOL / (2 * Q)) || s * s > TOL / (2 * Q);
          const T cosine = (T)c, sine = (T)s;
#pragma unroll
          for (u32 k = 0; k < RA; ++k) {
            const T one = x[k];
            x[k] = fma(cosine, one, -(sine * y[k]));
            y[k] = fma(sine, one, cosine * y[k]);
          }
          if constexpr (VECTORS)
#pragma unroll
            for (u32 k = 0; k < RV; ++k) {
              const T one = vx[k];
              vx[k] = fma(cosine, one, -(sine * vy[k]));
              vy[k] = fma(sine, one, cosine * vy[k]);
            }
        }
        // Each y meets each x of so many neighbours; then those that were x meet, and those that were y.
        const bool is_last = j + 1 == across;
        if (is_last && across == 1) break;
        const int apart = (int)(is_last ? across / 2 : j ^ (j + 1));
        const bool swaps = is_last && (pair & apart);
        singular::move(ix, iy, swaps, apart);
#pragma unroll
        for (u32 k = 0; k < RA; ++k) singular::move(x[k], y[k], swaps, apart);
        if constexpr (VECTORS)
#pragma unroll
          for (u32 k = 0; k < RV; ++k) singular::move(vx[k], vy[k], swaps, apart);
      }
    }
    // Turned by angles below, no two columns are further from a right angle than was allowed.
    u32 goes_on = late;
#pragma unroll
    for (u32 apart = 1; apart < L; apart *= 2) goes_on |= __shfl_xor_sync(0xffffffffu, goes_on, (int)apart);
    late = goes_on != 0;
    active = active && late;
    u32 any = active;
#pragma unroll
    for (u32 apart = LANES; apart < 32; apart *= 2) any |= __shfl_xor_sync(0xffffffffu, any, (int)apart);
    if (!any) break;
  }
  wrong = wrong || active;
  sorted();
  T *const to = result + matrix * columns;
  if (is_there && part == 0) {
    if (ix < Q) to[pair] = singular::scaled(singular::root(found[0]), power);
    if (iy < Q) to[pair + L] = singular::scaled(singular::root(found[1]), power);
  }
  if constexpr (VECTORS) {
    const bool has_x = ix < Q, has_y = iy < Q;
    const bool good_x = (double)found[0] > none, good_y = (double)found[1] > none;
    const T less_x = good_x ? 1 / singular::root(found[0]) : T(0);
    const T less_y = good_y ? 1 / singular::root(found[1]) : T(0);
    int good = is_there ? (int)good_x + (int)good_y : (int)SIDE;
#pragma unroll
    for (u32 apart = 1; apart < L; apart *= 2) good += __shfl_xor_sync(0xffffffffu, good, (int)apart);
    T *const left = to + Q, *const right = left + (TALL ? P * SIDE : Q * Q);
#pragma unroll
    for (u32 k = 0; k < RA; ++k) {
      const u32 i = part * RA + k;
      if (i >= P) break;
      if (has_x) u[pair * (P + 1) + i] = x[k] * less_x;
      if (has_y) u[(pair + L) * (P + 1) + i] = y[k] * less_y;
    }
#pragma unroll
    for (u32 k = 0; k < RV; ++k) {
      const u32 i = part * RV + k;
      if (i >= Q || !is_there) break;
      if (has_x) (TALL ? right[pair * Q + i] : left[i * Q + pair]) = vx[k];
      if (has_y) (TALL ? right[(pair + L) * Q + i] : left[i * Q + pair + L]) = vy[k];
    }
    // Columns that are missing: units with the columns before them taken away, twice.
    int first = good;
#pragma unroll
    for (u32 apart = LANES; apart < 32; apart *= 2) {
      const int other = __shfl_xor_sync(0xffffffffu, first, (int)apart);
      first = other < first ? other : first;
    }
    T *const v = sums + 6 * W * L, *const taken = v + P;
    meet();
    for (int c = first; c < (int)SIDE; ++c) {
      const bool mine = c >= good;
      const u32 thread = threadIdx.x % GROUP;
      for (u32 i = thread; i < P; i += GROUP) {
        T rest = T(1);
        for (int j = 0; j < c; ++j) rest -= u[j * (P + 1) + i] * u[j * (P + 1) + i];
        v[i] = rest;
      }
      meet();
      u32 at = 0;
      for (u32 i = 1; i < P; ++i)
        if (v[i] > v[at]) at = i;
      meet();
      for (u32 i = thread; i < P; i += GROUP) v[i] = i == at ? T(1) : T(0);
      for (int again = 0; again < 2; ++again) {
        meet();
        for (int j = (int)thread; j < c; j += (int)GROUP) {
          T sum = T(0);
          for (u32 i = 0; i < P; ++i) sum = fma(u[j * (P + 1) + i], v[i], sum);
          taken[j] = sum;
        }
        meet();
        for (u32 i = thread; i < P; i += GROUP) {
          T rest = v[i];
          for (int j = 0; j < c; ++j) rest = fma(-taken[j], u[j * (P + 1) + i], rest);
          v[i] = rest;
        }
      }
      meet();
      T square = T(0);
      for (u32 i = 0; i < P; ++i) square = fma(v[i], v[i], square);
      const T less = 1 / singular::root(square);
      if (mine)
        for (u32 i = thread; i < P; i += GROUP) u[c * (P + 1) + i] = v[i] * less;
      meet();
    }
    if (is_there)
      for (u32 e = threadIdx.x % GROUP; e < P * SIDE; e += GROUP) {
        if constexpr (TALL) left[e] = u[e % SIDE * (P + 1) + e / SIDE];
        else right[e] = u[e / P * (P + 1) + e % P];
      }
  }
  if (wrong && is_there) faults[0] = 1;
}
"""

LIBRARY = r"""
namespace singular {
__device__ __forceinline__ double inverse_root(double x) {
#ifdef __CUDA_ARCH__
  return rsqrt(x);
#else
  return 1 / sqrt(x);
#endif
}
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double scaled(double x, int power) { return ldexp(x, power); }
__device__ __forceinline__ float scaled(float x, int power) { return ldexpf(x, power); }
__device__ __forceinline__ void exponent(double x, int *power) { frexp(x, power); }
__device__ __forceinline__ void exponent(float x, int *power) { frexpf(x, power); }

// Where columns go: lanes that have them, and whether they are an x there.
struct Order {
  int lane_x, lane_y;
  bool was_x, other_was_x;
  template <class V> __device__ __forceinline__ void take(V &x, V &y) const {
    const V a = __shfl_sync(0xffffffffu, x, lane_x), b = __shfl_sync(0xffffffffu, y, lane_x);
    const V c = __shfl_sync(0xffffffffu, x, lane_y), d = __shfl_sync(0xffffffffu, y, lane_y);
    x = was_x ? a : b;
    y = other_was_x ? c : d;
  }
};

// A y, or where `swaps` an x, for one of the lane so far apart.
template <class V> __device__ __forceinline__ void move(V &x, V &y, bool swaps, int apart) {
  const V got = __shfl_xor_sync(0xffffffffu, swaps ? x : y, apart);
  x = swaps ? got : x;
  y = swaps ? y : got;
}
}  // namespace singular
"""
