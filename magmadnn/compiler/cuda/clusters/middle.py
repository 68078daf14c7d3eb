"""What is between the first layer's products as CUDA C++: a block's rows, sums over all, small updates."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.compiler.cuda.text.formulas import TYPES, Cell, Lines, converted

from .dense_chain import BLOCKS, WEIGHTS, Chain, RowStep
from .formulas import Cells, Endings, Rows, cells_of, scalars_of, scalars_text, stored_type

_BIAS, _SUM = 128, 192  # the first thread that updates the last bias; the one that finishes sums

# The second layer's product: a tile of rows for a warp, half of the units; then a row for eight threads.
_LOGITS = r"""
    float *Z = D + rank * PART * 4;  // of the block's own part, which is added up
    if (unit_warp < ROW_TILES) {
      float acc[2][4] = {};
#pragma unroll
      for (int k = 0; k < UNITS / 16; ++k) {
        const int unit = (half * (UNITS / 16) + k) * 8 + t;
        const float *v = W2 + g * UNIT_STRIDE + unit, *h = H + (unit_warp * 8 + g) * UNIT_STRIDE + unit;
        const bool is_low = g < OUTPUTS, is_high = g + 8 < OUTPUTS;
        multiply(acc[k % 2], is_low ? tf32(v[0]) : 0, is_high ? tf32(v[8 * UNIT_STRIDE]) : 0,
          is_low ? tf32(v[4]) : 0, is_high ? tf32(v[8 * UNIT_STRIDE + 4]) : 0, tf32(h[0]), tf32(h[4]));
      }
      float *to = Z + (half * ROWS + unit_warp * 8 + 2 * t) * OUTPUT_STRIDE + g;
      to[0] = acc[0][0] + acc[1][0];
      to[OUTPUT_STRIDE] = acc[0][1] + acc[1][1];
      to[8] = acc[0][2] + acc[1][2];
      to[OUTPUT_STRIDE + 8] = acc[0][3] + acc[1][3];
    }
    __syncthreads();
    if (tid < ROWS * 8) {
      const int row = tid >> 3, part = tid & 7;
      const bool is_row = rank * ROWS + row < BATCH;
      float z[(OUTPUTS + 3) / 4 * 4];
#pragma unroll
      for (int n = 0; n < OUTPUTS; n += 4) {
        const float4 one = *(const float4 *)(Z + row * OUTPUT_STRIDE + n);
        const float4 other = *(const float4 *)(Z + (ROWS + row) * OUTPUT_STRIDE + n);
        z[n] = one.x + other.x;
        z[n + 1] = one.y + other.y;
        z[n + 2] = one.z + other.z;
        z[n + 3] = one.w + other.w;
      }
{scalars}
"""

# Gradients by the first layer's units: a tile of units for a warp, or for two of them.
_SLOPES = r"""
    __syncthreads();
    {
      const int tile = warp % (UNITS / 16);
      u32 a[OUTPUT_TILES][4];
#pragma unroll
      for (int k = 0; k < OUTPUT_TILES; ++k) {
        const float *v = W2 + (k * 8 + t) * UNIT_STRIDE + tile * 16 + g;
        const bool is_low = k * 8 + t < OUTPUTS, is_high = k * 8 + t + 4 < OUTPUTS;
        a[k][0] = is_low ? tf32(v[0]) : 0;
        a[k][1] = is_low ? tf32(v[8]) : 0;
        a[k][2] = is_high ? tf32(v[4 * UNIT_STRIDE]) : 0;
        a[k][3] = is_high ? tf32(v[4 * UNIT_STRIDE + 8]) : 0;
      }
#pragma unroll
      for (int n = warp / (UNITS / 16); n < ROW_TILES; n += THREADS / 2 / UNITS) {
        float acc[4] = {};
#pragma unroll
        for (int k = 0; k < OUTPUT_TILES; ++k) {
          const float *d = DL + (n * 8 + g) * OUTPUT_STRIDE + k * 8 + t;
          multiply(acc, a[k][0], a[k][1], a[k][2], a[k][3], tf32(d[0]), tf32(d[4]));
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int row = n * 8 + 2 * t + (c & 1), unit = tile * 16 + g + (c >> 1) * 8;
          float *to = DH + row * UNIT_STRIDE + unit;
          *to = {inside} ? {slope} : 0;
        }
      }
    }
"""

# Of the block's rows: gradients of the second layer, of biases, and what else is summed.
_GRADIENTS = r"""
    {
      u32 a[ROW_TILES][4];
#pragma unroll
      for (int k = 0; k < ROW_TILES; ++k) {
        const float *d = DL + (k * 8 + t) * OUTPUT_STRIDE + g;
        const bool is_low = g < OUTPUTS, is_high = g + 8 < OUTPUTS;
        a[k][0] = is_low ? tf32(d[0]) : 0;
        a[k][1] = is_high ? tf32(d[8]) : 0;
        a[k][2] = is_low ? tf32(d[4 * OUTPUT_STRIDE]) : 0;
        a[k][3] = is_high ? tf32(d[4 * OUTPUT_STRIDE + 8]) : 0;
      }
#pragma unroll
      for (int m = 0; m < UNIT_TILES; ++m) {
        const int unit = (warp * UNIT_TILES + m) * 8;
        float acc[4] = {};
#pragma unroll
        for (int k = 0; k < ROW_TILES; ++k) {
          const float *h = H + (k * 8 + t) * UNIT_STRIDE + unit + g;
          multiply(acc, a[k][0], a[k][1], a[k][2], a[k][3], tf32(h[0]), tf32(h[4 * UNIT_STRIDE]));
        }
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (g + (c >> 1) * 8 < OUTPUTS) P[(g + (c >> 1) * 8) * UNITS + unit + 2 * t + (c & 1)] = acc[c];
      }
      float slope = 0;
#pragma unroll
      for (int row = 0; row < ROWS / GROUPS; ++row)
        slope += DH[(tid / UNITS * (ROWS / GROUPS) + row) * UNIT_STRIDE + tid % UNITS];
      P[OUTPUTS * UNITS + tid] = slope;
      if (warp * 4 < OUTPUTS) {
        const int n = tid >> 3;
        float sum = 0;
#pragma unroll
        for (int row = 0; row < ROW_TILES; ++row)
          if (n < OUTPUTS) sum += DL[(row * 8 + (tid & 7)) * OUTPUT_STRIDE + n];
#pragma unroll
        for (int apart = 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
        if ((tid & 7) == 0 && n < OUTPUTS) P[OUTPUTS * UNITS + THREADS + n] = sum;
      }
      if (7 - warp < SUMS) {
        double sum = lane < ROWS ? L[(7 - warp) * ROWS + lane] : 0;
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
        if (lane == 0) totals[7 - warp] = sum;
      }
    }
"""

# All numbers of other blocks are asked for before the first is needed.
_SECOND = r"""
    float total[(OUTPUTS * UNITS + THREADS - 1) / THREADS];
#pragma unroll
    for (int k = 0; k < (OUTPUTS * UNITS + THREADS - 1) / THREADS; ++k) {
      const int i = tid + THREADS * k;
      total[k] = 0;
      if (i < OUTPUTS * UNITS)
#pragma unroll
        for (int s = 0; s < 4; ++s) total[k] += load_there(P + i, s);
    }
#pragma unroll
    for (int k = 0; k < (OUTPUTS * UNITS + THREADS - 1) / THREADS; ++k) {
      const int i = tid + THREADS * k;
      const int at = i / UNITS * UNIT_STRIDE + i % UNITS;
      if (i < OUTPUTS * UNITS && i % UNITS < HIDDEN) W2[at] = {update};
    }
"""

_FIRST_BIAS = r"""
    if (tid < HIDDEN) {
      float total = 0;
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
          total += load_there(P + OUTPUTS * UNITS + group * UNITS + tid, s);
      B1[tid] = {update};
    }
"""

_SECOND_BIAS = r"""
    if (tid >= {first} && tid < {first} + OUTPUTS) {
      const int n = tid - {first};
      float total = 0;
#pragma unroll
      for (int s = 0; s < 4; ++s) total += load_there(P + OUTPUTS * UNITS + THREADS + n, s);
      B2[n] = {update};
    }
"""


class Middle:
    """Pieces of a step.

    Args:
        chain: of which.
        endings: its formulas.
        scalar_thread: the thread of a block that computes scalars.
    """

    def __init__(self, chain: Chain, endings: Endings, scalar_thread: int) -> None:
        self._chain, self._endings, self._thread = chain, endings, scalar_thread
        self._scalars = scalars_of(chain)
        self._sums: list[tuple[RowStep, list[str]]] = []  # and where each total of a block is

    def known(self, *keys: str) -> str:
        """Scalars that endings read, as values of a thread."""
        return scalars_text(self._chain, self._endings.scalars(*keys))

    # --- scalars ----------------------------------------------------------------------------------

    def begin(self) -> str:
        """Variables that are scalars come."""
        return "\n".join(
            f"  if (tid == {self._thread})\n"
            f"    *({TYPES[s.dtype]} *)(numbers + {self._number(s.name)}) = {s.name}[model];"
            for s in self._chain.scalars
            if s.kind == "variable"
        )

    def settings(self) -> str:
        """Settings of a step begin to come."""
        settings = [s for s in self._chain.scalars if s.kind == "setting"]
        lines = [
            f"      copy_number((double *)now + {self._number(s.name)},\n"
            f"        settings + ({k} * models + model) * all_steps + step);"
            for k, s in enumerate(settings)
        ]
        return "\n".join([f"    if (tid == {self._thread}) {{", *lines, "    }\n"])

    def _number(self, name: str) -> int:
        return self._chain.slots_of_scalars[name][0]

    def scalars(self) -> str:
        """Scalars of a step, and of the variables among them those of the next one."""
        chain, lines = self._chain, Lines()
        rows = Rows(lines, cells_of(chain))
        for step in chain.steps:
            if step.kind == "scalars":
                rows.add(step)
                for _, value in step.writes:
                    cell = rows.cells[value][0]
                    lines.add(
                        f"*({stored_type(cell.dtype)} *)(now + {self._number(value)}) = {cell.text};"
                    )
        for scalar in chain.scalars:
            if scalar.kind == "variable":
                after = rows.cells[scalar.update or scalar.name][0]
                place = f"numbers + (~step & 1) * SCALARS + {self._number(scalar.name)}"
                lines.add(
                    f"*({TYPES[scalar.dtype]} *)({place}) = {converted(after, scalar.dtype)};"
                )
        given = scalars_text(chain, [s.name for s in chain.scalars])
        return f"    wait_for_numbers();\n    if (tid == {self._thread}) {{\n{given}\n{lines}\n    }}\n"

    # --- rows -------------------------------------------------------------------------------------

    def rows(self) -> str:
        """Second layer, loss and their gradients, of the block's rows."""
        chain = self._chain
        lines, errors = self.lines_of_rows("L[{number} * ROWS + row]", "totals + {number}")
        error = ", ".join(f"is_row ? {text} : 0" for text in errors)
        read = [
            name for step in chain.steps if step.kind in ("rows", "batch") for name in step.reads
        ]
        text = _LOGITS.replace("{scalars}", scalars_text(chain, read))
        text += f"{lines}\n      const float e[OUTPUTS] = {{{error}}};\n      if (part == 0) {{\n"
        for n in range(8 * chain.output_tiles):
            text += f"        DL[row * OUTPUT_STRIDE + {n}] = {f'e[{n}]' if n < chain.outputs else 0};\n"
        return f"{text}      }}\n    }}\n{self._slopes()}"

    def lines_of_rows(self, summed: str, total: str) -> tuple[Lines, list[str]]:
        """Steps of a row, and what the loss's gradient by its columns is.

        Args:
            summed: where what is summed over the batch as number `{number}` goes of a row.
            total: where the block's sum of these is.
        """
        chain, lines = self._chain, Lines()
        rows, number = self._rows(lines), 0
        for step in chain.steps:
            if step.kind not in ("rows", "batch"):
                continue
            totals = rows.add(step)
            for k, own in enumerate(totals):
                place = summed.replace("{number}", str(number + k))
                lines.add(f"if (part == 0) {place} = is_row ? (double){own.text} : 0;")
            places = [total.replace("{number}", str(number + k)) for k in range(len(totals))]
            if totals:
                self._sums.append((step, places))
            number += len(totals)
        return lines, [cell.text for cell in rows.cells[chain.error]]

    def _rows(self, lines: Lines) -> Rows:
        """What computes a row, of which a thread has all."""
        return Rows(lines, self._cells(lines))

    def _cells(self, lines: Lines) -> Cells:
        """What is there of a row before the first step."""
        chain = self._chain
        cells = cells_of(chain)
        for name, place in (("product", "z"), ("b2", "B2")):
            cells[name] = [Cell(f"{place}[{n}]", "float32") for n in range(chain.outputs)]
        for name, dtype, columns in chain.data:
            places = (f"own_{name}[row * {columns} + {c}]" for c in range(columns))
            read = (f"is_row ? {place} : ({TYPES[dtype]})0" for place in places)
            cells[name] = [lines.let(dtype, text) for text in read]
        return cells

    def _slopes(self) -> str:
        elements = {"h": "H[row * UNIT_STRIDE + unit]", "kept": "*to"}
        value = self._endings.call("slope", "acc[c]", elements)
        inside = "rank * ROWS + row < BATCH && unit < HIDDEN"
        text = _SLOPES.replace("{slope}", value).replace("{inside}", inside)
        return text.replace("    {\n", f"    {{\n{self.known('slope')}\n", 1)

    # --- sums over the batch ----------------------------------------------------------------------

    def parts_of_gradients(self) -> str:
        """Sums over the block's rows."""
        return _GRADIENTS

    def updates(self) -> str:
        """Sums over blocks, updates of what each block has for itself, and outputs."""
        text = self.known(*(key for key in WEIGHTS[1:] if key in self._endings)) + "\n"
        text = f"    {{\n{text}"
        for key, piece, element in (
            ("w2", _SECOND, "W2[at]"),
            ("b1", _FIRST_BIAS, "B1[tid]"),
            ("b2", _SECOND_BIAS, "B2[n]"),
        ):
            if key in self._endings:
                sums = "total[k]" if key == "w2" else "total"
                update = self._endings.call(key, sums, {key: element})
                text += piece.replace("{update}", update).replace("{first}", str(_BIAS))
        return f"{text}{self._outputs()}    }}\n"

    def _outputs(self) -> str:
        """Numbers that follow sums over the batch."""
        chain = self._chain
        lines = self.lines_of_outputs([f"load_there({{place}}, {s})" for s in range(BLOCKS)])
        read = [
            name for step in chain.steps if step.kind in ("batch", "last") for name in step.reads
        ]
        names = [*read, *(name for name, _, _ in chain.found)]
        return f"    if (rank == 0 && tid == {_SUM}) {{\n{scalars_text(chain, names)}\n{lines}\n    }}\n"

    def lines_of_outputs(self, parts_of: Sequence[str]) -> Lines:
        """What follows sums over the batch.

        Args:
            parts_of: each block's part, of which `{place}` is where the part is in a block.
        """
        chain, lines = self._chain, Lines()
        rows = Rows(lines, cells_of(chain))
        for step, places in self._sums:
            known = {}
            for reduction, place in zip(step.kernel.stages[0].reduce, places, strict=True):
                parts = (part.replace("{place}", place) for part in parts_of)
                total = lines.let("float64", " + ".join(parts))
                known[reduction.name] = lines.let(
                    reduction.dtype, converted(total, reduction.dtype)
                )
            rows.finish(step, step.kernel.stages[0], known)
        for step in chain.steps:
            if step.kind == "last":
                rows.add(step)
        for k, (name, dtype, count) in enumerate(chain.found):
            for n, cell in enumerate(rows.cells[name]):
                lines.add(
                    f"found{k}[(step * models + model) * {count} + {n}] = {converted(cell, dtype)};"
                )
                if dtype.startswith("float"):
                    lines.add(f"bad |= !({cell.text} * 0 == 0);")
        return lines
