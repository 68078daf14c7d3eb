"""Kernels around syevd, eigenvalues of symmetric matrices, and gesdd, singular values."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.backends.cuda.nodes.matrices import by_polar, sizes_of_singular
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.moves import FAULTS

from .moved import copied, parameters, turned
from .small.group import fits
from .small.singular import small_singular
from .surroundings import INFO, Around, launch_of, piece


def bytes_of_eigen(kernel: Library, values: dict[str, int]) -> tuple[int, ...]:
    """The matrices, and their eigenvalues."""
    n, item = values["width"], ITEM_BYTES[kernel.dtype] * values["matrices"]
    return item * n * n, item * n


def around_syevd(kernel: Library, values: dict[str, int]) -> Around:
    """Copies of the matrices, of which the function makes eigenvectors."""
    n = values["width"]
    lower, _ = kernel.settings
    places = {"goal": values[piece(0)], "goal_step": n * n}
    before = copied(kernel.dtype, {**values, **places}, "lower" if lower else "upper")
    return Around(before, (), launch_of(EigenResults(kernel.dtype), values["count"], values))


@dataclass(frozen=True)
class EigenResults:
    """Eigenvalues in a row, and below them eigenvectors; a word is set where they did not converge.

    Slots: `matrices`; `rows, columns`, of a matrix of the result; `piece0`, vectors; `piece1`, values;
    `result`; `info`; `faults`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("matrices", "rows", "columns", piece(0), piece(1), "result", INFO, FAULTS)

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(
            self.slots, piece0=f"const {item} *", piece1=f"const {item} *", result=f"{item} *",
            info="const int *", faults="i64 *",
        )  # fmt: skip
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 size = rows * columns, matrix = at / size, inside = at % size;
  if (at < matrices && info[at] != 0) faults[0] = 1;
  if (at >= matrices * size) return;
  result[at] = inside < columns ? piece1[matrix * columns + inside]
                                : piece0[matrix * columns * columns + inside - columns];
}}
"""


# --- singular values ------------------------------------------------------------------------------


def bytes_of_singular(kernel: Library, values: dict[str, int]) -> tuple[int, ...]:
    """The matrices, their singular values, U and V, and room for a copy of one matrix.

    Where values alone are wanted, there is room for one more V behind the copy.

    The library's Jacobi method writes U and V where only values are wanted, too.
    """
    vectors, full = kernel.settings
    if _is_small(values):
        return ()
    p, q, columns = sizes_of_singular(values["height"], values["width"], full)
    item = ITEM_BYTES[kernel.dtype] * values["matrices"]
    sides = item * p * columns, item * q * q
    has_copy = by_polar(p, q, vectors) and values["matrices"]
    spare = item // values["matrices"] * (p + (0 if vectors else q)) * q if has_copy else 0
    return (item * p * q, item * q, *sides, spare)


def _is_small(values: dict[str, int]) -> bool:
    """Whether a kernel of our own finds singular values and vectors."""
    return fits(values["height"], values["width"]) and min(values["height"], values["width"]) > 0


def around_gesdd(kernel: Library, values: dict[str, int]) -> Around:
    """The matrices as the library counts, wide ones as the transposes that they are to it."""
    m, n = values["height"], values["width"]
    vectors, full = kernel.settings
    p, q, columns = sizes_of_singular(m, n, full)
    if not q:
        alone = launch_of(Unit(kernel.dtype), values["count"], {**values, "side": p})
        return Around(alone, (), calls=False)
    if _is_small(values):
        alone = small_singular(kernel.dtype, m, n, kernel.settings, values)
        return Around(alone, (), calls=False)
    places = {"goal": values[piece(0)], "goal_step": m * n}
    make = turned if m > n else copied
    before = make(kernel.dtype, {**values, **places})
    sizes = {"p": p, "q": q, "width_u": columns, "left": m if full else q}
    variant = SingularResults(kernel.dtype, m > n, vectors)
    return Around(before, (), launch_of(variant, values["count"], {**values, **sizes}))


@dataclass(frozen=True)
class SingularResults:
    """Singular values, and behind them U [m, left] and V^T [.., n]; a word is set for no convergence.

    The library has decomposed matrices [p, q] into U' [p, p or q] and V' [q, q], which lie column by column.
    Where the matrix was turned, these are U and V; else V and U.

    Slots: `matrices`; `columns`, numbers for each; `p, q`; `width_u`, columns that U' has memory for; `left`,
    columns of U; `piece1` to `piece3`, values, U' and V'; `result`; `info`; `faults`.

    Attributes:
        dtype: of the elements.
        turned: see above.
        vectors: whether U and V^T are wanted.
    """

    dtype: str
    turned: bool
    vectors: bool
    slots = (
        "matrices", "columns", "p", "q", "width_u", "left", piece(1), piece(2), piece(3), "result", INFO,
        FAULTS,
    )  # fmt: skip

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        given = {piece(k): f"const {item} *" for k in (1, 2, 3)}
        kinds = parameters(
            self.slots, **given, result=f"{item} *", info="const int *", faults="i64 *"
        )
        if self.turned:  # m = p, n = q
            u, v, m, n = "u[i + j * p]", "v[i * q + j]", "p", "q"
        else:  # m = q, n = p
            u, v, m, n = "v[i + j * q]", "u[i * p + j]", "q", "p"
        vectors = f"""
  const {item} *const u = piece2 + matrix * p * width_u;
  const {item} *const v = piece3 + matrix * q * q;
  inside -= q;
  if (inside < {m} * left) {{
    const i64 i = inside / left, j = inside % left;
    result[at] = {u};
    return;
  }}
  inside -= {m} * left;
  const i64 i = inside / {n}, j = inside % {n};
  result[at] = {v};"""
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const i64 matrix = at / columns;
  i64 inside = at % columns;
  if (at < matrices && info[at] != 0) faults[0] = 1;
  if (at >= matrices * columns) return;
  if (inside < q) {{
    const {item} value = piece1[matrix * q + inside];
    result[at] = value > 0 ? value : value - value;  // what is 0 may be less by rounding
    return;
  }}{vectors if self.vectors else ""}
}}
"""


@dataclass(frozen=True)
class Unit:
    """The unit matrices that U or V^T of matrices without elements are.

    Slots: `count`, elements in all; `side`, rows of each; `result`.

    Attributes:
        dtype: of the elements.
    """

    dtype: str
    slots = ("count", "side", "result")

    def text(self, name: str) -> str:
        """The function."""
        item = MEMORY[self.dtype]
        kinds = parameters(self.slots, result=f"{item} *")
        return f"""extern "C" __global__ void {name}({kinds}) {{
{BEGIN}  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) result[at] = at % (side * side) / side == at % side ? {item}(1) : {item}(0);
}}
"""
