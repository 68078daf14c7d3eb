"""Matrix products by single threads, for networks whose whole step is one kernel: text and choice.

A lane computes R rows of four neighbouring elements over a P-th of k: four k, then four that lie 4 P further,
and so on. The lanes that share elements then add what they have by halves, each for other rows, so that what
is done to elements is spread over all of them. Nothing passes through memory, and no thread waits for another
warp. Sums are in an order that depends on sizes only.

What bounds these products is the path from shared memory to registers: 128 bytes a clock if eight lanes that
load 16 bytes each meet different banks, or all the same place. So lanes that follow each other take
neighbouring columns; where B is stored [n, k], neighbouring parts of k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.function import Function, OneFunction
from magmadnn.compiler.cuda.text.variant import WARP, Launch, arguments_of
from magmadnn.compiler.kernels.gemm import Finish, Gemm

from .epilogue import FIRST_ROW, finish_text
from .sized import (
    SizedProduct,
    axes_of,
    constants,
    kinds_of,
    lines_of,
    operands_of,
    results_of,
    rows_of,
    sized,
)

_QUAD = 4

LIBRARY = r"""
namespace small {

// COUNT neighbouring elements of a line, of which those before `left` exist, V at a time; zeros for others.
template <int COUNT, int V, class T> __device__ __forceinline__ void take(T *v, const T *at, int left) {
  constexpr int W = COUNT % V == 0 ? V : COUNT % 2 == 0 && V > 1 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < COUNT; i += W) {
    Vec<T, W> x = {};
    if (i < left) x = load<W>(at + i);
#pragma unroll
    for (int j = 0; j < W; j++) v[i + j] = x.at[j];
  }
}

template <class S, class T, class F> struct Product {
  static constexpr int R = S::R, P = S::P, LANES = 32 / P, LEFT = R > P ? R / P : 1;

  // Sizes are constants of `Slots` or arguments of the kernel.
  template <class Slots> static __device__ __forceinline__ void run(const Slots &s, int thread) {
    const int across = (s.N + 3) / 4, tiles = (s.M + R - 1) / R * across;
    const int rounds = (s.K + 4 * P - 1) / (4 * P);
    const bool whole_k = s.K % (4 * P) == 0;
    const int lane = thread % 32, part = S::TB ? lane % P : lane / LANES;
    const int tile = thread / 32 * LANES + (S::TB ? lane / P : lane % LANES);
    const int at = tile < tiles ? tile : tiles - 1;
    const int row0 = at / across * R, column = at % across * 4;
    const int row = row0 + (R < P ? part / (P / R) : part * LEFT);
    const bool mine = tile < tiles && (R >= P || part % (P > R ? P / R : 1) == 0);
    typename F::Values held[LEFT];
#pragma unroll
    for (int i = 0; i < LEFT; i++)
      if (mine && row + i < s.M) F::read(s, held[i], row + i, column);
    T c[R][4];
#pragma unroll
    for (int i = 0; i < 4 * R; i++) c[i / 4][i % 4] = 0;
#pragma unroll 4
    for (int i = 0; i < rounds; i++) {
      const int k = 4 * (part + P * i), left = whole_k ? 4 : s.K - k;
      T a[R][4], b[4][4];
      rows(a, s, row0, k, left);
      columns(b, s, column, k, left);
#pragma unroll
      for (int q = 0; q < 4; q++)
#pragma unroll
        for (int x = 0; x < 4 * R; x++) c[x / 4][x % 4] = fma(a[x / 4][q], b[q][x % 4], c[x / 4][x % 4]);
    }
    add<P / 2, R / 2>(c, part);
#pragma unroll
    for (int i = 0; i < LEFT; i++)
      if (mine && row + i < s.M) F::finish(s, held[i], row + i, column, c[i]);
  }
  template <class Slots>
  static __device__ __forceinline__ void rows(T (&a)[R][4], const Slots &s, int row, int k, int left) {
    const bool whole_m = s.M % R == 0;
    if constexpr (!S::TA) {
#pragma unroll
      for (int r = 0; r < R; r++)
        take<4, S::VA>(a[r], s.a + (whole_m || row + r < s.M ? row + r : s.M - 1) * s.a_row + k, left);
    } else {
#pragma unroll
      for (int q = 0; q < 4; q++) {
        T x[R];
        take<R, S::VA>(x, s.a + (k + q) * s.a_row + row, q < left ? (whole_m ? R : s.M - row) : 0);
#pragma unroll
        for (int r = 0; r < R; r++) a[r][q] = x[r];
      }
    }
  }
  template <class Slots>
  static __device__ __forceinline__ void columns(T (&b)[4][4], const Slots &s, int column, int k, int left) {
    const bool whole_n = s.N % 4 == 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (S::TB) {
        T x[4];
        const int row = whole_n || column + i < s.N ? column + i : s.N - 1;
        take<4, S::VB>(x, s.b + row * s.b_row + k, left);
#pragma unroll
        for (int q = 0; q < 4; q++) b[q][i] = x[q];
      } else
        take<4, S::VB>(b[i], s.b + (k + i) * s.b_row + column, i < left ? (whole_n ? 4 : s.N - column) : 0);
    }
  }
  // Lanes whose parts differ in one bit add what they have: each for the half of the rows that it goes on
  // with, and where a single row is left both for all of it.
  template <int H, int ROWS> static __device__ __forceinline__ void add(T (&c)[R][4], int part) {
    if constexpr (H > 0) {
      constexpr int APART = S::TB ? H : H * LANES;
      const bool upper = part & H;
#pragma unroll
      for (int x = 0; x < 4 * (ROWS ? ROWS : 1); x++) {
        T &low = c[x / 4][x % 4], high = c[x / 4 + ROWS][x % 4];
        const T given = ROWS && !upper ? high : low, own = ROWS && upper ? high : low;
        low = own + __shfl_xor_sync(0xffffffffu, given, APART);
      }
      add<H / 2, ROWS / 2>(c, part);
    }
  }
};

}  // namespace small
"""


@dataclass(frozen=True)
class SmallGemm(SizedProduct, OneFunction):
    """A product of given sizes.

    Attributes:
        rows: that a lane computes.
        parts_of_k: each a lane's.
    """

    rows: int
    parts_of_k: int

    libraries = (LIBRARY,)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Slots that are addresses."""
        return self.slots

    def function(self, name: str) -> Function:
        """The function."""
        sizes = constants(dict(zip("MNK", self.sizes, strict=True)))
        widths = dict(self.widths)
        shape = _shape(self.kernel, self.rows, self.parts_of_k, widths["a"], widths["b"])
        before = f"""{self.slots_text(name, "int", sizes)}
struct {name}_shape {{ {shape} }};
{self.finish(name)}"""
        body = _body(name, self.kernel, self.slots)
        return Function(name, self.parameters, body, before=before)


