"""The first layer's products by warpgroups as CUDA C++, and the warps beside them that copy rows.

Two warpgroups have 64 units each and all features of the block. Weights W^T lie in registers as results of
the backward product, which are the left factors of the forward one with k in another order. A block of 8
features by 8 rows of X has two halves of 128 bytes, first [4s of features][rows][4], then, turned in place,
[4s of rows][features][4].
"""

from __future__ import annotations

# What is put into `BESIDE` where rows have not been rounded before.
ROUNDING = {
    "rounding": r"""
    const auto rounded = [&](int i) {
#pragma unroll 1
      for (int r = 8 * (warp - 8); r < 8 * (warp - 7); ++r)
#pragma unroll
        for (int part = 0; part < 2; ++part)
          if (lane < 26 && lane + 26 * part < quads) {
            float4 *p = (float4 *)(place + (quarter(i) * 32 + r) * 16 + part * 13 * EIGHT), v = *p;
            *p = make_float4(biased(v.x), biased(v.y), biased(v.z), biased(v.w));
          }
    };
""",
    "round_one": r"""        if (i > 0 && step < steps) {
          copies_wait<1>();
          rounded(i - 1);
        }
""",
    "round_last": "        rounded(3);\n",
}

# Warps beside the products copy rows.
BESIDE = r"""
  if (warp >= 8) {
    registers_less<24>();
    orders += lane;
    const auto quarter = [&](int i) { return i < 2 ? early + i : i == 2 ? rank ^ 1 : rank; };
    char *const place = X + (lane >> 1) * EIGHT + (lane & 1) * HALF;
    const int quads = width >> 2;
    const auto copied = [&](int i, int own) {
#pragma unroll 2
      for (int k = 0; k < 8; ++k) {
        const int r = 8 * (warp - 8) + k;
        const float *row = x + (i64)__shfl_sync(~0u, own, r) * WIDTH + first + lane * 4;
        char *to = place + (quarter(i) * 32 + r) * 16;
        if (lane < 26 && lane < quads) copy_quad(to, row);
        if (lane < 26 && lane + 26 < quads) copy_quad(to + 13 * EIGHT, row + 104);
        // what was turned lies beside half a block of features, whose weights are to stay 0
        if (WIDTH % 8 && quads % 2 && lane < 26) {
          if (lane == quads) *(float4 *)to = make_float4(0, 0, 0, 0);
          if (lane + 26 == quads) *(float4 *)(to + 13 * EIGHT) = make_float4(0, 0, 0, 0);
        }
      }
      copies_commit();
    };
{rounding}    cluster_arrive_relaxed();
    // a batch is copied while the one before, of `step - 1`, is computed
#pragma unroll 1
    for (int step = 0; step <= steps; ++step) {
      int next[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) next[i] = step < steps ? (int)orders[quarter(i) * 32] : 0;
      orders += 128;
      const u64 *now = numbers + (~step & 1) * SCALARS;
      if (step) cluster_wait();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (step) group_sync(2 + i, 384);
        if (step < steps) copied(i, next[i]);
{round_one}        if (i == 2 && step < steps) {
          copies_wait<1>();
          fence_copies();
          group_arrive(6, 384);
        }
      }
      if (step) {
        const int done = step - 1;
        {
          const int step = done;
{outputs}
        }
        __syncwarp();
        cluster_arrive_relaxed();
      }
      if (step < steps) {
        copies_wait<0>();
{round_last}        fence_copies();
        group_arrive(7, 384);
      }
    }
    cluster_wait();
    if (bad) *fault = 1;
    return;
  }
  registers_more<240>();
  // rows of a pair of quarters in place, once no product reads them as they came
  const auto turn = [&](int pair) {
    const int high = lane & 1, column = (lane >> 1 & 3) + (lane >> 4) * 4, part = lane >> 3 & 1;
    char *from = X + column * EIGHT + (pair * 8 + warp) * 128 + part * HALF + high * 64;
    char *to = from + (high - part) * HALF - high * 64 + part * 16;
    float4 v[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (8 * k + column < TILES)
#pragma unroll
        for (int i = 0; i < 4; ++i) v[k][i] = *(const float4 *)(from + k * 8 * EIGHT + i * 16);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (8 * k + column < TILES) {
        float4 *own = (float4 *)(to + k * 8 * EIGHT);
        own[0] = make_float4(v[k][0].x, v[k][1].x, v[k][2].x, v[k][3].x);
        own[2] = make_float4(v[k][0].y, v[k][1].y, v[k][2].y, v[k][3].y);
        own[4] = make_float4(v[k][0].z, v[k][1].z, v[k][2].z, v[k][3].z);
        own[6] = make_float4(v[k][0].w, v[k][1].w, v[k][2].w, v[k][3].w);
      }
  };
"""

FORWARD = r"""
    float low[32], high[32];
    const auto product = [&](float(&acc)[32], int q) {
      const u64 b = tile(X + q * 512, HALF, 128);
#pragma unroll
      for (int j = 0; j < TILES; ++j)
        multiply_tiles(acc, __float_as_uint(w[j][0]), __float_as_uint(w[j][2]), __float_as_uint(w[j][1]),
          __float_as_uint(w[j][3]), b + (j * EIGHT >> 4), j > 0);
      tiles_commit();
    };
    const auto stage = [&](const float(&acc)[32], int q) {
      float *to = D + q * SLOT + 2 * t * ROW + unit;
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          to[(n >> 2) * SLOT + (8 * (n & 3) + (c & 1)) * ROW + 8 * (c >> 1)] = acc[4 * n + c];
    };
    group_sync(6, 384);
    tiles_begin();
    product(low, early);
    group_sync(7, 384);
    product(high, rank & 2);
    cluster_wait();
    tiles_wait<1>();
    tiles_held(low);
    stage(low, early);
    fence_copies();
    group_sync(1, 256);
    if (tid < 2) {
      const int q = early + tid;
      send(R + (rank < q ? rank : rank - 1) * SLOT, D + q * SLOT, 4 * SLOT, full, q);
    }
    turn(early >> 1);
    tiles_wait<0>();
    tiles_held(high);
    stage(high, rank & 2);
{between}
    fence_copies();
    group_sync(1, 256);
    if (tid == 0) {
      const int q = rank ^ 1;
      send(R + (rank < q ? rank : rank - 1) * SLOT, D + q * SLOT, 4 * SLOT, full, q);
    }
    turn(rank >> 1);
    wait_for(full, step & 1);
"""

# What a block has summed goes to another once that block's slopes are here: it has then read what was there.
BACKWARD = r"""
    {
      float acc[4 * TILES];
      const u64 a = tile((char *)D + (warp >> 2) * 1024, 2048, 128), b = tile(X, HALF, EIGHT);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int q = i < 2 ? early + i : i == 2 ? rank ^ 1 : rank;
        if (i < 3) wait_for(came + q, step & 1);
        tiles_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          multiply_tiles(acc, a + ((q * 4 * SLOT + k * 4096) >> 4), b + ((q * 4 + k) * 128 >> 4), i + k > 0);
        tiles_commit();
        if (i < 3 && tid == 0) send(P + (rank < q ? rank + 1 : rank) * PART, P, 4 * PART, sums, q);
        if (i > 0) {
          tiles_wait<1>();
          group_arrive(1 + i, 384);
        }
      }
{small}
      tiles_wait<0>();
      tiles_held(acc);
      group_arrive(5, 384);
      cluster_arrive_relaxed();
{scalars}
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float old = unbiased(w[j][c]);
          w[j][c] = biased({update});
        }
    }
"""
