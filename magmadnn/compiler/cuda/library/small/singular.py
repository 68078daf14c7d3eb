"""Singular values and vectors of small matrices by rotations of columns, as Hestenes and Jacobi did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.library.moved import parameters
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import WARP, Launch, arguments_of
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.moves import FAULTS

from .rotations import LIBRARY, TEXT

_ROWS = 4  # of a thread of a matrix that has a part of a warp
# Rows of a thread from which on a matrix gets more warps, if it is the only one, and if it is one of many. An
# H200 took for one of 64 columns 412 us with 4 warps and 467 with 8, for one of 32 180, 148 and 119 with 1, 2
# and 4, for 10,000 of 32 2.7, 2.8 and 3.5 ms.
_LEAST, _LEAST_OF_MANY, _MOST_WARPS = 4, 16, 4
_THREADS, _SHARED_BYTES = 128, 48 << 10  # of a block that has several matrices
_MOST_SWEEPS = 60
_LEAST_REFLECTED = 16  # columns above which values alone are those of a triangle


@dataclass(frozen=True)
class SmallSingular:
    """Singular values, and behind them U and V^T: a few threads have two columns, which they turn.

    A matrix wider than high is the transpose of one that is not. Of that one [p, q], pairs of columns are
    turned until all are at right angles: their lengths are the singular values, what is left of them U, and
    the product of the rotations V. A word is set for elements that are NaN or infinite.

    Slots: `matrices`; `x0, x0_step`, the matrices; `columns`, numbers of each result; `result`; `faults`.

    Attributes:
        dtype: of the elements.
        m, n: rows and columns.
        vectors: whether U and V^T are wanted.
        full: whether both are square.
        warps: that have a matrix together, if it is not one of several of a warp.
    """

    dtype: str
    m: int
    n: int
    vectors: bool
    full: bool
    warps: int
    slots = ("matrices", "x0_step", "x0", "columns", "result", FAULTS)
    libraries = (LIBRARY,)

    @property
    def _numbers(self) -> dict[str, int]:
        p, q = max(self.m, self.n), min(self.m, self.n)
        pairs = lanes = _pairs(q)
        warps = 1
        while lanes < WARP and lanes // pairs * _ROWS < p:
            lanes *= 2
        if lanes == WARP:
            warps = self.warps
        parts = lanes // pairs * warps
        side = p if self.full else q
        units = side * (p + 1) if self.vectors else q * (q + 1) if self._reflects else 0
        sums = 6 * warps * pairs + (p + side if self.vectors else 0)
        group = lanes * warps
        room = 2 * pairs + sums + units + 2 * pairs
        room += room % 2
        threads = group if warps > 1 else max(group, _THREADS)
        while threads > WARP and threads // group * room * ITEM_BYTES[self.dtype] > _SHARED_BYTES:
            threads //= 2
        return {
            "P": p, "Q": q, "SIDE": side, "L": pairs, "LANES": lanes, "W": warps, "GROUP": group,
            "RA": -(-p // parts), "RV": -(-q // parts) if self.vectors else 1, "SUMS": sums, "UNITS": units,
            "ROOM": room, "THREADS": threads if warps == 1 else group, "MOST_SWEEPS": _MOST_SWEEPS,
        }  # fmt: skip

    @property
    def _reflects(self) -> bool:
        """Whether values of a triangle are found in place of those of the matrix."""
        return not self.vectors and min(self.m, self.n) > _LEAST_REFLECTED

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self._numbers["THREADS"]

    @property
    def groups(self) -> int:
        """Matrices of a block."""
        return self._numbers["THREADS"] // self._numbers["GROUP"]

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.groups * self._numbers["ROOM"] * ITEM_BYTES[self.dtype]

    def text(self, name: str) -> str:
        """The text of the kernel, called `name`, in CUDA."""
        item = MEMORY[self.dtype]
        kinds = parameters(self.slots, x0=f"const {item} *", result=f"{item} *", faults="i64 *")
        numbers = "\n".join(f"  constexpr u32 {key} = {v};" for key, v in self._numbers.items())
        truths = f"  constexpr bool TALL = {int(self.m >= self.n)}, VECTORS = {int(self.vectors)};"
        truths += f"\n  constexpr bool REFLECTS = {int(self._reflects)};"
        eps, tiny = ("0x1p-52", "0x1p-960") if self.dtype == "float64" else ("0x1p-23", "0x1p-100f")
        p = self._numbers["P"]
        return f"""extern "C" __global__ void __launch_bounds__({self.threads}) {name}({kinds}) {{
  SHARED_MEMORY({self.shared_bytes})
{BEGIN}  using T = {item};
{numbers.replace("u32 MOST_SWEEPS", "int MOST_SWEEPS")}
{truths}
  constexpr double TINY = {tiny}, EPS = {eps}, TOL = EPS * {p**0.5:.4f};
{TEXT}"""


def _pairs(columns: int) -> int:
    """Threads that have two columns each, a power of two."""
    return 1 << (max(columns - 1, 1).bit_length() - 1)


def small_singular(
    dtype: str, m: int, n: int, settings: tuple[bool, ...], values: Mapping[str, int]
) -> Launch:
    """The launch of `SmallSingular` for a stack of m x n matrices."""
    vectors, full = settings
    p, q = max(m, n), min(m, n)
    least = _LEAST if values["matrices"] == 1 else _LEAST_OF_MANY
    warps = 1
    while warps < _MOST_WARPS and WARP // _pairs(q) * warps * least < p:
        warps *= 2
    variant = SmallSingular(dtype, m, n, vectors, full and vectors, warps)
    blocks = -(-values["matrices"] // variant.groups)
    arguments = arguments_of(variant, values)
    return Launch(variant, (blocks, 1, 1), (variant.threads, 1, 1), arguments, variant.shared_bytes)