@dataclass(frozen=True)
class AnySmallGemm(OneFunction):
    """A product whose sizes are arguments, with the bits of `SmallGemm`: one kernel for many sizes.

    Elements are moved one at a time, so that it does not depend on where lines begin.

    Attributes:
        kernel: what is computed.
        rows: that a lane computes.
        parts_of_k: each a lane's.
    """

    kernel: Gemm
    rows: int
    parts_of_k: int

    libraries = (LIBRARY,)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Slots that are addresses."""
        return tuple(kinds_of(self.kernel))

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return (*self.addresses, *self._numbers)

    @property
    def _numbers(self) -> tuple[str, ...]:
        lines = tuple(f"{name}_row" for name in lines_of(self.kernel))
        return ("M", "N", "K", *lines, *axes_of(self.kernel))

    def function(self, name: str) -> Function:
        """The function."""
        kinds, axes = kinds_of(self.kernel), axes_of(self.kernel)
        fields = [f"{kind} *{slot};" for slot, kind in kinds.items()]
        fields += [f"{'i64' if n in axes else 'int'} {n};" for n in self._numbers]
        fields += [f"i64 {FIRST_ROW} = 0;"] if axes else []
        parts = operands_of(self.kernel), results_of(self.kernel)
        widths = dict.fromkeys(kinds, 1)
        before = f"""struct {name}_slots {{ {" ".join(fields)} }};
struct {name}_shape {{ {_shape(self.kernel, self.rows, self.parts_of_k, 1, 1)} }};
{finish_text(f"{name}_finish", *parts, self.kernel.dtype, widths, "s.N")}"""
        given = [*kinds, *(n if n in axes else f"(int){n}" for n in self._numbers)]
        parameters = [*(f"{kind} *{n}" for n, kind in kinds.items())]
        parameters += [f"i64 {n}" for n in self._numbers]
        return Function(name, ", ".join(parameters), _body(name, self.kernel, given), before=before)


def _shape(kernel: Gemm, rows: int, parts_of_k: int, width_a: int, width_b: int) -> str:
    """Everything of a product but sizes that is known before it is compiled."""
    ways = {"TA": kernel.transpose_a, "TB": kernel.transpose_b}
    return constants({**ways, "VA": width_a, "VB": width_b, "R": rows, "P": parts_of_k})


def _body(name: str, kernel: Gemm, given: Sequence[str]) -> str:
    return f"""  const {name}_slots slots = {{{", ".join(given)}}};
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  small::Product<{name}_shape, {MEMORY[kernel.dtype]}, {name}_finish>::run(slots, thread);"""


_ROWS = 4  # of a lane, where there are as many
_THREADS = 256  # that a product is made for, by cutting k
_PARTS_ALONG_K = 8  # whose loads from a line of B together use all banks of shared memory


def small_gemm(kernel: Gemm, values: Mapping[str, int], any_size: bool = False) -> Launch:
    """The variant of a product and its launch; with `any_size` that whose sizes are arguments."""
    m, n, k = values["row1"], values["column1"], values["k"]
    rows, parts_of_k = _cut((m, n, k), kernel.transpose_b)
    variant: SmallGemm | AnySmallGemm
    if any_size:
        variant = AnySmallGemm(kernel, rows, parts_of_k)
        values = {**values, "M": m, "N": n, "K": k, **rows_of(values)}
    else:
        variant = SmallGemm(**vars(sized(kernel, values)), rows=rows, parts_of_k=parts_of_k)
    tiles = -(-m // rows) * -(-n // _QUAD)
    warps = -(-tiles * parts_of_k // WARP)
    return Launch(variant, (warps, 1, 1), (WARP, 1, 1), arguments_of(variant, values))


def _cut(sizes: tuple[int, int, int], transpose_b: bool) -> tuple[int, int]:
    """Rows of a lane, and parts of k, so that there are enough threads."""
    m, n, k = sizes
    rows = 1
    while rows < min(m, _ROWS):
        rows *= 2
    tiles, parts = -(-m // rows) * -(-n // _QUAD), 1
    while parts < WARP and _QUAD * parts < k and 2 * tiles * parts <= _THREADS:
        parts *= 2
    along = transpose_b and k >= _QUAD * _PARTS_ALONG_K
    return rows, max(parts, _PARTS_ALONG_K) if along else parts


def can_be_small(kernel: Gemm) -> bool:
    """Whether a product can be made so."""
    plain = kernel.halves is None and not kernel.joined
    return plain and isinstance(kernel.epilogue, Finish | None)
