"""Products of stacks of matrices in one launch: blocks of a product for each pair of matrices.

The kernel is that of a single product (`gemm.py`), epilogue included. A block finds from its number which
pair it belongs to, and begins at these matrices: factors may be stacked along several axes, and a matrix may
serve many pairs. So bits are those of single products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.operands import COLUMN, FULL

from .finish import finishing
from .gemm import LIBRARY, GemmVariant, choose_gemm

Axes = tuple[
    tuple[int, int], ...
]  # matrices along an axis of a stack, and elements from one to the next
_LARGEST_GRID = 2**31 - 1
LIBRARY_SIZE = 32  # see `choose_stacked`, of this and those below
_WIDE, _MANY = 64, 4  # columns and sums of a product, and products


@dataclass(frozen=True)
class StackedProduct:
    """Products of equal sizes.

    Attributes:
        product: of one pair.
        count: pairs.
        a: where the left factors lie, outermost axis first,
        b: and the right ones.
    """

    product: GemmVariant
    count: int
    a: Axes
    b: Axes

    libraries = (LIBRARY,)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters: addresses, those of the first pair."""
        return self.product.slots

    @property
    def blocks(self) -> int:
        """Of a pair."""
        m, n, _ = self.product.sizes
        return self.product.cut.blocks(m, n)

    def text(self, name: str) -> str:
        """The function."""
        product = self.product
        bounds = f"__launch_bounds__({product.cut.threads}, 1)"
        slots = ", ".join(f"{slot}{self._beyond(slot)}" for slot in self.slots)
        slots += f", z * {product.sizes[0]}" if product.axes else ""
        return f"""{product.types(name)}extern "C" __global__ void {bounds} {name}({product.parameters}) {{
  SHARED_MEMORY({product.shared_bytes})
  const i64 z = blockIdx.x / {self.blocks};
  const {name}_slots slots = {{{slots}}};
  {name}_type::run(slots, blockIdx.x % {self.blocks}, memory);
}}
"""

    def _beyond(self, slot: str) -> str:
        """How far from the first pair's memory that of pair z lies."""
        if slot in ("a", "b"):
            return _offset(self.a if slot == "a" else self.b)
        rows, strides = self.product.sizes[0], dict(self.product.strides)
        spreads = {part.name: part.spread for part in self.product.parts}
        if spreads[slot] == FULL:
            return f" + z * {rows * strides[slot]}"
        return f" + z * {rows}" if spreads[slot] == COLUMN else ""


def _offset(axes: Axes) -> str:
    """Elements from the first matrix of a stack to matrix z."""
    terms, inner = "", math.prod(size for size, _ in axes)
    for size, step in axes:
        inner //= size
        if size > 1 and step:
            terms += f" + z / {inner} % {size} * {step}"
    return terms


def choose_stacked(
    kernel: Gemm,
    values: Mapping[str, int],
    axes: Mapping[str, Axes],
    chip: Chip,
    tensor_float: bool,
) -> Launch | None:
    """One launch for all products of a stack; None where a library's, one after the other, are better.

    The rule is that of a single product, since one that fills the device alone gains nothing beside others,
    with two exceptions. Of float64 matrices of `LIBRARY_SIZE` rows and columns on without anything behind
    them a library has faster ones: 10,000 of 32 took 128 us by these kernels and 99 by cuBLAS on an H100, of
    64 590 and 339. In TF32 it reads operands less often where both are large: 256 products of 128 x 784 x 128
    took 147 us by these kernels and 72 by cuBLASLt with a kernel behind it on an H200, 32 of
    100 x 1000 x 1000 156 and 59; gradients of weights of 784 x 128 with their updates 152 and 147.

    Tiles are chosen for the processors that a product has to itself.

    Args:
        kernel: what is computed.
        values: of its slots: rows are those of all results, addresses those of the first matrices.
        axes: of the stacks `a` and `b`; as many pairs along each axis of both.
        chip: what it runs on.
        tensor_float: whether float32 may be rounded to TF32.
    """
    count = math.prod(size for size, _ in axes["a"])
    smallest = min(values["row1"] // max(count, 1), values["column1"], values["k"])
    if kernel.dtype == "float64" and smallest >= LIBRARY_SIZE and finishing(kernel) is None:
        return None
    sums_columns = not kernel.transpose_a and min(values["column1"], values["k"]) >= _WIDE
    if tensor_float and kernel.dtype == "float32" and sums_columns and count >= _MANY:
        return None
    one = {**values, "row1": values["row1"] // max(count, 1)}
    own = replace(chip, processors=max(chip.processors // max(count, 1), 1))
    launch = choose_gemm(kernel, one, own, tensor_float)
    if launch is None:
        return None
    product = launch.variant
    assert isinstance(product, GemmVariant)
    steps = {side: [step for size, step in axes[side] if size > 1] for side in "ab"}
    widths = [(s, _narrowed(width, steps.get(s, ()))) for s, width in product.widths]
    variant = StackedProduct(replace(product, widths=tuple(widths)), count, axes["a"], axes["b"])
    blocks = count * variant.blocks
    if blocks > _LARGEST_GRID:
        return None
    return replace(
        launch, variant=variant, grid=(blocks, 1, 1), arguments=arguments_of(variant, values)
    )


def _narrowed(width: int, steps: Sequence[int]) -> int:
    """Elements that can be moved together from every matrix."""
    while any(step % width for step in steps):
        width //= 2
    return width
