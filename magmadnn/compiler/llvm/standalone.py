"""A plan as an object file of its own: entry points for C, kernels inside, constants as data.

One module holds everything. Kernels and constants are of internal linkage, so several such files can be
linked into one program; nothing that is written lies outside the caller's memory, so threads can call it
at once. Sizes are known when it is called: every number of an argument block is a polynomial over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from llvmlite import ir

from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.plan.export import Call, Copy, Loop, Place, Standalone, Step
from magmadnn.errors import GraphError
from magmadnn.graph.dim import Dim, Quotient, Size

from .ir.builder import F32, F64, I8, I32, I64, POINTER, VOID, Array, Code, Value
from .ir.frame import ALIGNMENT
from .ir.target import Target, object_code
from .kernel import add_function, scratch_bytes

OK, WRONG_SIZE, NO_MEMORY, WRONG_ROW = 0, 1, 2, 3  # what entry points return
_BATCH = "one_batch"
_MOST_BYTES = 2_000_000_000  # of constants; code lies beside them
_ITEMS = {
    1: I8,
    2: ir.IntType(16),
    4: I32,
    8: I64,
}  # for copies, where only the size of an element matters
_NUMBERS = {"int32": I32, "int64": I64, "float32": F32, "float64": F64}


def object_file(what: Standalone, prefix: str, target: Target) -> bytes:
    """The object file of `what`, whose entry points begin with `prefix`.

    They are, in C::

        int     PREFIX_predict(inputs..., int64_t samples, sizes..., outputs...);
        int     PREFIX_predict_with(inputs..., int64_t samples, sizes..., outputs..., void *scratch);
        int64_t PREFIX_scratch_bytes(int64_t samples, sizes...);

    Raises:
        GraphError: the parameters take more memory than instructions reach.
    """
    nbytes = sum(map(len, what.constants))
    if nbytes > _MOST_BYTES:
        raise GraphError(
            f"export: the parameters take {nbytes} bytes, expected at most {_MOST_BYTES} in an object file, "
            "whose instructions reach 2 GB; export parts of the model: md.Model(inputs=..., outputs=...)"
        )
    return object_code(llvm_text(what, prefix, target), target)


def llvm_text(what: Standalone, prefix: str, target: Target) -> str:
    """The LLVM IR of `object_file`."""
    module = ir.Module(prefix)
    module.triple = target.triple
    writer = _Writer(what, prefix, target, module)
    writer.write_batch()
    writer.write_scratch_bytes()
    writer.write_predict_with()
    writer.write_predict()
    return str(module)


class _Writer:
    """Writes the functions of one module."""

    def __init__(self, what: Standalone, prefix: str, target: Target, module: Any) -> None:
        self.what, self.prefix, self.target, self.module = what, prefix, target, module
        self._kernels: dict[Kernel, Any] = {}
        for call in self._kernel_calls():
            if call.kernel not in self._kernels:
                name = f"kernel_{len(self._kernels)}"
                made = add_function(module, name, call.kernel, target)
                made.linkage = "internal"
                self._kernels[call.kernel] = made
        self._constants = [self._constant(k, data) for k, data in enumerate(what.constants)]
        self._kernel_scratch = max((scratch_bytes(k, target) for k in self._kernels), default=0)

    def _kernel_calls(self) -> list[Call]:
        return list(_calls_in(self.what.calls))

    def _constant(self, number: int, data: bytes) -> Any:
        kind = ir.ArrayType(I8, len(data))
        made = ir.GlobalVariable(self.module, kind, f"constant_{number}")
        made.initializer = ir.FormattedConstant(kind, f'c"{_escaped(data)}"')
        made.global_constant, made.linkage, made.align = True, "internal", ALIGNMENT
        made.type = POINTER  # llvmlite gives a global a typed pointer still
        return made

    # --- one batch --------------------------------------------------------------------------------

    def write_batch(self) -> None:
        """`batch(inputs..., samples, sizes..., outputs..., scratch)`: at most `longest` samples."""
        what = self.what
        code, given = self._function(_BATCH, I32, with_scratch=True, internal=True)
        starts, end = self._buffers(code, given.sizes)
        bases = {
            "input": given.inputs,
            "output": given.outputs,
            "constant": [code.array(c, I8) for c in self._constants],
            "buffer": [given.scratch.at(start) for start in starts],
        }

        def address(place: Place, turns: Sequence[Value] = ()) -> Array:
            start = polynomial(code, place.offset, given.sizes)
            for turn, step in zip(turns, place.steps, strict=False):
                start = start + turn * polynomial(code, step, given.sizes)
            return bases[place.kind][place.number].at(start)

        for fact in what.facts:
            item = _NUMBERS[fact.dtype]
            value = code.convert(polynomial(code, fact.size, given.sizes), item)
            address(fact.goal).viewed(item)[0] = value
        slots = max((len(call.kernel.slots) for call in self._kernel_calls()), default=1)
        block, own = code.stack(I64, slots), given.scratch.at(end)

        def write(steps: Sequence[Step], around: Sequence[Value]) -> None:
            for step in steps:
                if isinstance(step, Loop):
                    with code.loop(0, polynomial(code, step.length, given.sizes)) as turn:
                        write(step.steps, [*around, turn])
                elif isinstance(step, Copy):
                    ends = address(step.source, around), address(step.goal, around)
                    _write_copy(code, step, *ends, given.sizes)
                else:
                    write_call(step, around)

        def write_call(call: Call, around: Sequence[Value]) -> None:
            starts_of = {
                slot: _word(code, address(call.places[slot], around))
                if slot in call.places
                else polynomial(code, call.numbers[slot], given.sizes)
                for slot in call.kernel.slots
            }
            operands = [block.base, own.base, ir.Constant(I64, 0)]
            with _loops(code, call.extents, given.sizes) as turns:
                for number, slot in enumerate(call.kernel.slots):
                    block[number] = starts_of[slot] + _advance(code, call, slot, turns, given.sizes)
                code.ir.call(self._kernels[call.kernel], operands)

        write(what.calls, ())
        for copy in what.copies:
            _write_copy(code, copy, address(copy.source), address(copy.goal), given.sizes)
        if what.faults is not None:
            _return_if(code, address(what.faults).viewed(I64)[0].differs(0), WRONG_ROW)
        code.ir.ret(ir.Constant(I32, OK))

    def _buffers(self, code: Code, sizes: Mapping[str, Value]) -> tuple[list[Value], Value]:
        """Where buffers begin in scratch memory, and where all of them end."""
        starts, end = [], code.integer(0)
        for members in self.what.buffers:
            starts.append(end)
            found = [polynomial(code, nbytes, sizes) for nbytes in dict.fromkeys(members)]
            largest = code.integer(0)
            for other in found:
                largest = code.larger(other, largest)
            end = end + (largest + (ALIGNMENT - 1) & -ALIGNMENT)
        return starts, end

    # --- entry points -----------------------------------------------------------------------------

    def write_scratch_bytes(self) -> None:
        """`PREFIX_scratch_bytes(samples, sizes...)`."""
        code, given = self._function("scratch_bytes", I64, only_sizes=True)
        sizes = given.sizes | {self.what.batch: self._chunk(code, given.samples)}
        _, end = self._buffers(code, sizes)
        code.ir.ret((end + (self._kernel_scratch + ALIGNMENT)).ir)

    def write_predict_with(self) -> None:
        """`PREFIX_predict_with(..., scratch)`: batch after batch."""
        code, given = self._function("predict_with", I32, with_scratch=True)
        self._check_sizes(code, given)
        scratch = _aligned(code, given.scratch)
        longest = self.what.longest
        with code.loop(0, given.samples, longest) as first:
            count = code.smaller(given.samples - first, longest)
            sizes = given.sizes | {self.what.batch: count}
            for size in self.what.checked:
                _return_if(code, polynomial(code, size, sizes) < 0, WRONG_SIZE)

            def rows(arrays: list[Array], nbytes: Sequence[Size]) -> list[Any]:
                steps = [polynomial(code, n, sizes) for n in nbytes]
                return [a.at(first * n).base for a, n in zip(arrays, steps, strict=True)]

            found = code.ir.call(
                self._named(_BATCH),
                [
                    *rows(given.inputs, self.what.inputs),
                    *(sizes[symbol].ir for symbol in (self.what.batch, *self.what.symbols)),
                    *rows(given.outputs, self.what.outputs),
                    scratch.base,
                ],
            )
            _return_if(code, Value(code, found).differs(OK), WRONG_ROW)
        code.ir.ret(ir.Constant(I32, OK))

    def write_predict(self) -> None:
        """`PREFIX_predict(...)`: with memory from malloc."""
        code, given = self._function("predict", I32)
        self._check_sizes(code, given)
        sizes = [given.sizes[symbol].ir for symbol in (self.what.batch, *self.what.symbols)]
        nbytes = code.ir.call(self._named(f"{self.prefix}_scratch_bytes"), sizes)
        malloc = ir.Function(self.module, ir.FunctionType(POINTER, [I64]), "malloc")
        free = ir.Function(self.module, ir.FunctionType(VOID, [POINTER]), "free")
        memory = code.ir.call(malloc, [nbytes])
        missing = code.ir.icmp_unsigned("==", memory, ir.Constant(POINTER, None))
        _return_if(code, Value(code, missing), NO_MEMORY)
        arrays = [*(a.base for a in given.inputs), *sizes, *(a.base for a in given.outputs)]
        found = code.ir.call(self._named(f"{self.prefix}_predict_with"), [*arrays, memory])
        code.ir.call(free, [memory])
        code.ir.ret(found)

    def _check_sizes(self, code: Code, given: _Given) -> None:
        """Return `WRONG_SIZE` for a negative number of samples, or another size below 1."""
        wrong = given.samples < 0
        for symbol in self.what.symbols:
            wrong = wrong | (given.sizes[symbol] < 1)
        _return_if(code, wrong, WRONG_SIZE)

    def _chunk(self, code: Code, samples: Value) -> Value:
        """Samples of the largest batch; 0 for a negative number."""
        return code.smaller(code.larger(samples, 0), self.what.longest)

    def _named(self, name: str) -> Any:
        return self.module.globals[name]

    def _function(
        self,
        name: str,
        result: Any,
        *,
        with_scratch: bool = False,
        only_sizes: bool = False,
        internal: bool = False,
    ) -> tuple[Code, _Given]:
        """A new function of the module and what it is given."""
        what = self.what
        ins = 0 if only_sizes else len(what.inputs)
        outs = 0 if only_sizes else len(what.outputs)
        symbols = (what.batch, *what.symbols)
        kinds = [POINTER] * ins + [I64] * len(symbols) + [POINTER] * (outs + with_scratch)
        full = name if internal else f"{self.prefix}_{name}"
        made = ir.Function(self.module, ir.FunctionType(result, kinds), full)
        made.attributes.add("nounwind")
        if internal:
            made.linkage = "internal"
        code = Code(made)
        pointers = [code.array(a, I8) for a in made.args if a.type == POINTER]
        numbers = [Value(code, a) for a in made.args if a.type != POINTER]
        sizes = dict(zip(symbols, numbers, strict=True))
        given = _Given(pointers[:ins], sizes[what.batch], sizes, pointers[ins : ins + outs], None)
        return code, given if not with_scratch else given.having(pointers[-1])


def _calls_in(steps: Sequence[Step]) -> Iterator[Call]:
    """The calls among steps, those in loops too."""
    for step in steps:
        if isinstance(step, Loop):
            yield from _calls_in(step.steps)
        elif isinstance(step, Call):
            yield step


class _Given:
    """The arguments of a function."""

    def __init__(
        self,
        inputs: list[Array],
        samples: Value,
        sizes: dict[str, Value],
        outputs: list[Array],
        scratch: Array | None,
    ) -> None:
        self.inputs, self.samples, self.sizes, self.outputs = inputs, samples, sizes, outputs
        self._scratch = scratch

    def having(self, scratch: Array) -> _Given:
        """The same with scratch memory."""
        return _Given(self.inputs, self.samples, self.sizes, self.outputs, scratch)

    @property
    def scratch(self) -> Array:
        """The scratch memory of a function that is given some."""
        assert self._scratch is not None
        return self._scratch


def polynomial(code: Code, size: Size, sizes: Mapping[str, Value]) -> Value:
    """The value of a size, for given values of its symbols."""
    if not isinstance(size, Dim):
        return code.integer(size)
    total = code.integer(0)
    for factors, coefficient in size.terms.items():
        term = code.integer(coefficient)
        for factor in factors:
            if isinstance(factor, str):
                term = term * sizes[factor]
            else:
                term = term * _rounded_down(code, factor, sizes)
        total = total + term
    return total


def _rounded_down(code: Code, quotient: Quotient, sizes: Mapping[str, Value]) -> Value:
    numerator = polynomial(code, quotient.numerator, sizes)
    rest = numerator % quotient.divisor  # of the numerator's sign
    rest = code.select(rest < 0, rest + quotient.divisor, rest)
    return (numerator - rest) // quotient.divisor


def _return_if(code: Code, condition: Value, status: int) -> None:
    """Return `status` from an entry point if `condition` holds."""
    with code.ir.if_then(condition.ir, likely=False):
        code.ir.ret(ir.Constant(I32, status))


def _aligned(code: Code, memory: Array) -> Array:
    """The first address at or after that of `memory` where a cache line begins."""
    return memory.at(-_word(code, memory) & (ALIGNMENT - 1))


@contextmanager
def _loops(
    code: Code, extents: Sequence[Size], sizes: Mapping[str, Value]
) -> Iterator[list[Value]]:
    """Loops inside each other; gives their indices."""
    counts = [polynomial(code, extent, sizes) for extent in extents]
    with ExitStack() as stack:
        yield [stack.enter_context(code.loop(0, count)) for count in counts]


def _advance(
    code: Code, call: Call, slot: str, turns: list[Value], sizes: Mapping[str, Value]
) -> Value:
    """What loops have added to a slot."""
    total = code.integer(0)
    for turn, step in zip(turns, call.steps.get(slot, ()), strict=False):
        total = total + turn * polynomial(code, step, sizes)
    return total


def _word(code: Code, memory: Array) -> Value:
    """An address as an integer."""
    return Value(code, code.ir.ptrtoint(memory.base, I64))


def _write_copy(
    code: Code, copy: Copy, source: Array, goal: Array, sizes: Mapping[str, Value]
) -> None:
    """Loops over all axes of a value."""
    item = _ITEMS[copy.item_bytes]
    extents = [polynomial(code, n, sizes) for n in copy.shape]
    steps = [polynomial(code, n, sizes) for n in copy.strides]
    apart = [polynomial(code, n, sizes) for n in copy.goal_strides or ()]
    if copy.goal_strides is None:
        apart = [code.integer(copy.item_bytes)]
        for extent in reversed(extents[1:]):
            apart.insert(0, apart[0] * extent)

    def walk(axis: int, origin: Array, there: Array) -> None:
        if axis == len(extents):
            there.viewed(item)[0] = origin.viewed(item)[0]
            return
        with code.loop(0, extents[axis]) as k:
            walk(axis + 1, origin.at(k * steps[axis]), there.at(k * apart[axis]))

    walk(0, source, goal)


def _escaped(data: bytes) -> str:
    """Bytes as LLVM writes them in text: a backslash and two digits each."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    raw = np.frombuffer(data, np.uint8)
    text = np.full((len(raw), 3), ord("\\"), np.uint8)
    text[:, 1], text[:, 2] = digits[raw >> 4], digits[raw & 15]
    return text.tobytes().decode("ascii")
