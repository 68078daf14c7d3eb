"""The kernel of a chain: the pieces of a step in their order, and what comes before and after all steps."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import TYPES
from magmadnn.compiler.cuda.text.prelude import BEGIN

from .dense_chain import BLOCKS, THREADS, WEIGHTS, Chain
from .formulas import Endings
from .middle import Middle
from .prelude import CLUSTERS
from .products import FORWARD, SEND_PARTS, SEND_SLOPES, SUM_PARTS, backward_text

_FIRST_SLOTS = ("x", "orders", "length", "piece", "each", "all_steps", "models")
SCALAR_THREAD = 7 * 32  # a thread of a warp that has fewer tiles than others

_BEGIN = r"""
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, unit_warp = warp & 3, half = warp >> 2;
  const int g = lane >> 2, t = lane & 3, rank = rank_of();
{piece}
  const int first = rank * STRIDE, left = WIDTH - first;
  const int width = left < 0 ? 0 : left < STRIDE ? left : STRIDE;
  w1 += (i64)model * WIDTH * HIDDEN;
  bool bad = false;
  float w[TILES][UNIT_TILES][4];
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int m = 0; m < UNIT_TILES; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int f = (half * TILES + j) * 8 + 2 * t + (c & 1);
        const int unit = (unit_warp * UNIT_TILES + m) * 16 + g + (c >> 1) * 8;
        const bool is_weight = (j < TILES - 1 || half == 0) && f < width && unit < HIDDEN;
        w[j][m][c] = is_weight ? w1[(i64)(first + f) * HIDDEN + unit] : 0;
      }
  for (int i = tid; i < OUTPUTS * UNITS; i += THREADS)
    W2[i / UNITS * UNIT_STRIDE + i % UNITS] =
      i % UNITS < HIDDEN ? w2[((i64)model * HIDDEN + i % UNITS) * OUTPUTS + i / UNITS] : 0;
  if (tid < UNITS) B1[tid] = {b1};
  if (tid < OUTPUTS) B2[tid] = {b2};
  if (width < STRIDE || BATCH < 4 * ROWS)
    for (int i = tid; i < 4 * ROWS * STRIDE; i += THREADS) X[i] = 0;
{begin}
  if (tid == 0)
    for (int q = 0; q < 4; ++q) make_signal(signals + q);
  signals_are_made();
  cluster_barrier();
  const auto bytes_of = [&](int q) {
    const int rows = BATCH - q * ROWS;
    return (u32)(rows < 0 ? 0 : rows < ROWS ? rows : ROWS) * width * 4;
  };
  const auto row_of = [&](int q) { return q * ROWS + warp * ROW_TILES + lane; };
  const auto fetch = [&](int q, i64 own) {
    if (lane < ROW_TILES && row_of(q) < BATCH) {
      if (width > 0) copy_row(X + row_of(q) * STRIDE, x + own * WIDTH + first, width * 4, signals + q);
      if (q == rank) {
{data}
      }
    }
  };
  i64 next[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    next[q] = lane < ROW_TILES && row_of(q) < BATCH ? orders[row_of(q)] : 0;
    if (tid == 0) expect(signals + q, bytes_of(q));
    fetch(q, next[q]);
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const bool more = step + 1 < steps;
    u64 *now = numbers + (step & 1) * SCALARS;
{settings}"""

_NEXT = r"""
    cluster_barrier();
    if (more) {
#pragma unroll
      for (int q = 0; q < 4; ++q)
        if (lane < ROW_TILES && row_of(q) < BATCH) next[q] = orders[(i64)(step + 1) * BATCH + row_of(q)];
    }
"""

_END = r"""
  }
  cluster_barrier();
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int m = 0; m < UNIT_TILES; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int f = (half * TILES + j) * 8 + 2 * t + (c & 1);
        const int unit = (unit_warp * UNIT_TILES + m) * 16 + g + (c >> 1) * 8;
        if ((j < TILES - 1 || half == 0) && f < width && unit < HIDDEN) {
          w1[(i64)(first + f) * HIDDEN + unit] = w[j][m][c];
          bad |= !(w[j][m][c] * 0 == 0);
        }
      }
  if (rank == 0) {
    for (int i = tid; i < OUTPUTS * UNITS; i += THREADS)
      if (i % UNITS < HIDDEN) {
        w2[((i64)model * HIDDEN + i % UNITS) * OUTPUTS + i / UNITS] = W2[i / UNITS * UNIT_STRIDE + i % UNITS];
        bad |= !(W2[i / UNITS * UNIT_STRIDE + i % UNITS] * 0 == 0);
      }
{end}
  }
  if (bad) *fault = 1;
