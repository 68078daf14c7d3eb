"""The most that a core's FMA units do: what other figures are shares of."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from magmadnn.compiler.llvm.ir.builder import FLOATS, Code, item_bytes, vector
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target, host
from magmadnn.compiler.llvm.kernel import block, load, scratch

STEPS = 40_000


def chains(target: Target) -> int:
    """Independent sums, enough to fill two FMA units of any latency in use, or the four of some ARMs."""
    return 24 if target.is_arm else 12


@dataclass(frozen=True)
class Fmas:
    """`steps` rounds of `chains` independent FMAs on registers."""

    dtype: str
    slots = ("steps", "data")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        item = FLOATS[self.dtype]
        lanes = target.lanes(item_bytes(item))
        data = frame.array("data", item)
        x, y = data.vector(0, lanes), data.vector(lanes, lanes)
        sums = [code.variable(code.zero(vector(item, lanes))) for _ in range(chains(target))]
        with code.loop(0, frame.integer("steps")):
            for total in sums:
                total.value = code.fma(x, y, total.value)
        result = sums[0].value
        for total in sums[1:]:
            result = result + total.value
        data.put(0, result)


class Peak:
    """Measures the peak of one core in between other measurements, as clocks and neighbours change.

    Attributes:
        flops_per_second: the best so far; a multiplication and an addition are two operations.
    """

    def __init__(self, dtype: str = "float32") -> None:
        made = Fmas(dtype)
        self._data = np.zeros(64, dtype)
        self._block = block(made, steps=STEPS, data=self._data)
        self._run = load([made])[0]
        self._scratch = scratch(64)
        self._flops = 2.0 * STEPS * chains(host()) * host().lanes(self._data.itemsize)
        self.flops_per_second = 0.0

    def sample(self) -> None:
        """Run once and keep the best."""
        start = time.perf_counter()
        self._run(self._block, self._scratch)
        self.flops_per_second = max(
            self.flops_per_second, self._flops / (time.perf_counter() - start)
        )
