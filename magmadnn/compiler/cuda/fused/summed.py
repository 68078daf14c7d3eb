"""A weight gradient that sums the columns of its right operand too, as one kernel.

A bias' gradient is the sum of the rows whose product with the layer's input is the gradient of its weights,
so they lie in shared memory already. The first blocks, one for each range of columns, add them in the order
of `columns.py`, and so to the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.gemm.gemm import GemmVariant, is_short_of_bandwidth
from magmadnn.compiler.cuda.text.formulas import TYPES
from magmadnn.compiler.cuda.text.reductions import COMBINED, neutral
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.operands import FULL

from .columns import ColumnsVariant

_PREFIX = "sum_"


@dataclass(frozen=True)
class Summed:
    """Both in one.

    Slots: the product's, then those of the sums with a prefix.

    Attributes:
        product: with whole k in shared memory.
        columns: what is done to the rows of its right operand.
    """

    product: GemmVariant
    columns: ColumnsVariant

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return (*self.product.slots, *(f"{_PREFIX}{slot}" for slot in self.columns.slots))

    @property
    def libraries(self) -> tuple[str, ...]:
        """What it needs beside its text."""
        return self.product.libraries

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        return self.product.registers

    def text(self, name: str) -> str:
        """The function."""
        product, columns = self.product, self.columns
        parameters = ", ".join((product.parameters, *columns.typed(_PREFIX)))
        given = ", ".join(f"{_PREFIX}{slot}" for slot in columns.slots)
        bounds = f"__launch_bounds__({product.cut.threads}, 1)"
        return f"""{product.types(name)}{_sums(columns, f"{name}_sums")}
extern "C" __global__ void {bounds} {name}({parameters}) {{
  SHARED_MEMORY({product.shared_bytes})
  const {name}_slots slots = {{{", ".join(product.slots)}}};
  const {name}_sums sums = {{{given}}};
  {name}_type::run(slots, blockIdx.x, memory, sums);
}}
"""


def _sums(columns: ColumnsVariant, name: str) -> str:
    """The struct of that name: how totals of columns are made, and what is stored, for one sum."""
    (reduction,) = columns.kernel.reduce
    kind, fields = TYPES[reduction.dtype], " ".join(f"{one};" for one in columns.typed(""))
    return f"""struct {name} {{
  {fields}
  static constexpr int LANES = {columns.lanes};
  static __device__ __forceinline__ {kind} none() {{ return {neutral(reduction)}; }}
  static __device__ __forceinline__ {kind} both({kind} a, {kind} b) {{
    return {COMBINED[reduction.kind]}(a, b);
  }}
  __device__ __forceinline__ void finish(i64 column, {kind} {reduction.name}_s) const {{
{columns.stored(name)}
  }}
}};
"""


def fold(product: Launch, columns: Launch) -> Launch | None:
    """One launch in place of two that do not wait for each other; None where they do not fit together."""
    one, other = product.variant, columns.variant
    if not isinstance(one, GemmVariant) or not isinstance(other, ColumnsVariant):
        return None
    if not (one.cut.whole_k and is_short_of_bandwidth(one) and _is_plain(other, one.kernel.dtype)):
        return None
    values = dict(zip(other.slots, columns.arguments, strict=True))
    (operand,) = (o for o in other.kernel.operands if o.spread == FULL)
    _, n, k = one.sizes
    wanted = {"row0": 0, "row1": k, "column0": 0, "column1": n}
    wanted |= {operand.name: product.arguments[one.slots.index("b")]}
    wanted |= {f"{operand.name}_row": dict(one.strides)["b"]}
    if any(values[slot] != value for slot, value in wanted.items()):
        return None
    variant = Summed(one, other)
    return Launch(
        variant,
        product.grid,
        product.block,
        (*product.arguments, *columns.arguments),
        product.shared_bytes,
    )


def _is_plain(columns: ColumnsVariant, dtype: str) -> bool:
    """Whether it is one sum, of the elements of one matrix as they are."""
    kernel = columns.kernel
    if kernel.in_pieces or len(kernel.reduce) != 1:
        return False
    full = [k for k, o in enumerate(kernel.operands) if o.spread == FULL]
    (reduction,) = kernel.reduce
    return (
        len(full) == 1
        and reduction.formula == ("argument", full[0])
        and reduction.dtype == dtype == kernel.operands[full[0]].dtype
        and all(result.spread != FULL for result in kernel.store)
    )
