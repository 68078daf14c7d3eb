"""Kernels of an elimination in float32 whose products run in float16: panels, exchanges, halves, inverses.

Matrices lie row by row. A panel is `WIDTH` columns wide; `ROWS * WIDTH` is 32, numbers of a thread. A cluster
of `CLUSTER` blocks factorises it.
"""

from __future__ import annotations

BLOCK = 512  # columns between two products of the whole rest
BLOCKS = 16  # of a cluster, which factorises a panel, at most
THREADS = 1024  # of each, at most
OPTIONS = ("-default-device",)  # functions without a name are the device's
STEP = 128  # integers that say which rows a panel exchanges

PANEL = r"""
typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
#define BLOCK 512
#define PITCH (WIDTH + 4)
#define LATE (CLUSTER > 4)
#define FULL 0xffffffffu

// --- words of a cluster --------------------------------------------------------------------------

__device__ __forceinline__ u32 there(const void *place, u32 block) {
  u32 own = (u32)__cvta_generic_to_shared(place), found;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(own), "r"(block));
  return found;
}

__device__ __forceinline__ void put(u32 place, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "r"(place), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

__device__ __forceinline__ void put(u32 place, uint2 v) {
  asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" :: "r"(place), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void arrive_there() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_there() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Each column has a text of its own: a loop over them is too long for the compiler to take apart.
template <int J>
struct Column {
  static constexpr int value = J;
};

template <int J, class Step>
__device__ __forceinline__ void each(const Step &step) {
  step(Column<J>());
  if constexpr (J + 1 < WIDTH) each<J + 1>(step);
}

// Takes products with a pivot's row off the columns from `from` on.
template <int from>
__device__ __forceinline__ void behind(
    float (&x)[ROWS][WIDTH], const int (&order)[ROWS], const float (&l)[ROWS], const float *line) {
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
    if (order[i] == -1) {
#pragma unroll
      for (int c = from / 4 * 4; c < WIDTH; c += 4) {
        const float4 p = *(const float4 *)(line + c);
        if (c >= from) x[i][c] = fmaf(-l[i], p.x, x[i][c]);
        if (c + 1 >= from) x[i][c + 1] = fmaf(-l[i], p.y, x[i][c + 1]);
        if (c + 2 >= from) x[i][c + 2] = fmaf(-l[i], p.z, x[i][c + 2]);
        x[i][c + 3] = fmaf(-l[i], p.w, x[i][c + 3]);
      }
    }
}

// --- a panel -------------------------------------------------------------------------------------

// Factorises a [m, WIDTH] with partial pivoting, one row (or some) in registers of each thread, and writes
// the rows in their new order. moves: rows that become the first ones; rows that those among the first ones
// go to that are no pivots; which these are; how many. wrong becomes 1 where a pivot is 0.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(1024, 1)
panel(float *a, i64 ld, int m, int *moves, int *wrong) {
  extern __shared__ float4 staged[];
  __shared__ __align__(16) float rows[3][CLUSTER][WIDTH];
  __shared__ uint2 found[2][CLUSTER];  // size and row of each block's candidate
  __shared__ u32 warp_sizes[2][32];
  __shared__ __align__(16) float candidate[WIDTH];
  __shared__ int pivots[WIDTH], vacated[WIDTH];
  __shared__ u32 kept;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const u32 rank = blockIdx.x;
  float *const own = (float *)staged + warp * 32 * PITCH;
  const int per = WIDTH / 4, high = 32 / per;  // lanes for a row, rows at once
  const int first = rank * blockDim.x * ROWS + threadIdx.x;
  float x[ROWS][WIDTH];
  int order[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int begin = first - lane + i * blockDim.x;
#pragma unroll
    for (int k = 0; k < per; ++k) {
      const int row = k * high + lane / per;
      float4 v = make_float4(0, 0, 0, 0);
      if (begin + row < m) v = *(const float4 *)(a + (i64)(begin + row) * ld + lane % per * 4);
      *(float4 *)(own + row * PITCH + lane % per * 4) = v;
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < per; ++k) {
      const float4 v = *(const float4 *)(own + lane * PITCH + 4 * k);
      x[i][4 * k] = v.x, x[i][4 * k + 1] = v.y, x[i][4 * k + 2] = v.z, x[i][4 * k + 3] = v.w;
    }
    __syncwarp();
    order[i] = first + i * (int)blockDim.x < m ? -1 : -2;  // -1: may still become a pivot
  }
  arrive_there();
  wait_there();
  // What column j leaves of those from j + 2 on is computed while many blocks wait for each other in the
  // next step, so that three rows are kept: the one before is read while others send the next one.
  float l[ROWS];
  const float *line = rows[0][0];
  each<0>([&](auto column) __attribute__((always_inline)) {
    constexpr int j = column.value;
    constexpr int now = j & 1, third = j % 3;
    u32 best = 0;
    int at = 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const u32 size = order[i] == -1 ? (__float_as_uint(x[i][j]) & 0x7fffffffu) + 1 : 0;
      if (size > best) best = size, at = i;
    }
    const u32 most = __reduce_max_sync(FULL, best);
    const int chosen = __ffs(__ballot_sync(FULL, best == most)) - 1;
    if (lane == 0) warp_sizes[now][warp] = most;
    __syncthreads();
    const u32 seen = lane < warps ? warp_sizes[now][lane] : 0;
    const u32 top = __reduce_max_sync(FULL, seen);
    const bool sends = warp == __ffs(__ballot_sync(FULL, seen == top)) - 1;
    if (!sends) arrive_there();
    if constexpr (LATE && j > 0) behind<j + 1>(x, order, l, line);
    if (sends) {
      if (lane == chosen) {
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
          float v = x[0][c];
#pragma unroll
          for (int i = 1; i < ROWS; ++i) if (at == i) v = x[i][c];
          candidate[c] = v;
        }
      }
      const int row = __shfl_sync(FULL, first + at * (int)blockDim.x, chosen);
      __syncwarp();
      const int part = lane % per * 4;
      const float4 v = *(const float4 *)(candidate + part);
#pragma unroll
      for (int t = 0; t < CLUSTER; t += high)
        if (t + lane / per < CLUSTER) put(there(&rows[third][rank][part], t + lane / per), v);
      if (lane < CLUSTER) put(there(&found[now][rank], lane), make_uint2(top, row));
      arrive_there();
    }
    wait_there();
    const uint2 one = lane < CLUSTER ? found[now][lane] : make_uint2(0, 0);
    const u32 largest = __reduce_max_sync(FULL, one.x);
    const int winner = __ffs(__ballot_sync(FULL, one.x == largest)) - 1;
    const int pivot = __shfl_sync(FULL, one.y, winner);
    line = rows[third][winner];
    const float d = line[j];
    const bool none = !(fabsf(d) > 1e-36f);
    const float inverse = none ? 0.0f : 1.0f / d;
    if (threadIdx.x == 0) {
      pivots[j] = pivot;
      if (none && rank == 0) *wrong = 1;
    }
    constexpr int end = LATE && j + 2 < WIDTH ? j + 2 : WIDTH;
    float p[WIDTH];
#pragma unroll
    for (int c = j / 4 * 4; c < end; c += 4) {
      const float4 v = *(const float4 *)(line + c);
      p[c] = v.x, p[c + 1] = v.y, p[c + 2] = v.z, p[c + 3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (pivot == first + i * (int)blockDim.x) order[i] = j;
      if (order[i] == -1) {
        l[i] = x[i][j] * inverse;
        x[i][j] = l[i];
#pragma unroll
        for (int c = j + 1; c < end; ++c) x[i][c] = fmaf(-l[i], p[c], x[i][c]);
      }
    }
  });
  __syncthreads();
  if (warp == 0) {
    const int pivot = lane < WIDTH ? pivots[lane] : WIDTH;
    const u32 below = (1u << lane) - 1;
    const bool is_far = lane < WIDTH && pivot >= WIDTH;
    const u32 far = __ballot_sync(FULL, is_far);
    const u32 stay = __reduce_or_sync(FULL, lane < WIDTH && !is_far ? 1u << pivot : 0u);
    const bool leaves = lane < WIDTH && !(stay >> lane & 1);
    if (is_far) vacated[__popc(far & below)] = pivot;
    if (lane == 0) kept = stay;
    if (rank == 0) {
      if (lane < WIDTH) moves[lane] = pivot;
      if (is_far) moves[32 + __popc(far & below)] = pivot;
      if (leaves) moves[64 + __popc(~stay & below)] = lane;
      if (lane == 0) moves[96] = __popc(far);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int row = first + i * (int)blockDim.x;
    int place = row;
    if (order[i] >= 0) place = order[i];
    else if (row < WIDTH) place = vacated[__popc(~kept & ((1u << row) - 1))];
    if (order[i] == -2) place = -1;
#pragma unroll
    for (int k = 0; k < per; ++k)
      *(float4 *)(own + lane * PITCH + 4 * k) =
          make_float4(x[i][4 * k], x[i][4 * k + 1], x[i][4 * k + 2], x[i][4 * k + 3]);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < per; ++k) {
      const int which = k * high + lane / per, goal = __shfl_sync(FULL, place, which);
      if (goal >= 0)
        *(float4 *)(a + (i64)goal * ld + lane % per * 4) =
            *(const float4 *)(own + which * PITCH + lane % per * 4);
    }
    __syncwarp();
  }
}
"""

