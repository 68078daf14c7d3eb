"""Words to write kernels in: thin helpers over llvmlite's builder, so that kernels read as formulas.

A `Code` writes into one function. Numbers in it are `Value`s, which take Python's operators; memory is
an `Array` of one element type, which takes indices; `Variable`s can be assigned to (LLVM keeps them in
registers); loops and branches are `with` blocks::

    total = code.variable(code.zero(vector))
    with code.loop(0, k) as p:
        total.value = code.fma(a.vector(p * lanes, lanes), b.vector(p * lanes, lanes), total.value)

Integers are 64-bit and signed unless said otherwise. No fast-math flag is ever set: what is written is
what is computed, so NaN, infinities and signed zeros keep their meaning and the order of sums stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
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


def vector(item: Any, lanes: int) -> Any:
    """The type of `lanes` elements of type `item`."""
    return ir.VectorType(item, lanes)


def like(kind: Any, item: Any) -> Any:
    """`item`, or a vector of it as wide as the vector type `kind`."""
    return ir.VectorType(item, kind.count) if isinstance(kind, ir.VectorType) else item


class Value:
    """A number in a register: a scalar or a vector, integer, floating-point or truth."""

    __slots__ = ("code", "ir")

    def __init__(self, code: Code, value: Any) -> None:
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


class Variable:
    """A number that can be assigned to: `v.value = v.value + 1`."""

    __slots__ = ("_code", "_kind", "_slot")

    def __init__(self, code: Code, kind: Any) -> None:
        self._code = code
        self._kind = kind
        with code.ir.goto_entry_block():
            self._slot = code.ir.alloca(kind)

    @property
    def value(self) -> Value:
        """The number assigned last."""
        return Value(self._code, self._code.ir.load(self._slot, typ=self._kind))

    @value.setter
    def value(self, new: Number) -> None:
        self._code.ir.store(self._code.lift(new, self._kind).ir, self._slot)


class Array:
    """Memory seen as elements of one type: `a[i]` loads, `a[i] = x` stores.

    Indices count elements. No alignment beyond an element's is assumed.
    """

    __slots__ = ("base", "code", "item")

    def __init__(self, code: Code, base: Any, item: Any) -> None:
        self.code = code
        self.base = base
        self.item = item

    def address(self, index: Number) -> Any:
        """The pointer to element `index`."""
        if isinstance(index, int) and index == 0:
            return self.base
        return self.code.ir.gep(
            self.base, [self.code.lift(index, I64).ir], inbounds=True, source_etype=self.item
        )

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
        kind, align = ir.VectorType(self.item, lanes), item_bytes(self.item)
        if mask is None:
            return Value(self.code, self.code.ir.load(self.address(index), typ=kind, align=align))
        return self.code.intrinsic(
            f"llvm.masked.load.{_suffix(kind)}.p0",
            kind,
            [self.address(index), ir.Constant(I32, align), mask.ir, ir.Constant(kind, None)],
        )

    def put(self, index: Number, value: Value, mask: Value | None = None) -> None:
        """Store the vector `value` from `index` on; where `mask` is false, memory is not touched."""
        align = item_bytes(self.item)
        if mask is None:
            self.code.ir.store(value.ir, self.address(index), align=align)
            return
        self.code.intrinsic(
            f"llvm.masked.store.{_suffix(value.type)}.p0",
            VOID,
            [value.ir, self.address(index), ir.Constant(I32, align), mask.ir],
        )


def _suffix(kind: Any) -> str:
    """How LLVM's intrinsics spell a type: v8f32, f64, v4i64."""
    item = item_type(kind)
    name = f"i{item.width}" if isinstance(item, ir.IntType) else {F32: "f32", F64: "f64"}[item]
    return f"v{kind.count}{name}" if isinstance(kind, ir.VectorType) else name