"""


@dataclass(frozen=True)
class ChainKernel:
    """Pieces of the steps of some models, with a cluster for each.

    Slots: `x`, the data's rows; `orders`, the numbers of the rows of the first model's batches, and `length`,
    how many numbers there are from one model to the next; `piece`, the number of the first cluster's piece,
    those of all models' first steps before others; `each`, the steps of a piece, of which a model's last one
    may have fewer; `all_steps`, of a model; `models`; `settings`, [setting, model, step]; `fault`, a word
    that becomes 1 where an output or a new value is NaN or infinite; `w1, b1, w2, b2`, stacks of variables;
    then each of `data`, of the scalars that are variables, stacks, and of the outputs, [step, model].

    Attributes:
        chain: the step.
        resident: blocks that a multiprocessor is to have room for.
    """

    chain: Chain
    resident: int = 1

    libraries = (CLUSTERS,)
    threads = THREADS

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return slots_of(self.chain)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.chain.shared_bytes

    def text(self, name: str) -> str:
        """The function."""
        return _kernel_text(self.chain, self.resident, name)


def _kernel_text(chain: Chain, resident: int, name: str) -> str:
    """The function of a chain and those that it calls."""
    endings = Endings(chain, name)
    middle = Middle(chain, endings, SCALAR_THREAD)
    parts = (
        _begin(chain, middle),
        FORWARD,
        SEND_PARTS,
        middle.scalars(),
        "    cluster_barrier();\n",
        _sum_parts(chain, endings, middle),
        middle.rows(),
        SEND_SLOPES,
        middle.parts_of_gradients(),
        _NEXT,
        middle.updates(),
        _backward(chain, endings, middle),
        _end(chain),
    )
    bounds = f"__global__ void __launch_bounds__({THREADS}, {resident})"
    head = f'extern "C" __cluster_dims__({BLOCKS}, 1, 1) {bounds} {name}'
    return f"{endings.text()}{head}({parameters(chain)}) {{\n{BEGIN}{_constants(chain)}{''.join(parts)}}}\n"


def piece_of(chain: Chain) -> str:
    """Which model and steps a cluster has: places of what is read or written from its first step on."""
    lines = [
        "const i64 own_piece = piece + blockIdx.x / 4, begun = own_piece / models * each;",
        "const int model = (int)(own_piece % models);",
        "const i64 steps = all_steps - begun < each ? all_steps - begun : each;",
        f"orders += model * length + begun * {chain.batch};",
        "settings += begun;",
        *(f"found{k} += begun * models * {n};" for k, (_, _, n) in enumerate(chain.found)),
    ]
    return "\n".join(f"  {line}" for line in lines)


def slots_of(chain: Chain) -> tuple[str, ...]:
    """Names of a kernel's parameters."""
    own = (*_FIRST_SLOTS, "settings", "fault", *WEIGHTS)
    variables = (s.name for s in chain.scalars if s.kind == "variable")
    found = (f"found{k}" for k in range(len(chain.found)))
    return (*own, *(name for name, _, _ in chain.data), *variables, *found)


def parameters(chain: Chain) -> str:
    """Parameters as CUDA C++."""
    weights = [f"float *{name}" for name in WEIGHTS]
    data = [f"const {TYPES[dtype]} *{name}" for name, dtype, _ in chain.data]
    variables = [f"{TYPES[s.dtype]} *{s.name}" for s in chain.scalars if s.kind == "variable"]
    found = [f"{TYPES[dtype]} *found{k}" for k, (_, dtype, _) in enumerate(chain.found)]
    own = [
        "const float *x",
        "const i64 *orders",
        *(f"const i64 {name}" for name in _FIRST_SLOTS[2:]),
    ]
    return ", ".join(
        [*own, "const double *settings", "i64 *fault", *weights, *data, *variables, *found]
    )


