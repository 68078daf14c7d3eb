"""Scalar formulas as CUDA C++: what each primitive means, for every dtype; see `kernels.formula`.

Nothing is contracted: modules are compiled without fused multiply-add, so that a formula rounds as NumPy
does. Signed integers wrap, so they are added as unsigned ones.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magmadnn.compiler.kernels.formula import (
    DTYPES,
    HALVES,
    INTEGERS,
    PRIMITIVES,
    REAL_FUNCTIONS,
    TRUTHS,
    Formula,
)
from magmadnn.errors import DTypeError

# Types in registers, and in memory.
TYPES = {
    "bool": "bool", "uint8": "u8", "int32": "int", "int64": "i64", "float32": "float",
    "float64": "double",
}  # fmt: skip
MEMORY = {**TYPES, "bool": "u8", **{half: half for half in HALVES}}

_COMPARED = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=",
}  # fmt: skip
_ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*"}
_UNSIGNED = {"int32": "unsigned", "int64": "u64"}
_TRUNCATED = {"uint8": "(u8)to_int({})", "int32": "to_int({})", "int64": "to_i64({})"}
_RENAMED = {"power": "pow", "absolute": "fabs"}


def register_dtype(dtype: str) -> str:
    """The dtype of an element in a register: halves are float32 there."""
    return "float32" if dtype in HALVES else dtype


def is_float(dtype: str) -> bool:
    """Whether a dtype is a real number's."""
    return dtype.startswith("float")


@dataclass(frozen=True)
class Cell:
    """A value in a register: its name or text, and its dtype."""

    text: str
    dtype: str


class Lines:
    """Lines of a function in the making, and fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self._depth = 1

    def add(self, line: str) -> None:
        """One more line."""
        self._depth -= line.startswith("}")
        self.lines.append("  " * self._depth + line)
        self._depth += line.endswith("{")

    def name(self, stem: str = "t") -> str:
        """A name that no other value has."""
        self._count += 1
        return f"{stem}_{self._count}"

    def let(self, dtype: str, text: str) -> Cell:
        """A value with a name of its own."""
        name = self.name()
        self.add(f"const {TYPES[dtype]} {name} = {text};")
        return Cell(name, dtype)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class Writer:
    """Writes formulas that share their leaves; equal parts of formulas are computed once."""

    def __init__(self, lines: Lines, leaf: Callable[[Formula], Cell], dtype: str) -> None:
        """`leaf` gives the value of a leaf; `dtype` is that of formulas made of constants only."""
        self._lines, self._leaf, self._dtype = lines, leaf, dtype
        self._known: dict[Formula, Any] = {}

    def write(self, formula: Formula, dtype: str | None = None) -> Cell:
        """The value of `formula`, converted to `dtype` where one is given."""
        found = self._value(formula)
        cell = found if isinstance(found, Cell) else literal(found, dtype or self._dtype)
        return cell if dtype is None else self._cast(cell, dtype)

    def know(self, formula: Formula, cell: Cell) -> None:
        """The value of a formula is this one."""
        self._known[formula] = cell

    def _value(self, formula: Formula) -> Any:
        if formula not in self._known:
            self._known[formula] = self._new(formula)
        return self._known[formula]

    def _new(self, formula: Formula) -> Any:
        name, *args = formula
        if name == "constant":
            return args[0]
        if name == "cast":
            if args[0][0] == "constant" and args[1] in INTEGERS:
                return literal(args[0][1], args[1])  # all of its digits
            return self._cast(self.write(args[0]), args[1])
        if name not in PRIMITIVES:
            return self._leaf(formula)
        operands = [self._value(arg) for arg in args]
        if name == "where":
            return self._where(*operands)
        if not any(isinstance(operand, Cell) for operand in operands):
            operands = [literal(operand, self._dtype) for operand in operands]
        return self._primitive(name, self._together(operands))

    def _cast(self, cell: Cell, dtype: str) -> Cell:
        if cell.dtype == dtype:
            return cell
        return self._lines.let(register_dtype(dtype), converted(cell, dtype))

    def _together(self, operands: list[Any]) -> list[Cell]:
        """Operands of one dtype: the widest among them; constants follow."""
        dtype = _common(operands)
        return [
            self._cast(x, dtype) if isinstance(x, Cell) else literal(x, dtype) for x in operands
        ]

    def _primitive(self, name: str, cells: list[Cell]) -> Cell:
        dtype = cells[0].dtype
        if name in _COMPARED:
            return self._lines.let("bool", f"{cells[0].text} {_COMPARED[name]} {cells[1].text}")
        if name.startswith("logical_"):
            return self._lines.let("bool", _truth(name, [converted(c, "bool") for c in cells]))
        if name in REAL_FUNCTIONS and not is_float(dtype):
            raise DTypeError(
                f"{name}: compiled code takes float32 or float64, got {dtype}: cast the operand first"
            )
        if dtype == "bool":
            cells = [self._cast(c, "int32") for c in cells]
            dtype = "int32"
        result = "bool" if name in TRUTHS else dtype
        return self._lines.let(result, _expression(name, dtype, [c.text for c in cells]))

    def _where(self, condition: Any, yes: Any, no: Any) -> Cell:
        if not isinstance(condition, Cell):
            condition = literal(bool(condition), "bool")
        if not isinstance(yes, Cell) and not isinstance(no, Cell):
            yes = literal(float(yes), "float64")
        x, y = self._together([yes, no])
        return self._lines.let(x.dtype, f"{converted(condition, 'bool')} ? {x.text} : {y.text}")


def _common(operands: list[Any]) -> str:
    """The dtype in which operands meet."""
    found = [x.dtype for x in operands if isinstance(x, Cell)]
    widest = max(found, key=DTYPES.index)
    constants = [x for x in operands if not isinstance(x, Cell)]
    if any(isinstance(x, float) for x in constants) and not is_float(widest):
        return "float64"
    if widest == "uint8":
        return "int32"  # where unsigned bytes compare and divide as what they are
    if widest == "bool" and any(not isinstance(x, bool) for x in constants):
        return "int64"
    return widest


def converted(cell: Cell, dtype: str) -> str:
    """The text of a value in another dtype.

    In half precision it is rounded, and stays float32. What is out of range becomes what NumPy makes of it on
    x86: the least integer, of bytes the low one of int32.
    """
    if cell.dtype == dtype:
        return cell.text
    if dtype == "bool":
        return f"({cell.text} != 0)"
    if dtype in HALVES:
        return f"as_float(as_{dtype}({converted(cell, 'float32')}))"
    if is_float(cell.dtype) and dtype in _TRUNCATED:
        return _TRUNCATED[dtype].format(cell.text)
    return f"({TYPES[dtype]}){cell.text}"


def literal(value: Any, dtype: str) -> Cell:
    """A constant."""
    return Cell(_literal_text(value, dtype), dtype)


def _literal_text(value: Any, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        number = int(value) if value == value and abs(value) != math.inf else 0
        bits = 8 if dtype == "uint8" else 32 if dtype == "int32" else 64
        number &= (1 << bits) - 1
        return f"({TYPES[dtype]}){number:#x}{'ull' if bits == 64 else 'u'}"
    if dtype == "float64":
        (word,) = struct.unpack("<Q", struct.pack("<d", float(value)))
        return f"make_f64({word:#x}ull)"
    (word,) = struct.unpack("<I", struct.pack("<f", _as_float32(float(value))))
    return f"make_f32({word:#x}u)"


def _as_float32(value: float) -> float:
    """The value, or an infinity where float32 cannot hold it."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return value


