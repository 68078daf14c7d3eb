"""Scalar formulas as vector code: what each primitive means, for every type of element.

`kernels/formula.py` says what a formula is, and what its parts mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from magmadnn.compiler.kernels.formula import HALVES, INTEGERS, Formula
from magmadnn.compiler.llvm.ir.builder import (
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    Code,
    Value,
    is_float,
    item_type,
    like,
)
from magmadnn.compiler.llvm.ir.halves import rounded
from magmadnn.compiler.llvm.vmath import FUNCTIONS, SPECIAL
from magmadnn.errors import DTypeError

Emitter = Callable[..., Value]

# Elements in memory: truth values are bytes there, and single bits in registers.
ITEMS = {"bool": I1, "uint8": I8, "int32": I32, "int64": I64, "float32": F32, "float64": F64}


class Writer:
    """Writes formulas that share their leaves; equal parts of formulas are computed once."""

    def __init__(self, code: Code, leaf: Callable[[Formula], Value], kind: Any) -> None:
        """`leaf` gives the value of a leaf; `kind` is the type of formulas made of constants only."""
        self._code = code
        self._leaf = leaf
        self._kind = kind
        self._known: dict[Formula, Any] = {}

    def know(self, formula: Formula, value: Value) -> None:
        """Use `value` wherever `formula` is a part."""
        self._known[formula] = value

    def copy(self) -> Writer:
        """A writer that knows as much, for code that does not always run: what it writes stays there."""
        twin = Writer(self._code, self._leaf, self._kind)
        twin._known = dict(self._known)
        return twin

    def write(self, formula: Formula) -> Value:
        """The value of `formula`."""
        result = self._value(formula)
        return result if isinstance(result, Value) else self._code.lift(result, self._kind)

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
                return self._code.lift(int(args[0][1]), ITEMS[args[1]])  # all of its digits
            made = cast(self._code, self.write(args[0]), register_item(args[1]))
            return rounded(self._code, made, args[1]) if args[1] in HALVES else made
        if name not in PRIMITIVES and name not in _SPECIAL:
            return self._leaf(formula)
        operands = [self._value(arg) for arg in args]
        if not any(isinstance(operand, Value) for operand in operands):
            operands = [self._code.lift(operand, self._kind) for operand in operands]
        emit = PRIMITIVES.get(name) or _SPECIAL[name]
        return emit(self._code, *operands)


def cast(code: Code, x: Value, item: Any) -> Value:
    """`x` as elements of type `item`.

    What is out of range becomes what NumPy makes of it on x86: the least integer; of bytes, the low one of
    int32.
    """
    source = item_type(x.type)
    if item == source:
        return x
    if item == I1:
        return x.differs(0.0 if is_float(source) else 0)
    if source == I8:  # the one unsigned type
        x, source = code.widened(x, I32), I32
    if is_float(source) and not is_float(item):
        return code.convert(code.to_integer(x, I64 if item == I64 else I32), item)
    return code.convert(x, item)


_RANK = [I1, I8, I32, I64, F32, F64]


def _together(code: Code, operands: tuple[Any, ...]) -> list[Value]:
    """Operands of one type: the widest among them; constants follow."""
    values = [x for x in operands if isinstance(x, Value)]
    widest = max((item_type(x.type) for x in values), key=_RANK.index)
    fractional = any(isinstance(x, float) for x in operands)
    if fractional and not is_float(widest):
        widest = F64
    elif widest == I8:
        widest = I32  # where unsigned bytes compare and divide as what they are
    elif widest == I1 and any(not isinstance(x, (Value, bool)) for x in operands):
        widest = I64
    vectors = [x.type for x in values if x.type != item_type(x.type)]
    kind = like(vectors[0], widest) if vectors else widest
    return [code.lift(cast(code, x, widest) if isinstance(x, Value) else x, kind) for x in operands]


def _numbers(emit: Emitter) -> Emitter:
    """An emitter for operands of one type that is not truth."""

    def write(code: Code, *operands: Any) -> Value:
        values = _together(code, operands)
        if item_type(values[0].type) == I1:
            values = [cast(code, x, I32) for x in values]
        return emit(code, *values)

    return write


def _floats(emit: Emitter) -> Emitter:
    """An emitter for floating-point operands; integers must be cast before."""

    def write(code: Code, *operands: Any) -> Value:
        values = _together(code, operands)
        if not is_float(values[0].type):
            raise DTypeError(
                f"{emit.__name__}: compiled code takes float32 or float64, got "
                f"{item_type(values[0].type)}: cast the operand first"
            )
        return emit(code, *values)

    return write


def _compared(relation: str) -> Emitter:
    return lambda code, *operands: code.compare(relation, *_together(code, operands))


def _truths(emit: Emitter) -> Emitter:
    """An emitter for truth values; numbers count as true if they are not 0."""

    def write(code: Code, *operands: Any) -> Value:
        return emit(code, *(cast(code, x, I1) for x in _together(code, operands)))

    return write


def _minimum(code: Code, a: Value, b: Value) -> Value:
    least = code.select(a < b, a, b)  # b where one is NaN
    return code.select(a.differs(a), a, least) if is_float(a.type) else least


def _maximum(code: Code, a: Value, b: Value) -> Value:
    most = code.select(a > b, a, b)
    return code.select(a.differs(a), a, most) if is_float(a.type) else most


def _absolute(code: Code, x: Value) -> Value:
    if is_float(x.type):
        return code.call_like("llvm.fabs", x)
    return x if item_type(x.type) == I8 else code.select(x < 0, -x, x)


def _sign(code: Code, x: Value) -> Value:
    one, zero = code.lift(1, x.type), code.zero(x.type)
    result = code.select(x > zero, one, code.select(x < zero, -one, zero))
    return code.select(x.differs(x), x, result) if is_float(x.type) else result


def _rounded(name: str) -> Emitter:
    def write(code: Code, x: Value) -> Value:
        return code.call_like(f"llvm.{name}", x) if is_float(x.type) else x

    return write


def _divided(code: Code, a: Value, b: Value) -> tuple[Value, Value]:
    """Quotient and remainder, rounded towards minus infinity, as NumPy's."""
    if not is_float(a.type):
        return _divided_integers(code, a, b)
    rest = code.remainder(a, b)
    other_side = rest.differs(0.0) & ((b < 0.0) ^ (rest < 0.0))
    modulo = code.select(other_side, rest + b, rest)
    modulo = code.select(rest.equals(0.0), code.call_like("llvm.copysign", rest, b), modulo)
    quotient = (a - rest) / b
    quotient = code.select(other_side, quotient - 1.0, quotient)
    floor = code.call_like("llvm.floor", quotient)
    floor = code.select(quotient - floor > 0.5, floor + 1.0, floor)
    floor = code.select(
        quotient.equals(0.0), code.call_like("llvm.copysign", quotient, a / b), floor
    )
    by_zero = b.equals(0.0)
    return code.select(by_zero, a / b, floor), code.select(by_zero, math.nan, modulo)