TEXT = (
    PANEL
    + r"""
// --- exchanges -----------------------------------------------------------------------------------

// A thread for each column from `begin` up to `end`, but for `gap` of them from `hole` on: does the exchanges
// of `steps` panels, whose first rows follow each other from a on. With `triangle`, columns behind the hole
// become those of U: L lies in the hole. The column behind the last is the order of rows, where it is given.
extern "C" __global__ void exchange(
    float *a, i64 ld, int begin, int end, int hole, int gap, const int *moves,
    int steps, int triangle, float *rows) {
  __shared__ int list[128];
  __shared__ float lower[WIDTH][WIDTH + 1];
  int column = begin + blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= hole) column += gap;
  const bool is_order = column == end && rows, works = column < end || is_order;
  const bool solves = triangle && column >= hole && !is_order;
  float *place = is_order ? rows : a + column;
  const i64 step = is_order ? 1 : ld;
  if (triangle)
    for (int k = threadIdx.x; k < WIDTH * WIDTH; k += blockDim.x)
      lower[k / WIDTH][k % WIDTH] = a[(i64)(k / WIDTH) * ld + hole + k % WIDTH];
  for (int s = 0; s < steps; ++s, place += WIDTH * step, moves += 128) {
    __syncthreads();
    for (int k = threadIdx.x; k < 128; k += blockDim.x) list[k] = moves[k];
    __syncthreads();
    if (!works) continue;
    float top[WIDTH];
    const int count = list[96];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) top[k] = place[list[k] * step];
    float out[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) if (k < count) out[k] = place[list[64 + k] * step];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) if (k < count) place[list[32 + k] * step] = out[k];
    if (solves) {
#pragma unroll
      for (int k = 0; k < WIDTH; ++k)
#pragma unroll
        for (int i = k + 1; i < WIDTH; ++i) top[i] = fmaf(-lower[i][k], top[k], top[i]);
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) place[k * step] = top[k];
  }
}

// --- numbers as two of float16 -------------------------------------------------------------------

__device__ __forceinline__ void halves(float x, u16 &high, u16 &low) {
  float back;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(high) : "f"(x));
  asm("cvt.f32.f16 %0, %1;" : "=f"(back) : "h"(high));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(low) : "f"(x - back));
}

__device__ __forceinline__ void four(float4 x, float scale, ushort4 &high, ushort4 &low) {
  halves(x.x * scale, high.x, low.x);
  halves(x.y * scale, high.y, low.y);
  halves(x.z * scale, high.z, low.z);
  halves(x.w * scale, high.w, low.w);
}

// a [count, BLOCK] to [count, 3 BLOCK]: high, low, high
extern "C" __global__ void split_left(const float *a, i64 ld, u16 *to, i64 count, float scale) {
  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count * (BLOCK / 4)) return;
  const i64 row = at / (BLOCK / 4), column = at % (BLOCK / 4) * 4;
  ushort4 high, low;
  four(*(const float4 *)(a + row * ld + column), scale, high, low);
  u16 *const goal = to + row * (3 * BLOCK) + column;
  *(ushort4 *)goal = high;
  *(ushort4 *)(goal + BLOCK) = low;
  *(ushort4 *)(goal + 2 * BLOCK) = high;
}

// a [BLOCK, count] to [3 BLOCK, count]: high, high, low; and to copy, as it is
extern "C" __global__ void split_right(const float *a, float *copy, i64 ld, u16 *to, i64 count, float scale) {
  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= BLOCK * (count / 4)) return;
  const i64 row = at / (count / 4), column = at % (count / 4) * 4;
  ushort4 high, low;
  const float4 x = *(const float4 *)(a + row * count + column);
  *(float4 *)(copy + row * ld + column) = x;
  four(x, scale, high, low);
  u16 *const goal = to + row * count + column;
  *(ushort4 *)goal = high;
  *(ushort4 *)(goal + BLOCK * count) = high;
  *(ushort4 *)(goal + 2 * BLOCK * count) = low;
}

// --- inverses of triangles, 32 rows each, along the diagonal -----------------------------------------

extern "C" __global__ void invert_lower(const float *a, i64 ld, float *to) {
  __shared__ float t[32][33];
  const int c = threadIdx.x;
  a += (i64)blockIdx.x * 32 * (ld + 1), to += (i64)blockIdx.x * 32 * (BLOCK + 1);
  for (int r = 0; r < 32; ++r) t[r][c] = a[r * ld + c];
  __syncwarp();
  float x[32];
#pragma unroll
  for (int r = 0; r < 32; ++r) {
    float v = r == c;
#pragma unroll
    for (int k = 0; k < r; ++k) v = fmaf(-t[r][k], x[k], v);
    x[r] = v;
    to[r * BLOCK + c] = v;
  }
}

extern "C" __global__ void invert_upper(const float *a, i64 ld, float *to) {
  __shared__ float t[32][33];
  const int c = threadIdx.x;
  a += (i64)blockIdx.x * 32 * (ld + 1), to += (i64)blockIdx.x * 32 * (BLOCK + 1);
  for (int r = 0; r < 32; ++r) t[r][c] = a[r * ld + c];
  __syncwarp();
  float x[32];
#pragma unroll
  for (int r = 31; r >= 0; --r) {
    float v = r == c;
#pragma unroll
    for (int k = 31; k > r; --k) v = fmaf(-t[r][k], x[k], v);
    x[r] = v / t[r][r];
    to[r * BLOCK + c] = x[r];
  }
}

// --- a triangle with one right side ------------------------------------------------------------------

// Blocks of a grid meet: each adds one when all its threads are there, and goes on when enough did.
__device__ __forceinline__ void arrive(u32 *count) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1u);
  }
}

__device__ __forceinline__ void meet(const u32 *count, u32 goal) {
  if (threadIdx.x == 0) {
    u32 now;
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    while (now < goal);
  }
  __syncthreads();
}

// Of BLOCK numbers that other blocks have written, those of a lane.
__device__ __forceinline__ void taken(const float *from, int lane, float4 (&v)[BLOCK / 128]) {
#pragma unroll
  for (int k = 0; k < BLOCK / 128; ++k) v[k] = __ldcg((const float4 *)from + k * 32 + lane);
}

__device__ __forceinline__ float inner(const float *row, int lane, const float4 (&v)[BLOCK / 128]) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < BLOCK / 128; ++k) {
    const float4 u = ((const float4 *)row)[k * 32 + lane];
    sum += u.x * v[k].x + u.y * v[k].y + u.z * v[k].z + u.w * v[k].w;
  }
#pragma unroll
  for (int k = 16; k; k >>= 1) sum += __shfl_xor_sync(FULL, sum, k);
  return sum;
}

// x with T x = rest for a triangle T of `blocks` times BLOCK rows, by inverses of blocks on its diagonal.
// All blocks of the grid lie on the device at once; `count` is 0. `rest` is overwritten.
extern "C" __global__ void __launch_bounds__(512, 1) substitute(
    const float *a, i64 ld, const float *inverses, float *rest, float *x, int blocks, int lower, u32 *count) {
  const int lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5);
  const int warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x;
  u32 goal = 0;
  float4 v[BLOCK / 128];
  for (int s = 0; s < blocks; ++s) {
    const int block = lower ? s : blocks - 1 - s, next = lower ? block + 1 : block - 1;
    const i64 begin = (i64)block * BLOCK;
    const float *const inverse = inverses + begin * (BLOCK + 1);
    taken(rest + begin, lane, v);
    for (int row = warp; row < BLOCK; row += warps) {
      const float found = inner(inverse + (i64)row * BLOCK, lane, v);
      if (lane == 0) __stcg(x + begin + row, found);
    }
    if (s + 1 == blocks) break;
    arrive(count);
    meet(count, goal += gridDim.x);
    taken(x + begin, lane, v);
    // the rows that are needed next, and those that are not
    for (int row = warp; row < BLOCK; row += warps) {
      const i64 at = (i64)next * BLOCK + row;
      const float off = inner(a + at * ld + begin, lane, v);
      if (lane == 0) __stcg(rest + at, __ldcg(rest + at) - off);
    }
    arrive(count);
    const i64 first = lower ? (i64)(next + 1) * BLOCK : 0, last = (i64)(lower ? blocks : next) * BLOCK;
#pragma unroll 2
    for (i64 at = first + warp; at < last; at += warps) {
      const float off = inner(a + at * ld + begin, lane, v);
      if (lane == 0) __stcg(rest + at, __ldcg(rest + at) - off);
    }
    meet(count, goal += gridDim.x);
  }
}

// --- the matrix itself ---------------------------------------------------------------------------------

// A block for each row: a [n, n] in float64 to [total, total] in float32, with ones behind on the diagonal;
// the sum of the sizes of a row and the largest, which is NaN where one is not finite.
extern "C" __global__ void narrow(
    const double *a, i64 n, float *to, i64 total, double scale, double *sums, double *most) {
  __shared__ double part[2][8];
  const i64 row = blockIdx.x;
  double sum = 0, top = 0;
  for (i64 c = threadIdx.x; c < total; c += blockDim.x) {
    double v = row == c;
    if (row < n && c < n) {
      v = a[row * n + c] * scale;
      const double size = fabs(v);
      sum += size;
      top = size <= top ? top : size;
    } else if (row < n || c < n) v = 0;
    to[row * total + c] = (float)v;
  }
  for (int k = 16; k; k >>= 1) {
    const double other = __shfl_xor_sync(FULL, top, k);
    sum += __shfl_xor_sync(FULL, sum, k);
    top = other <= top || top != top ? top : other;
  }
  if (threadIdx.x % 32 == 0) part[0][threadIdx.x / 32] = sum, part[1][threadIdx.x / 32] = top;
  __syncthreads();
  if (threadIdx.x == 0 && row < n) {
    for (int k = 1; k < blockDim.x / 32; ++k) {
      sum += part[0][k];
      top = part[1][k] <= top || top != top ? top : part[1][k];
    }
    sums[row] = sum, most[row] = top;
  }
}
"""
)
