"""The first layer's products as CUDA C++: forward with the sum over blocks, and the gradient of its weights.

Threads are `lane` of `warp`; a warp has the units from `unit_warp * 16 * UNIT_TILES` on, of the first or,
with `half`, the second part of the block's features. Weights W^T lie in registers as results of the backward
product; with k in another order the same registers are factors of the forward one.
"""

from __future__ import annotations

FORWARD = r"""
#pragma unroll 1
    for (int p = 0; p < 2; ++p) {
      wait_for(signals + 2 * p, step & 1);
      wait_for(signals + 2 * p + 1, step & 1);
      float acc[UNIT_TILES][2 * ROW_TILES][4];
#pragma unroll
      for (int m = 0; m < UNIT_TILES; ++m)
#pragma unroll
        for (int n = 0; n < 2 * ROW_TILES; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[m][n][c] = 0;
      const float *from = X + (2 * ROWS * p + g) * STRIDE + half * (8 * TILES) + 2 * t;
#pragma unroll
      for (int j = 0; j < TILES; ++j)
        if (j < TILES - 1 || half == 0) {
          u32 a[UNIT_TILES][4];
#pragma unroll
          for (int m = 0; m < UNIT_TILES; ++m) {
            a[m][0] = tf32(w[j][m][0]);
            a[m][1] = tf32(w[j][m][2]);
            a[m][2] = tf32(w[j][m][1]);
            a[m][3] = tf32(w[j][m][3]);
          }
#pragma unroll
          for (int n = 0; n < 2 * ROW_TILES; ++n) {
            const float2 b = *(const float2 *)(from + n * 8 * STRIDE + j * 8);
            const u32 b0 = cut_soon(b.x), b1 = cut_soon(b.y);
#pragma unroll
            for (int m = 0; m < UNIT_TILES; ++m)
              multiply(acc[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b0, b1);
          }
        }
"""

# Both warps of the same units add up; then each quarter of the rows goes to the block that has it.
SEND_PARTS = r"""
      float4 *sum = (float4 *)D + p * 2 * PART;
      if (half != p) {
#pragma unroll
        for (int m = 0; m < UNIT_TILES; ++m)
#pragma unroll
          for (int n = 0; n < 2 * ROW_TILES; ++n) {
            const int at = ((unit_warp * UNIT_TILES + m) * ROW_TILES + n % ROW_TILES) * 32 + lane;
            const float(&own)[4] = acc[m][n];
            sum[n / ROW_TILES * PART + at] = make_float4(own[0], own[1], own[2], own[3]);
          }
        pair_barrier(unit_warp);
      } else {
        pair_barrier(unit_warp);
#pragma unroll
        for (int m = 0; m < UNIT_TILES; ++m)
#pragma unroll
          for (int n = 0; n < 2 * ROW_TILES; ++n) {
            const int q = 2 * p + n / ROW_TILES;
            const int at = ((unit_warp * UNIT_TILES + m) * ROW_TILES + n % ROW_TILES) * 32 + lane;
            float4 *own = sum + (n / ROW_TILES) * PART + at;
            float4 v = *own;
            v.x += acc[m][n][0];
            v.y += acc[m][n][1];
            v.z += acc[m][n][2];
            v.w += acc[m][n][3];
            if (q == rank) *own = v;
            else store_there((float4 *)R + (rank < q ? rank : rank - 1) * PART + at, q, v);
          }
      }
    }
"""

# The block's rows, all units: parts in the order of blocks.
SUM_PARTS = r"""
    {
      float4 v[SUM_TILES];
#pragma unroll
      for (int k = 0; k < SUM_TILES; ++k) {
        const int at = tid + THREADS * k;
        v[k] = make_float4(0, 0, 0, 0);
        if (at < PART)
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            const float4 u = s == rank ? ((const float4 *)D)[rank * PART + at]
                                       : ((const float4 *)R)[(s - (s > rank)) * PART + at];
            v[k].x += u.x;
            v[k].y += u.y;
            v[k].z += u.z;
            v[k].w += u.w;
          }
      }
      __syncthreads();
{scalars}
#pragma unroll
      for (int k = 0; k < SUM_TILES; ++k) {
        const int at = tid + THREADS * k;
        if (at < PART) {
          const int unit = (at >> 5) / ROW_TILES * 16 + g, row = (at >> 5) % ROW_TILES * 8 + 2 * t;
          const float low = B1[unit], high = B1[unit + 8];
          float *to = H + row * UNIT_STRIDE + unit;
          to[0] = {low_x};
          to[UNIT_STRIDE] = {low_y};
          to[8] = {high_z};
          to[UNIT_STRIDE + 8] = {high_w};
{kept}        }
      }
      __syncthreads();
    }
"""

