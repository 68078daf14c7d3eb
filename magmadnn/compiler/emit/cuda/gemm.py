"""Matrix products as CUDA C++, with all that is done to their elements: kernels for small and skinny ones.

A library's product of 100 x 528 x 528 takes some 5 us, and leaves bias, activation and update to kernels that
follow. These take about 2 to 3 us with all of that, because they are short: operands go from memory straight
into the registers of tensor cores (`gemm_product.py` says how), k is cut among the warps of a block, and what
the kernels just before do not write is read before those are done. For large products a library's kernels are
faster, and `choose_gemm` leaves these to it. Sums are in an order that depends on sizes only: steps of k
within a warp, then warps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import FULL, Operand, Result, row_constant

from .formulas import MEMORY
from .gemm_arithmetic import ARITHMETIC, ARITHMETIC_TEXT
from .gemm_cut import Cut, cut_for
from .gemm_finish import finish_text
from .gemm_loads import LOADS
from .gemm_outer import OUTER
from .gemm_product import PRODUCT
from .parts import Part
from .variant import Chip, Launch, arguments_of

LIBRARY = LOADS + ARITHMETIC_TEXT + PRODUCT + OUTER

_QUAD = 4
_WIDEST_LOAD = 16  # bytes
# Operations up to which these kernels are the faster ones; the same where all of k is taken at once.
_MOST_OPERATIONS = {"float32": (1.2e8, 3e7), "tf32": (3e8, 3e8), "float64": (1.2e8, 3e7)}
_LARGEST = 2**31  # elements of an operand, whose places are counted in 32 bits


@dataclass(frozen=True)
class GemmVariant:
    """A product of given sizes.

    Attributes:
        kernel: what is computed.
        sizes: m, n, k.
        arithmetic: float32 and float64 are exact; tf32 rounds operands to 11 bits.
        cut: into blocks, warps and steps.
        strides: elements from row to row of `a`, `b` and all that is a whole matrix.
        widths: how many elements of each can be moved together.
        early: what no kernel writes that runs just before: `a`, `b`, `finish`.
        near: whether A may lie in shared memory.
    """

    kernel: Gemm
    sizes: tuple[int, int, int]
    arithmetic: str
    cut: Cut
    strides: tuple[tuple[str, int], ...]
    widths: tuple[tuple[str, int], ...]
    early: frozenset[str] = frozenset()
    near: bool = False

    libraries = (LIBRARY,)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What formulas read beside the product."""
        finish = self.kernel.epilogue
        return finish.operands if isinstance(finish, Finish) else ()

    @property
    def results(self) -> tuple[Result, ...]:
        """What is stored."""
        return results_of(self.kernel)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that has memory, beside A and B."""
        return (*self.operands, *self.results)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters: addresses."""
        return tuple(dict.fromkeys(("a", "b", *(part.name for part in self.parts))))

    @property
    def kinds(self) -> dict[str, str]:
        """The C++ type that each slot points to."""
        found = dict.fromkeys("ab", MEMORY[self.kernel.halves or self.kernel.dtype])
        return found | {part.name: MEMORY[part.dtype] for part in self.parts}

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        return self.cut.registers

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.cut.shared_bytes(self.kernel.transpose_b, ITEM_BYTES[self.kernel.dtype])

    def types(self, name: str) -> str:
        """Structs of its slots, sizes and formulas, and the type of all of it: `NAME_type`."""
        fields = " ".join(f"{self.kinds[slot]} *{slot};" for slot in self.slots)
        rows = " ".join(f"static constexpr i64 {n}_row = {s};" for n, s in self.strides)
        finish = finish_text(
            f"{name}_finish",
            self.operands,
            self.results,
            self.kernel.dtype,
            dict(self.widths),
            self.sizes[1],
        )
        kind = "Outer" if self.cut.whole_k else "Product"
        arithmetic = f"gemm::{ARITHMETIC[self.arithmetic]}"
        return f"""struct {name}_slots {{ {fields} {rows} }};
struct {name}_shape {{ typedef {self.kinds["a"]} Stored; {self._shape()} }};
{finish}typedef gemm::{kind}<{name}_shape, {arithmetic}, {name}_finish> {name}_type;
"""

    def text(self, name: str) -> str:
        """The function."""
        parameters = ", ".join(f"{self.kinds[slot]} *{slot}" for slot in self.slots)
        bounds = f"__launch_bounds__({self.cut.threads}, 1)"
        return f"""{self.types(name)}extern "C" __global__ void {bounds} {name}({parameters}) {{
  SHARED_MEMORY({self.shared_bytes})
  const {name}_slots slots = {{{", ".join(self.slots)}}};
  {name}_type::run(slots, blockIdx.x, memory);
}}
"""

    def _shape(self) -> str:
        """Everything that is known before the kernel is compiled."""
        cut, strides, widths = self.cut, dict(self.strides), dict(self.widths)
        numbers = dict(zip("MNK", self.sizes, strict=True))
        numbers |= {"LDA": strides["a"], "LDB": strides["b"], "VA": widths["a"], "VB": widths["b"]}
        numbers |= dict(zip(("MT", "NT"), cut.tile, strict=True))
        numbers |= dict(zip(("WM", "WN", "WK"), cut.warps, strict=True))
        numbers |= {"STEPS": cut.steps, "AHEAD": cut.ahead, "DOWN": cut.down(self.sizes[0])}
        numbers |= {"TA": self.kernel.transpose_a, "TB": self.kernel.transpose_b}
        numbers |= {f"EARLY_{s.upper()}": s in self.early for s in ("a", "b", "finish")}
        numbers |= {"NEAR_A": self.near}
        return " ".join(f"static constexpr int {n} = {int(v)};" for n, v in numbers.items())


