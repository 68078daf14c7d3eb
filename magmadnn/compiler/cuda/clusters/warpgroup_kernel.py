"""The kernel of a chain whose first layer's products warpgroups compute: the whole of a batch of 128 rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from magmadnn.compiler.cuda.text.formulas import TYPES
from magmadnn.compiler.cuda.text.prelude import BEGIN

from .dense_chain import BLOCKS, Chain, placed
from .formulas import Endings, can_share_rows, lanes_columns
from .kernel import SCALAR_THREAD, ChainKernel, ends, parameters, piece_of, slots_of
from .prelude import CLUSTERS
from .warpgroup_middle import OWN, ROW_Z, WarpgroupMiddle
from .warpgroup_prelude import warpgroup_library
from .warpgroup_products import BACKWARD, BESIDE, FORWARD, ROUNDING

GROUP_THREADS = 384  # of a block: two warpgroups, and the warps that copy
_BATCH, _UNITS = OWN * BLOCKS, 128
# bytes from one 8 features to the next, and between the halves of a block of them
_EIGHT, _HALF = 4240, 2112
_ROW = _UNITS + 4
_SLOT = OWN * _ROW  # floats of a block's rows of units
_CAPABILITY = 90  # of devices whose warpgroups multiply tiles
_LEAST_HIDDEN = 65  # fewer fill only half of the tiles

_SIZES = r"""
namespace clusters {
// Units of output n's weights lie as [n][unit ^ mixed(n)]: factors of tiles in different banks both ways.
__device__ __forceinline__ constexpr int mixed(int n) { return (n & 3) << 3 | (n & 4); }
// Products of tiles cut what is behind TF32's digits off.
// A NaN may look like a number while it is biased: weights are looked at when they are not.
__device__ __forceinline__ float biased(float v) { return __uint_as_float(__float_as_uint(v) + 0x1000u); }
__device__ __forceinline__ float unbiased(float v) { return __uint_as_float(__float_as_uint(v) - 0x1000u); }
}
"""

_BEGIN = r"""
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int rank = rank_of();
{piece}
  const int first = rank * STRIDE, left = WIDTH - first;
  const int width = left < 0 ? 0 : left < STRIDE ? left : STRIDE;
  const int early = (rank & 2) ^ 2;  // of the two quarters whose product is first
  const int unit = (warp >> 2) * 64 + (warp & 3) * 16 + g;
  w1 += (i64)model * WIDTH * HIDDEN;
  bool bad = false;
  for (int i = tid; i < X_BYTES / 4; i += THREADS) ((float *)X)[i] = 0;
  for (int i = tid; i < OUTPUTS * UNITS; i += THREADS) {
    const int n = i / UNITS, u = i % UNITS ^ mixed(n);
    W2[i] = u < HIDDEN ? w2[((i64)model * HIDDEN + u) * OUTPUTS + n] : 0;
  }
  if (tid < UNITS) B1[tid] = {b1};
  if (tid < OUTPUTS) B2[tid] = {b2};
{begin}
  if (tid == 0)
    for (int q = 0; q < 5; ++q) make_signal(full + q);
  if (tid == 0) make_signal(sums);
  signals_are_made();
  cluster_arrive();
  cluster_wait();
"""

_WEIGHTS = r"""
  float w[TILES][4];
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int f = j * 8 + t + 4 * (c & 1), own = unit + 8 * (c >> 1);
      w[j][c] = biased(f < width && own < HIDDEN ? w1[(i64)(first + f) * HIDDEN + own] : 0);
    }
  cluster_arrive_relaxed();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    u64 *now = numbers + (step & 1) * SCALARS;
{settings}
{data}
    if (tid == 0) {
      expect(full, 12 * SLOT);
      expect(sums, 12 * PART);
      for (int q = 0; q < 4; ++q)
        if (q != rank) expect(came + q, 16384);
    }