class Code:
    """Writes the instructions of one function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.ir = ir.IRBuilder(function.append_basic_block("entry"))
        # Variables go to the entry block, so what follows starts in one of its own.
        body = function.append_basic_block("body")
        self.ir.branch(body)
        self.ir.position_at_end(body)

    # ------------------------------------------------------------------ constants and types

    def lift(self, number: Number, kind: Any) -> Value:
        """`number` as a Value of type `kind`; a scalar is spread over the lanes of a vector type."""
        if not isinstance(number, Value):
            if isinstance(kind, ir.VectorType):
                return Value(self, ir.Constant(kind, [number] * kind.count))
            return Value(self, ir.Constant(kind, number))
        if isinstance(kind, ir.VectorType) and not isinstance(number.type, ir.VectorType):
            return self.splat(number, kind.count)
        return number

    def integer(self, number: int) -> Value:
        """A 64-bit integer constant."""
        return Value(self, ir.Constant(I64, number))

    def zero(self, kind: Any) -> Value:
        """Zero of any type."""
        return Value(self, ir.Constant(kind, None))

    def lane_numbers(self, lanes: int, item: Any = I32) -> Value:
        """The vector 0, 1, ..., lanes - 1."""
        return Value(self, ir.Constant(ir.VectorType(item, lanes), list(range(lanes))))

    def splat(self, scalar: Value, lanes: int) -> Value:
        """A vector with `scalar` in every lane."""
        kind = ir.VectorType(scalar.type, lanes)
        none = ir.Constant(kind, ir.Undefined)
        first = self.ir.insert_element(none, scalar.ir, ir.Constant(I32, 0))
        order = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return Value(self, self.ir.shuffle_vector(first, none, order))

    def first(self, count: Value, lanes: int) -> Value:
        """A mask: true in the first `count` lanes."""
        narrow = Value(self, self.ir.trunc(count.ir, I32))
        return self.lane_numbers(lanes) < narrow

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
        prefix = "f" if is_float(x.type) else "s" if name == "div" else ""
        return Value(self, getattr(self.ir, prefix + name)(x.ir, y.ir))

    def bitwise(self, name: str, a: Number, b: Number) -> Value:
        """Integer instruction `name` of llvmlite's builder."""
        x, y = self._pair(a, b)
        return Value(self, getattr(self.ir, name)(x.ir, y.ir))

    def compare(self, relation: str, a: Number, b: Number) -> Value:
        """`a relation b` as a truth value; with NaN only `!=` is true."""
        x, y = self._pair(a, b)
        if not is_float(x.type):
            return Value(self, self.ir.icmp_signed(relation, x.ir, y.ir))
        make = self.ir.fcmp_unordered if relation == "!=" else self.ir.fcmp_ordered
        return Value(self, make(relation, x.ir, y.ir))

    def fma(self, a: Value, b: Number, c: Number) -> Value:
        """a * b + c, rounded once."""
        return self.call_like("llvm.fma", a, b, c)

    def call_like(self, name: str, first: Value, *rest: Number) -> Value:
        """The intrinsic `name` on operands that all have the type of `first`, and its result."""
        operands = [first.ir, *(self.lift(x, first.type).ir for x in rest)]
        return self.intrinsic(f"{name}.{_suffix(first.type)}", first.type, operands)

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
        """Truncated to an integer; the nearest there is if out of range, 0 for NaN."""
        kind = like(x.type, item)
        name = f"llvm.fptosi.sat.{_suffix(kind)}.{_suffix(x.type)}"
        return self.intrinsic(name, kind, [x.ir])

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
        order = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return Value(self, self.ir.shuffle_vector(a.ir, b.ir, order))

    def lane(self, value: Value, index: int) -> Value:
        """One lane of a vector."""
        return Value(self, self.ir.extract_element(value.ir, ir.Constant(I32, index)))

    def bits(self, value: Value, item: Any) -> Value:
        """The same bits seen as elements of type `item`."""
        return Value(self, self.ir.bitcast(value.ir, like(value.type, item)))

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

    def widened(self, value: Value, item: Any) -> Value:
        """An integer, taken as unsigned, with more bits."""
        return Value(self, self.ir.zext(value.ir, like(value.type, item)))

    def narrowed(self, value: Value, item: Any) -> Value:
        """The low bits of an integer."""
        return Value(self, self.ir.trunc(value.ir, item))

    def leading_zeros(self, value: Value) -> Value:
        """Number of zeros before the first bit of an integer that is set."""
        operands = [value.ir, ir.Constant(I1, 0)]
        return self.intrinsic(f"llvm.ctlz.{_suffix(value.type)}", value.type, operands)

    def any(self, mask: Value) -> Value:
        """Whether a truth value holds in some lane."""
        if not isinstance(mask.type, ir.VectorType):
            return mask
        packed = Value(self, self.ir.bitcast(mask.ir, ir.IntType(mask.type.count)))
        return packed.differs(0)

    # ------------------------------------------------------------------ memory and control

    def constants(self, name: str, item: Any, numbers: Sequence[int]) -> Array:
        """A table of the module that cannot be written to."""
        module = self.function.module
        table = module.globals.get(name)
        if table is None:
            kind = ir.ArrayType(item, len(numbers))
            table = ir.GlobalVariable(module, kind, name)
            table.initializer = ir.Constant(kind, list(numbers))
            table.global_constant = True
            table.linkage = "internal"
            table.type = POINTER  # as in `stack`
        return Array(self, table, item)

    def array(self, pointer: Any, item: Any) -> Array:
        """The memory at `pointer` (a Value or an LLVM value) as elements of type `item`."""
        return Array(self, pointer.ir if isinstance(pointer, Value) else pointer, item)

    def stack(self, item: Any, count: int, align: int = 64) -> Array:
        """Memory of this call, `count` elements."""
        with self.ir.goto_entry_block():
            slot = self.ir.alloca(ir.ArrayType(item, count))
            slot.align = align
        slot.type = POINTER  # llvmlite gives what it allocates a typed pointer still
        return Array(self, slot, item)

    def prefetch(self, array: Array, index: Number, write: bool = False) -> None:
        """A hint that the cache line of `array[index]` will be read (or written) soon."""
        hints = [ir.Constant(I32, number) for number in (int(write), 3 if write else 2, 1)]
        self.intrinsic("llvm.prefetch.p0", VOID, [array.address(index), *hints])

    def variable(self, start: Value) -> Variable:
        """A new variable with the value `start`."""
        made = Variable(self, start.type)
        made.value = start
        return made

    @contextmanager
    def loop(self, start: Number, stop: Number, step: Number = 1) -> Iterator[Value]:
        """`for i in range(start, stop, step)`, step positive; gives i."""
        first, last = self.lift(start, I64), self.lift(stop, I64)
        body = self.function.append_basic_block("loop")
        end = self.function.append_basic_block("end")
        before = self.ir.block
        self.ir.cbranch((first < last).ir, body, end)
        self.ir.position_at_end(body)
        index = self.ir.phi(I64)
        index.add_incoming(first.ir, before)
        yield Value(self, index)
        following = Value(self, index) + step
        index.add_incoming(following.ir, self.ir.block)
        self.ir.cbranch((following < last).ir, body, end)
        self.ir.position_at_end(end)

    @contextmanager
    def repeat(self) -> Iterator[Leave]:
        """A loop without end, left by `leave.when(condition)`."""
        body = self.function.append_basic_block("repeat")
        end = self.function.append_basic_block("left")
        self.ir.branch(body)
        self.ir.position_at_end(body)
        yield Leave(self, end)
        self.ir.branch(body)
        self.ir.position_at_end(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """What is written inside runs only if `condition` holds."""
        with self.ir.if_then(condition.ir):
            yield

    @contextmanager
    def choose(self, condition: Value) -> Iterator[tuple[Any, Any]]:
        """Two branches: `with code.choose(c) as (yes, no): with yes: ...; with no: ...`."""
        with self.ir.if_else(condition.ir) as branches:
            yield branches

    def subroutine(self, name: str, write: Callable[..., None], *operands: Any) -> None:
        """A call of the module's function `name`, which `write(code, *operands)` writes the first time.

        Operands are Values, Arrays, None, or dataclasses of these. The name must say everything that
        `write` depends on besides: kernels of one module share the function.
        """
        module = self.function.module
        values = [value for operand in operands for value in _leaves(operand)]
        callee = module.globals.get(name)
        if callee is None:
            kinds = [value.type for value in values]
            callee = ir.Function(module, ir.FunctionType(VOID, kinds), name)
            callee.linkage = "internal"
            callee.attributes.add("nounwind")
            code, arguments = Code(callee), iter(callee.args)
            write(code, *(_renewed(operand, code, arguments) for operand in operands))
            code.give_back()
        self.ir.call(callee, values)

    def call_address(
        self, address: Value, result: Any, *operands: Value | Array, variadic: bool = False
    ) -> Value:
        """A call of the C function at `address`."""
        values = [x.base if isinstance(x, Array) else x.ir for x in operands]
        fixed = [value.type for value in (values[:1] if variadic else values)]
        kind = ir.FunctionType(result, fixed, var_arg=variadic)
        target = self.ir.inttoptr(address.ir, kind.as_pointer())
        return Value(self, self.ir.call(target, values))

    # ------------------------------------------------------------------ between threads

    def atomic_load(self, array: Array, index: Number = 0) -> Value:
        """What another thread stored, and with it all that it wrote before."""
        load = self.ir.load_atomic(
            array.address(index), "seq_cst", item_bytes(array.item), typ=array.item
        )
        return Value(self, load)

    def atomic_store(self, array: Array, value: Number, index: Number = 0) -> None:
        """Store, after all writes before."""
        lifted = self.lift(value, array.item)
        self.ir.store_atomic(lifted.ir, array.address(index), "seq_cst", item_bytes(array.item))

    def atomic_add(self, array: Array, value: Number, index: Number = 0) -> Value:
        """Add to an integer in one step; gives what was there."""
        lifted = self.lift(value, array.item)
        return Value(self, self.ir.atomic_rmw("add", array.address(index), lifted.ir, "seq_cst"))

    def pause(self) -> None:
        """A hint that the thread is waiting in a loop."""
        triple = str(self.function.module.triple)
        if triple.startswith("x86_64"):
            self.intrinsic("llvm.x86.sse2.pause", VOID, [])
        elif triple.startswith(("aarch64", "arm64")):
            self.intrinsic("llvm.aarch64.hint", VOID, [ir.Constant(I32, 1)])

    def clock(self) -> Value:
        """A counter of the CPU that rises steadily."""
        return self.intrinsic("llvm.readcyclecounter", I64, [])

    def give_back(self) -> None:
        """Return from the function."""
        self.ir.ret_void()


class Leave:
    """The way out of `Code.repeat`."""

    def __init__(self, code: Code, end: Any) -> None:
        self._code = code
        self._end = end

    def when(self, condition: Value) -> None:
        """Leave the loop if `condition` holds."""
        on = self._code.function.append_basic_block("stay")
        self._code.ir.cbranch(condition.ir, self._end, on)
        self._code.ir.position_at_end(on)


def _leaves(operand: Any) -> list[Any]:
    """The LLVM values in an operand of a subroutine."""
    if operand is None:
        return []
    if isinstance(operand, Value):
        return [operand.ir]
    if isinstance(operand, Array):
        return [operand.base]
    return [leaf for field in vars(operand).values() for leaf in _leaves(field)]


def _renewed(operand: Any, code: Code, arguments: Iterator[Any]) -> Any:
    """The operand as the subroutine sees it: of the same form, made of its arguments."""
    if operand is None:
        return None
    if isinstance(operand, Value):
        return Value(code, next(arguments))
    if isinstance(operand, Array):
        return Array(code, next(arguments), operand.item)
    return type(operand)(*(_renewed(field, code, arguments) for field in vars(operand).values()))
