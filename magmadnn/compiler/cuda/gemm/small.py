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

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.function import Function, OneFunction
from magmadnn.compiler.cuda.text.variant import WARP, Launch, arguments_of
from magmadnn.compiler.kernels.gemm import Finish, Gemm

from .sized import SizedProduct, constants, sized

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
  static constexpr int M = S::M, N = S::N, K = S::K, R = S::R, P = S::P, LANES = 32 / P;
  static constexpr int ACROSS = (N + 3) / 4, TILES = (M + R - 1) / R * ACROSS;
  static constexpr int ROUNDS = (K + 4 * P - 1) / (4 * P), LEFT = R > P ? R / P : 1;
  static constexpr bool WHOLE_K = K % (4 * P) == 0, WHOLE_M = M % R == 0, WHOLE_N = N % 4 == 0;

  template <class Slots> static __device__ __forceinline__ void run(const Slots &s, int thread) {
    const int lane = thread % 32, part = S::TB ? lane % P : lane / LANES;
    const int tile = thread / 32 * LANES + (S::TB ? lane / P : lane % LANES);
    const int at = tile < TILES ? tile : TILES - 1;
    const int row0 = at / ACROSS * R, column = at % ACROSS * 4;
    const int row = row0 + (R < P ? part / (P / R) : part * LEFT);
    const bool mine = tile < TILES && (R >= P || part % (P > R ? P / R : 1) == 0);
    typename F::Values held[LEFT];
#pragma unroll
    for (int i = 0; i < LEFT; i++)
      if (mine && row + i < M) F::read(s, held[i], row + i, column);
    T c[R][4];
#pragma unroll
    for (int i = 0; i < 4 * R; i++) c[i / 4][i % 4] = 0;
#pragma unroll 4
    for (int i = 0; i < ROUNDS; i++) {
      const int k = 4 * (part + P * i), left = WHOLE_K ? 4 : K - k;
      T a[R][4], b[4][4];
      rows(a, s.a, row0, k, left);
      columns(b, s.b, column, k, left);
#pragma unroll
      for (int q = 0; q < 4; q++)
#pragma unroll
        for (int x = 0; x < 4 * R; x++) c[x / 4][x % 4] = fma(a[x / 4][q], b[q][x % 4], c[x / 4][x % 4]);
    }
    add<P / 2, R / 2>(c, part);
#pragma unroll
    for (int i = 0; i < LEFT; i++)
      if (mine && row + i < M) F::finish(s, held[i], row + i, column, c[i]);
  }
  static __device__ __forceinline__ void rows(T (&a)[R][4], const T *from, int row, int k, int left) {
    if constexpr (!S::TA) {
#pragma unroll
      for (int r = 0; r < R; r++)
        take<4, S::VA>(a[r], from + (WHOLE_M || row + r < M ? row + r : M - 1) * S::LDA + k, left);
    } else {
#pragma unroll
      for (int q = 0; q < 4; q++) {
        T x[R];
        take<R, S::VA>(x, from + (k + q) * S::LDA + row, q < left ? (WHOLE_M ? R : M - row) : 0);
#pragma unroll
        for (int r = 0; r < R; r++) a[r][q] = x[r];
      }
    }
  }
  static __device__ __forceinline__ void columns(T (&b)[4][4], const T *from, int column, int k, int left) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (S::TB) {
        T x[4];
        take<4, S::VB>(x, from + (WHOLE_N || column + i < N ? column + i : N - 1) * S::LDB + k, left);
#pragma unroll
        for (int q = 0; q < 4; q++) b[q][i] = x[q];
      } else
        take<4, S::VB>(b[i], from + (k + i) * S::LDB + column, i < left ? (WHOLE_N ? 4 : N - column) : 0);
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
        before = f"""{self.slots_text(name, "int")}
struct {name}_shape {{ {self._shape()} }};
{self.finish(name)}"""
        body = f"""  const {name}_slots slots = {{{", ".join(self.slots)}}};
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  small::Product<{name}_shape, {MEMORY[self.kernel.dtype]}, {name}_finish>::run(slots, thread);"""
        return Function(name, self.parameters, body, before=before)

    def _shape(self) -> str:
        """Everything that is known before the kernel is compiled."""
        return constants({**self.numbers(), "R": self.rows, "P": self.parts_of_k})


_ROWS = 4  # of a lane, where there are as many
_THREADS = 256  # that a product is made for, by cutting k
_PARTS_ALONG_K = 8  # whose loads from a line of B together use all banks of shared memory


def small_gemm(kernel: Gemm, values: Mapping[str, int]) -> Launch:
    """The variant of a product and its launch."""
    product = sized(kernel, values)
    rows, parts_of_k = _cut(product.sizes, kernel.transpose_b)
    variant = SmallGemm(**vars(product), rows=rows, parts_of_k=parts_of_k)
    m, n, _ = product.sizes
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
    return kernel.halves is None and isinstance(kernel.epilogue, Finish | None)