# Gradients by the first product of the block's rows to all blocks, as factors of the backward product.
SEND_SLOPES = r"""
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SUM_TILES; ++k) {
      const int at = tid + THREADS * k;
      if (at < PART) {
        const int unit = (at >> 5) % (4 * UNIT_TILES) * 16 + g, row = (at >> 5) / (4 * UNIT_TILES) * 8 + t;
        const float *from = DH + row * UNIT_STRIDE + unit;
        float4 v;
        v.x = __uint_as_float(tf32(from[0]));
        v.y = __uint_as_float(tf32(from[8]));
        v.z = __uint_as_float(tf32(from[4 * UNIT_STRIDE]));
        v.w = __uint_as_float(tf32(from[4 * UNIT_STRIDE + 8]));
        float4 *place = (float4 *)D + rank * PART + at;
        *place = v;
#pragma unroll
        for (int other = 1; other < 4; ++other) store_there(place, (rank + other) & 3, v);
      }
    }
"""

# Some tiles of features: the sum over the batch, and the update. With the last ones the next batch is
# fetched, quarter by quarter, once nobody reads the old rows.
_BACKWARD = r"""
    {
      float acc[{count}][UNIT_TILES][4];
#pragma unroll
      for (int j = 0; j < {count}; ++j)
#pragma unroll
        for (int m = 0; m < UNIT_TILES; ++m)
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[j][m][c] = 0;
#pragma unroll 1
      for (int q = 0; q < 4; ++q) {
#pragma unroll
        for (int k = 0; k < ROW_TILES; ++k) {
          const int k8 = q * ROW_TILES + k;
          float4 a[UNIT_TILES];
#pragma unroll
          for (int m = 0; m < UNIT_TILES; ++m)
            a[m] = ((const float4 *)D)[((k8 * 4 + unit_warp) * UNIT_TILES + m) * 32 + lane];
          const float *from = X + (k8 * 8 + t) * STRIDE + half * (8 * TILES) + {first} * 8 + g;
#pragma unroll
          for (int j = 0; j < {count}; ++j)
            if ({first} + j < TILES - 1 || half == 0) {
              const u32 b0 = cut_soon(from[j * 8]), b1 = cut_soon(from[j * 8 + 4 * STRIDE]);
#pragma unroll
              for (int m = 0; m < UNIT_TILES; ++m)
                multiply(acc[j][m], __float_as_uint(a[m].x), __float_as_uint(a[m].y), __float_as_uint(a[m].z),
                  __float_as_uint(a[m].w), b0, b1);
            }
        }
{fetch}      }
#pragma unroll
      for (int j = 0; j < {count}; ++j)
#pragma unroll
        for (int m = 0; m < UNIT_TILES; ++m)
#pragma unroll
          for (int c = 0; c < 4; ++c) w[{first} + j][m][c] = {update};
    }
"""

_FETCH = r"""        if (more) {
          __syncthreads();
          if (tid == 0) expect(signals + q, bytes_of(q));
          const i64 own = q == 0 ? next[0] : q == 1 ? next[1] : q == 2 ? next[2] : next[3];
          fetch(q, own);
        }
"""


def backward_text(tiles: int, update: str) -> str:
    """The gradient of a thread's weights, and their update.

    Args:
        tiles: of features that the first half of the warps has.
        update: a weight's new value, by `acc[j][m][c]` and its old one.
    """
    cut = -(-tiles // 2)
    parts = ((0, cut, ""), (cut, tiles - cut, _FETCH))
    return "".join(
        _BACKWARD.replace("{first}", str(first))
        .replace("{count}", str(count))
        .replace("{fetch}", fetch)
        .replace("{update}", update.replace("{weight}", f"w[{first} + j][m][c]"))
        for first, count, fetch in parts
    )
