"""What is done to the elements of a product before they are stored, four neighbours of a row at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magmadnn.compiler.cuda.text.formulas import MEMORY, Cell, Lines, Writer
from magmadnn.compiler.cuda.text.parts import kept, row_begin, seen
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
    Operand,
    Result,
    row_constant,
)

_QUAD = 4
FIRST_ROW = "first_row"  # of a product, among the rows of all
_INLINE = "static __device__ __forceinline__ void"


def finish_text(
    name: str,
    operands: Sequence[Operand],
    results: Sequence[Result],
    dtype: str,
    widths: Mapping[str, int],
    end: str | None,
) -> str:
    """A struct: values that the formulas read, how they are read, and what is computed and stored.

    Args:
        name: of the struct.
        operands: what formulas read beside the product.
        results: what is stored.
        dtype: of the product.
        widths: how many elements of each part lie so that they can be moved together.
        end: the number of columns of the matrix as text; None where it is a multiple of four.
    """
    values = [_declared(o) for o in operands]
    reads = sum(not row_constant(o) for o in operands)
    read, done = Lines(), Lines()
    for operand in operands:
        _read(read, operand, widths, end)
    _finish(done, operands, results, dtype, widths, end)
    slots = "const S &s"
    return f"""struct {name} {{
  static constexpr int READS = {reads};
  struct Values {{ {" ".join(values)} }};
  template <class S> {_INLINE} read({slots}, Values &h, int row, int column) {{
{read}
  }}
  template <class S, class T>
  {_INLINE} finish({slots}, const Values &h, int row, int column, const T (&product)[{_QUAD}]) {{
{done}
  }}
}};
"""


def _declared(operand: Operand) -> str:
    count = "" if row_constant(operand) else f"[{_QUAD}]"
    return f"{MEMORY[operand.dtype]} {operand.name}{count};"


def _place(part: Operand | Result) -> str:
    """The address of a part's first element of a quad."""
    if part.spread == SCALAR:
        return f"s.{part.name}"
    if part.spread == COLUMN:
        return f"s.{part.name} + row"
    if isinstance(part, Operand) and part.spread in (STRIDED, STRIDED_COLUMN):
        slots = [f"s.{slot}" for slot in part.slots[1:]]
        begin = f"s.{part.name} + {row_begin(slots, part.axes, f'(s.{FIRST_ROW} + row)')}"
        return begin if part.spread == STRIDED_COLUMN else f"{begin} + column"
    start = f"s.{part.name} + row * s.{part.name}_row" if part.spread == FULL else f"s.{part.name}"
    return f"{start} + column"


def _read(lines: Lines, operand: Operand, widths: Mapping[str, int], end: str | None) -> None:
    name, kind = operand.name, MEMORY[operand.dtype]
    if row_constant(operand):
        lines.add(f"h.{name} = *({_place(operand)});")
        return
    width = widths[name]
    lines.add("#pragma unroll")
    lines.add(f"for (int i = 0; i < {_QUAD}; i += {width}) {{")
    lines.add(f"Vec<{kind}, {width}> v = {{}};")
    lines.add(f"{_guard(end)}v = load<{width}>((const {kind} *)({_place(operand)}) + i);")
    lines.add("#pragma unroll")
    lines.add(f"for (int j = 0; j < {width}; j++) h.{name}[i + j] = v.at[j];")
    lines.add("}")


def _guard(end: str | None) -> str:
    """Where the last quad of a row may be cut short."""
    return "" if end is None else f"if (column + i < {end}) "


def _finish(
    lines: Lines,
    operands: Sequence[Operand],
    results: Sequence[Result],
    dtype: str,
    widths: Mapping[str, int],
    end: str | None,
) -> None:
    for number, result in enumerate(results):
        lines.add(f"{MEMORY[result.dtype]} r{number}[{_QUAD}];")
    lines.add("#pragma unroll")
    lines.add(f"for (int q = 0; q < {_QUAD}; q++) {{")

    def leaf(formula: Formula) -> Cell:
        if formula == ("product",):
            return Cell("product[q]", dtype)
        operand = operands[formula[1]]
        at = "" if row_constant(operand) else "[q]"
        return seen(f"h.{operand.name}{at}", operand.dtype)

    writer = Writer(lines, leaf, dtype)
    for number, result in enumerate(results):
        lines.add(f"r{number}[q] = {kept(writer.write(result.formula), result.dtype)};")
    lines.add("}")
    for number, result in enumerate(results):
        kind, width = MEMORY[result.dtype], widths[result.name]
        lines.add("#pragma unroll")
        lines.add(f"for (int i = 0; i < {_QUAD}; i += {width}) {{")
        lines.add(f"Vec<{kind}, {width}> v;")
        lines.add("#pragma unroll")
        lines.add(f"for (int j = 0; j < {width}; j++) v.at[j] = r{number}[i + j];")
        lines.add(f"{_guard(end)}store_at_once<{width}>(({kind} *)({_place(result)}) + i, v);")
        lines.add("}")