def _divided_integers(code: Code, a: Value, b: Value) -> tuple[Value, Value]:
    """The same for integers; by 0 both are 0, and nothing traps."""
    none, minus = b.equals(0), b.equals(-1)
    safe = code.select(none | minus, 1, b)
    quotient = a / safe
    rest = a - quotient * safe
    down = rest.differs(0) & ((rest < 0) ^ (safe < 0))
    quotient = code.select(down, quotient - 1, quotient)
    rest = code.select(down, rest + safe, rest)
    zero = code.zero(a.type)
    quotient = code.select(none, zero, code.select(minus, -a, quotient))
    return quotient, code.select(none | minus, zero, rest)


def _floor_divide(code: Code, a: Value, b: Value) -> Value:
    return _divided(code, a, b)[0]


def _remainder(code: Code, a: Value, b: Value) -> Value:
    return _divided(code, a, b)[1]


def _where(code: Code, condition: Any, yes: Any, no: Any) -> Value:
    if not isinstance(condition, Value):
        condition = code.lift(condition, I1)
    if not isinstance(yes, Value) and not isinstance(no, Value):
        yes = code.lift(float(yes), F64)
    x, y = _together(code, (yes, no))
    held = cast(code, condition, I1)
    if item_type(held.type) == held.type or x.type != item_type(x.type):
        return code.select(held, x, y)
    return code.select(held, code.lift(x, like(held.type, item_type(x.type))), y)


def _square_root(code: Code, x: Value) -> Value:
    return code.call_like("llvm.sqrt", x)


PRIMITIVES: dict[str, Emitter] = {
    "add": _numbers(lambda code, a, b: a + b),
    "subtract": _numbers(lambda code, a, b: a - b),
    "multiply": _numbers(lambda code, a, b: a * b),
    "divide": _floats(lambda code, a, b: a / b),
    "floor_divide": _numbers(_floor_divide),
    "remainder": _numbers(_remainder),
    "negative": _numbers(lambda code, a: -a),
    "absolute": _numbers(_absolute),
    "sign": _numbers(_sign),
    "floor": _numbers(_rounded("floor")),
    "ceil": _numbers(_rounded("ceil")),
    "minimum": _numbers(_minimum),
    "maximum": _numbers(_maximum),
    "sqrt": _floats(_square_root),
    **{name: _floats(emit) for name, emit in FUNCTIONS.items()},
    "equal": _compared("=="),
    "not_equal": _compared("!="),
    "less": _compared("<"),
    "less_equal": _compared("<="),
    "greater": _compared(">"),
    "greater_equal": _compared(">="),
    "logical_and": _truths(lambda code, a, b: a & b),
    "logical_or": _truths(lambda code, a, b: a | b),
    "logical_not": _truths(lambda code, a: ~a),
    "isnan": _numbers(lambda code, a: a.differs(a)),
    "where": _where,
}


_SPECIAL: dict[str, Emitter] = {name: _floats(emit) for name, emit in SPECIAL.items()}


def memory_item(dtype: str) -> Any:
    """The type of an element of `dtype` in memory.

    Raises:
        DTypeError: compiled code does not know the dtype.
    """
    if dtype not in ITEMS and dtype not in HALVES:
        raise DTypeError(f"compiled code takes {', '.join((*ITEMS, *HALVES))}, got {dtype}")
    return {"bool": I8, "bfloat16": I16, "float16": I16}.get(dtype) or ITEMS[dtype]


def register_item(dtype: str) -> Any:
    """The type of an element of `dtype` in a register: halves are float32 there."""
    return F32 if dtype in HALVES else ITEMS[dtype]
