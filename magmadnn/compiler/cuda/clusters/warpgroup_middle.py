"""What is between the first layer's products by warpgroups as CUDA C++: a block's rows, sums, small updates.

The second layer's three products are small tiles of a warp, in TF32 as the first layer's. A warp has 16 rows
of the block's 32 and 32 units; a thread's units lie as both factors and sums of tiles have them.
"""

from __future__ import annotations

from magmadnn.compiler.cuda.text.formulas import TYPES, Cell, Lines

from .dense_chain import BLOCKS
from .formulas import (
    LANES,
    Cells,
    Rows,
    SharedRows,
    cells_of,
    lanes_column,
    lanes_columns,
    scalars_text,
)
from .middle import Middle

OWN = 32  # rows of a block
ROW_Z = 12  # floats of a row of outputs: most that there are

_SUM = r"""
    // rows r0 + g and + 8, units u0 + 8 k + t and + 4
    const int r0 = 16 * (warp & 1), u0 = 32 * (warp >> 1);
    float h[4][4];{keeps}
    {
      float z[2][4] = {};
{scalars}
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int own = u0 + 8 * k + t + 4 * (c >> 1), at = (r0 + g + 8 * (c & 1)) * ROW + own;
          float added = 0;
#pragma unroll
          for (int s = 0; s < 4; ++s)
            added += (s == rank ? D + rank * SLOT : R + (s - (s > rank)) * SLOT)[at];
          h[k][c] = {activation};
{kept}          H[at] = __uint_as_float(tf32(h[k][c]));
        }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const u32 a[4] = {tf32(h[k][0]), tf32(h[k][1]), tf32(h[k][2]), tf32(h[k][3])};
#pragma unroll
        for (int n = 0; n < (OUTPUTS + 7) / 8; ++n) {
          const bool is_output = g + 8 * n < OUTPUTS;
          const float *from = W2 + (g + 8 * n) * UNITS;
          const u32 b0 = is_output ? tf32(from[u0 + 8 * k + t ^ mixed(g)]) : 0;
          const u32 b1 = is_output ? tf32(from[u0 + 8 * k + t + 4 ^ mixed(g)]) : 0;
          multiply(z[n], a[0], a[1], a[2], a[3], b0, b1);
        }
      }
      group_sync(1, 256);
      float *to = Z + ((warp >> 1) * 32 + r0 + g) * 12 + 2 * t;
#pragma unroll
      for (int n = 0; n < (OUTPUTS + 7) / 8; ++n)
        if (n == 0 || t < 2) {
          *(float2 *)(to + 8 * n) = make_float2(z[n][0], z[n][1]);
          *(float2 *)(to + 8 * n + 96) = make_float2(z[n][2], z[n][3]);
        }
    }
    group_sync(1, 256);
    {
      const int row = tid >> 3, part = tid & 7;
      const bool is_row = true;
      float z[COLUMNS];
#pragma unroll
      for (int k = 0; k < COLUMNS; ++k) {
        z[k] = 0;
#pragma unroll
        for (int s = 0; s < 4; ++s)
          if (8 * k + part < OUTPUTS) z[k] += Z[(s * 32 + row) * 12 + 8 * k + part];
      }
"""

