"""Kernels around getrf, L and U of matrices, and getrs, solutions by them."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.backends.cuda.nodes.matrices import by_order
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch, arguments_of
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import FAULTS

from .moved import parameters, turned
from .small.elimination import small_elimination, small_solutions
from .small.group import fits
from .surroundings import INFO, THREADS, Around, launch_of, piece

_WORD = 4  # bytes of an exchange
_TILE = 2048  # exchanges that a block has in its memory at a time
_BLOCKS = 264  # that put rows in order, about: more would find out the order more often


@dataclass(frozen=True)
class Exchanges:
    """Exchanges as numbers from 0 in front of the factors; a word is set where there is a 0 in U.

    Slots: `matrices`; `rows, columns`, of a matrix of the result; `piece0`, the exchanges; `result`; `info`;
    `faults`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("matrices", "rows", "columns", piece(0), "result", INFO, FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(
            self.slots, piece0="const int *", result=f"{item} *", info="const int *", faults="i64 *"
        )
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < matrices && info[at] != 0) faults[0] = 1;
  if (at < matrices * columns)
    result[at / columns * rows * columns + at % columns] = ({item})(piece0[at] - 1);
}}
"""


def bytes_of_exchanges(kernel: Library, values: dict[str, int]) -> tuple[int, ...]:
    """The exchanges."""
    return (_WORD * values["matrices"] * values["columns"],)


def around_getrf(kernel: Library, values: dict[str, int]) -> Around:
    """The matrices, turned, behind room for the exchanges, of which the function makes factors."""
    n, item = values["columns"], ITEM_BYTES[kernel.dtype]
    if fits(n):
        return Around(small_elimination(kernel.dtype, n, values), (), calls=False)
    places = {"goal": values["result"] + n * item, "goal_step": values["rows"] * n}
    before = turned(kernel.dtype, {**values, **places})
    after = launch_of(Exchanges(kernel.dtype), values["matrices"] * n, values)
    return Around(before, (("result", n),), after)


@dataclass(frozen=True)
class GivenFactors:
    """Copies of right sides, and exchanges as the function wants them.

    A word is set for a 0 in U, or where a right side is NaN or infinite.

    Slots: `matrices`; `rows, columns`, of right sides; `x0, x0_step`, factors; `x1, x1_step`, right sides;
    `piece0`, the exchanges; `result`; `faults`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = (
        "matrices", "rows", "columns", "x0_step", "x0", "x1_step", "x1", piece(0), "result", FAULTS,
    )  # fmt: skip

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(
            self.slots, x0=f"const {item} *", x1=f"const {item} *", piece0="int *",
            result=f"{item} *", faults="i64 *",
        )  # fmt: skip
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 size = rows * columns;
  if (at < matrices * size) {{
    const {item} x = x1[at / size * x1_step + at % size];
    if (!(x - x == 0)) faults[0] = 1;
    result[at] = x;
  }}
  if (at < matrices * columns) {{
    const i64 k = at % columns;
    const {item} *const factors = x0 + at / columns * x0_step;
    if (factors[columns + k * (columns + 1)] == 0) faults[0] = 1;
    piece0[at] = (int)factors[k] + 1;
  }}
}}
"""


@dataclass(frozen=True)
class InOrder:
    """Copies of right sides whose elements stand in the order of the factors' rows.

    Each thread follows one row through all exchanges, and moves its element of several right sides. A word is
    set as by `GivenFactors`.

    Slots: `rows, columns`, of right sides; `parts`, blocks that share the right sides; `x0`, factors; `x1`,
    right sides; `result`; `faults`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("rows", "columns", "parts", "x0", "x1", "result", FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(
            self.slots,
            x0=f"const {item} *",
            x1=f"const {item} *",
            result=f"{item} *",
            faults="i64 *",
        )
        return f"""extern "C" __global__ void {name}({kinds}) {{
  __shared__ int others[{_TILE}];
{BEGIN}  const int n = (int)columns, k = (int)(blockIdx.x / parts * {THREADS} + threadIdx.x);
  int place = k;
  for (int first = 0; first < n; first += {_TILE}) {{
    const int count = n - first < {_TILE} ? n - first : {_TILE};
    __syncthreads();
    for (int t = threadIdx.x; t < count; t += {THREADS}) others[t] = (int)x0[first + t];
    __syncthreads();
    for (int t = 0; t < count; ++t) {{
      const int here = first + t, other = others[t];
      place = place == here ? other : place == other ? here : place;
    }}
  }}
  if (k >= n) return;
  if (x0[columns + k * (columns + 1)] == 0) faults[0] = 1;
  for (i64 side = blockIdx.x % parts; side < rows; side += parts) {{
    const {item} x = x1[side * columns + k];
    if (!(x - x == 0)) faults[0] = 1;
    result[side * columns + place] = x;
  }}
}}
"""


def _in_order(dtype: str, values: dict[str, int]) -> Launch:
    """A launch of that."""
    across = -(-values["columns"] // THREADS)
    parts = max(min(_BLOCKS // across, values["rows"]), 1)
    variant = InOrder(dtype)
    arguments = arguments_of(variant, {**values, "parts": parts})
    return Launch(variant, (across * parts, 1, 1), (THREADS, 1, 1), arguments)


def around_getrs(kernel: Library, values: dict[str, int]) -> Around:
    """Copies of the right sides, which the function makes solutions."""
    n = values["columns"]
    if fits(n):
        alone = small_solutions(kernel.dtype, n, kernel.settings[0], values)
        return Around(alone, (), calls=False)
    if by_order(values["matrices"], values["rows"], kernel.settings[0]):
        return Around(_in_order(kernel.dtype, values), (("x0", n), ("result", 0)))
    threads = values["matrices"] * max(values["rows"], 1) * n
    before = launch_of(GivenFactors(kernel.dtype), threads, values)
    return Around(before, (("x0", n), ("result", 0)))