def _constants(chain: Chain) -> str:
    places = chain.places
    sizes = {
        "WIDTH": chain.width, "HIDDEN": chain.hidden, "OUTPUTS": chain.outputs, "BATCH": chain.batch,
        "THREADS": THREADS, "ROW_TILES": chain.row_tiles, "UNIT_TILES": chain.unit_tiles,
        "TILES": (chain.feature_tiles + 1) // 2, "STRIDE": 8 * chain.feature_tiles, "ROWS": chain.rows,
        "UNITS": chain.units, "UNIT_STRIDE": chain.units + 4,
        "PART": 128 * chain.row_tiles * chain.unit_tiles,
        "SUM_TILES": -(-chain.row_tiles * chain.unit_tiles // 2), "SCALARS": len(chain.slots_of_scalars),
        "GROUPS": chain.groups, "OUTPUT_TILES": chain.output_tiles, "OUTPUT_STRIDE": 20,
        "SUMS": chain.sums,
    }  # fmt: skip
    floats = {
        "X": "x",
        "R": "parts",
        "D": "slopes",
        "W2": "w2",
        "B1": "b1",
        "B2": "b2",
        "P": "sums",
    }
    lines = [
        "  using namespace clusters;",
        f"  CLUSTER_MEMORY({chain.shared_bytes})",
        f"  constexpr int {', '.join(f'{key} = {value}' for key, value in sizes.items())};",
        *(f"  float *{key} = (float *)(memory + {places[part]});" for key, part in floats.items()),
        "  // rows of the block: units, their gradients, those of the outputs, what is summed of each",
        "  float *H = R, *DH = H + ROWS * UNIT_STRIDE, *DL = DH + ROWS * UNIT_STRIDE;",
        "  double *L = (double *)(DL + ROWS * OUTPUT_STRIDE);",
        f"  double *totals = (double *)(memory + {places['totals']});",
        f"  u64 *signals = (u64 *)(memory + {places['signals']});",
        f"  u64 *numbers = (u64 *)(memory + {places['numbers']});",
    ]
    for data, dtype, _ in chain.data:
        lines.append(f"  {TYPES[dtype]} *own_{data} = ({TYPES[dtype]} *)(memory + {places[data]});")
    return "\n".join(lines)


def _begin(chain: Chain, middle: Middle) -> str:
    data = []
    for name, _, columns in chain.data:
        at = f"(row_of(q) - q * ROWS) * {columns} + c"
        data.append(
            f"        for (int c = 0; c < {columns}; ++c)\n"
            f"          copy_number(own_{name} + {at}, {name} + own * {columns} + c);"
        )
    bias = {
        name: f"tid < {size} ? {name}[model * {size} + tid] : 0" if given else "0"
        for name, size, given in (
            ("b1", "HIDDEN", chain.has("b1")),
            ("b2", "OUTPUTS", chain.has("b2")),
        )
    }
    return (
        _BEGIN.replace("{piece}", piece_of(chain))
        .replace("{b1}", bias["b1"])
        .replace("{b2}", bias["b2"])
        .replace("{begin}", middle.begin())
        .replace("{data}", "\n".join(data))
        .replace("{settings}", middle.settings())
    )


def _sum_parts(chain: Chain, endings: Endings, middle: Middle) -> str:
    def value(key: str, axis: str) -> str:
        is_low = axis in "xy"
        found = endings.call(key, f"v[k].{axis}", {"b1": "low" if is_low else "high"})
        return (
            found
            if chain.hidden == chain.units
            else f"unit {'' if is_low else '+ 8 '}< HIDDEN ? {found} : 0"
        )

    places = {"x": "0", "y": "UNIT_STRIDE", "z": "8", "w": "UNIT_STRIDE + 8"}
    keeps = chain.kept is not None
    kept = "".join(
        f"          to[ROWS * UNIT_STRIDE + {place}] = {value('kept', axis)};\n"
        for axis, place in places.items()
        if keeps
    )
    text = SUM_PARTS.replace("{scalars}", middle.known("activation", "kept")).replace(
        "{kept}", kept
    )
    for place in ("low_x", "low_y", "high_z", "high_w"):
        text = text.replace(f"{{{place}}}", value("activation", place[-1]))
    return text


def _backward(chain: Chain, endings: Endings, middle: Middle) -> str:
    update = endings.call("w1", "acc[j][m][c]", {"w1": "{weight}"})
    return middle.known("w1") + backward_text((chain.feature_tiles + 1) // 2, update)


def _end(chain: Chain) -> str:
    return _END.replace("{end}", ends(chain))


def ends(chain: Chain) -> str:
    """What the first block writes after all steps, besides of weights of layers."""
    lines = []
    for name, size in (("b1", "HIDDEN"), ("b2", "OUTPUTS")):
        if chain.updates[WEIGHTS.index(name)] is not None:
            own = name.upper()
            lines.append(f"    if (tid < {size}) {{")
            lines.append(f"      {name}[model * {size} + tid] = {own}[tid];")
            lines.append(f"      bad |= !({own}[tid] * 0 == 0);")
            lines.append("    }")
    variables = [s for s in chain.scalars if s.kind == "variable" and s.update]
    for scalar in variables:
        number, dtype = chain.slots_of_scalars[scalar.name]
        kept = f"*({TYPES[dtype]} *)(numbers + (steps & 1) * SCALARS + {number})"
        lines.append(f"    if (tid == {SCALAR_THREAD}) {scalar.name}[model] = {kept};")
    return "\n".join(lines)