_SLOPES = r"""
    }
    group_sync(1, 256);
    {
{scalars}
      u32 a[3][2];
#pragma unroll
      for (int n = 0; n < 3; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          a[n][r] = t + 4 * n < OUTPUTS ? tf32(DL[(r0 + g + 8 * r) * 12 + t + 4 * n]) : 0;
      float sums[8];
      // column g of a tile is unit (g >> 1) + 4 (g & 1), so that slopes lie as h does
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float dh[4] = {};
        const int at = u0 + 8 * k + (g >> 1) + 4 * (g & 1);
        u32 b[3];
#pragma unroll
        for (int n = 0; n < 3; ++n)
          b[n] = t + 4 * n < OUTPUTS ? tf32(W2[(t + 4 * n) * UNITS + (at ^ mixed(t + 4 * n))]) : 0;
        multiply(dh, a[0][0], a[0][1], a[1][0], a[1][1], b[0], b[1]);
        if (OUTPUTS > 8) multiply(dh, a[2][0], a[2][1], 0, 0, b[2], 0);
        float v[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int row = r0 + g + 8 * (c & 1), own = u0 + 8 * k + t + 4 * (c >> 1);
          const float s = dh[(c & 1) * 2 + (c >> 1)];
          v[c] = {slope};
          D[rank * SLOT + (row >> 2) * 512 + own * 4 + (row & 3)] = __uint_as_float(tf32(v[c]));
        }
        sums[2 * k] = v[0] + v[1];
        sums[2 * k + 1] = v[2] + v[3];
      }
      // over the warp's rows: each thread keeps one of its eight units
#pragma unroll
      for (int m = 4; m; m >>= 1) {
        const bool upper = g & m;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < m) {
            const float mine = upper ? sums[i + m] : sums[i], its = upper ? sums[i] : sums[i + m];
            sums[i] = mine + __shfl_xor_sync(~0u, its, 4 * m);
          }
      }
      Q[(warp & 1) * UNITS + u0 + 8 * (g >> 1) + t + 4 * (g & 1)] = sums[0];
    }
    fence_copies();
    group_sync(1, 256);
    if (tid < 3) {
      const int other = (rank + 1 + tid) & 3;
      send(D + rank * SLOT, D + rank * SLOT, 16384, came + rank, other);
    }
    // sums over the block's rows: for the second layer a warp has 16 units
    {
      float p[2][4] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float *d = DL + (8 * k + t) * 12 + g, *v = H + (8 * k + t) * ROW + 16 * warp + g;
        const bool low = g < OUTPUTS, high = g + 8 < OUTPUTS;
        const u32 a0 = low ? tf32(d[0]) : 0, a1 = high ? tf32(d[8]) : 0;
        const u32 a2 = low ? tf32(d[48]) : 0, a3 = high ? tf32(d[56]) : 0;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          multiply(p[i], a0, a1, a2, a3, __float_as_uint(v[8 * i]), __float_as_uint(v[4 * ROW + 8 * i]));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float *to = P + g * UNITS + (16 * warp + 8 * i + 2 * t ^ mixed(g));
        if (g < OUTPUTS) *(float2 *)to = make_float2(p[i][0], p[i][1]);
        if (g + 8 < OUTPUTS) *(float2 *)(to + 8 * UNITS) = make_float2(p[i][2], p[i][3]);
      }
      if (tid < UNITS) P[FIRST_BIAS + tid] = Q[tid] + Q[UNITS + tid];
      if (tid >= 128 && tid < 128 + OUTPUTS) {
        float sum = 0;
#pragma unroll
        for (int row = 0; row < 32; ++row) sum += DL[row * 12 + tid - 128];
        P[SECOND_BIAS + tid - 128] = sum;
      }
      for (int k = 7 - warp; k < SUMS; k += 8) {
        double sum = L[k * 32 + lane];
#pragma unroll
        for (int apart = 16; apart; apart >>= 1) sum += __shfl_xor_sync(~0u, sum, apart);
        if (lane == 0) *(double *)(P + TOTALS + 2 * k) = sum;
      }
    }
    fence_copies();
    group_sync(1, 256);
"""

_UPDATES = r"""
      wait_for(sums, step & 1);
      {
        const auto total = [&](int i) {
          float sum = 0;
#pragma unroll
          for (int s = 0; s < 4; ++s) sum += P[(s == rank ? 0 : s - (s > rank) + 1) * PART + i];
          return sum;
        };
{scalars}
{text}
      }
"""

# All numbers are read before the first is written.
_READ = {
    "w2": r"""
        float total_w2[(OUTPUTS * UNITS + 255) / 256], old_w2[(OUTPUTS * UNITS + 255) / 256];
#pragma unroll
        for (int k = 0; k < (OUTPUTS * UNITS + 255) / 256; ++k)
          if (tid + 256 * k < OUTPUTS * UNITS) {
            total_w2[k] = total(tid + 256 * k);
            old_w2[k] = W2[tid + 256 * k];
          }
""",
    "b1": r"""
        float total_b1 = 0, old_b1 = 0;
        if (tid < HIDDEN) {
          total_b1 = total(FIRST_BIAS + tid);
          old_b1 = B1[tid];
        }
""",
    "b2": r"""
        float total_b2 = 0, old_b2 = 0;
        if (tid >= 128 && tid < 128 + OUTPUTS) {
          total_b2 = total(SECOND_BIAS + tid - 128);
          old_b2 = B2[tid - 128];
        }
""",
}
_WRITTEN = {
    "w2": r"""
#pragma unroll
        for (int k = 0; k < (OUTPUTS * UNITS + 255) / 256; ++k) {
          const int i = tid + 256 * k;
          if (i < OUTPUTS * UNITS && (i % UNITS ^ mixed(i / UNITS)) < HIDDEN) W2[i] = {update};
        }
""",
    "b1": "        if (tid < HIDDEN) B1[tid] = {update};\n",
    "b2": "        if (tid >= 128 && tid < 128 + OUTPUTS) B2[tid - 128] = {update};\n",
}


