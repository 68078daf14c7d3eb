"""Kernels that look after variables: copies of them, whether they differ, and whether numbers are finite."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import FLOATS, I8, I64, Code, item_bytes, vector
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

_CHAINS = 4  # sums side by side, so that none waits for the one before


@dataclass(frozen=True)
class Save:
    """result[i] = source[i] for bytes `start` to `end`, past the caches: nobody will read them soon.

    `start` is a multiple of 64, and so is the address of the result.
    """

    slots = ("start", "end", "source", "result")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        source, result = frame.array("source", I8), frame.array("result", I8)
        start, end, wide = frame.integer("start"), frame.integer("end"), target.vector_bytes
        whole = end - end % wide
        with code.loop(start, whole, wide) as at:
            result.stream(at, source.vector(at, wide))
        with code.loop(code.larger(start, whole), end) as at:
            result[at] = source[at]
        code.settle()


@dataclass(frozen=True)
class FindDifferent:
    """Sets `found`, int64, to 1 if one of the bytes `start` to `end` of two arrays differs."""

    slots = ("start", "end", "source", "other", "found")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        source, other = frame.array("source", I8), frame.array("other", I8)
        start, end, wide = frame.integer("start"), frame.integer("end"), target.vector_bytes
        whole = end - (end - start) % wide
        differ = code.variable(code.zero(vector(I8, wide)))
        with code.loop(start, whole, wide) as at:
            differ.value = differ.value | (source.vector(at, wide) ^ other.vector(at, wide))
        rest = code.variable(code.zero(I8))
        with code.loop(whole, end) as at:
            rest.value = rest.value | (source[at] ^ other[at])
        for found in (code.any(differ.value.differs(0)), rest.value.differs(0)):
            with code.when(found):
                frame.array("found", I64)[0] = 1


@dataclass(frozen=True)
class FindNotFinite:
    """Sets `found`, int64, to 1 if one of the elements `start` to `end` is NaN or infinite.

    Attributes:
        dtype: of the source, float32 or float64.
    """

    dtype: str
    slots = ("start", "end", "source", "found")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        item = FLOATS[self.dtype]
        source, lanes = frame.array("source", item), target.lanes(item_bytes(item))
        start, end, wide = frame.integer("start"), frame.integer("end"), _CHAINS * lanes
        # 0 * x is NaN if x is NaN or infinite, else 0, and so are sums of these
        sums = [code.variable(code.zero(vector(item, lanes))) for _ in range(_CHAINS)]
        whole = end - (end - start) % wide
        with code.loop(start, whole, wide) as at:
            for number, total in enumerate(sums):
                total.value = code.fma(source.vector(at + number * lanes, lanes), 0.0, total.value)
        rest = code.variable(code.zero(item))
        with code.loop(whole, end) as at:
            rest.value = code.fma(source[at], 0.0, rest.value)
        everything = sums[0].value
        for other in sums[1:]:
            everything = everything + other.value
        for found in (everything, rest.value):
            with code.when(code.any(code.unordered(found, found))):
                frame.array("found", I64)[0] = 1