def _truth(name: str, texts: list[str]) -> str:
    if name == "logical_not":
        return f"!{texts[0]}"
    return f"{texts[0]} {'&&' if name == 'logical_and' else '||'} {texts[1]}"


def _expression(name: str, dtype: str, texts: list[str]) -> str:
    """A primitive of operands of one dtype that is no truth value's."""
    real, a = is_float(dtype), texts[0]
    if name in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[name], dtype, texts)
    if name == "divide":
        return f"{a} / {texts[1]}"
    if name in ("minimum", "maximum"):
        return f"{'least' if name == 'minimum' else 'most'}({a}, {texts[1]})"
    if name == "floor_divide":
        return f"floor_divide({a}, {texts[1]})"
    if name == "remainder":
        return f"remainder_of({a}, {texts[1]})"
    if name == "negative":
        return f"-{a}" if real else _arithmetic("-", dtype, ["0", a])
    if name == "sign":
        return f"sign_of({a})"
    if name == "isnan":
        return f"{a} != {a}"
    if name == "absolute" and not real:
        return f"{a} < 0 ? {_arithmetic('-', dtype, ['0', a])} : {a}"
    if name in ("floor", "ceil") and not real:
        return a
    function = _RENAMED.get(name, name)
    return f"{function}{'f' if dtype == 'float32' else ''}({', '.join(texts)})"


def _arithmetic(sign: str, dtype: str, texts: list[str]) -> str:
    if dtype not in _UNSIGNED:
        return f"{texts[0]} {sign} {texts[1]}"
    kind = _UNSIGNED[dtype]
    return f"({TYPES[dtype]})(({kind}){texts[0]} {sign} ({kind}){texts[1]})"
