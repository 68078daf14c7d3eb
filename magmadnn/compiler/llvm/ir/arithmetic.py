"""Constants, arithmetic, comparisons, conversions: the part of `Code` that deals with numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from .values import (
    F32,
    F64,
    I1,
    I16,
    I32,
    I64,
    Array,
    Number,
    Rest,
    Value,
    is_float,
    item_type,
    known,
    like,
    suffix,
    vector,
)

_HALF = ir.HalfType()
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1}  # on the right
_AT_ONCE = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}


# Types and constants remember their text, so one of each kind is enough.
@functools.lru_cache(4096)
def _number(kind: Any, number: int) -> Any:
    return ir.Constant(kind, number)


@functools.cache
def _undefined(kind: Any) -> Any:
    return ir.Constant(kind, ir.Undefined)


@functools.cache
def _zero(kind: Any) -> Any:
    return ir.Constant(kind, None)


@functools.cache
def _order(lanes: tuple[int, ...]) -> Any:
    return ir.Constant(vector(I32, len(lanes)), list(lanes))


class Arithmetic:
    """What `Code` can do with numbers: `ir` is llvmlite's builder of `function`."""

    ir: Any
    function: Any

    # ------------------------------------------------------------------ constants and types

    def lift(self, number: Number, kind: Any) -> Value:
        """`number` as a Value of type `kind`; a scalar is spread over the lanes of a vector type."""
        if not isinstance(number, Value):
            if isinstance(kind, ir.VectorType):
                return Value(self, ir.Constant(kind, [number] * kind.count))
            made = _number(kind, number) if type(number) is int else ir.Constant(kind, number)
            return Value(self, made)
        if isinstance(kind, ir.VectorType) and not isinstance(number.type, ir.VectorType):
            return self.splat(number, kind.count)
        return number

    def integer(self, number: int) -> Value:
        """A 64-bit integer constant."""
        return Value(self, _number(I64, number))

    def zero(self, kind: Any) -> Value:
        """Zero of any type."""
        return Value(self, _zero(kind))

    def lane_numbers(self, lanes: int, item: Any = I32) -> Value:
        """The vector 0, 1, ..., lanes - 1."""
        return Value(self, ir.Constant(ir.VectorType(item, lanes), list(range(lanes))))

    def splat(self, scalar: Value, lanes: int) -> Value:
        """A vector with `scalar` in every lane."""
        none = _undefined(vector(scalar.type, lanes))
        first = self.ir.insert_element(none, scalar.ir, ir.Constant(I32, 0))
        return Value(self, self.ir.shuffle_vector(first, none, _order((0,) * lanes)))

    def first(self, count: Value, lanes: int) -> Value:
        """A mask: true in the first `count` lanes."""
        narrow = Value(self, self.ir.trunc(count.ir, I32))
        return self.lane_numbers(lanes) < narrow

    def rest(self, count: Value, lanes: int) -> Rest:
        """The same where it is at least one lane, and not all."""
        return Rest(self, self.first(count, lanes).ir, count)

    # ------------------------------------------------------------------ arithmetic

    def _pair(self, a: Number, b: Number) -> tuple[Value, Value]:
        """Both as Values of one type: constants and scalars follow the wider operand."""
        if not isinstance(a, Value):
            return self.lift(a, b.type), b
        if isinstance(b, Value) and isinstance(b.type, ir.VectorType):
            return self.lift(a, b.type), b
        return a, self.lift(b, a.type)

    def arithmetic(self, name: str, a: Number, b: Number) -> Value:
        """`name` is add, sub, mul or div; floating-point or integer by the operands' type."""
        x, y = self._pair(a, b)
        found = self._without(name, x, y)
        if found is not None:
            return found
        prefix = "f" if is_float(x.type) else "s" if name == "div" else ""
        return Value(self, getattr(self.ir, prefix + name)(x.ir, y.ir))

    def _without(self, name: str, x: Value, y: Value) -> Value | None:
        """A sum or product of integers that needs no instruction, as places in a tile often do not."""
        left, right = known(x), known(y)
        if right is None or name not in _NEUTRAL:
            return None
        if left is not None and x.type == I64:
            return self.integer(_AT_ONCE[name](left, right))
        if right == _NEUTRAL[name]:
            return x
        return y if name == "mul" and right == 0 else None

    def bitwise(self, name: str, a: Number, b: Number) -> Value:
        """Integer instruction `name` of llvmlite's builder."""
        x, y = self._pair(a, b)
        return Value(self, getattr(self.ir, name)(x.ir, y.ir))

    def compare(self, relation: str, a: Number, b: Number) -> Value:
        """`a relation b` as a truth value; with NaN only `!=` is true."""
        x, y = self._pair(a, b)
        if not is_float(x.type):
            make = self.ir.icmp_unsigned if item_type(x.type) == I1 else self.ir.icmp_signed
            return Value(self, make(relation, x.ir, y.ir))
        make = self.ir.fcmp_unordered if relation == "!=" else self.ir.fcmp_ordered
        return Value(self, make(relation, x.ir, y.ir))

    def unordered(self, a: Value, b: Value) -> Value:
        """Whether one of two floating-point numbers is NaN."""
        return Value(self, self.ir.fcmp_unordered("uno", a.ir, b.ir))

    def fma(self, a: Value, b: Number, c: Number) -> Value:
        """a * b + c, rounded once."""
        return self.call_like("llvm.fma", a, b, c)

    def call_like(self, name: str, first: Value, *rest: Number) -> Value:
        """The intrinsic `name` on operands that all have the type of `first`, and its result."""
        operands = [first.ir, *(self.lift(x, first.type).ir for x in rest)]
        return self.intrinsic(f"{name}.{suffix(first.type)}", first.type, operands)

    def intrinsic(self, name: str, result: Any, operands: Sequence[Any]) -> Value:
        """A call of the LLVM intrinsic (or external function) `name`."""
        module = self.function.module
        callee = module.globals.get(name)
        if callee is None:
            signature = ir.FunctionType(result, [operand.type for operand in operands])
            callee = ir.Function(module, signature, name)
        return Value(self, self.ir.call(callee, list(operands)))

    def remainder(self, a: Value, b: Value) -> Value:
        """C's fmod: a - b * trunc(a / b), exact."""
        return Value(self, self.ir.frem(a.ir, b.ir))

    def to_integer(self, x: Value, item: Any) -> Value:
        """Truncated to a signed integer; the least there is for NaN and what is out of range."""
        least = -(2.0 ** (item.width - 1))
        inside = (x >= least) & (x < -least)
        return self.convert(self.select(inside, x, least), item)

    def select(self, condition: Value, yes: Number, no: Number) -> Value:
        """`yes` where `condition` holds, else `no`."""
        if not isinstance(yes, Value) and not isinstance(no, Value):
            yes = self.integer(yes)
        x, y = self._pair(yes, no)
        return Value(self, self.ir.select(condition.ir, x.ir, y.ir))

    def smaller(self, a: Number, b: Number) -> Value:
        """The smaller of two integers."""
        x, y = self._pair(a, b)
        return self.select(x < y, x, y)

    def larger(self, a: Number, b: Number) -> Value:
        """The larger of two integers."""
        x, y = self._pair(a, b)
        return self.select(x > y, x, y)

    def select_array(self, condition: Value, yes: Array, no: Array) -> Array:
        """`yes` if `condition` holds, else `no`."""
        return Array(self, self.ir.select(condition.ir, yes.base, no.base), yes.item)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes picked out of `a` followed by `b`."""
        return Value(self, self.ir.shuffle_vector(a.ir, b.ir, _order(tuple(lanes))))

    def lane(self, value: Value, index: int) -> Value:
        """One lane of a vector."""
        return Value(self, self.ir.extract_element(value.ir, ir.Constant(I32, index)))

    def bits(self, value: Value, item: Any) -> Value:
        """The same bits seen as elements of type `item`."""
        return Value(self, self.ir.bitcast(value.ir, like(value.type, item)))

    def joined(self, value: Value, item: Any) -> Value:
        """The same bits of a vector in fewer lanes of the wider type `item`."""
        lanes = value.type.count * value.type.element.width // item.width
        return Value(self, self.ir.bitcast(value.ir, ir.VectorType(item, lanes)))

    def convert(self, value: Value, item: Any) -> Value:
        """`value` converted to elements of type `item`: float to float, integer to integer or float."""
        source, kind = item_type(value.type), like(value.type, item)
        if source == item:
            return value
        if is_float(source) and is_float(item):
            make = self.ir.fpext if item == F64 else self.ir.fptrunc
        elif is_float(source):
            make = self.ir.fptosi
        elif is_float(item):
            make = self.ir.uitofp if source == I1 else self.ir.sitofp
        elif source.width < item.width:
            make = self.ir.zext if source == I1 else self.ir.sext
        else:
            make = self.ir.trunc
        return Value(self, make(value.ir, kind))

    def from_half(self, stored: Value) -> Value:
        """The bits of a float16 as float32, by the CPU's own instruction."""
        half = self.ir.bitcast(stored.ir, like(stored.type, _HALF))
        return Value(self, self.ir.fpext(half, like(stored.type, F32)))

    def to_half(self, x: Value) -> Value:
        """float32 rounded to float16, its bits, likewise."""
        half = self.ir.fptrunc(x.ir, like(x.type, _HALF))
        return Value(self, self.ir.bitcast(half, like(x.type, I16)))

    def widened(self, value: Value, item: Any) -> Value:
        """An integer, taken as unsigned, with more bits."""
        return Value(self, self.ir.zext(value.ir, like(value.type, item)))

    def narrowed(self, value: Value, item: Any) -> Value:
        """The low bits of an integer."""
        return Value(self, self.ir.trunc(value.ir, item))

    def leading_zeros(self, value: Value) -> Value:
        """Number of zeros before the first bit of an integer that is set."""
        operands = [value.ir, ir.Constant(I1, 0)]
        return self.intrinsic(f"llvm.ctlz.{suffix(value.type)}", value.type, operands)

    def any(self, mask: Value) -> Value:
        """Whether a truth value holds in some lane."""
        if not isinstance(mask.type, ir.VectorType):
            return mask
        packed = Value(self, self.ir.bitcast(mask.ir, ir.IntType(mask.type.count)))
        return packed.differs(0)
