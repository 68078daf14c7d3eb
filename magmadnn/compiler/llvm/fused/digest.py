"""A digest of memory, to tell whether it was written: at the speed of memory, and with no way to foresee it.

NH of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: Fast and Secure Message Authentication", 1999):
the sum of (a + k) (b + l) over pairs of words a, b with their own random keys k, l; sums of words modulo
2^32, all else modulo 2^64. Two different blocks have the same sum with a probability of 2^-32 over the keys,
and the same four sums, of keys that begin four words later each, with 2^-128.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import I32, I64, Code, Value, vector
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

BLOCK_WORDS = 1 << 13  # of 32 bits
SUMS = 4
KEYS = BLOCK_WORDS + 4 * (SUMS - 1)
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class Digest:
    """sums[b, s] of each block of `BLOCK_WORDS` words, as integers of 64 bits."""

    slots = ("blocks", "data", "keys", "sums")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        lanes = target.lanes(4)
        data, keys, sums = (
            frame.array(slot, item) for slot, item in (("data", I32), ("keys", I32), ("sums", I64))
        )
        with code.loop(0, frame.integer("blocks")) as number:
            block = data.at(number * BLOCK_WORDS)
            totals = [code.variable(code.zero(vector(I64, lanes // 2))) for _ in range(SUMS)]
            with code.loop(0, BLOCK_WORDS, lanes) as i:
                words = block.vector(i, lanes)
                for k, total in enumerate(totals):
                    pairs = code.joined(words + keys.vector(i + 4 * k, lanes), I64)
                    total.value = total.value + (pairs & _LOW) * pairs.shift_right(32)
            for k, total in enumerate(totals):
                sums[number * SUMS + k] = _added(code, total.value, lanes // 2)


def _added(code: Code, value: Value, lanes: int) -> Value:
    """The sum of all lanes."""
    found = code.lane(value, 0)
    for number in range(1, lanes):
        found = found + code.lane(value, number)
    return found
