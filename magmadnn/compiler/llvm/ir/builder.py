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

from .target import Target
from .threads import Threads
from .values import F32 as F32
from .values import F64 as F64
from .values import FLOATS as FLOATS
from .values import I1 as I1
from .values import I8 as I8
from .values import I16 as I16
from .values import I32 as I32
from .values import I64 as I64
from .values import POINTER as POINTER
from .values import VOID as VOID
from .values import Array as Array
from .values import Number as Number
from .values import Rest as Rest
from .values import Value as Value
from .values import Variable as Variable
from .values import is_float as is_float
from .values import item_bytes as item_bytes
from .values import item_type as item_type
from .values import like as like
from .values import vector as vector


class Code(Threads):
    """Writes the instructions of one function: numbers, memory, loops, calls, words between threads.

    Args:
        function: llvmlite's.
        target: the CPU, where it may have instructions of its own for what LLVM has no word for.
    """

    def __init__(self, function: Any, target: Target | None = None) -> None:
        self.function, self.target = function, target
        self.halves = bool(target and target.halves)
        self.ir = ir.IRBuilder(function.append_basic_block("entry"))
        # Variables go to the entry block, so what follows starts in one of its own.
        body = function.append_basic_block("body")
        self.ir.branch(body)
        self.ir.position_at_end(body)

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

    def looked_up(self, table: Sequence[int], places: Value) -> Value:
        """The entries of a table of 8 whose places are the low bits of 32-bit integers.

        On vectors it is one permutation of a register, where the CPU has one. LLVM finds those too, but x86's
        need not be told which bits are the low ones.
        """
        if not isinstance(places.type, ir.VectorType):
            memory = self.constants(f"table_{'_'.join(map(str, table))}", I32, table)
            return memory[self.convert(places & (len(table) - 1), I64)]
        lanes = places.type.count
        size = max(lanes, len(table))
        known = ir.Constant(ir.VectorType(I32, size), [table[k % len(table)] for k in range(size)])
        if self.target is not None and lanes in self.target.permutations:
            name = self.target.permutations[lanes]
            return self.intrinsic(name, places.type, [known, places.ir])
        if self.target is not None and self.target.is_arm and lanes == 4:
            return self._looked_up_bytes(Value(self, known), places)
        inside = places & (len(table) - 1)
        if lanes < size:
            inside = self.shuffle(inside, inside, [k % lanes for k in range(size)])
        found = ir.Constant(ir.VectorType(I32, size), ir.Undefined)
        for k in range(size):
            place = self.ir.extract_element(inside.ir, ir.Constant(I32, k))
            entry = self.ir.extract_element(known, place)
            found = self.ir.insert_element(found, entry, ir.Constant(I32, k))
        made = Value(self, found)
        return self.shuffle(made, made, range(lanes)) if lanes < size else made

    def _looked_up_bytes(self, table: Value, places: Value) -> Value:
        """The same with NEON, which looks up bytes: those of entry i begin at 4 i, the low one first."""
        first = self.joined((places & 7) * 0x04040404 + 0x03020100, I8)
        halves = (self.shuffle(table, table, range(k, k + 4)) for k in (0, 4))
        operands = [*(self.joined(half, I8).ir for half in halves), first.ir]
        found = self.intrinsic("llvm.aarch64.neon.tbl2.v16i8", first.type, operands)
        return self.joined(found, I32)

    def array(self, pointer: Any, item: Any) -> Array:
        """The memory at `pointer` (a Value or an LLVM value) as elements of type `item`."""
        return Array(self, pointer.ir if isinstance(pointer, Value) else pointer, item)

    def number_of(self, array: Array) -> Value:
        """The address of memory as an integer."""
        return Value(self, self.ir.ptrtoint(array.base, I64))

    def memory_at(self, address: Value, item: Any) -> Array:
        """The memory at an address given as an integer."""
        return Array(self, self.ir.inttoptr(address.ir, POINTER), item)

    def opaque(self, number: Value) -> Value:
        """The same 64-bit integer, but nothing is known of it: no other number is computed in its place."""
        return self._unknown(number, "r")

    def _unknown(self, number: Value, register: str) -> Value:
        kind = ir.FunctionType(number.type, [number.type])
        return Value(self, self.ir.asm(kind, "", f"={register},0", [number.ir], side_effect=False))

    def spread(self, array: Array, lanes: int) -> Value:
        """A vector with the element that memory begins with in every lane, as a factor of multiply-adds.

        Those of NEON take it from one lane of a register. LLVM must not know that it was loaded: it would
        spread it while loading, which takes a vector unit as long as a multiply-add does.
        """
        number = array[0]
        if self.target is not None and self.target.is_arm and is_float(number.type):
            number = self._unknown(number, "w")
        return self.splat(number, lanes)

    def stack(self, item: Any, count: int, align: int = 64) -> Array:
        """Memory of this call, `count` elements."""
        with self.ir.goto_entry_block():
            slot = self.ir.alloca(ir.ArrayType(item, count))
            slot.align = align
        slot.type = POINTER  # llvmlite gives what it allocates a typed pointer still
        return Array(self, slot, item)

    def prefetch(
        self, array: Array, index: Number, written: bool = True, first: bool = True
    ) -> None:
        """A hint that the cache line of `array[index]` will be written, or else read, soon.

        It is fetched into the first-level cache, or only into the second-level one: a core waits for few
        lines of the first one at a time, so of what comes from memory far more is under way to the second.
        """
        keep = 3 if first else 2
        hints = [ir.Constant(I32, number) for number in (int(written), keep, 1)]  # use, keep, data
        self.intrinsic("llvm.prefetch.p0", VOID, [array.address(index), *hints])

    def variable(self, start: Value) -> Variable:
        """A new variable with the value `start`."""
        made = Variable(self, start.type)
        made.value = start
        return made

    def put(self, array: Array, index: Value, value: Value, mask: Value | None) -> None:
        """Store the vector `value` from `index` on; where `mask` is false, memory is not touched.

        The rest of a row goes in parts of half the lanes, a quarter and so on. Only AVX-512 masks every size
        of element; stores of AVX2 behind a mask take 14 ns (Zen 3), and for bytes LLVM writes a branch each.
        """
        if not isinstance(mask, Rest) or self.target is None or self.target.vector_bytes >= 64:
            array.put(index, value, mask)
            return
        lanes = value.type.count
        left, width = self.variable(value), lanes // 2
        while width:
            with self.when((mask.count & width).differs(0)):
                part = mask.count & (lanes - 2 * width)  # as many are stored already
                now = left.value
                array.put(index + part, self.shuffle(now, now, range(width)))
                left.value = self.shuffle(now, now, [(k + width) % lanes for k in range(lanes)])
            width //= 2

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
            code, arguments = Code(callee, self.target), iter(callee.args)
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
