"""Types, and what kernels are written with: numbers, variables and memory as Python objects."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from llvmlite import ir

if TYPE_CHECKING:
    from .arithmetic import Arithmetic

I1, I8, I16 = ir.IntType(1), ir.IntType(8), ir.IntType(16)
I32, I64 = ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
VOID = ir.VoidType()

Number = Any  # a Value, or a Python number that becomes a constant of the other operand's type

FLOATS = {"float32": F32, "float64": F64}


def item_type(kind: Any) -> Any:
    """The element type of a vector type; a scalar type itself."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def item_bytes(kind: Any) -> int:
    """Bytes of one element of a scalar or vector type."""
    item = item_type(kind)
    if isinstance(item, ir.IntType):
        return max(1, int(item.width) // 8)
    return {F32: 4, F64: 8}.get(item, 8)


def is_float(kind: Any) -> bool:
    """Whether `kind` is a floating-point type or a vector of one."""
    return item_type(kind) in (F32, F64)


@functools.cache
def vector(item: Any, lanes: int) -> Any:
    """The type of `lanes` elements of type `item`."""
    return ir.VectorType(item, lanes)


def like(kind: Any, item: Any) -> Any:
    """`item`, or a vector of it as wide as the vector type `kind`."""
    return vector(item, kind.count) if isinstance(kind, ir.VectorType) else item


def known(value: Value) -> int | None:
    """The number that an integer is always; None where that depends on what runs."""
    constant = value.ir.constant if isinstance(value.ir, ir.Constant) else None
    return constant if isinstance(constant, int) and isinstance(value.type, ir.IntType) else None


class Value:
    """A number in a register: a scalar or a vector, integer, floating-point or truth."""

    __slots__ = ("code", "ir")

    def __init__(self, code: Arithmetic, value: Any) -> None:
        self.code = code
        self.ir = value

    @property
    def type(self) -> Any:
        """The LLVM type."""
        return self.ir.type

    def __add__(self, other: Number) -> Value:
        return self.code.arithmetic("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return self.code.arithmetic("add", other, self)

    def __sub__(self, other: Number) -> Value:
        return self.code.arithmetic("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return self.code.arithmetic("sub", other, self)

    def __mul__(self, other: Number) -> Value:
        return self.code.arithmetic("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return self.code.arithmetic("mul", other, self)

    def __truediv__(self, other: Number) -> Value:
        return self.code.arithmetic("div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.code.arithmetic("div", other, self)

    def __floordiv__(self, other: Number) -> Value:
        """Quotient of two integers that are not negative."""
        return self.code.bitwise("udiv", self, other)

    def __mod__(self, other: Number) -> Value:
        """Remainder of two integers that are not negative."""
        return self.code.bitwise("urem", self, other)

    def __neg__(self) -> Value:
        builder = self.code.ir
        make = builder.fneg if is_float(self.type) else builder.neg
        return Value(self.code, make(self.ir))

    def __and__(self, other: Number) -> Value:
        return self.code.bitwise("and_", self, other)

    def __or__(self, other: Number) -> Value:
        return self.code.bitwise("or_", self, other)

    def __xor__(self, other: Number) -> Value:
        return self.code.bitwise("xor", self, other)

    def __invert__(self) -> Value:
        return Value(self.code, self.code.ir.not_(self.ir))

    def __lshift__(self, other: Number) -> Value:
        return self.code.bitwise("shl", self, other)

    def __rshift__(self, other: Number) -> Value:
        """Shift right that keeps the sign."""
        return self.code.bitwise("ashr", self, other)

    def shift_right(self, other: Number) -> Value:
        """Shift right that brings in zeros."""
        return self.code.bitwise("lshr", self, other)

    def __lt__(self, other: Number) -> Value:
        return self.code.compare("<", self, other)

    def __le__(self, other: Number) -> Value:
        return self.code.compare("<=", self, other)

    def __gt__(self, other: Number) -> Value:
        return self.code.compare(">", self, other)

    def __ge__(self, other: Number) -> Value:
        return self.code.compare(">=", self, other)

    def equals(self, other: Number) -> Value:
        """Whether the two are equal; false where one is NaN."""
        return self.code.compare("==", self, other)

    def differs(self, other: Number) -> Value:
        """Whether the two differ; true where one is NaN."""
        return self.code.compare("!=", self, other)


class Rest(Value):
    """A mask that is true in the first `count` lanes: at least one, and not all."""

    __slots__ = ("count",)

    def __init__(self, code: Arithmetic, value: Any, count: Value) -> None:
        super().__init__(code, value)
        self.count = count


class Variable:
    """A number that can be assigned to: `v.value = v.value + 1`."""

    __slots__ = ("_code", "_kind", "_last", "_slot")

    def __init__(self, code: Arithmetic, kind: Any) -> None:
        self._code = code
        self._kind = kind
        with code.ir.goto_entry_block():
            self._slot = code.ir.alloca(kind)
        self._last: tuple[Any, Any] = None, None  # a block, and what was assigned or read in it

    @property
    def value(self) -> Value:
        """The number assigned last."""
        block, number = self._last
        if block is not self._code.ir.block:
            number = self._code.ir.load(self._slot, typ=self._kind)
            self._last = self._code.ir.block, number
        return Value(self._code, number)

    @value.setter
    def value(self, new: Number) -> None:
        number = self._code.lift(new, self._kind).ir
        self._code.ir.store(number, self._slot)
        self._last = self._code.ir.block, number


class Array:
    """Memory seen as elements of one type: `a[i]` loads, `a[i] = x` stores.

    Indices count elements. No alignment beyond an element's is assumed.
    """

    __slots__ = ("base", "code", "item")

    def __init__(self, code: Arithmetic, base: Any, item: Any) -> None:
        self.code = code
        self.base = base
        self.item = item

    def address(self, index: Number) -> Any:
        """The pointer to element `index`."""
        places = self.code.lift(index, I64)
        if known(places) == 0:
            return self.base
        return self.code.ir.gep(self.base, [places.ir], inbounds=True, source_etype=self.item)

    def at(self, index: Number) -> Array:
        """The same memory from element `index` on."""
        return Array(self.code, self.address(index), self.item)

    def viewed(self, item: Any) -> Array:
        """The same memory as elements of another type."""
        return Array(self.code, self.base, item)

    def __getitem__(self, index: Number) -> Value:
        load = self.code.ir.load(self.address(index), typ=self.item, align=item_bytes(self.item))
        return Value(self.code, load)

    def __setitem__(self, index: Number, value: Number) -> None:
        lifted = self.code.lift(value, self.item)
        self.code.ir.store(lifted.ir, self.address(index), align=item_bytes(self.item))

    def vector(self, index: Number, lanes: int, mask: Value | None = None) -> Value:
        """`lanes` elements from `index` on; zero where `mask` is false, and memory is not read there."""
        kind, align = vector(self.item, lanes), item_bytes(self.item)
        if mask is None:
            return Value(self.code, self.code.ir.load(self.address(index), typ=kind, align=align))
        return self.code.intrinsic(
            f"llvm.masked.load.{suffix(kind)}.p0",
            kind,
            [self.address(index), ir.Constant(I32, align), mask.ir, ir.Constant(kind, None)],
        )

    def stream(self, index: Number, value: Value, align: int | None = None) -> None:
        """Store the vector `value` from `index` on, past the caches.

        Its address is a multiple of its size, or of `align`, the size of a register. Other threads see it
        after `Code.settle`.
        """
        align = align or item_bytes(self.item) * value.type.count
        store = self.code.ir.store(value.ir, self.address(index), align=align)
        module = self.code.function.module
        store.set_metadata("nontemporal", module.add_metadata([ir.Constant(I32, 1)]))

    def put(self, index: Number, value: Value, mask: Value | None = None) -> None:
        """Store the vector `value` from `index` on; where `mask` is false, memory is not touched."""
        align = item_bytes(self.item)
        if mask is None:
            self.code.ir.store(value.ir, self.address(index), align=align)
            return
        self.code.intrinsic(
            f"llvm.masked.store.{suffix(value.type)}.p0",
            VOID,
            [value.ir, self.address(index), ir.Constant(I32, align), mask.ir],
        )

    def gathered(self, places: Value) -> Value:
        """A vector of elements from places of their own."""
        kind = vector(self.item, places.type.count)
        none = ir.Constant(kind, None)
        align, mask = ir.Constant(I32, item_bytes(self.item)), _all(places.type.count)
        name = f"llvm.masked.gather.{suffix(kind)}.v{kind.count}p0"
        return self.code.intrinsic(name, kind, [self._addresses(places), align, mask, none])

    def scatter(self, places: Value, value: Value) -> None:
        """Store the elements of a vector at places of their own; of equal places the last lane stays."""
        kind = value.type
        align, mask = ir.Constant(I32, item_bytes(self.item)), _all(kind.count)
        name = f"llvm.masked.scatter.{suffix(kind)}.v{kind.count}p0"
        self.code.intrinsic(name, VOID, [value.ir, self._addresses(places), align, mask])

    def _addresses(self, places: Value) -> Any:
        """The pointers to elements, in a vector."""
        begin = Value(self.code, self.code.ir.ptrtoint(self.base, I64))
        numbers = places * item_bytes(self.item) + begin
        return self.code.ir.inttoptr(numbers.ir, vector(POINTER, places.type.count))


def _all(lanes: int) -> Any:
    """The mask that is true everywhere."""
    return ir.Constant(vector(I1, lanes), [1] * lanes)


def suffix(kind: Any) -> str:
    """How LLVM's intrinsics spell a type: v8f32, f64, v4i64."""
    item = item_type(kind)
    name = f"i{item.width}" if isinstance(item, ir.IntType) else {F32: "f32", F64: "f64"}[item]
    return f"v{kind.count}{name}" if isinstance(kind, ir.VectorType) else name
