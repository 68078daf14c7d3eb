"""Matrix products as CUDA C++, with all that is done to their elements: kernels for small and skinny ones.

A library's product of 100 x 528 x 528 takes some 5 us, and leaves bias, activation and update to kernels that
follow. These take about 2 to 3 us with all of that, because they are short: operands go from memory straight
into the registers of tensor cores (`product.py` says how), k is cut among the warps of a block, and what
the kernels just before do not write is read before those are done. For large products a library's kernels are
faster, and `choose_gemm` leaves these to it. Sums are in an order that depends on sizes only: steps of k
within a warp, then warps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.gemm import Finish, Gemm

from .arithmetic import ARITHMETIC, ARITHMETIC_TEXT
from .cut import Cut, Sizes, cut_for
from .loads import LOADS
from .outer_products import OUTER
from .product import PRODUCT
from .sized import SizedProduct, constants, is_countable, sized

LIBRARY = LOADS + ARITHMETIC_TEXT + PRODUCT + OUTER

# Operations up to which these kernels are the faster ones; the same where all of k is taken at once.
_MOST_OPERATIONS = {"float32": (1.2e8, 3e7), "tf32": (3e8, 3e8), "float64": (1.2e8, 3e7)}


@dataclass(frozen=True)
class GemmVariant(SizedProduct):
    """A product of given sizes.

    Attributes:
        arithmetic: float32 and float64 are exact; tf32 rounds operands to 11 bits.
        cut: into blocks, warps and steps.
        early: what no kernel writes that runs just before: `a`, `b`, `finish`.
        near: whether A may lie in shared memory.
        eager: whether later kernels may start once all that comes late is asked for, before it is multiplied.
    """

    arithmetic: str
    cut: Cut
    early: tuple[str, ...] = ()  # in order: how a set is written differs from process to process
    near: bool = False
    eager: bool = False

    libraries = (LIBRARY,)

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        return self.cut.registers

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.cut.threads

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.cut.blocks(*self.sizes[:2])

    @property
    def resident(self) -> int:
        """Blocks that are to share a multiprocessor."""
        return 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.cut.shared_bytes(self.kernel.transpose_b, ITEM_BYTES[self.kernel.dtype])

    def types(self, name: str) -> str:
        """Structs of its slots, sizes and formulas, and the type of all of it: `NAME_type`."""
        kind = "Outer" if self.cut.whole_k else "Product"
        arithmetic = f"gemm::{ARITHMETIC[self.arithmetic]}"
        return f"""{self.slots_text(name, "i64")}
struct {name}_shape {{ typedef {self.kinds["a"]} Stored; {self._shape()} }};
{self.finish(name)}typedef gemm::{kind}<{name}_shape, {arithmetic}, {name}_finish> {name}_type;
"""

    def text(self, name: str) -> str:
        """The function."""
        bounds = f"__launch_bounds__({self.cut.threads}, 1)"
        return f"""{self.types(name)}extern "C" __global__ void {bounds} {name}({self.parameters}) {{
  SHARED_MEMORY({self.shared_bytes})
  const {name}_slots slots = {{{", ".join(self.slots)}}};
  {name}_type::run(slots, blockIdx.x, memory);
}}
"""

    def _shape(self) -> str:
        """Everything that is known before the kernel is compiled."""
        cut, numbers = self.cut, self.numbers()
        numbers |= dict(zip(("MT", "NT"), cut.tile, strict=True))
        numbers |= dict(zip(("WM", "WN", "WK"), cut.warps, strict=True))
        numbers |= {"STEPS": cut.steps, "AHEAD": cut.ahead, "DOWN": cut.down(self.sizes[0])}
        numbers |= {f"EARLY_{s.upper()}": s in self.early for s in ("a", "b", "finish")}
        numbers |= {"NEAR_A": self.near, "EAGER": self.eager}
        return constants(numbers)


def choose_gemm(
    kernel: Gemm, values: Mapping[str, int], chip: Chip, tensor_float: bool
) -> Launch | None:
    """The variant of a product and its launch; None where a library's is better."""
    sizes = (values["row1"], values["column1"], values["k"])
    # Products of halves are exact in TF32, and sums are float32's.
    tensor_float = kernel.dtype == "float32" and (tensor_float or kernel.halves is not None)
    arithmetic = "tf32" if tensor_float else kernel.dtype
    if not isinstance(kernel.epilogue, Finish | None) or not all(sizes):
        return None
    if arithmetic not in ARITHMETIC:
        return None
    item, transposes = ITEM_BYTES[kernel.dtype], (kernel.transpose_a, kernel.transpose_b)
    cut = cut_for(sizes, transposes, item, chip.processors, chip.shared_bytes)
    if cut is None or 2.0 * math.prod(sizes) > _MOST_OPERATIONS[arithmetic][cut.whole_k]:
        return None
    if not is_countable(kernel, values):
        return None
    variant = GemmVariant(**vars(sized(kernel, values)), arithmetic=arithmetic, cut=cut)
    return _launch(variant, arguments_of(variant, values))


def _launch(variant: GemmVariant, arguments: tuple[int, ...]) -> Launch:
    """How a product is launched."""
    cut, (m, n, _) = variant.cut, variant.sizes
    grid, block = (cut.blocks(m, n), 1, 1), (cut.threads, 1, 1)
    return Launch(variant, grid, block, arguments, variant.shared_bytes)


def is_short_of_bandwidth(variant: GemmVariant) -> bool:
    """Whether a product is the faster the larger its tiles.

    Exact sums are short of arithmetic, and halves are half as many bytes: small tiles are better for them.
    """
    return variant.arithmetic == "tf32" and variant.kernel.halves is None


def hastened(
    launch: Launch, early: frozenset[str], chip: Chip, beside: Sequence[Sizes] | None = None
) -> Launch:
    """The launch that reads these before kernels in front of it are done, where it has room for them.

    Args:
        launch: of a product.
        early: `a`, `b`, `finish`: what is known early.
        chip: what it runs on.
        beside: if weight gradients share large tiles, sizes of those that are merged with it.
    """
    variant = launch.variant
    assert isinstance(variant, GemmVariant)
    transposes = (variant.kernel.transpose_a, variant.kernel.transpose_b)
    item, sizes = ITEM_BYTES[variant.kernel.dtype], variant.sizes
    if not is_short_of_bandwidth(variant):
        beside = None
    cut = cut_for(sizes, transposes, item, chip.processors, chip.shared_bytes, early, beside)
    assert cut is not None
    known = tuple(sorted(s for s in early if s == "finish" or cut.early(s)))
    variant = replace(variant, cut=cut, early=known, eager=beside is not None)
    return _launch(variant, launch.arguments)