class WarpgroupMiddle(Middle):
    """Pieces of a step; arguments as `Middle` has them."""

    def rows(self) -> str:
        """Sum of parts, second layer, loss, slopes, and sums over the block's rows."""
        chain, endings = self._chain, self._endings
        bias = {"b1": "B1[own]"}

        def inside(value: str) -> str:
            return value if chain.hidden == 128 else f"own < HIDDEN ? {value} : 0"

        keeps = chain.kept is not None
        kept = (
            f"          kept[k][c] = {inside(endings.call('kept', 'added', bias))};\n"
            if keeps
            else ""
        )
        text = (
            _SUM.replace("{keeps}", "\n    float kept[4][4];" if keeps else "")
            .replace("{scalars}", self.known("activation", "kept"))
            .replace("{activation}", inside(endings.call("activation", "added", bias)))
            .replace("{kept}", kept)
        )
        slope = endings.call("slope", "s", {"h": "h[k][c]", "kept": "kept[k][c]"})
        after = _SLOPES.replace("{scalars}", self.known("slope")).replace("{slope}", inside(slope))
        return text + self._losses() + after

    def _losses(self) -> str:
        lines, error = self.lines_of_rows(f"L[{{number}} * {OWN} + row]", "TOTALS + 2 * {number}")
        stores = "".join(
            f"      if (part + {LANES * k} < OUTPUTS) DL[row * {ROW_Z} + part + {LANES * k}] = {text};\n"
            for k, text in enumerate(error)
        )
        read = [
            name
            for step in self._chain.steps
            if step.kind in ("rows", "batch")
            for name in step.reads
        ]
        scalars = scalars_text(self._chain, read)
        return f"{scalars}\n{lines}\n{stores}"

    def _rows(self, lines: Lines) -> Rows:
        """What computes a row, of which a thread has some columns."""
        return SharedRows(lines, self._cells(lines), self._chain.outputs)

    def _cells(self, lines: Lines) -> Cells:
        chain = self._chain
        cells, columns = cells_of(chain), range(lanes_columns(chain.outputs))
        cells["product"] = [Cell(f"z[{k}]", "float32") for k in columns]
        cells["b2"] = [Cell(f"B2[{lanes_column(k).text}]", "float32") for k in columns]
        for name, dtype, count in chain.data:
            if count == 1:
                read = [f"own_{name}[row]"]
            else:
                numbers = [lanes_column(k).text for k in columns]
                read = [
                    f"{k} < {count} ? own_{name}[row * {count} + {k}] : ({TYPES[dtype]})0"
                    for k in numbers
                ]
            cells[name] = [lines.let(dtype, text) for text in read]
        return cells

    def updates(self) -> str:
        """Small updates, of sums over blocks."""
        keys = [key for key in _READ if key in self._endings]
        text = "".join(_READ[key] for key in keys)
        for key in keys:
            place = "[k]" if key == "w2" else ""
            update = self._endings.call(key, f"total_{key}{place}", {key: f"old_{key}{place}"})
            text += _WRITTEN[key].replace("{update}", update)
        return _UPDATES.replace("{scalars}", self.known(*keys)).replace("{text}", text)

    def outputs(self) -> str:
        """What the first block's sending warp makes of sums over the batch."""
        chain = self._chain
        places = [f"*(const double *)(P + {s} * PART + {{place}})" for s in range(BLOCKS)]
        lines = self.lines_of_outputs(places)
        read = [
            name for step in chain.steps if step.kind in ("batch", "last") for name in step.reads
        ]
        scalars = scalars_text(chain, [*read, *(name for name, _, _ in chain.found)])
        body = f"wait_for(sums, step & 1);\n{scalars}\n{lines}"
        return f"        if (rank == 0 && tid == 256) {{\n          {body}\n        }}\n"
