"""Random numbers as vector code: Philox 4x32, 10 rounds; `kernels/draws.py` says what is drawn.

A number depends on the key, the stream and the element's place only: see `magmadnn.ops.philox`, whose
numbers these are, bit for bit. A block of four words gives four float32 (24 bits of a word each) or two
float64 (53 bits of two words). Lanes hold blocks while rounds are computed, and words afterwards.
"""

from __future__ import annotations

from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.llvm.expressions.formulas import ITEMS, Writer, register_item
from magmadnn.compiler.llvm.expressions.operands import Matrix
from magmadnn.compiler.llvm.ir.builder import F32, I32, I64, Code, Value, vector
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def write_draw(kernel: Draw, code: Code, frame: Frame, target: Target) -> None:
    """Write the body of the kernel."""
    drawing = _Drawing(kernel, code, frame, target.vector_bytes // 4)
    first, last = frame.integer("column0"), frame.integer("column1")
    step = drawing.step
    whole = last - (last - first) % step
    with code.loop(first, whole, step) as column:
        drawing.store(column, None)
    with code.when(whole < last):
        drawing.store(whole, last)


class _Drawing:
    """Writes what happens to `step` elements at a time.

    Attributes:
        step: elements of as many blocks as there are lanes.
    """

    def __init__(self, kernel: Draw, code: Code, frame: Frame, blocks: int) -> None:
        self.kernel, self.code, self.blocks = kernel, code, blocks
        self.item = ITEMS[kernel.dtype]
        self._each = 4 if self.item == F32 else 2  # numbers of a block
        self.step = self._each * blocks
        self._zero = code.integer(0)
        parts: list[Operand | Result] = [*kernel.operands, *kernel.results]
        self._matrices = {part: Matrix(code, frame, part) for part in parts}
        seed, stream = frame.integer("seed"), self._scalar(kernel.operands[0])
        stream = stream if stream.type == I64 else code.convert(stream, I64)
        self._key = (seed & _LOW, seed.shift_right(32))
        self._stream = (stream & _LOW, stream.shift_right(32))

    def _scalar(self, operand: Operand) -> Value:
        return self._matrices[operand].load(self._zero, self._zero, 1, None)

    def store(self, column: Value, end: Value | None) -> None:
        """Draw and store the elements from `column` on, up to `end` where that is given."""
        code, lanes = self.code, self.blocks
        drawn = self._numbers(column)
        for number, part in enumerate(drawn):
            at = column + number * lanes
            mask = None if end is None else code.first(code.smaller(end - at, lanes), lanes)
            writer = self._writer(part)
            for result in self.kernel.results:
                kind = vector(register_item(result.dtype), lanes)
                made = code.lift(writer.write(result.formula), kind)
                self._matrices[result].store(self._zero, at, made, mask)

    def _writer(self, drawn: Value) -> Writer:
        def leaf(formula: Formula) -> Value:
            if formula == ("drawn",):
                return drawn
            return self._scalar(self.kernel.operands[formula[1]])

        return Writer(self.code, leaf, drawn.type)

    def _numbers(self, column: Value) -> list[Value]:
        """The numbers in the order of elements, in vectors of as many lanes as there are blocks."""
        code, lanes = self.code, self.blocks
        words = self._words(column // self._each)
        if self.item == F32:
            low, high = (words[k] | (words[k + 1] << 32) for k in (0, 2))
            halves = [_interleaved(code, low, high, part) for part in range(2)]
            both = [Value(code, code.ir.bitcast(h.ir, vector(I32, 2 * lanes))) for h in halves]
            parts = [code.shuffle(v, v, range(s, s + lanes)) for v in both for s in (0, lanes)]
            return [code.convert(part.shift_right(8), F32) * 2.0**-24 for part in parts]
        low, high = ((words[k] << 32 | words[k + 1]).shift_right(11) for k in (0, 2))
        mixed = [_interleaved(code, low, high, part) for part in range(2)]
        return [code.convert(m, self.item) * 2.0**-53 for m in mixed]

    def _words(self, block: Value) -> list[Value]:
        """The four words of `blocks` blocks from `block` on, each in the low half of 64 bits."""
        code = self.code
        kind = vector(I64, self.blocks)
        numbers = code.lane_numbers(self.blocks, I64) + block
        c0, c1 = numbers & _LOW, numbers.shift_right(32)
        c2, c3 = (code.lift(word, kind) for word in self._stream)
        k0, k1 = self._key
        for _ in range(_ROUNDS):
            p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
            c0, c1, c2, c3 = (
                p1.shift_right(32) ^ c1 ^ k0,
                p1 & _LOW,
                p0.shift_right(32) ^ c3 ^ k1,
                p0 & _LOW,
            )
            k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
        return [c0, c1, c2, c3]


def _interleaved(code: Code, a: Value, b: Value, half: int) -> Value:
    """Lanes of a and b in turn, of their first (0) or second (1) half."""
    lanes = a.type.count
    order = [
        lane + k * lanes
        for lane in range(half * lanes // 2, (half + 1) * lanes // 2)
        for k in (0, 1)
    ]
    return code.shuffle(a, b, order)
