"""What all kernels of a matrix product know of it: sizes, where memory lies, what is read and stored.

`gemm.py` makes such kernels for tensor cores, `small.py` for one block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.parts import Part
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import FULL, Operand, Result, row_constant

from .epilogue import FIRST_ROW, finish_text

_QUAD = 4  # elements that are moved together at most
_WIDEST_LOAD = 16  # bytes
_LARGEST = 2**31  # elements of an operand, whose places are counted in 32 bits


@dataclass(frozen=True)
class SizedProduct:
    """A product of given sizes.

    Attributes:
        kernel: what is computed.
        sizes: m, n, k.
        strides: elements from row to row of `a`, `b` and all that is a whole matrix.
        widths: how many elements of each can be moved together.
        axes: slots of strided operands: sizes and steps of the axes by which their rows are numbered.
    """

    kernel: Gemm
    sizes: tuple[int, int, int]
    strides: tuple[tuple[str, int], ...]
    widths: tuple[tuple[str, int], ...]
    axes: tuple[tuple[str, int], ...]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What formulas read beside the product."""
        return operands_of(self.kernel)

    @property
    def results(self) -> tuple[Result, ...]:
        """What is stored."""
        return results_of(self.kernel)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that has memory, beside A and B."""
        return parts_of(self.kernel)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters: addresses."""
        return tuple(self.kinds)

    @property
    def kinds(self) -> dict[str, str]:
        """The C++ type that each slot points to."""
        return kinds_of(self.kernel)

    @property
    def parameters(self) -> str:
        """Types and names."""
        return ", ".join(f"{self.kinds[slot]} *{slot}" for slot in self.slots)

    def slots_text(self, name: str, index: str, others: str = "") -> str:
        """The struct `NAME_slots`, whose steps from row to row are constants of type `index`; with `others`.

        Strided operands number rows from `FIRST_ROW` on: the first is that of a stack's first product.
        """
        fields = [f"{self.kinds[slot]} *{slot};" for slot in self.slots]
        fields += [f"i64 {FIRST_ROW} = 0;"] if self.axes else []
        fields += [f"static constexpr {index} {n}_row = {s};" for n, s in self.strides]
        fields += [f"static constexpr i64 {slot} = {n};" for slot, n in self.axes]
        return f"struct {name}_slots {{ {' '.join([*fields, others])} }};"

    def finish(self, name: str) -> str:
        """The struct `NAME_finish`: what is done to the elements."""
        columns = self.sizes[1]
        end = str(columns) if columns % _QUAD else None
        how = self.kernel.dtype, dict(self.widths), end
        return finish_text(f"{name}_finish", self.operands, self.results, *how)

    def numbers(self) -> dict[str, int]:
        """What the text of every product knows before it is compiled."""
        strides, widths = dict(self.strides), dict(self.widths)
        return dict(zip("MNK", self.sizes, strict=True)) | {
            "LDA": strides["a"],
            "LDB": strides["b"],
            "VA": widths["a"],
            "VB": widths["b"],
            "TA": self.kernel.transpose_a,
            "TB": self.kernel.transpose_b,
        }


def constants(numbers: Mapping[str, int]) -> str:
    """Members of a struct."""
    return " ".join(f"static constexpr int {n} = {int(v)};" for n, v in numbers.items())


def sized(kernel: Gemm, values: Mapping[str, int]) -> SizedProduct:
    """The product for given values of its slots."""
    m, n, k = sizes = (values["row1"], values["column1"], values["k"])
    values = {**values, **rows_of(values)}
    parts, stored = parts_of(kernel), ITEM_BYTES[kernel.halves or kernel.dtype]
    widths = {
        "a": _width(values, "a", m if kernel.transpose_a else k, stored),
        "b": _width(values, "b", k if kernel.transpose_b else n, stored),
    }
    for part in parts:
        if not row_constant(part):
            widths[part.name] = _width(values, part.name, n, ITEM_BYTES[part.dtype], part.slots[1:])
    axes = {slot: values[slot] for slot in axes_of(kernel)}
    strides = {name: values[f"{name}_row"] for name in lines_of(kernel)}
    return SizedProduct(
        kernel, sizes, tuple(strides.items()), tuple(widths.items()), tuple(axes.items())
    )


def is_countable(kernel: Gemm, values: Mapping[str, int]) -> bool:
    """Whether places in both factors can be counted in 32 bits."""
    m, n, k = values["row1"], values["column1"], values["k"]
    a_lines, b_lines = (k if kernel.transpose_a else m), (n if kernel.transpose_b else k)
    return max(a_lines * values["lda"], b_lines * values["ldb"]) < _LARGEST


def rows_of(values: Mapping[str, int]) -> dict[str, int]:
    """Elements from row to row of factors and product, under the names that other parts have."""
    return {f"{name}_row": values[f"ld{name}"] for name in "abc"}


def kinds_of(gemm: Gemm) -> dict[str, str]:
    """The C++ type of the elements of everything that has memory, by the slot of its address."""
    found = dict.fromkeys("ab", MEMORY[gemm.halves or gemm.dtype])
    return found | {part.name: MEMORY[part.dtype] for part in parts_of(gemm)}


def lines_of(gemm: Gemm) -> tuple[str, ...]:
    """What is a whole matrix, whose rows have a distance."""
    full = (part.name for part in parts_of(gemm) if part.spread == FULL)
    return tuple(dict.fromkeys(("a", "b", *full)))


def axes_of(gemm: Gemm) -> tuple[str, ...]:
    """Slots of strided operands: sizes and steps of the axes by which their rows are numbered."""
    strided = (operand for operand in operands_of(gemm) if operand.axes)
    return tuple(dict.fromkeys(slot for operand in strided for slot in operand.slots[1:]))


def operands_of(gemm: Gemm) -> tuple[Operand, ...]:
    """What the formulas of a product's epilogue read."""
    finish = gemm.epilogue
    return finish.operands if isinstance(finish, Finish) else ()


def results_of(gemm: Gemm) -> tuple[Result, ...]:
    """What a product stores: results of its epilogue, and C where anybody reads it."""
    finish = gemm.epilogue
    found = finish.results if isinstance(finish, Finish) else ()
    formula = finish.formula if isinstance(finish, Finish) else ("product",)
    return found if gemm.unread else (*found, Result("c", gemm.dtype, formula))


def parts_of(gemm: Gemm) -> tuple[Part, ...]:
    """Everything of a product that has memory, beside A and B."""
    return (*operands_of(gemm), *results_of(gemm))


def _width(
    values: Mapping[str, int], name: str, length: int, item: int, slots: Sequence[str] = ()
) -> int:
    """Elements that can be moved together, of lines of `length`; `slots`: where they begin."""
    width, steps = _QUAD, [values.get(f"{name}_row", 0)]
    steps += [values[slot] for slot in slots if "_size" not in slot]
    while (
        length % width
        or any(step % width for step in steps)
        or values[name] % min(width * item, _WIDEST_LOAD)
    ):
        width //= 2
    return width