"""

_END = r"""
  }
  cluster_wait();
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int f = j * 8 + t + 4 * (c & 1), own = unit + 8 * (c >> 1);
      const float v = unbiased(w[j][c]);
      if (f < width && own < HIDDEN) {
        w1[(i64)(first + f) * HIDDEN + own] = v;
        bad |= !(v * 0 == 0);
      }
    }
  group_sync(1, 256);
  if (rank == 0) {
    for (int i = tid; i < OUTPUTS * UNITS; i += 256) {
      const int n = i / UNITS, u = i % UNITS ^ mixed(n);
      if (u < HIDDEN) {
        w2[((i64)model * HIDDEN + u) * OUTPUTS + n] = W2[i];
        bad |= !(W2[i] * 0 == 0);
      }
    }
{end}
  }
  if (bad) *fault = 1;
"""


@dataclass(frozen=True)
class WarpgroupKernel:
    """As `ChainKernel`, with the same slots; `fits` says for which chains.

    Attributes:
        chain: the step.
        is_rounded: whether `x` is a copy that `RoundedRows` has made; if not, batches are rounded as they
            come.
    """

    chain: Chain
    is_rounded: bool = False

    threads = GROUP_THREADS

    @property
    def libraries(self) -> tuple[str, ...]:
        """Texts that the function calls."""
        return (CLUSTERS + _SIZES, warpgroup_library((64, 8 * self.tiles)))

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return slots_of(self.chain)

    @property
    def fits(self) -> bool:
        """Whether the chain fills tiles."""
        chain = self.chain
        return (
            chain.batch == _BATCH
            and _LEAST_HIDDEN <= chain.hidden <= _UNITS
            and chain.outputs <= ROW_Z
            and can_share_rows(chain)
        )

    @property
    def tiles(self) -> int:
        """Tiles of 8 features that a block has."""
        return -(-self.chain.width // (8 * BLOCKS))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Of a block's sums over its rows, in floats: where each part begins, and "part", all of it."""
        first = self.chain.outputs * _UNITS
        second = first + _UNITS
        totals = -(-(second + self.chain.outputs) // 2) * 2
        return {
            "FIRST_BIAS": first,
            "SECOND_BIAS": second,
            "TOTALS": totals,
            "PART": -(-(totals + 2 * self.chain.sums) // 4) * 4,
        }

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each part of a block's shared memory begins, and under "end" how much there is."""
        chain, part = self.chain, 4 * self.sizes["PART"]
        parts = {
            "h": 4 * _SLOT,
            "q": 4 * 2 * _UNITS,
            "p": BLOCKS * part,
            "z": 4 * BLOCKS * OWN * ROW_Z,
            "l": 8 * OWN * chain.sums,
        }
        sizes = {
            "x": -(-self.tiles * _EIGHT // 128) * 128,
            "d": BLOCKS * 4 * _SLOT,
            **parts,
            "rest": max(0, (BLOCKS - 1) * 4 * _SLOT - sum(parts.values())),
            "w2": 4 * chain.outputs * _UNITS,
            "b1": 4 * _UNITS,
            "b2": 4 * 16,
            "dl": 4 * OWN * ROW_Z,
            "signals": 8 * (BLOCKS + 2),
            "numbers": 2 * 8 * len(chain.slots_of_scalars),
        }
        return placed(sizes | chain.data_bytes(OWN))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.places["end"]

    def text(self, name: str) -> str:
        """The function."""
        chain = self.chain
        endings = Endings(chain, name)
        middle = WarpgroupMiddle(chain, endings, SCALAR_THREAD)
        rows = middle.rows()
        data = [_data_text(*given) for given in chain.data]
        update = endings.call("w1", "acc[4 * j + c]", {"w1": "old"})
        parts = (
            self._begin(middle),
            self._beside().replace("{outputs}", middle.outputs()),
            _WEIGHTS.replace("{settings}", middle.settings()).replace(
                "{data}", "\n".join(d for d, _ in data)
            ),
            FORWARD.replace("{between}", middle.scalars() + "\n".join(d for _, d in data)),
            rows,
            BACKWARD.replace("{small}", middle.updates())
            .replace("{scalars}", middle.known("w1"))
            .replace("{update}", update),
            _END.replace("{end}", ends(chain)),
        )
        bounds = f"__global__ void __launch_bounds__({GROUP_THREADS}, 1)"
        head = f'extern "C" __cluster_dims__({BLOCKS}, 1, 1) {bounds} {name}'
        body = f"{BEGIN}{self._constants()}{''.join(parts)}"
        return f"{endings.text()}{head}({parameters(chain)}) {{\n{body}}}\n"

    def _beside(self) -> str:
        text = BESIDE
        for place, piece in ROUNDING.items():
            text = text.replace(f"{{{place}}}", "" if self.is_rounded else piece)
        return text

    def _constants(self) -> str:
        chain, places = self.chain, self.places
        sizes = {
            "WIDTH": chain.width, "HIDDEN": chain.hidden, "OUTPUTS": chain.outputs, "THREADS": GROUP_THREADS,
            "TILES": self.tiles, "STRIDE": 8 * self.tiles, "UNITS": _UNITS, "ROW": _ROW, "SLOT": _SLOT,
            "EIGHT": _EIGHT, "HALF": _HALF, "X_BYTES": self.tiles * _EIGHT, "SUMS": chain.sums,
            "COLUMNS": lanes_columns(chain.outputs), "SCALARS": len(chain.slots_of_scalars), **self.sizes,
        }  # fmt: skip
        floats = {
            "D": "d",
            "R": "h",
            "H": "h",
            "Q": "q",
            "P": "p",
            "Z": "z",
            "W2": "w2",
            "B1": "b1",
            "B2": "b2",
            "DL": "dl",
        }
        lines = [
            "  using namespace clusters;",
            f"  CLUSTER_MEMORY({self.shared_bytes})",
            f"  constexpr int {', '.join(f'{key} = {value}' for key, value in sizes.items())};",
            f"  char *X = (char *)(memory + {places['x']});",
            *(
                f"  float *{key} = (float *)(memory + {places[part]});"
                for key, part in floats.items()
            ),
            f"  double *L = (double *)(memory + {places['l']});",
            f"  u64 *full = (u64 *)(memory + {places['signals']});",
            f"  u64 *came = full + 1, *sums = came + {BLOCKS};",
            f"  u64 *numbers = (u64 *)(memory + {places['numbers']});",
        ]
        for data, dtype, _ in chain.data:
            lines.append(
                f"  {TYPES[dtype]} *own_{data} = ({TYPES[dtype]} *)(memory + {places[data]});"
            )
        return "\n".join(lines)

    def _begin(self, middle: WarpgroupMiddle) -> str:
        chain = self.chain
        bias = {
            name: f"tid < {size} ? {name}[model * {size} + tid] : 0" if chain.has(name) else "0"
            for name, size in (("b1", "HIDDEN"), ("b2", "OUTPUTS"))
        }
        return (
            _BEGIN.replace("{piece}", piece_of(chain))
            .replace("{b1}", bias["b1"])
            .replace("{b2}", bias["b2"])
            .replace("{begin}", middle.begin())
        )


def _data_text(name: str, dtype: str, columns: int) -> tuple[str, str]:
    """What a step reads besides of the block's rows: how it is begun, and how it comes to shared memory."""
    load, store = [], []
    for k in range(-(-OWN * columns // 256)):
        i, own = f"(tid + {256 * k})", f"{name}_{k}"
        row = f"orders[(i64)step * {_BATCH} + rank * {OWN} + {i} / {columns}]"
        inside = f"{i} < {OWN * columns}"
        load.append(f"    {TYPES[dtype]} {own} = 0;")
        load.append(f"    if ({inside}) {own} = {name}[{row} * {columns} + {i} % {columns}];")
        store.append(f"    if ({inside}) own_{name}[{i}] = {own};")
    return "\n".join(load), "\n".join(store)


def kernel_of(chain: Chain, capability: int, shared_bytes: int) -> ChainKernel | WarpgroupKernel:
    """The fastest kernel that a device has for a chain.

    Args:
        chain: the step.
        capability: of the device.
        shared_bytes: that a block may have at most.
    """
    own = WarpgroupKernel(chain)
    if capability == _CAPABILITY and own.fits and own.shared_bytes <= shared_bytes:
        return own
    return ChainKernel(chain, chain.resident)
