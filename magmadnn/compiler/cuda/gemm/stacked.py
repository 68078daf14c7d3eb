"""Products of stacks of matrices in one launch: blocks of a product for each pair of matrices.

A block finds from its number which pair it belongs to, and begins at these matrices: factors may be stacked
along several axes, and a matrix may serve many pairs. The kernel is that of a single product (`gemm.py`),
epilogue included, and so are its bits; for many larger ones in TF32 it is one whose tiles pass through shared
memory (`staged.py`).
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
from .staged import STAGED
from .tiled import TiledProduct, tiled

Axes = tuple[
    tuple[int, int], ...
]  # matrices along an axis of a stack, and elements from one to the next
_LARGEST_GRID = 2**31 - 1
LIBRARY_SIZE = 32  # see `choose_stacked`, of this and those below
FEW_COLUMNS = 32  # see `choose_shared`
_WIDE, _MANY = 64, 4  # columns and sums of a product, and products
# The number of batches before, and further ones; addresses of the addresses of an array and an order of rows.
_PICKED = ("first", "step", "source", "order")


@dataclass(frozen=True)
class StackedProduct:
    """Products of equal sizes.

    Attributes:
        product: of one pair.
        count: pairs.
        a: where the left factors lie, outermost axis first,
        b: and the right ones.
        placed: the same of results whose matrices do not follow each other.
    """

    product: GemmVariant | TiledProduct
    count: int
    a: Axes
    b: Axes
    placed: tuple[tuple[str, Axes], ...] = ()

    @property
    def libraries(self) -> tuple[str, ...]:
        """What it needs beside its text."""
        return (LIBRARY, STAGED) if isinstance(self.product, TiledProduct) else (LIBRARY,)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters: addresses, those of the first pair; where rows of A are found."""
        return self.product.slots + (_PICKED if self._picks else ())

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        return self.product.registers

    @property
    def is_alone(self) -> bool:
        """Whether it is no part of a merged kernel, whose other blocks would take the room of its own."""
        return isinstance(self.product, TiledProduct)

    @property
    def blocks(self) -> int:
        """Of a pair."""
        return self.product.blocks

    @property
    def _picks(self) -> bool:
        return isinstance(self.product, TiledProduct) and self.product.picked

    def text(self, name: str) -> str:
        """The function."""
        product = self.product
        bounds = f"__launch_bounds__({product.threads}, {product.resident})"
        slots = ", ".join(f"{slot}{self._beyond(slot)}" for slot in product.slots)
        slots += f", z * {product.sizes[0]}" if product.axes else ""
        parameters, lines = product.parameters, ""
        if isinstance(product, TiledProduct):
            stored, step = f"{product.kinds['a']}", dict(product.strides)["a"]
            lines = f", gemm::Straight<{stored}>{{slots.a, {step}}}"
            if self._picks:
                total = self.count * product.lines
                begin = f"(*first + step) * {total} + z * {product.lines}"
                lines = f", gemm::Picked<{stored}>{{*source, {step}, *order, {begin}, nullptr}}"
                parameters += f", const i64 *first, i64 step, const {stored} *const *source"
                parameters += ", const i64 *const *order"
        return f"""{product.types(name)}extern "C" __global__ void {bounds} {name}({parameters}) {{
  SHARED_MEMORY({product.shared_bytes})
  const i64 z = blockIdx.x / {self.blocks};
  const {name}_slots slots = {{{slots}}};
  {name}_type::run(slots, blockIdx.x % {self.blocks}, memory{lines});
}}
"""

    def _beyond(self, slot: str) -> str:
        """How far from the first pair's memory that of pair z lies."""
        if slot in ("a", "b"):
            return _offset(self.a if slot == "a" else self.b)
        if slot in dict(self.placed):
            return _offset(dict(self.placed)[slot])
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

    Several of float32 in TF32 pass through shared memory (`tiled.py`), if they are large enough and rows lie
    so that they can be copied; else operands of these, which are read often, are better in a library. For
    others the rule is that of a single product, since one that fills the device alone gains nothing beside
    others; but of float64 matrices of `LIBRARY_SIZE` rows and columns on without anything behind them a
    library has faster ones: 10,000 of 32 took 128 us by these kernels and 99 by cuBLAS on an H100, of 64 590
    and 339. On an H200 256 products of 128 x 784 x 128 take 66 us (72 by cuBLASLt and a kernel behind it),
    32 of 100 x 1000 x 1000 59 (59 and what is behind it), gradients of weights of 784 x 128 with their
    updates 100 (147). Stacks of halves pass through shared memory too, where bandwidth limits them: 512
    products as those of attention, of 128 x 128 x 64, take 13 to 18 us there.

    Args:
        kernel: what is computed.
        values: of its slots: rows are those of all results, addresses those of the first matrices.
        axes: of the stacks `a` and `b`; as many pairs along each axis of both. Also of results whose matrices
            do not follow each other, by their slots.
        chip: what it runs on.
        tensor_float: whether float32 may be rounded to TF32.
    """
    count = math.prod(size for size, _ in axes["a"])
    smallest = min(values["row1"] // max(count, 1), values["column1"], values["k"])
    if kernel.dtype == "float64" and smallest >= LIBRARY_SIZE and finishing(kernel) is None:
        return None
    product = _chosen(kernel, values, axes, chip, tensor_float)
    if product is None:
        return None
    placed = tuple((slot, of) for slot, of in axes.items() if slot not in "ab")
    variant = StackedProduct(product, count, axes["a"], axes["b"], placed)
    blocks = count * variant.blocks
    if blocks > _LARGEST_GRID:
        return None
    grid, block = (blocks, 1, 1), (product.threads, 1, 1)
    return Launch(variant, grid, block, arguments_of(variant, values), product.shared_bytes)


def choose_shared(
    kernel: Gemm,
    values: Mapping[str, int],
    axes: Mapping[str, Axes],
    chip: Chip,
    tensor_float: bool,
) -> Launch | None:
    """One launch for products of a stack that share the second factor; None where a library's are better.

    They are decided as one product of all rows is: on an H200 that was the better of both in 22 of 24
    cases, and as good in one. In TF32 up to `FEW_COLUMNS` columns are our own kernels': 256 products of
    128 x 512 x 10 take 23 us, the library's 31.

    Args:
        kernel: what is computed.
        values: as for `choose_stacked`, as are those below.
        axes: of the stacks.
        chip: what it runs on.
        tensor_float: whether float32 may be rounded to TF32.
    """
    few = tensor_float and kernel.dtype == "float32" and values["column1"] <= FEW_COLUMNS
    if not few and choose_gemm(kernel, values, chip, tensor_float) is None:
        return None
    return choose_stacked(kernel, values, axes, chip, tensor_float)


def _chosen(
    kernel: Gemm,
    values: Mapping[str, int],
    axes: Mapping[str, Axes],
    chip: Chip,
    tensor_float: bool,
) -> GemmVariant | TiledProduct | None:
    """The kernel of one product; None where a library's are better."""
    count = math.prod(size for size, _ in axes["a"])
    one = {**values, "row1": values["row1"] // max(count, 1)}
    steps = {side: [step for size, step in of if size > 1] for side, of in axes.items()}
    if (tensor_float or kernel.halves) and kernel.dtype == "float32" and count >= _MANY:
        product = tiled(kernel, one, count, chip, (*steps["a"], *steps["b"]))
        sums_columns = not kernel.transpose_a and min(one["column1"], one["k"]) >= _WIDE
        sums_columns = sums_columns and kernel.halves is None
        if product is not None or sums_columns:
            return product and replace(product, widths=_narrowed_widths(product, steps))
    own = replace(chip, processors=max(chip.processors // max(count, 1), 1))
    launch = choose_gemm(kernel, one, own, tensor_float)
    if launch is None:
        return None
    assert isinstance(launch.variant, GemmVariant)
    return replace(launch.variant, widths=_narrowed_widths(launch.variant, steps))


def picking(launch: Launch, first: int, step: int, source: int, order: int) -> Launch | None:
    """The same product of which lines of A are rows of a larger array; None where it cannot read them so.

    Batch `first[0] + step` has rows `order[0][i]` of `source[0]`, as many for each product as A has lines;
    products follow each other in the order. Where `order[0]` is 0, rows are taken as they lie.

    Args:
        launch: of a stack, whose factors `a` lie one after the other without gaps.
        first: address of the number of batches before.
        step: further batches before.
        source: address of the array's address.
        order: address of the address of row numbers.
    """
    variant = launch.variant
    if not isinstance(variant, StackedProduct) or not isinstance(variant.product, TiledProduct):
        return None
    product, sizes = variant.product, variant.product.sizes
    if product.kernel.transpose_a and product.stages:
        return None
    columns = sizes[0] if product.kernel.transpose_a else sizes[2]
    axes = [axis for axis in variant.a if axis[0] > 1]
    if (
        dict(product.strides)["a"] != columns
        or len(axes) != 1
        or axes[0][1] != product.lines * columns
    ):
        return None
    made = replace(variant, product=replace(product, picked=True))
    arguments = (*launch.arguments, first, step, source, order)
    return replace(
        launch, variant=made, arguments=arguments, shared_bytes=made.product.shared_bytes
    )


def _narrowed_widths(
    product: GemmVariant | TiledProduct, steps: Mapping[str, Sequence[int]]
) -> tuple[tuple[str, int], ...]:
    """How many elements of each slot can be moved together, of every matrix of the stack."""
    return tuple((slot, _narrowed(width, steps.get(slot, ()))) for slot, width in product.widths)


def _narrowed(width: int, steps: Sequence[int]) -> int:
    """Elements that can be moved together from every matrix."""
    while any(step % width for step in steps):
        width //= 2
    return width