def results_of(gemm: Gemm) -> tuple[Result, ...]:
    """What a product stores: results of its epilogue, and C where anybody reads it."""
    finish = gemm.epilogue
    found = finish.results if isinstance(finish, Finish) else ()
    formula = finish.formula if isinstance(finish, Finish) else ("product",)
    return found if gemm.unread else (*found, Result("c", gemm.dtype, formula))


def choose_gemm(
    kernel: Gemm, values: Mapping[str, int], chip: Chip, tensor_float: bool
) -> Launch | None:
    """The variant of a product and its launch; None where a library's is better."""
    sizes = (values["row1"], values["column1"], values["k"])
    # Products of halves are exact in TF32, and sums are float32's.
    tensor_float = kernel.dtype == "float32" and (tensor_float or kernel.halves is not None)
    arithmetic = "tf32" if tensor_float else kernel.dtype
    if kernel.scaled or not isinstance(kernel.epilogue, Finish | None) or not all(sizes):
        return None
    if arithmetic not in ARITHMETIC:
        return None
    item, transposes = ITEM_BYTES[kernel.dtype], (kernel.transpose_a, kernel.transpose_b)
    cut = cut_for(sizes, transposes, item, chip.processors, chip.shared_bytes)
    if cut is None or 2.0 * math.prod(sizes) > _MOST_OPERATIONS[arithmetic][cut.whole_k]:
        return None
    values = {**values, "a_row": values["lda"], "b_row": values["ldb"], "c_row": values["ldc"]}
    m, n, k = sizes
    a_lines, a_length = (k, m) if kernel.transpose_a else (m, k)
    b_lines, b_length = (n, k) if kernel.transpose_b else (k, n)
    if max(a_lines * values["a_row"], b_lines * values["b_row"]) >= _LARGEST:
        return None
    operands = kernel.epilogue.operands if isinstance(kernel.epilogue, Finish) else ()
    parts: tuple[Part, ...] = (*operands, *results_of(kernel))
    stored = ITEM_BYTES[kernel.halves or kernel.dtype]
    widths = {
        "a": width_of(values, "a", a_length, stored),
        "b": width_of(values, "b", b_length, stored),
    }
    for part in parts:
        if not row_constant(part):
            widths[part.name] = width_of(values, part.name, n, ITEM_BYTES[part.dtype])
    strides = {
        s: values[f"{s}_row"] for s in ("a", "b", *(p.name for p in parts if p.spread == FULL))
    }
    variant = GemmVariant(
        kernel, sizes, arithmetic, cut, tuple(strides.items()), tuple(widths.items())
    )
    shared, grid = cut.shared_bytes(kernel.transpose_b, item), (cut.blocks(m, n), 1, 1)
    return Launch(variant, grid, (cut.threads, 1, 1), arguments_of(variant, values), shared)


def hastened(launch: Launch, early: frozenset[str], chip: Chip) -> Launch:
    """The launch that reads these before kernels in front of it are done, where it has room for them."""
    variant = launch.variant
    assert isinstance(variant, GemmVariant)
    transposes = (variant.kernel.transpose_a, variant.kernel.transpose_b)
    item, sizes = ITEM_BYTES[variant.kernel.dtype], variant.sizes
    cut = cut_for(sizes, transposes, item, chip.processors, chip.shared_bytes, early)
    assert cut is not None
    known = frozenset(s for s in early if s == "finish" or cut.early(s))
    variant = replace(variant, cut=cut, early=known)
    grid = (cut.blocks(*sizes[:2]), 1, 1)
    return Launch(variant, grid, (cut.threads, 1, 1), launch.arguments, variant.shared_bytes)


def width_of(values: Mapping[str, int], name: str, length: int, item: int) -> int:
    """Elements that can be moved together, of lines of `length`."""
    width, row = _QUAD, values.get(f"{name}_row", 0)
    while length % width or row % width or values[name] % min(width * item, _WIDEST_LOAD):
        width //= 2
    return width
